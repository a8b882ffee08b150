// SPDX-License-Identifier: Apache-2.0
// Tests that replicas that share the optimizer's state compute the bits of replicas that do not.
#include <string>
#include <string_view>

#include "common/base/direct_ranks.h"
#include "common/model/vocabulary.h"
#include "gtest/gtest.h"
#include "tests/numerics/bit_equality.h"

namespace takt::numerics {
namespace {

class ShardBitEquality : public BitEquality {
 protected:
  // Trains the job both ways. The results of steps tell of gradients, and the weights of moments.
  static void ExpectSameBitsWithShards(const config::JobSpec& job) {
    RunResult whole = Train(job);
    whole.gradients.clear();
    ExpectSameBits(whole, Train(WithShards(job)));
  }

  static config::JobSpec WithShards(config::JobSpec job) {
    job.parallelism.shard = config::Shard::kOptimizer;
    return job;
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

TEST_F(ShardBitEquality, OfAScheduleFromAFile) {
  for (const char* const schedule : {"1f1b", "zb-h1"}) {
    SCOPED_TRACE(schedule);
    config::JobSpec job = Job();
    job.parallelism = {.pipeline = 2, .data = 2, .threads = 1, .schedule = schedule};
    RunResult whole = Train(job);
    whole.gradients.clear();
    ExpectSameBits(whole, Train(WithShards(FromFile(job))));
  }
}

TEST_F(ShardBitEquality, WithGradientsThatAreNotFinite) {
  config::JobSpec job = WithOverflow(Job());
  job.parallelism = {.pipeline = 2, .data = 2, .threads = 1, .schedule = "zb-h1"};
  ExpectSameUntilNotFinite(Train(job), Train(WithShards(job)));
}

TEST_F(ShardBitEquality, WithUntiedHeadsAndMoreReplicasThanBlocks) {
  config::JobSpec job = Job();
  job.model = Llama(job.model);
  job.parallelism = {.pipeline = 1, .data = 6, .threads = 1, .schedule = "1f1b"};
  ExpectSameBitsWithShards(job);
}

// They are a ring.
TEST_F(ShardBitEquality, OfMoreReplicasThanConnectEachWithEach) {
  config::JobSpec job = Job();
  job.model = Llama(job.model);
  job.global_batch = 2 * (kMostDirectRanks + 1) * job.microbatch;
  job.parallelism = {.pipeline = 1, .data = kMostDirectRanks + 1, .threads = 1, .schedule = "1f1b"};
  job.steps = 2;
  for (const config::Precision precision : {config::Precision::kF32, config::Precision::kBf16}) {
    SCOPED_TRACE(precision == config::Precision::kBf16 ? "bf16" : "f32");
    job.precision = precision;
    ExpectSameBitsWithShards(job);
  }
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
  for (const config::Precision precision : {config::Precision::kF32, config::Precision::kBf16}) {
    SCOPED_TRACE(precision == config::Precision::kBf16 ? "bf16" : "f32");
    job.precision = precision;
    ExpectSameBitsWithShards(job);
  }
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
    ExpectSameBits(whole, Trained({.job = WithShards(job), .make_backends = make_backends}));
  }
}

// Packed matrices are made of what the gathers brought, before the first F that reads them.
TEST_F(ShardBitEquality, InBf16) {
  for (const std::string_view schedule : {"1f1b", "zb-h1", "interleaved-1f1b", "dualpipe"}) {
    SCOPED_TRACE(schedule);
    config::JobSpec job = Job();
    job.precision = config::Precision::kBf16;
    job.global_batch = 24;
    job.parallelism = {.pipeline = 2, .data = 2, .threads = 1, .schedule = std::string(schedule)};
    job.steps = 3;
    ExpectSameBitsWithShards(job);
  }
}

// Both ends of the pipeline have both uses of the table.
TEST_F(ShardBitEquality, OfATiedTableInTwoCopies) {
  for (const int replicas : {1, 2}) {
    for (const std::string_view schedule : {"chimera", "dualpipe"}) {
      SCOPED_TRACE(std::string(schedule) + " x " + std::to_string(replicas));
      config::JobSpec job = Job();
      job.model.vocab = 300;  // the table has three blocks
      job.global_batch = 24;
      job.parallelism = {
          .pipeline = 2, .data = replicas, .threads = 1, .schedule = std::string(schedule)};
      job.steps = 3;
      ExpectSameBitsWithShards(job);
    }
  }
}

TEST_F(ShardBitEquality, WhereEachMicrobatchIsComputedAgain) {
  for (const model::Recompute mode : {model::Recompute::kSelective, model::Recompute::kFull}) {
    config::JobSpec job = Job();
    job.parallelism = {
        .pipeline = 2, .data = 2, .threads = 1, .schedule = "zb-v", .recompute = {mode}};
    job.steps = 2;
    ExpectSameBitsWithShards(job);
  }
}

class ParameterBitEquality : public ShardBitEquality {
 protected:
  // Trains the job without shards, and with shards of the weights that are freed.
  static void ExpectSameBitsWithFreedWeights(const config::JobSpec& job) {
    RunResult whole = Train(job);
    whole.gradients.clear();
    config::JobSpec freed = job;
    freed.parallelism.shard = config::Shard::kParameters;
    freed.parallelism.reshard = config::Reshard::kAlways;
    ExpectSameBits(whole, Train(freed));
  }

  // Returns a job with four stages on each rank, of which two are whole at a time.
  config::JobSpec JobOfFourChunks(std::string_view schedule, int replicas = 2) const {
    config::JobSpec job = Job();
    job.global_batch = 24;
    job.parallelism = {.pipeline = 2,
                       .data = replicas,
                       .chunks = 4,
                       .threads = 1,
                       .schedule = std::string(schedule)};
    job.steps = 2;
    return job;
  }
};

TEST_F(ParameterBitEquality, OverSchedulesAndNumbersOfReplicas) {
  for (const std::string_view schedule : {"interleaved-1f1b", "looped-bfs", "interleaved-zb"}) {
    for (const int replicas : {2, 3}) {
      SCOPED_TRACE(std::string(schedule) + " x " + std::to_string(replicas));
      ExpectSameBitsWithFreedWeights(JobOfFourChunks(schedule, replicas));
    }
  }
}

// Both uses of the table are on the one rank, in stages that are whole at different times.
TEST_F(ParameterBitEquality, OfATiedTableOnOneRank) {
  config::JobSpec job = JobOfFourChunks("interleaved-1f1b");
  job.parallelism.pipeline = 1;
  job.model.vocab = 300;  // the table has three blocks
  ExpectSameBitsWithFreedWeights(job);
}

TEST_F(ParameterBitEquality, WithUntiedHeadsInBf16) {
  for (const std::string_view schedule : {"interleaved-1f1b", "interleaved-zb"}) {
    SCOPED_TRACE(schedule);
    config::JobSpec job = JobOfFourChunks(schedule);
    job.model = Llama(job.model);
    job.precision = config::Precision::kBf16;
    ExpectSameBitsWithFreedWeights(job);
  }
}

TEST_F(ParameterBitEquality, WhereEachMicrobatchIsComputedAgain) {
  for (const model::Recompute mode : {model::Recompute::kSelective, model::Recompute::kFull}) {
    config::JobSpec job = JobOfFourChunks("interleaved-zb");
    job.parallelism.recompute = {mode};
    ExpectSameBitsWithFreedWeights(job);
  }
}

TEST_F(ParameterBitEquality, OfAnOptimizerWithoutMoments) {
  config::JobSpec job = JobOfFourChunks("interleaved-1f1b");
  job.sgd = config::Sgd{.learning_rate = 0.5, .momentum = 0};
  ExpectSameBitsWithFreedWeights(job);
}

// These biases have no gradient, and change at the end of a step, when the weights are freed.
TEST_F(ParameterBitEquality, OfBiasesThatBalanceExperts) {
  config::JobSpec job = JobOfFourChunks("interleaved-1f1b");
  job.model = Mixtral(job.model);
  job.model.mixture->scores = model::RouterScores::kSigmoid;
  job.model.mixture->bias_rate = 0.01;
  ExpectSameBitsWithFreedWeights(job);
}

// Where a rank has no weights to free, `parameters` is what `optimizer` is.
TEST_F(ParameterBitEquality, WhereNoWeightsAreFreed) {
  for (const schedule::Family& family : OneWayFamilies()) {
    SCOPED_TRACE(family.name);
    config::JobSpec job = JobWith(family, 2);
    job.global_batch = 24;
    job.parallelism.data = 2;
    job.steps = 2;
    RunResult whole = Train(job);
    whole.gradients.clear();
    job.parallelism.shard = config::Shard::kParameters;
    ExpectSameBits(whole, Train(job));
  }
}

// One rank has nobody to share with.
TEST_F(ShardBitEquality, OfOneReplicaAlone) {
  config::JobSpec job = Job();
  job.steps = 2;
  ExpectSameBitsWithShards(job);
}

}  // namespace
}  // namespace takt::numerics
