// SPDX-License-Identifier: Apache-2.0
// Tests that with one number of ranks that share sequences, nothing else changes a bit.
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "tests/numerics/bit_equality.h"

namespace takt::numerics {
namespace {

using ::testing::HasSubstr;

class ContextBitEquality : public BitEquality {
 protected:
  // Pieces have 6 or 3 tokens.
  config::JobSpec SharedJob(int context = 2) const {
    config::JobSpec job = Job();
    job.model.context = job.model.positions = 24;
    job.model.layers = 4;
    job.microbatch = 3;
    job.steps = 3;
    job.parallelism = {
        .pipeline = 1, .data = 1, .threads = 1, .schedule = "1f1b", .context = context};
    return job;
  }

  static config::JobSpec OfFamily(config::JobSpec job, model::Family family) {
    using enum model::Family;
    if (family == kLlama) job.model = Llama(job.model);
    if (family == kQwen3) job.model = Qwen3(job.model);
    if (family == kMistral) job.model = Mistral(job.model);
    return job;
  }

  // Expects that losses and norms differ from those of one rank by rounding alone.
  static void ExpectNearOne(const RunResult& shared, config::JobSpec job) {
    job.parallelism.context = 1;
    const RunResult one = Train(job);
    ASSERT_EQ(shared.steps.size(), one.steps.size());
    const double allowed = job.precision == config::Precision::kBf16 ? 1e-2 : 1e-4;
    for (std::size_t i = 0; i < one.steps.size(); ++i) {
      EXPECT_NEAR(shared.steps[i].loss / one.steps[i].loss, 1, allowed) << "step " << i + 1;
      EXPECT_NEAR(shared.steps[i].grad_norm / one.steps[i].grad_norm, 1, 10 * allowed)
          << "step " << i + 1;
      EXPECT_EQ(shared.steps[i].tokens, one.steps[i].tokens) << "step " << i + 1;
    }
    ASSERT_TRUE(shared.validation_loss.has_value() && one.validation_loss.has_value());
    EXPECT_NEAR(*shared.validation_loss / *one.validation_loss, 1, allowed);
  }
};

TEST_F(ContextBitEquality, OverThreadsAndRunsOfEveryFamily) {
  using enum model::Family;
  for (const model::Family family : {kGpt2, kLlama, kQwen3, kMistral}) {
    for (const int context : {2, 4}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(family)) + " x " + std::to_string(context));
      config::JobSpec job = OfFamily(SharedJob(context), family);
      const RunResult first = Train(job);
      ExpectSameBits(first, Train(job));
      ExpectNearOne(first, job);
      job.parallelism.threads = 3;
      ExpectSameBits(first, Train(job));
    }
  }
}

TEST_F(ContextBitEquality, OverSchedulesAndPartitions) {
  config::JobSpec job = OfFamily(SharedJob(), model::Family::kLlama);
  job.model.layers = 6;
  job.microbatch = 1;
  job.steps = 2;
  const RunResult one = Train(job);
  for (const schedule::Family& family : OneWayFamilies()) {
    SCOPED_TRACE(std::string(family.name));
    job.parallelism.schedule = family.name;
    job.parallelism.pipeline = 2;
    job.parallelism.chunks = std::nullopt;
    ExpectSameBits(one, Train(job));
  }
}

TEST_F(ContextBitEquality, OverModesOfRecompute) {
  using enum model::Recompute;
  for (const model::Family family : {model::Family::kGpt2, model::Family::kQwen3}) {
    config::JobSpec job = OfFamily(SharedJob(), family);
    job.steps = 2;
    job.parallelism.recompute = {kNone};
    const RunResult none = Train(job);
    for (const model::Recompute mode : {kSelective, kFull}) {
      for (const std::string_view schedule : {"1f1b", "zb-h1"}) {
        SCOPED_TRACE(std::string(model::Name(mode)) + " " + std::string(schedule));
        job.parallelism.recompute = {mode};
        job.parallelism.schedule = std::string(schedule);
        job.parallelism.pipeline = 2;
        ExpectSameBits(none, Train(job));
      }
    }
  }
}

TEST_F(ContextBitEquality, OverShardsOfTheOptimizerAndWithReplicas) {
  for (const int data : {1, 2}) {
    SCOPED_TRACE(data);
    config::JobSpec job = OfFamily(SharedJob(), model::Family::kLlama);
    job.parallelism.data = data;
    job.parallelism.pipeline = 2;
    job.parallelism.vocabulary = config::Vocabulary::kLast;
    RunResult whole = Train(job);
    ExpectNearOne(whole, job);
    whole.gradients.clear();
    job.parallelism.shard = config::Shard::kOptimizer;
    ExpectSameBits(whole, Train(job));
  }
}

TEST_F(ContextBitEquality, OfAScheduleFromAFile) {
  config::JobSpec job = SharedJob();
  job.parallelism.pipeline = 2;
  job.parallelism.schedule = "zb-h1";
  ExpectSameBits(Train(job), Train(FromFile(job)));
}

TEST_F(ContextBitEquality, OfFreedWeights) {
  config::JobSpec job = SharedJob();
  job.model.layers = 6;
  job.microbatch = 1;
  job.parallelism.pipeline = 2;
  job.parallelism.chunks = 3;
  job.parallelism.schedule = "interleaved-1f1b";
  RunResult whole = Train(job);
  whole.gradients.clear();
  job.parallelism.shard = config::Shard::kParameters;
  job.parallelism.reshard = config::Reshard::kAlways;
  ExpectSameBits(whole, Train(job));
}

TEST_F(ContextBitEquality, InBf16) {
  for (const model::Family family : {model::Family::kGpt2, model::Family::kQwen3}) {
    SCOPED_TRACE(static_cast<int>(family));
    config::JobSpec job = OfFamily(SharedJob(), family);
    job.precision = config::Precision::kBf16;
    const RunResult one = Train(job);
    ExpectNearOne(one, job);
    job.parallelism.pipeline = 2;
    job.parallelism.schedule = "zb-h1";
    ExpectSameBits(one, Train(job));
  }
}

// Each number of the stream is a document, which ends with a blank.
TEST_F(ContextBitEquality, WhereDocumentsShareRows) {
  for (const model::Family family : {model::Family::kGpt2, model::Family::kMistral}) {
    SCOPED_TRACE(static_cast<int>(family));
    config::JobSpec job = OfFamily(SharedJob(4), family);
    job.documents = config::Documents::kSeparate;
    job.document_end = ' ';
    const RunResult one = Train(job);
    ExpectNearOne(one, job);
    job.parallelism.pipeline = 2;
    job.parallelism.recompute = {model::Recompute::kSelective};
    ExpectSameBits(one, Train(job));
  }
}

TEST_F(ContextBitEquality, IsLeftForRoundingAloneWhereAJobNeedNotBeExact) {
  config::JobSpec job = SharedJob();
  job.microbatch = 1;
  job.parallelism.pipeline = 2;
  job.parallelism.schedule = "zb-h1";
  job.exact = false;
  const RunResult merged = Train(job);
  job.exact = true;
  ExpectNearOne(merged, job);
}

// A saved state is not divided by ranks, so any number of ranks can resume from that of another.
TEST_F(ContextBitEquality, IsNearAfterAResumeWithAnotherNumberOfRanks) {
  config::JobSpec job = SharedJob();
  job.steps = 4;
  const RunResult undisturbed = Train(job);
  config::JobSpec half = job;
  half.steps = 2;
  const RunResult left = Train(half);
  for (const int context : {1, 2, 4}) {
    SCOPED_TRACE(context);
    job.parallelism.context = context;
    const RunResult right = Trained({.job = job, .resume = &left});
    ASSERT_EQ(right.steps.size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) {
      const double want = undisturbed.steps[i + 2].loss;
      if (context == 2) {
        EXPECT_EQ(right.steps[i].loss, want);
      } else {
        EXPECT_NEAR(right.steps[i].loss / want, 1, 1e-4);
      }
    }
  }
}

TEST_F(ContextBitEquality, RefusesWhatCannotBeShared) {
  const auto error = [](const RunOptions& options) {
    return std::string(TrainInProcess(options).status().message());
  };
  const config::JobSpec job = SharedJob();
  config::JobSpec uneven = job;
  uneven.parallelism.context = 5;
  EXPECT_THAT(error({.job = uneven}), HasSubstr("model.context (24)"));
  config::JobSpec delayed = job;
  delayed.parallelism.pipeline = 2;
  delayed.parallelism.schedule = "pipedream-2bw";
  delayed.adamw.clip_norm = 0;
  EXPECT_THAT(error({.job = delayed}), HasSubstr("flush"));
  config::JobSpec copies = job;
  copies.parallelism.pipeline = 2;
  copies.parallelism.schedule = "dualpipe";
  copies.microbatch = 1;
  EXPECT_THAT(error({.job = copies}), HasSubstr("two copies"));
  config::JobSpec spread = job;
  spread.parallelism.pipeline = 2;
  spread.parallelism.vocabulary = config::Vocabulary::kSpread;
  EXPECT_THAT(error({.job = spread}), HasSubstr("spread"));
  EXPECT_THAT(error({.job = job, .planned_for = config::DeviceKind::kCuda}), HasSubstr("CPUs"));
  const auto devices = [](int threads) {
    return backend::CreateDiscreteBackends({.threads = threads});
  };
  EXPECT_THAT(error({.job = job, .make_backends = devices}), HasSubstr("devices"));
}

}  // namespace
}  // namespace takt::numerics
