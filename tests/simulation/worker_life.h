// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/control/assignment.h"
#include "common/control/attachment.h"
#include "tests/simulation/kept_copies.h"
#include "tests/simulation/rank_work.h"
#include "tests/simulation/stream.h"
#include "tests/simulation/worker_process.h"
#include "worker/checkpoint/file_system.h"
#include "worker/session/bulk_outbox.h"
#include "worker/session/command_fence.h"
#include "worker/session/rank_lifecycle.h"

namespace takt::simulation {

// What a worker's process forgets when it dies.
struct WorkerProcess::Life {
  std::string incarnation;
  bool dead = false;
  session::RankLifecycle held;
  session::BulkOutbox outbox;
  session::CommandFence fence;
  bool obeys = false;                  // the fence obeys the coordinator of the last welcome
  bool has_begun = false;              // the outbox has had a job
  control::JobKey reported;            // the job of the outbox
  std::vector<StepId> reported_steps;  // the step of each of its reports, by sequence - 1
  bool first_report = true;            // is still to come
  std::shared_ptr<worker_checkpoint::FileSystem> files;
  KeptCopies kept;
  std::shared_ptr<RankWork> rank;  // null: no rank is held
  // From the newest Prepare.
  std::function<absl::StatusOr<control::Assignment>()> decode;

  std::shared_ptr<Stream> control_stream, bulk_stream;
  bool welcomed = false, heard = false;
  bool has_bulk = false;  // the bulk stream is kept up
  int failures = 0;       // in a row, to connect

  std::deque<control::CommitCheckpoint> commits;
  bool committing = false, retaining = false;
  std::map<std::string, StepId> newest;  // by job: committed, and nothing was removed for it yet

  StepId StepOf(const control::JobKey& key, std::int64_t sequence) const {
    const bool known = key == reported && sequence >= 1 &&
                       sequence <= static_cast<std::int64_t>(reported_steps.size());
    return known ? reported_steps[sequence - 1] : StepId(0);
  }
};

}  // namespace takt::simulation
