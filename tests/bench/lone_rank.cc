// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/lone_rank.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mapped_file.h"
#include "common/base/status.h"
#include "common/config/job_file.h"
#include "common/config/job_spec_serde.h"
#include "takt/v1/job_spec.pb.h"
#include "tests/testing/virtual_ranks.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/engine/engine.h"

namespace takt::bench {

absl::StatusOr<config::JobSpec> ExampleJob(const std::string& name, int threads) {
  const std::string path = absl::StrCat(TAKT_SOURCE_DIR, "/deploy/examples/", name);
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  ASSIGN_OR_RETURN(const v1::JobSpec spec, config::ParseJobFile(text, {.name = path}));
  ASSIGN_OR_RETURN(config::JobSpec job, config::ToJobSpec(spec));
  job.checkpoint = std::nullopt;
  job.copy_every_steps = 0;
  job.parallelism.pipeline = 1;
  job.parallelism.threads = threads;
  return job;
}

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
