// SPDX-License-Identifier: Apache-2.0
// Tests that replicas that have several leaves each compute the bits of as many replicas as there
// are leaves.
#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "tests/numerics/bit_equality.h"

namespace takt::numerics {
namespace {

class DataLeaves : public BitEquality {
 protected:
  // The job of four replicas.
  config::JobSpec Whole() const {
    config::JobSpec job = Job();
    job.global_batch = 24;
    job.steps = 3;
    job.parallelism = {.pipeline = 2, .data = kLeaves, .threads = 1, .schedule = "1f1b"};
    return job;
  }
  static config::JobSpec On(int replicas, config::JobSpec job) {
    job.parallelism.data = replicas;
    job.parallelism.data_leaves = kLeaves;
    return job;
  }
  static void ExpectSameBitsOnFewer(const config::JobSpec& job) {
    const RunResult whole = Train(job);
    for (const int replicas : {4, 2, 1}) {
      SCOPED_TRACE(std::to_string(replicas) + " replicas");
      ExpectSameBits(whole, Train(On(replicas, job)));
    }
  }
  // Replicas that share the optimizer's state have no whole gradients.
  static void ExpectSameBitsWithShards(const config::JobSpec& job) {
    RunResult whole = Train(job);
    whole.gradients.clear();
    RunResult two = Train(On(2, job)), one = Train(On(1, job));
    ExpectSameBits(whole, two);
    one.gradients.clear();  // nobody shares with it
    ExpectSameBits(whole, one);
  }

  static constexpr int kLeaves = 4;
};

TEST_F(DataLeaves, OverFamilies) {
  for (const schedule::Family& family : OneWayFamilies()) {
    SCOPED_TRACE(std::string(family.name));
    config::JobSpec job = Whole();
    job.parallelism.schedule = family.name;
    job.steps = 2;
    ExpectSameBitsOnFewer(job);
  }
}

// One microbatch a leaf, and other numbers of replicas.
TEST_F(DataLeaves, OfOneMicrobatch) {
  config::JobSpec job = Whole();
  job.global_batch = 6;
  job.parallelism.data = 6;
  const RunResult six = Train(job);
  job.parallelism.data_leaves = 6;
  for (const int replicas : {3, 2, 1}) {
    job.parallelism.data = replicas;
    ExpectSameBits(six, Train(job));
  }
}

TEST_F(DataLeaves, WithWhatElseChangesNoBit) {
  config::JobSpec job = Whole();
  job.model = Llama(job.model);
  job.precision = config::Precision::kBf16;
  const RunResult whole = Train(job);
  job = On(2, job);
  job.parallelism.recompute = {model::Recompute::kFull};
  job.parallelism.threads = 2;
  job.parallelism.schedule = "zb-v";
  ExpectSameBits(whole, Train(job));
  job.parallelism.schedule = "zb-h2";
  job.barrier = config::Barrier::kNever;
  ExpectSameBits(whole, Train(job));
  ExpectSameBits(whole, Train(On(1, job)));
}

TEST_F(DataLeaves, OfWhatAStepRounds) {
  config::JobSpec job = Whole();
  job.precision = config::Precision::kBf16;
  job.fp8 = model::Fp8Recipe::kTensor;
  ExpectSameBitsOnFewer(job);
  job.fp8 = model::Fp8Recipe::kNone;
  job.residual = config::Precision::kBf16;
  ExpectSameBitsOnFewer(job);
}

TEST_F(DataLeaves, OfPackedDocumentsAndOtherOptimizers) {
  config::JobSpec job = Whole();
  job.documents = config::Documents::kSeparate;
  job.document_end = ' ';
  job.muon = config::Muon{.learning_rate = 1e-3};
  ExpectSameBitsOnFewer(job);
}

TEST_F(DataLeaves, OfModelsWithExperts) {
  config::JobSpec job = Whole();
  job.model = Mixtral(job.model);
  ExpectSameBitsOnFewer(job);
}

TEST_F(DataLeaves, OfLayersThatRanksSplit) {
  config::JobSpec job = Whole();
  job.model.context = job.model.positions = 20;
  job.model.hidden = 40;
  job.model.heads = job.model.kv_heads = 4;
  job.steps = 2;
  const model::TensorShare share{.size = 2, .leaves = 2};
  const RunResult whole = Trained({.job = job, .tensor = share});
  for (const int replicas : {2, 1})
    ExpectSameBits(whole, Trained({.job = On(replicas, job), .tensor = share}));
  // The halves of its pairs run beside each other.
  job.parallelism.schedule = "dualpipe-v";
  job.parallelism.chunks = std::nullopt;
  ExpectSameBits(whole, Trained({.job = On(2, job), .tensor = share}));
}

TEST_F(DataLeaves, WithSharedStateOfTheOptimizer) {
  config::JobSpec job = Whole();
  job.parallelism.shard = config::Shard::kOptimizer;
  ExpectSameBitsWithShards(job);
  job.barrier = config::Barrier::kNever;
  job.parallelism.schedule = "zb-h1";
  ExpectSameBitsWithShards(job);
}

TEST_F(DataLeaves, WithWeightsThatAreFreed) {
  config::JobSpec job = Whole();
  job.model = Llama(job.model);
  job.parallelism.schedule = "interleaved-1f1b";
  job.parallelism.chunks = 3;
  job.parallelism.shard = config::Shard::kParameters;
  job.parallelism.reshard = config::Reshard::kAlways;
  RunResult whole = Train(job);
  whole.gradients.clear();
  ExpectSameBits(whole, Train(On(2, job)));
}

TEST_F(DataLeaves, OnDevices) {
  const config::JobSpec job = Whole();
  const RunResult whole = Train(job);
  for (const int replicas : {2, 1}) {
    for (const bool lazy : {false, true})
      ExpectSameBits(whole, TrainOnDevice(On(replicas, job), lazy));
  }
  config::JobSpec shares = On(2, job);
  shares.parallelism.shard = config::Shard::kOptimizer;
  RunResult without_gradients = whole;
  without_gradients.gradients.clear();
  ExpectSameBits(without_gradients, TrainOnDevice(shares, /*lazy=*/true));
}

}  // namespace
}  // namespace takt::numerics
