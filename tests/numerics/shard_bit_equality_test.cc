// SPDX-License-Identifier: Apache-2.0
// Tests that replicas that share the optimizer's state compute the bits of replicas that do not.
#include <string>
#include <string_view>

#include "common/model/vocabulary.h"
#include "gmock/gmock.h"
#include "tests/numerics/bit_equality.h"

namespace takt::numerics {
namespace {

using ::testing::HasSubstr;

class ShardBitEquality : public BitEquality {
 protected:
  // Trains the job both ways. The results of steps tell of gradients, and the weights of moments.
  static void ExpectSameBitsWithShards(const config::JobSpec& job) {
    RunResult whole = Train(job);
    whole.gradients.clear();
    ExpectSameBits(whole, Trained({.job = job, .shard_optimizer = true}));
  }
};

TEST_F(ShardBitEquality, OverFamiliesAndNumbersOfReplicas) {
  for (const schedule::Family& family : OneWayFamilies()) {
    for (const int replicas : {2, 3}) {
      SCOPED_TRACE(std::string(family.name) + " x " + std::to_string(replicas));
      config::JobSpec job = JobWith(family, 2);
      job.global_batch = 24;
      job.parallelism.data = replicas;
      job.steps = 2;
      ExpectSameBitsWithShards(job);
    }
  }
}

TEST_F(ShardBitEquality, WithUntiedHeadsAndMoreReplicasThanBlocks) {
  config::JobSpec job = Job();
  job.model = Llama(job.model);
  job.parallelism = {.pipeline = 1, .data = 6, .threads = 1, .schedule = "1f1b"};
  ExpectSameBitsWithShards(job);
}

// The two copies of the weights share as replicas do.
TEST_F(ShardBitEquality, OfTwoCopiesOfTheWeights) {
  for (const int replicas : {1, 2}) {
    for (const std::string_view schedule : {"chimera", "dualpipe"}) {
      SCOPED_TRACE(std::string(schedule) + " x " + std::to_string(replicas));
      config::JobSpec job = Job();
      job.model = Llama(job.model);
      job.global_batch = 24;
      job.parallelism = {
          .pipeline = 2, .data = replicas, .threads = 1, .schedule = std::string(schedule)};
      job.steps = 3;
      ExpectSameBitsWithShards(job);
    }
  }
}

TEST_F(ShardBitEquality, OfASpreadVocabulary) {
  config::JobSpec job = Job();
  job.model.hidden = 12;
  job.model.inner = 28;
  job.model.vocab = 2 * model::kVocabularyBlock + 70;
  job.parallelism = {.pipeline = 2,
                     .data = 2,
                     .threads = 1,
                     .schedule = "1f1b",
                     .vocabulary = config::Vocabulary::kSpread};
  job.steps = 2;
  ExpectSameBitsWithShards(job);
}

TEST_F(ShardBitEquality, OfOptimizersWithFewerMoments) {
  for (const bool lion : {true, false}) {
    SCOPED_TRACE(lion);
    config::JobSpec job = Job();
    job.parallelism = {.pipeline = 2, .data = 2, .threads = 1, .schedule = "1f1b"};
    job.groups = {{.parameters = "*.bias", .learning_rate_scale = 0.5, .weight_decay = 0.1}};
    if (lion) {
      job.lion = config::Lion{.learning_rate = 1e-3};
    } else {
      job.sgd = config::Sgd{.learning_rate = 0.5, .momentum = 0};
    }
    ExpectSameBitsWithShards(job);
  }
}

// Sums and gathers of device memory go through the host. Work waits on streams.
TEST_F(ShardBitEquality, OnDevices) {
  config::JobSpec job = Job();
  job.parallelism = {.pipeline = 2, .data = 2, .threads = 1, .schedule = "1f1b"};
  RunResult whole = Train(job);
  whole.gradients.clear();
  for (const bool lazy : {false, true}) {
    SCOPED_TRACE(lazy);
    const auto make_backends = [&](int threads) {
      return backend::CreateDiscreteBackends(
          {.threads = threads, .lazy = lazy, .prepared_only = true});
    };
    ExpectSameBits(whole,
                   Trained({.job = job, .shard_optimizer = true, .make_backends = make_backends}));
  }
}

TEST_F(ShardBitEquality, RefusesWhatItCannotShareYet) {
  const auto error = [](const config::JobSpec& job) {
    return std::string(TrainInProcess({.job = job, .shard_optimizer = true}).status().message());
  };
  config::JobSpec bf16 = Job();
  bf16.precision = config::Precision::kBf16;
  bf16.parallelism.data = 2;
  EXPECT_THAT(error(bf16), HasSubstr("before GATHER_WEIGHTS"));
  config::JobSpec tied = Job();
  tied.parallelism = {.pipeline = 2, .data = 1, .threads = 1, .schedule = "chimera"};
  EXPECT_THAT(error(tied), HasSubstr("two shards"));
}

}  // namespace
}  // namespace takt::numerics
