// SPDX-License-Identifier: Apache-2.0
// Pairs of fields of a job that no other test has together (the table of docs/jobs.md).
#include <cstddef>
#include <string>

#include "tests/numerics/bit_equality.h"

namespace takt::numerics {
namespace {

class Pairs : public BitEquality {
 protected:
  struct Field {
    const char* name;
    void (*set)(config::JobSpec&);
  };

  config::JobSpec TwoReplicas() const {
    config::JobSpec job = Job();
    job.model.layers = 4;
    job.steps = 2;
    job.parallelism = {.pipeline = 2, .data = 2, .threads = 1, .schedule = "zb-h1"};
    job.parallelism.vocabulary = config::Vocabulary::kLast;
    return job;
  }
  static config::JobSpec With(config::JobSpec job, const Field& field) {
    field.set(job);
    return job;
  }
  // Losses may differ in rounding.
  static void ExpectAlike(const RunResult& a, const RunResult& b) {
    ASSERT_EQ(a.steps.size(), b.steps.size());
    for (std::size_t i = 0; i < a.steps.size(); ++i)
      EXPECT_NEAR(a.steps[i].loss, b.steps[i].loss, 1e-5 * b.steps[i].loss) << "step " << i + 1;
  }

  // These change the results of a job.
  static constexpr Field kPacks = {"documents: separate", [](config::JobSpec& job) {
                                     job.documents = config::Documents::kSeparate;
                                     job.document_end = ' ';
                                   }};
  static constexpr Field kExperts = {"experts",
                                     [](config::JobSpec& job) { job.model = Mixtral(job.model); }};
  static constexpr Field kMerges = {"exact: false",
                                    [](config::JobSpec& job) { job.exact = false; }};
  static constexpr Field kFp8 = {"precision: fp8", [](config::JobSpec& job) {
                                   job.precision = config::Precision::kBf16;
                                   job.fp8 = model::Fp8Recipe::kTensor;
                                 }};
  static constexpr Field kRounds = {"residual: bf16", [](config::JobSpec& job) {
                                      job.precision = job.residual = config::Precision::kBf16;
                                    }};
  // These change no bit.
  static constexpr Field kOverlaps = {
      "barrier: false", [](config::JobSpec& job) { job.barrier = config::Barrier::kNever; }};
  static constexpr Field kShares = {"shard: optimizer", [](config::JobSpec& job) {
                                      job.parallelism.shard = config::Shard::kOptimizer;
                                    }};
  static constexpr Field kSpreads = {"vocabulary: spread", [](config::JobSpec& job) {
                                       job.parallelism.vocabulary = config::Vocabulary::kSpread;
                                     }};
  static constexpr Field kRecomputes = {"recompute: full", [](config::JobSpec& job) {
                                          job.parallelism.recompute = {model::Recompute::kFull};
                                        }};
};

TEST_F(Pairs, OfFieldsThatChangeNoBitWithThoseThatDo) {
  for (const Field& result : {kPacks, kExperts, kFp8, kRounds}) {
    const config::JobSpec job = With(TwoReplicas(), result);
    const RunResult reference = Train(job);
    for (const Field& other : {kShares, kSpreads, kRecomputes, kOverlaps}) {
      if (result.set == kRounds.set && other.set == kSpreads.set) continue;  // refused
      SCOPED_TRACE(std::string(result.name) + " with " + other.name);
      RunResult run = Train(With(job, other));
      run.gradients = reference.gradients;  // shards have none that are whole
      ExpectSameBits(reference, run);
    }
  }
}

TEST_F(Pairs, OfOverlappedStepsWithRecompute) {
  const RunResult reference = Train(TwoReplicas());
  ExpectSameBits(reference, Train(With(With(TwoReplicas(), kOverlaps), kRecomputes)));
}

TEST_F(Pairs, OfSharedOptimizerStateWithMergedWeightGradients) {
  const config::JobSpec job = With(TwoReplicas(), kMerges);
  const RunResult reference = Train(job);
  RunResult run = Train(With(job, kShares));
  run.gradients = reference.gradients;
  ExpectSameBits(reference, run);
}

TEST_F(Pairs, OfSharedOptimizerStateWithRecompute) {
  const RunResult reference = Train(TwoReplicas());
  RunResult run = Train(With(With(TwoReplicas(), kShares), kRecomputes));
  run.gradients = reference.gradients;
  ExpectSameBits(reference, run);
}

TEST_F(Pairs, OfExpertsWithPackedDocumentsHaveTheBitsOfOneRank) {
  config::JobSpec job = With(With(TwoReplicas(), kPacks), kExperts);
  job.parallelism.data = 1;
  const RunResult run = Train(job);
  job.parallelism.pipeline = 1;
  job.parallelism.schedule = "naive";
  ExpectSameBits(Train(job), run);
}

TEST_F(Pairs, OfMergedWeightGradientsDifferInRoundingAlone) {
  for (const Field& other : {kPacks, kExperts}) {
    SCOPED_TRACE(other.name);
    const config::JobSpec exact = With(TwoReplicas(), other);
    ExpectAlike(Train(With(exact, kMerges)), Train(exact));
  }
}

TEST_F(Pairs, OfRoundedProductsWithPackedDocumentsHaveTheBitsOfOneRank) {
  for (const Field& rounds : {kFp8, kRounds}) {
    SCOPED_TRACE(rounds.name);
    config::JobSpec job = With(With(TwoReplicas(), kPacks), rounds);
    job.parallelism.data = 1;
    const RunResult run = Train(job);
    job.parallelism.pipeline = 1;
    job.parallelism.schedule = "naive";
    ExpectSameBits(Train(job), run);
  }
}

TEST_F(Pairs, OfRoundedProductsWithDelayedGradientsHaveTheBitsOfADevice) {
  for (const Field& rounds : {kFp8, kRounds}) {
    SCOPED_TRACE(rounds.name);
    config::JobSpec job = With(TwoReplicas(), rounds);
    job.parallelism.data = 1;
    job.parallelism.schedule = "pipedream-2bw";
    job.adamw.clip_norm = 0;
    ExpectSame(Train(job), TrainOnDevice(job, /*lazy=*/true));
  }
}

TEST_F(Pairs, OfErrorFeedbackWithOtherFieldsHaveTheBitsOfAnyPartitionAndOfADevice) {
  for (const int other : {0, 1, 2, 3, 4}) {
    SCOPED_TRACE(other);
    config::JobSpec job = TwoReplicas();
    job.steps = 5;
    job.parallelism.schedule = "pipedream-2bw";
    job.adamw.clip_norm = 0;
    job.error_feedback = 0.75;
    job.groups = {{.parameters = "*.bias", .learning_rate_scale = 0.5}};
    if (other == 1) job.lion = config::Lion{.learning_rate = 1e-3, .clip_norm = 0};
    if (other == 2) job.sgd = config::Sgd{.learning_rate = 0.1, .momentum = 0, .clip_norm = 0};
    if (other == 3) job.muon = config::Muon{.learning_rate = 3e-3, .clip_norm = 0};
    if (other == 4) job.precision = config::Precision::kBf16;
    const RunResult reference = Train(job);
    EXPECT_LT(reference.steps.back().loss, reference.steps.front().loss);
    config::JobSpec parts = job;
    parts.parallelism.pipeline = 3;
    ExpectSame(reference, Train(parts));
    ExpectSame(reference, TrainOnDevice(job, /*lazy=*/true));
    job.error_feedback = 0;
    EXPECT_NE(Train(job).weights, reference.weights);
  }
}

TEST_F(Pairs, OfExpertsWithDelayedGradientsHaveTheBitsOfADevice) {
  config::JobSpec job = With(TwoReplicas(), kExperts);
  job.parallelism.data = 1;
  job.parallelism.schedule = "pipedream-2bw";
  job.adamw.clip_norm = 0;
  ExpectSame(Train(job), TrainOnDevice(job, /*lazy=*/true));
}

}  // namespace
}  // namespace takt::numerics
