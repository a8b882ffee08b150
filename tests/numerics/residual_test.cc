// SPDX-License-Identifier: Apache-2.0
// Tests that with `residual: bf16`, too, results have the same bits wherever a model is cut: what a
// layer passes on is rounded whether the next layer is on the same stage or not.
#include <string>
#include <string_view>

#include "tests/numerics/bit_equality.h"

namespace takt::numerics {
namespace {

using config::DeviceKind;
using config::Precision;

class Residual : public BitEquality {
 protected:
  config::JobSpec Bf16Job() const {
    config::JobSpec job = Job();
    job.model.layers = 4;
    job.precision = job.residual = Precision::kBf16;
    job.steps = 3;
    return job;
  }
  // Trains with activations rounded as on CPUs, or as on GPUs.
  static RunResult TrainFor(DeviceKind device, const config::JobSpec& job) {
    return Trained({.job = job, .planned_for = device});
  }
};

TEST_F(Residual, RoundsOtherwiseAndAlmostTheSame) {
  for (const DeviceKind device : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    config::JobSpec job = Bf16Job();
    const double rounded = TrainFor(device, job).steps.at(2).loss;
    job.residual = Precision::kF32;
    const double exact = TrainFor(device, job).steps.at(2).loss;
    EXPECT_NE(rounded, exact);
    EXPECT_NEAR(rounded, exact, 0.02);
  }
}

TEST_F(Residual, HasTheSameBitsOverFamiliesPartitionsAndThreads) {
  for (const DeviceKind device : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    for (const bool llama : {false, true}) {
      config::JobSpec job = Bf16Job();
      if (llama) job.model = Llama(job.model);
      SCOPED_TRACE(llama ? "llama" : "gpt2");
      ExpectSameBitsOverFamiliesAndPartitions(
          job, [device](const config::JobSpec& each) { return TrainFor(device, each); });
    }
  }
}

TEST_F(Residual, HasTheSameBitsOnReplicasAndCopies) {
  config::JobSpec job = Bf16Job();
  job.model.layers = 8;
  ExpectSameBitsOnReplicasAndCopies(job);
}

TEST_F(Residual, HasTheSameBitsOverRecompute) {
  for (const bool mixture : {false, true}) {
    config::JobSpec job = Bf16Job();
    if (mixture) job.model = Mixtral(job.model);
    ExpectSameBitsOverRecompute(job, {"1f1b", "zb-h1", "zb-v"});
  }
}

// Blocks with experts compute in f32 with what others do in bf16. With GPT-2, `selective` has bits
// of its own: it takes GELU of rounded values.
TEST_F(Residual, HasTheSameBitsOverRecomputeWhereActivationsAreRounded) {
  using enum model::Recompute;
  config::JobSpec job = Bf16Job();
  model::ModelConfig mixed = Qwen3Moe(job.model);
  mixed.mixture->dense_blocks = {1};
  for (const model::ModelConfig& model : {job.model, Qwen3(job.model), mixed}) {
    job = Bf16Job();
    job.model = model;
    const RunResult kept = TrainFor(DeviceKind::kCuda, job);
    job.parallelism.recompute = {kSelective};
    const RunResult selective = TrainFor(DeviceKind::kCuda, job);
    job.parallelism.pipeline = 2;
    for (const char* const schedule : {"1f1b", "zb-v"}) {
      for (const model::Recompute mode : {kNone, kSelective, kFull}) {
        SCOPED_TRACE(std::string(schedule) + " " + std::string(model::Name(mode)));
        job.parallelism.chunks = std::nullopt;
        job.parallelism.schedule = schedule;
        job.parallelism.recompute = {mode};
        ExpectSameBits(mode == kSelective ? selective : kept, TrainFor(DeviceKind::kCuda, job));
      }
    }
  }
}

TEST_F(Residual, HasTheSameBitsOnADeviceThatRoundsActivations) {
  config::JobSpec job = Bf16Job();
  job.parallelism = {.pipeline = 2, .data = 2, .chunks = 1, .threads = 2, .schedule = "zb-h1"};
  job.parallelism.recompute = {model::Recompute::kSelective};
  const RunResult reference = TrainFor(DeviceKind::kCuda, job);
  for (const bool lazy : {false, true})
    ExpectSameBits(reference, TrainOnDevice(job, lazy, DeviceKind::kCuda));
}

// The number of ranks that split layers changes no bit.
TEST_F(Residual, HasTheSameBitsOverTheMesh) {
  config::JobSpec job = Bf16Job();
  job.model.hidden = 48;
  job.model.heads = job.model.kv_heads = 4;
  job.model.context = job.model.positions = 16;
  job.parallelism = {.pipeline = 2, .data = 2, .threads = 1, .schedule = "1f1b"};
  job.parallelism.vocabulary = config::Vocabulary::kLast;
  const auto train = [&](int size) {
    return Trained({.job = job, .tensor = {.size = size, .leaves = 2}});
  };
  const RunResult reference = train(1);
  ExpectSameBits(reference, train(2));
  job.parallelism.schedule = "zb-h1";
  ExpectSameBits(reference, train(2));
  job.parallelism.recompute = {model::Recompute::kFull};
  ExpectSameBits(reference, train(2));
  job.parallelism.pipeline = 1;
  ExpectSameBits(reference, train(2));
}

// The number of ranks that share sequences changes bits, and nothing else does. The halves of pairs
// run side by side there.
TEST_F(Residual, HasTheSameBitsWhereRanksShareSequences) {
  config::JobSpec job = Bf16Job();
  job.model = Llama(job.model);
  job.model.context = job.model.positions = 24;
  job.microbatch = 3;
  job.parallelism = {.pipeline = 1, .data = 1, .threads = 1, .schedule = "1f1b", .context = 2};
  const RunResult reference = Train(job);
  EXPECT_TRUE(reference.validation_loss.has_value());
  job.parallelism.pipeline = 2;
  for (const char* const schedule : {"1f1b", "zb-v", "dualpipe-v"}) {
    SCOPED_TRACE(schedule);
    job.parallelism.schedule = schedule;
    ExpectSameBits(reference, Train(job));
  }
  job.parallelism.recompute = {model::Recompute::kSelective};
  ExpectSameBits(reference, Train(job));
}

TEST_F(Residual, HasTheSameBitsWithFp8AndWithoutABarrier) {
  for (const bool barrier : {true, false}) {
    config::JobSpec job = Bf16Job();
    job.fp8 = model::Fp8Recipe::kBlock;
    const config::JobSpec whole = job;
    job.parallelism = {.pipeline = 2, .data = 1, .threads = 1, .schedule = "1f1b"};
    if (!barrier) job.barrier = config::Barrier::kNever;
    ExpectSameBits(Train(whole), Train(job));
  }
}

// GPUs multiply FP8 in vectors of 16 values.
TEST_F(Residual, HasTheSameBitsWithFp8WhereActivationsAreRounded) {
  config::JobSpec job = Bf16Job();
  job.fp8 = model::Fp8Recipe::kTensor;
  job.model.hidden = 48;
  job.model.heads = job.model.kv_heads = 4;
  job.model.inner = 192;
  const RunResult reference = TrainFor(DeviceKind::kCuda, job);
  job.parallelism = {.pipeline = 2, .data = 1, .threads = 1, .schedule = "zb-h1"};
  ExpectSameBits(reference, TrainFor(DeviceKind::kCuda, job));
}

// No W has several microbatches then.
TEST_F(Residual, IsExactWhereTheJobNeedNotBe) {
  config::JobSpec job = Bf16Job();
  job.parallelism = {.pipeline = 2, .data = 1, .threads = 1, .schedule = "zb-h1"};
  const RunResult reference = Train(job);
  job.exact = false;
  ExpectSameBits(reference, Train(job));
}

}  // namespace
}  // namespace takt::numerics
