// SPDX-License-Identifier: Apache-2.0
// The RankRunner of real jobs. It connects transport, collectives, trainer and engine for one rank.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/metrics/registry.h"
#include "worker/backend/backend.h"
#include "worker/backend/fp8.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/state_copy.h"
#include "worker/session/abortable_rendezvous.h"
#include "worker/session/rank_connections.h"
#include "worker/session/rank_runner.h"
#include "worker/transport/selection/create.h"

namespace takt::session {

struct PipelineRunnerOptions {
  std::string data_root;
  std::string checkpoint_root;
  DataListener data;
  int threads = 1;  // for jobs that leave the choice to the worker
  std::function<std::unique_ptr<AbortableRendezvous>(const control::JobKey&)> make_rendezvous;
  const Clock* clock = &Clock::Real();
  worker_checkpoint::FileSystem* files = nullptr;  // borrowed for the runner's life
  metrics::Registry* metrics = nullptr;            // borrowed likewise; may be null
  backend::Fp8Counters* fp8_counters = nullptr;    // those of make_backends; may be null
  // Makes the backends for a job's lanes.
  std::function<absl::StatusOr<std::unique_ptr<backend::BackendFactory>>(const control::Assignment&,
                                                                         int threads)>
      make_backends;
  // Passed on as DeviceTransportOptions::nccl and on_stuck.
  const transport::nccl::Library* nccl = nullptr;
  std::function<void(const std::string& reason)> on_stuck;
  // Where copies of the state outlive the runner; borrowed likewise. Null: none are kept, which is
  // right only for jobs that ask for none.
  worker_checkpoint::CopyStore* copies = nullptr;
  std::string kernel_plans;  // the directory of KernelPlanFiles; empty: none
  // Receives the measurements of a step (common/trace/encoding.h) on an engine thread. May be
  // empty.
  std::function<void(std::string)> on_trace;
  // As CheckpointSaverOptions::withdraw.
  std::function<bool(StepId step, const std::string& error)> withdraw;
};

std::unique_ptr<RankRunner> CreatePipelineRunner(PipelineRunnerOptions options,
                                                 control::Assignment assignment);

}  // namespace takt::session
