// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/lone_rank.h"

#include <cstdint>
#include <filesystem>
#include <memory>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "tests/testing/virtual_ranks.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/engine/engine.h"

namespace takt::bench {

absl::StatusOr<LoneRankResult> TrainLoneRank(
    const config::JobSpec& job, const plan::Plan& plan, const std::string& data_root,
    const std::function<void(const train::Trainer&, StepId)>& on_step) {
  const std::int64_t begin = Clock::Real().SteadyNanos();
  const int threads = job.parallelism.threads.value_or(1);
  ASSIGN_OR_RETURN(
      const std::unique_ptr<testing::VirtualRanks> ranks,
      testing::VirtualRanks::Create(
          {.job = &job,
           .plan = &plan,
           .data_root = std::filesystem::absolute(data_root).string(),
           .make_backends = [&] { return backend::CreateCpuBackends({.threads = threads}); }}));
  LoneRankResult result;
  RETURN_IF_ERROR(ranks->ForAll([&](testing::VirtualRank& rank) -> absl::Status {
    train::Trainer& trainer = rank.trainer();
    ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> training,
                     rank.MakeEngine(rank.program(), trainer, "train/"));
    RETURN_IF_ERROR(
        training->Run(StepId(1), StepId(job.steps),
                      [&](const engine::StepTiming& timing) { on_step(trainer, timing.step); }));
    train::Validator& validator = *trainer.validator();
    ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> validation,
                     rank.MakeEngine(plan.validation_programs.front(), validator, "validation/"));
    validator.Reset();
    RETURN_IF_ERROR(validation->Run(StepId(1), StepId(job.validation->batches),
                                    [](const engine::StepTiming&) {}));
    result.validation_loss = validator.loss();
    return absl::OkStatus();
  }));
  result.minutes = static_cast<double>(Clock::Real().SteadyNanos() - begin) / 60e9;
  return result;
}

}  // namespace takt::bench
