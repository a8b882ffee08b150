// SPDX-License-Identifier: Apache-2.0
// Effects are what follows from a decision once it is stored. They are values: the cluster lists
// them in its outbox, and CarryOut does them in order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "common/control/attachment.h"
#include "common/control/job_key.h"
#include "common/control/reports.h"
#include "common/plan/plan.h"
#include "coordinator/job/launch.h"
#include "coordinator/job/rendezvous.h"
#include "coordinator/job/session.h"
#include "coordinator/membership/membership.h"
#include "coordinator/store/record.h"

namespace takt::job {

// Answers a request. It is called once.
template <class T>
using Reply = std::function<void(absl::StatusOr<T>)>;

template <class T>
struct Answer {
  Reply<T> reply;
  absl::StatusOr<T> result;
};
struct SendCommand {
  std::shared_ptr<WorkerSession> session;
  control::Command command;
};
struct CloseSession {
  std::shared_ptr<WorkerSession> session;
  absl::Status status;
};
struct AcknowledgeReports {
  std::shared_ptr<BulkSession> session;
  control::ReportsAcknowledged acknowledged;
};
struct OpenRendezvous {
  control::JobKey key;
  int num_ranks = 1;
};
struct CloseRendezvous {
  std::string job;
};
// The result comes back through Cluster::Planned.
struct MakePlan {
  std::string job_id;
  Generation generation;
  config::JobSpec spec;
  plan::PlanOptions options;
};
// A running job is planned again. The result comes back through Cluster::Replanned.
struct Replan {
  std::string job_id;
  Generation generation;
  std::shared_ptr<const plan::Plan> present;  // what plan::PredictStep reads of it; null: not known
  double present_seconds = 0;                 // a step of it, as predicted once; if it is null
  config::JobSpec spec;                       // what must not change is fixed
  plan::PlanOptions options;                  // for the workers that the job has or could have
};
// A generation is handed out. This effect comes before any command to its ranks.
struct BeginGeneration {
  std::shared_ptr<const Launch> launch;
};
// The job of that name is deleted.
struct ForgetJob {
  std::string job;
};

using Effect = std::variant<Answer<store::JobRecord>, Answer<membership::Worker>, Answer<bool>,
                            SendCommand, CloseSession, AcknowledgeReports, OpenRendezvous,
                            CloseRendezvous, MakePlan, Replan, BeginGeneration, ForgetJob>;

// These carry out the effects that name no receiver.
struct EffectTargets {
  Rendezvous* rendezvous = nullptr;  // borrowed
  std::function<void(const MakePlan&)> plan;
  std::function<void(const Replan&)> replan;
  // Either may be empty.
  std::function<void(const Launch&)> on_launch;
  std::function<void(const std::string&)> on_delete;
};

void CarryOut(const Effect& effect, const EffectTargets& targets);
// Lets the sessions send what the effects gave them.
void FlushSessions(const std::vector<Effect>& effects);

// Takes the answers to requests out of `effects` and sends them now, although their changes are not
// stored: errors as they are, and `why` in place of everything else.
void AnswerWithout(std::vector<Effect>& effects, const absl::Status& why);

}  // namespace takt::job
