// SPDX-License-Identifier: Apache-2.0
// Tests jobs whose products read weights in bf16 as they are stored, as on GPUs where rows are
// whole vectors. Products with one input are joined, and updates round the weights themselves.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

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

// Llama joins q, k and v, and gate and up. Qwen2 and Qwen3 join the latter, Mixtral the former.
TEST_F(StoredWeights, GiveWhatPackedOnesDo) {
  std::size_t number = 0;
  for (const Family family : {Family::kGpt2, Family::kLlama, Family::kQwen2, Family::kQwen3,
                              Family::kMistral, Family::kMixtral}) {
    SCOPED_TRACE(static_cast<int>(family));
    config::JobSpec job = StoredJob(family);
    if (family == Family::kMistral) job.model.attention_window = 7;
    const model::Precisions precisions = config::PrecisionsOf(job, DeviceKind::kCuda);
    const model::Model model = model::BuildModel(job.model, 1, precisions).value();
    EXPECT_TRUE(model
                    .Find(family == Family::kGpt2 ? "transformer.h.0.attn.c_attn.weight"
                                                  : "model.layers.0.self_attn.o_proj.weight")
                    ->kept_rounded);
    const auto joined = [](const model::Parameter& each) { return each.adjoins_next; };
    const std::int64_t joins[] = {0, 3, 1, 1, 3, 2};  // as the families are listed above
    EXPECT_EQ(std::ranges::count_if(model.layers[1].parameters, joined), joins[number++]);
    ExpectNearThatOfCpus(job);
  }
}

TEST_F(StoredWeights, HaveTheSameBitsOverSchedulesAndPartitions) {
  for (const Family family : {Family::kGpt2, Family::kLlama, Family::kQwen2, Family::kMixtral}) {
    SCOPED_TRACE(static_cast<int>(family));
    ExpectSameBitsOverFamiliesAndPartitions(StoredJob(family), TrainAsOnGpus);
  }
}

// Whether a device works early or late changes no bit either.
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

TEST_F(StoredWeights, HaveTheSameBitsOnReplicasCopiesAndLeaves) {
  config::JobSpec job = StoredJob(Family::kLlama);
  job.model.layers = 8;
  job.residual = Precision::kBf16;
  job.global_batch = 24;
  job.parallelism = {.pipeline = 1, .data = 2, .threads = 1, .schedule = "1f1b"};
  const RunResult reference = TrainAsOnGpus(job);
  job.parallelism = {.pipeline = 2, .data = 1, .threads = 1, .schedule = "dualpipe"};
  ExpectSameBits(reference, TrainAsOnGpus(job));
  job.parallelism = {.pipeline = 1, .data = 1, .threads = 1, .schedule = "1f1b", .data_leaves = 2};
  ExpectSameBits(reference, TrainAsOnGpus(job));
}

// A W of several microbatches multiplies their joined gradients at once.
TEST_F(StoredWeights, AreNearlyTheSameWhereWeightGradsAreMerged) {
  config::JobSpec job = StoredJob(Family::kLlama);
  job.parallelism = {.pipeline = 2, .data = 1, .threads = 1, .schedule = "zb-h1"};
  const RunResult exact = TrainAsOnGpus(job);
  job.exact = false;
  const RunResult merged = TrainAsOnGpus(job);
  ASSERT_EQ(merged.steps.size(), exact.steps.size());
  for (std::size_t i = 0; i < exact.steps.size(); ++i) {
    EXPECT_NEAR(merged.steps[i].loss, exact.steps[i].loss, 1e-4) << "step " << i + 1;
    EXPECT_NEAR(merged.steps[i].grad_norm / exact.steps[i].grad_norm, 1, 1e-3) << "step " << i + 1;
  }
}

TEST_F(StoredWeights, GoOn) {
  config::JobSpec job = StoredJob(Family::kLlama);
  const RunResult undisturbed = TrainAsOnGpus(job);
  job.steps = 1;
  const RunResult first = TrainAsOnGpus(job);
  job.steps = 3;
  const RunResult rest = Trained({.job = job, .resume = &first, .planned_for = DeviceKind::kCuda});
  EXPECT_EQ(rest.weights, undisturbed.weights);
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
