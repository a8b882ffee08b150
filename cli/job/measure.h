// SPDX-License-Identifier: Apache-2.0
// Measures what plans of a job need, by short jobs on the coordinator's workers
// (common/profile/probe.h). The coordinator learns from their traces.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/client/client.h"
#include "common/config/job_spec.h"
#include "common/plan/plan.h"
#include "common/profile/profile.h"

namespace takt::cli {

// A layer of the job; several blocks of the same shape are one.
struct JobLayer {
  profile::LayerShape shape;
  profile::Passes work;
};

// Returns the layers that take different times on this device, under each way to recompute that the
// job names. If a plan chooses the size of microbatches, these are the layers of two sizes.
std::vector<JobLayer> LayersOf(const config::JobSpec& job, config::DeviceKind device);

// Returns how ranks of the job may share a host: its number of ranks if the job names it, else the
// least that it can have, 2, 4, ... times as many, and as many as the host has workers that take
// work.
std::vector<profile::Conditions> ConditionsOf(const config::JobSpec& job,
                                              const plan::PlanOptions& workers);

// Returns whether a layer of the job was never measured on such workers. Jobs of the emulated
// family have none to measure, and workers that do not tell their processor teach nothing.
bool NeedsMeasuring(const config::JobSpec& job, const plan::PlanOptions& workers);

// The struct borrows.
struct MeasureOptions {
  const config::JobSpec& job;        // not of the emulated family
  const plan::PlanOptions& workers;  // those that are attached
  double seconds = 3;                // of the training of each short job, about
  // Each of them may wait for workers for this long, and may then start for so long, and each of
  // its steps may take so long.
  absl::Duration patience = absl::Seconds(60);
  // Gets lines for people: which job runs, and what it waits for.
  std::function<void(std::string_view)> say = [](std::string_view) {};
};

// Runs a job for each of ConditionsOf and, if the job may have several ranks, one for messages.
// They are called profile-NAME-RANKS (with -of-SEQUENCES if there are two sizes of microbatches)
// and profile-NAME-messages, and are deleted at their ends. Returns all that the coordinator knows
// then. Errors: those of the jobs, as when a worker is lost; kCancelled (`stop`); kAborted (a job
// trains no step, as when too few workers are left for it); kFailedPrecondition (the
// coordinator is older than profiles, or Client::GetProfile). A job that still runs is cancelled.
// The coordinator keeps what it learned until then, and the error names the jobs that were done.
absl::StatusOr<profile::Profile> Measure(Client& client, Client::StreamStop& stop,
                                         const MeasureOptions& options);

}  // namespace takt::cli
