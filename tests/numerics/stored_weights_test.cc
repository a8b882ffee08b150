// SPDX-License-Identifier: Apache-2.0
// Tests jobs whose products read weights in bf16 as they are stored, as on GPUs where rows are
// whole vectors. Products with one input are joined, and updates round the weights themselves.
#include <cmath>
#include <string>

#include "tests/numerics/bit_equality.h"

namespace takt::numerics {
namespace {

using config::DeviceKind;
using config::Precision;
using model::Family;

class StoredWeights : public BitEquality {
 protected:
  // Its words are no whole vectors.
  config::JobSpec StoredJob(Family family) const {
    config::JobSpec job = Job();
    job.model.layers = 4;
    job.model.hidden = 48;
    job.model.inner = 40;
    if (family != Family::kGpt2) {
      if (family == Family::kMixtral) job.model = Mixtral(job.model);
      job.model.family = family;
      job.model.kv_heads = 1;
      job.model.head_size = 16;
      job.model.tied_head = false;
    }
    job.precision = Precision::kBf16;
    job.steps = 3;
    return job;
  }
  static RunResult TrainAsOnGpus(const config::JobSpec& job) {
    return Trained({.job = job, .planned_for = DeviceKind::kCuda});
  }
  // Compares with the job whose products are all apart and whose activations are in f32.
  static void ExpectNearThatOfCpus(const config::JobSpec& job) {
    const RunResult on_cpus = Train(job), on_gpus = TrainAsOnGpus(job);
    ASSERT_EQ(on_gpus.steps.size(), on_cpus.steps.size());
    EXPECT_NE(on_gpus.steps.back().loss, on_cpus.steps.back().loss);
    for (std::size_t i = 0; i < on_cpus.steps.size(); ++i) {
      EXPECT_NEAR(on_gpus.steps[i].loss / on_cpus.steps[i].loss, 1, 2e-3) << "step " << i + 1;
      if (on_cpus.steps[i].grad_norm == 0) continue;  // a program without a flush has none
      EXPECT_NEAR(on_gpus.steps[i].grad_norm / on_cpus.steps[i].grad_norm, 1, 2e-2)
          << "step " << i + 1;
    }
    if (job.model.mixture.has_value()) return;  // some tokens get other experts
    for (const auto& [name, expected] : on_cpus.gradients) {
      const std::vector<float>& gradient = on_gpus.gradients.at(name);
      double squares = 0, difference = 0;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        squares += std::pow(expected[i], 2);
        difference += std::pow(gradient[i] - expected[i], 2);
      }
      EXPECT_LT(std::sqrt(difference), 0.1 * std::sqrt(squares) + 1e-6) << name;
    }
  }
};

// Llama joins q, k and v, and gate and up; Qwen2 and Qwen3 the latter, blocks with experts the
// former.
TEST_F(StoredWeights, GiveWhatPackedOnesDo) {
  for (const Family family : {Family::kGpt2, Family::kLlama, Family::kQwen2, Family::kQwen3,
                              Family::kMistral, Family::kMixtral}) {
    SCOPED_TRACE(static_cast<int>(family));
    config::JobSpec job = StoredJob(family);
    if (family == Family::kMistral) job.model.attention_window = 7;
    ExpectNearThatOfCpus(job);
  }
}

TEST_F(StoredWeights, HaveTheSameBitsOverSchedulesAndPartitions) {
  for (const Family family : {Family::kGpt2, Family::kLlama, Family::kQwen2, Family::kMixtral}) {
    config::JobSpec job = StoredJob(family);
    const RunResult reference = TrainAsOnGpus(job);
    for (const schedule::Family& each : OneWayFamilies()) {
      SCOPED_TRACE(std::string(each.name) + " family " + std::to_string(static_cast<int>(family)));
      job.parallelism = JobWith(each, 2).parallelism;
      ExpectSameBits(reference, TrainAsOnGpus(job));
    }
    job.parallelism = {.pipeline = 3,
                       .data = 1,
                       .chunks = 1,
                       .threads = 2,
                       .schedule = "1f1b",
                       .stage_layers = {1, 2, 1}};
    ExpectSameBits(reference, TrainAsOnGpus(job));
  }
}

// `none` and `full` have the same bits, and so do both devices' orders.
TEST_F(StoredWeights, HaveTheSameBitsOnADeviceAndOverRecompute) {
  for (const Family family : {Family::kLlama, Family::kQwen3}) {
    SCOPED_TRACE(static_cast<int>(family));
    config::JobSpec job = StoredJob(family);
    const RunResult reference = TrainAsOnGpus(job);
    job.parallelism = {.pipeline = 2, .data = 1, .chunks = 1, .threads = 2, .schedule = "zb-h1"};
    for (const model::Recompute mode :
         {model::Recompute::kNone, model::Recompute::kSelective, model::Recompute::kFull}) {
      job.parallelism.recompute = {mode};
      ExpectSameBits(reference, TrainAsOnGpus(job));
      for (const bool lazy : {false, true})
        ExpectSameBits(reference, TrainOnDevice(job, lazy, DeviceKind::kCuda));
    }
  }
}

// What an update does not round itself is rounded after it: Muon's matrices, and shards.
TEST_F(StoredWeights, HaveTheSameBitsWhoeverUpdatesThem) {
  config::JobSpec job = StoredJob(Family::kLlama);
  job.global_batch = 24;
  job.parallelism = {.pipeline = 2, .data = 2, .threads = 1, .schedule = "1f1b"};
  RunResult whole = TrainAsOnGpus(job);
  whole.gradients.clear();
  job.parallelism.shard = config::Shard::kOptimizer;
  ExpectSameBits(whole, TrainAsOnGpus(job));

  job = StoredJob(Family::kLlama);
  const RunResult adamw = TrainAsOnGpus(job);
  job.parallelism = {.pipeline = 2, .data = 1, .threads = 1, .schedule = "1f1b"};
  job.barrier = config::Barrier::kNever;
  ExpectSameBits(adamw, TrainAsOnGpus(job));
  job.muon = config::Muon{.learning_rate = 0.02, .adamw = job.adamw};
  const RunResult muon = TrainAsOnGpus(job);
  EXPECT_NE(muon.steps.back().loss, adamw.steps.back().loss);
  job.barrier = config::Barrier::kAlways;
  job.parallelism = {.pipeline = 1, .data = 1, .threads = 1, .schedule = "naive"};
  ExpectSameBits(muon, TrainAsOnGpus(job));
}

// Two versions of the weights are updated a step late.
TEST_F(StoredWeights, HaveVersions) {
  config::JobSpec job = StoredJob(Family::kLlama);
  job.adamw.clip_norm = 0;
  job.parallelism = {.pipeline = 2, .data = 1, .threads = 1, .schedule = "pipedream-2bw"};
  ExpectNearThatOfCpus(job);
}

}  // namespace
}  // namespace takt::numerics
