// SPDX-License-Identifier: Apache-2.0
// Tests that models with experts have the same bits for every schedule, partition and number of
// threads. Rows of experts are sorted by what a microbatch holds, so nothing else may matter.
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/numerics/bit_equality.h"

namespace takt::numerics {
namespace {

class Experts : public BitEquality {
 protected:
  using Change = model::ModelConfig (*)(model::ModelConfig);

  config::JobSpec JobOf(Change family) const {
    config::JobSpec job = Job();
    job.model.layers = 4;
    job.model = family(job.model);
    job.steps = 2;
    return job;
  }
};

TEST_F(Experts, HaveTheSameBitsOverFamiliesAndThreads) {
  config::JobSpec job = JobOf(&Mixtral);
  const RunResult reference = Train(job);
  for (const schedule::Family& family : OneWayFamilies()) {
    for (const int pp : {2, 3}) {
      SCOPED_TRACE(std::string(family.name) + " pp " + std::to_string(pp));
      // Six layers are enough for two chunks of three ranks.
      job.parallelism = JobWith(family, pp).parallelism;
      job.parallelism.threads = pp;
      ExpectSameBits(reference, Train(job));
    }
  }
}

TEST_F(Experts, HaveTheSameBitsOverPartitions) {
  config::JobSpec job = JobOf(&Qwen3Moe);
  const RunResult reference = Train(job);
  job.parallelism.pipeline = 3;
  job.parallelism.schedule = "1f1b";
  for (const std::vector<int>& layers : {std::vector{0, 4, 0}, {1, 2, 1}, {3, 1, 0}, {0, 1, 3}}) {
    job.parallelism.stage_layers = layers;
    ExpectSameBits(reference, Train(job));
  }
}

TEST_F(Experts, HaveTheSameBitsOverPrecisionsAndWhatIsRecomputed) {
  for (const Change family : {&Mixtral, &Qwen3Moe}) {
    for (const config::Precision precision : {config::Precision::kF32, config::Precision::kBf16}) {
      config::JobSpec job = JobOf(family);
      job.precision = precision;
      ExpectSameBitsOverRecompute(job, {"1f1b", "zb-h1", "zb-v"});
    }
  }
}

// Trains as a bf16 job on GPUs does.
TEST_F(Experts, HaveTheSameBitsOnADeviceWithActivationsInBf16) {
  for (const Change family : {&Mixtral, &Qwen3Moe}) {
    config::JobSpec job = JobOf(family);
    job.precision = config::Precision::kBf16;
    job.steps = 3;  // some of the steps are replayed
    const RunResult reference = Trained({.job = job, .planned_for = config::DeviceKind::kCuda});
    job.parallelism.pipeline = job.parallelism.threads = 2;
    job.parallelism.schedule = "zb-h1";
    for (const model::Recompute mode : {model::Recompute::kNone, model::Recompute::kFull}) {
      job.parallelism.recompute = {mode};
      for (const bool lazy : {false, true})
        ExpectSameBits(reference, TrainOnDevice(job, lazy, config::DeviceKind::kCuda));
    }
  }
}

TEST_F(Experts, HaveTheSameBitsOnTwoCopiesAsOnTwiceAsManyReplicas) {
  config::JobSpec job = JobOf(&Mixtral);
  ExpectSameBitsOnReplicasAndCopies(job);
}

model::ModelConfig WithBias(model::ModelConfig config) {
  config = Mixtral(config);
  config.mixture->scores = model::RouterScores::kSigmoid;
  config.mixture->bias_rate = 0.01;
  return config;
}

// A bias moves by what all ranks counted, so it shows whether each row was counted once.
TEST_F(Experts, BalancedByABiasHaveTheSameBitsHoweverTheyAreSpread) {
  config::JobSpec job = JobOf(&WithBias);
  job.steps = 3;
  const RunResult one = Train(job);
  for (const std::string_view schedule : {"1f1b", "zb-h1", "zb-v"}) {
    SCOPED_TRACE(std::string(schedule));
    config::JobSpec staged = job;
    staged.parallelism = {
        .pipeline = 2, .data = 1, .threads = 2, .schedule = std::string(schedule)};
    staged.parallelism.recompute = {model::Recompute::kFull};
    ExpectSameBits(one, Train(staged));
  }
  job.global_batch = 24;
  job.parallelism.data = 2;
  RunResult replicas = Train(job);
  config::JobSpec copies = job;
  copies.parallelism = {.pipeline = 2, .data = 1, .threads = 1, .schedule = "dualpipe"};
  ExpectSameBits(replicas, Train(copies));
  job.parallelism.shard = config::Shard::kOptimizer;
  replicas.gradients.clear();
  ExpectSameBits(replicas, Train(job));
}

TEST_F(Experts, MoveTheirBiasByTheRowsOfAStep) {
  config::JobSpec job = JobOf(&WithBias);
  job.steps = 1;
  const RunResult result = Train(job);
  const std::string name = "model.layers.2.block_sparse_moe.gate.e_score_correction_bias";
  const std::vector<float>& counts = result.gradients.at(name);
  const float pairs = 12 * 19 * 2;  // no multiple of the experts, so each bias moves
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0.0F), pairs);
  for (std::size_t e = 0; e < counts.size(); ++e)
    EXPECT_EQ(result.weights.at(name)[e], counts[e] < pairs / 5 ? 0.01F : -0.01F) << e;
}

// Larger microbatches change no more than rounding does: the auxiliary loss is of each sequence. It
// is large enough here to outweigh the loss.
TEST_F(Experts, BalanceEachSequenceWhateverTheMicrobatch) {
  config::JobSpec job = JobOf(&Mixtral);
  job.model.mixture->auxiliary_loss = 100;
  const RunResult reference = Train(job);
  job.microbatch = 6;
  const RunResult larger = Train(job);
  for (std::size_t i = 0; i < reference.steps.size(); ++i) {
    EXPECT_NEAR(larger.steps[i].loss, reference.steps[i].loss, 1e-5);
    EXPECT_NEAR(larger.steps[i].grad_norm / reference.steps[i].grad_norm, 1, 1e-4);
  }
  job.model.mixture->auxiliary_loss = 0;
  EXPECT_GT(std::abs(Train(job).steps[0].grad_norm / larger.steps[0].grad_norm - 1), 1e-3);
}

}  // namespace
}  // namespace takt::numerics
