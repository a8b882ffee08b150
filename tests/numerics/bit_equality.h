// SPDX-License-Identifier: Apache-2.0
// Trains a small model in this process in many ways, and compares the results bit by bit.
#pragma once

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/schedule/generate.h"
#include "common/schedule/text.h"
#include "gtest/gtest.h"
#include "tests/numerics/in_process_run.h"
#include "worker/backend/discrete/discrete_backend.h"

namespace takt::numerics {

class BitEquality : public ::testing::Test {
 protected:
  BitEquality() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "takt-numerics-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
    std::ofstream data(directory_ / "train.txt", std::ios::binary);
    // The data is digits of squares, which no window makes periodic.
    for (int i = 0; i < 3000; ++i) data << i * i << ' ';
  }
  ~BitEquality() override { std::filesystem::remove_all(directory_); }

  // The sizes are such that no vector width divides them.
  config::JobSpec Job() const {
    config::JobSpec job;
    job.name = "bits";
    job.model = {.layers = 8,
                 .hidden = 36,
                 .heads = 3,
                 .kv_heads = 3,
                 .inner = 144,
                 .context = 19,
                 .positions = 19,
                 .vocab = 131};
    job.train = {
        {.path = (directory_ / "train.txt").string(), .format = config::DataFormat::kBytes}};
    job.validation = {
        .path = job.train[0].path, .format = config::DataFormat::kBytes, .batches = 2};
    job.shuffle = true;
    job.global_batch = 12;
    job.microbatch = 1;
    job.adamw.learning_rate = 3e-3;
    job.adamw.clip_norm = 0.5;
    job.lr_schedule.warmup_steps = 2;
    job.steps = 4;
    job.seed = 42;
    job.parallelism = {.pipeline = 1, .data = 1, .chunks = 1, .threads = 1, .schedule = "naive"};
    return job;
  }

  config::JobSpec JobWith(const schedule::Family& family, int pp) const {
    config::JobSpec job = Job();
    job.parallelism.schedule = family.name;
    job.parallelism.pipeline = pp;
    job.parallelism.chunks = std::nullopt;  // the family's default
    return job;
  }

  // Returns the job with the schedule that it has, read from a file.
  static config::JobSpec FromFile(config::JobSpec job) {
    const int microbatches = job.global_batch / (job.microbatch * job.parallelism.data.value_or(1));
    const absl::StatusOr<schedule::Schedule> schedule = schedule::Generate(
        job.parallelism.schedule,
        {.num_ranks = job.parallelism.pipeline.value_or(1), .num_microbatches = microbatches});
    EXPECT_TRUE(schedule.ok()) << schedule.status();
    if (!schedule.ok()) return job;
    job.parallelism.schedule = "file:job.csv";
    job.parallelism.schedule_csv = schedule::FormatCsv(*schedule);
    return job;
  }

  // Returns the job with a first step whose update is so large that the next ones are not finite.
  static config::JobSpec WithOverflow(config::JobSpec job) {
    job.validation = std::nullopt;
    job.lr_schedule.warmup_steps = 0;
    job.adamw.learning_rate = 1e36;
    job.steps = 3;
    return job;
  }
  // NaN have many bits, so of what is not finite only that is compared.
  static void ExpectSameUntilNotFinite(const RunResult& a, const RunResult& b) {
    ASSERT_EQ(a.steps.size(), 3U);
    ASSERT_EQ(b.steps.size(), 3U);
    EXPECT_TRUE(std::isfinite(a.steps[0].grad_norm));
    EXPECT_FALSE(std::isfinite(a.steps[1].grad_norm));
    EXPECT_EQ(a.steps[0].loss, b.steps[0].loss);
    EXPECT_EQ(a.steps[0].grad_norm, b.steps[0].grad_norm);
    for (std::size_t i = 0; i < a.steps.size(); ++i)
      EXPECT_EQ(std::isfinite(a.steps[i].grad_norm), std::isfinite(b.steps[i].grad_norm)) << i;
  }

  static RunResult Trained(const RunOptions& options) {
    absl::StatusOr<RunResult> result = TrainInProcess(options);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : RunResult();
  }
  static RunResult Train(const config::JobSpec& job) { return Trained({.job = job}); }

  // Trains on a device whose memory the host cannot touch. The device does its work later, on
  // streams, as soon as it can or as late as somebody waits for it.
  static RunResult TrainOnDevice(const config::JobSpec& job, bool lazy,
                                 config::DeviceKind planned_for = config::DeviceKind::kCpu) {
    std::atomic<std::int64_t> replays = 0;
    RunResult result = Trained(
        {.job = job, .planned_for = planned_for, .make_backends = [&](int threads) {
           return backend::CreateDiscreteBackends(
               {.threads = threads, .lazy = lazy, .prepared_only = true, .replays = &replays});
         }});
    EXPECT_TRUE(replays > 0 || job.steps <= 2) << "nothing was recorded";
    return result;
  }

  // Trains the job on two replicas, of one rank and of two, and with two copies of the weights.
  static void ExpectSameBitsOnReplicasAndCopies(config::JobSpec job);

  // Trains the job as it is, then on two ranks with all that can be recomputed, and on a device.
  static void ExpectSameBitsOverRecompute(config::JobSpec job,
                                          const std::vector<std::string>& schedules);

  // Trains the job, which has four blocks, as `train` does: as it is, on two ranks with each of
  // OneWayFamilies, and on three ranks whose stages are not alike.
  void ExpectSameBitsOverFamiliesAndPartitions(
      config::JobSpec job, const std::function<RunResult(const config::JobSpec&)>& train) const;

  std::filesystem::path directory_;
};

// EXPECT_EQ on doubles tells bits apart except for zeros and NaN.
inline void ExpectSame(const RunResult& a, const RunResult& b) {
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (std::size_t i = 0; i < a.steps.size(); ++i) {
    EXPECT_EQ(a.steps[i].loss, b.steps[i].loss) << "step " << i + 1;
    EXPECT_EQ(a.steps[i].grad_norm, b.steps[i].grad_norm) << "step " << i + 1;
    EXPECT_GT(a.steps[i].loss, 0);
  }
  EXPECT_TRUE(a.validation_loss.has_value());
  EXPECT_EQ(a.validation_loss, b.validation_loss);
  EXPECT_EQ(a.gradients, b.gradients);
  EXPECT_EQ(a.weights, b.weights);
}

inline void ExpectSameBits(const RunResult& a, const RunResult& b) {
  ExpectSame(a, b);
  for (const train::StepResult& step : a.steps) EXPECT_GT(step.grad_norm, 0);
}

inline void BitEquality::ExpectSameBitsOnReplicasAndCopies(config::JobSpec job) {
  job.global_batch = 24;
  job.parallelism.data = 2;
  const RunResult reference = Train(job);
  job.parallelism.pipeline = 2;
  job.parallelism.schedule = "1f1b";
  ExpectSameBits(reference, Train(job));
  job.parallelism.data = 1;
  job.parallelism.chunks = std::nullopt;
  job.parallelism.schedule = "dualpipe";
  ExpectSameBits(reference, Train(job));
}

inline void BitEquality::ExpectSameBitsOverRecompute(config::JobSpec job,
                                                     const std::vector<std::string>& schedules) {
  using enum model::Recompute;
  const RunResult reference = Train(job);
  for (const std::string& schedule : schedules) {
    for (const model::Recompute mode : {kNone, kSelective, kFull}) {
      SCOPED_TRACE(schedule + " " + std::string(model::Name(mode)));
      job.parallelism.pipeline = job.parallelism.threads = 2;
      job.parallelism.chunks = std::nullopt;
      job.parallelism.schedule = schedule;
      job.parallelism.recompute = {mode};
      ExpectSameBits(reference, Train(job));
    }
  }
  ExpectSameBits(reference, TrainOnDevice(job, /*lazy=*/true));
}

inline model::ModelConfig Llama(model::ModelConfig config) {
  config.family = model::Family::kLlama;
  config.kv_heads = 1;
  config.head_size = 12;
  config.inner = 100;
  config.tied_head = false;
  return config;
}

inline model::ModelConfig Qwen3(model::ModelConfig config) {
  config = Llama(config);
  config.family = model::Family::kQwen3;
  return config;
}

// The window is shorter than the context, and is no multiple of anything.
inline model::ModelConfig Mistral(model::ModelConfig config) {
  config = Llama(config);
  config.family = model::Family::kMistral;
  config.attention_window = 7;
  return config;
}

// Neither tokens nor rows are a multiple of the experts.
inline model::ModelConfig Mixtral(model::ModelConfig config) {
  config = Llama(config);
  config.family = model::Family::kMixtral;
  config.inner = 44;
  config.mixture = model::Mixture{.experts = 5, .chosen = 2, .inner = 44, .auxiliary_loss = 0.01};
  return config;
}

inline model::ModelConfig Qwen3Moe(model::ModelConfig config) {
  config = Llama(config);
  config.family = model::Family::kQwen3Moe;
  config.mixture = model::Mixture{
      .experts = 7, .chosen = 3, .inner = 20, .normalised = false, .dense_blocks = {1}};
  return config;
}

// Returns the families that flush and have one copy of the weights.
inline std::vector<schedule::Family> OneWayFamilies() {
  std::vector<schedule::Family> families;
  for (const schedule::Family& family : schedule::Families()) {
    if (family.placement != schedule::Placement::kBidirectional &&
        family.updates == schedule::Updates::kFlush) {
      families.push_back(family);
    }
  }
  return families;
}

inline void BitEquality::ExpectSameBitsOverFamiliesAndPartitions(
    config::JobSpec job, const std::function<RunResult(const config::JobSpec&)>& train) const {
  const RunResult reference = train(job);
  for (const schedule::Family& family : OneWayFamilies()) {
    SCOPED_TRACE(family.name);
    job.parallelism = JobWith(family, 2).parallelism;
    ExpectSameBits(reference, train(job));
  }
  job.parallelism = {.pipeline = 3,
                     .data = 1,
                     .chunks = 1,
                     .threads = 2,
                     .schedule = "1f1b",
                     .stage_layers = {1, 2, 1}};
  ExpectSameBits(reference, train(job));
}

}  // namespace takt::numerics
