// SPDX-License-Identifier: Apache-2.0
#include "common/plan/least_recompute.h"

#include "common/plan/ranking.h"
#include "gmock/gmock.h"

namespace takt::plan {
namespace {

using ::testing::ElementsAre;
using enum model::Recompute;

class LeastRecompute : public ::testing::Test {
 protected:
  LeastRecompute() {
    job_.model = {.layers = 8,
                  .hidden = 64,
                  .heads = 4,
                  .kv_heads = 4,
                  .inner = 256,
                  .context = 128,
                  .positions = 128,
                  .vocab = 64};
    job_.microbatch = 4;
    job_.global_batch = 64;
    job_.parallelism = {.pipeline = 4, .schedule = "1f1b", .stage_layers = {2, 2, 2, 2}};
    model_ = model::BuildModel(job_.model, job_.microbatch).value();
  }

  Candidate MakeWith(std::vector<model::Recompute> recompute) {
    return Make({.job = job_, .model = model_, .options = options_, .recompute = recompute})
        .value();
  }
  static absl::StatusOr<Candidate> Make(const CandidateInputs& inputs) {
    return FromFamily(inputs, "1f1b", 4);
  }
  Candidate Fitted() {
    return WithLeastRecompute({.job = job_, .model = model_, .options = options_}, Make).value();
  }

  config::JobSpec job_;
  model::Model model_;
  PlanOptions options_{.max_workers = 4};
};

TEST_F(LeastRecompute, KeepsEverythingIfItFits) {
  EXPECT_THAT(RecomputeOf(Fitted()), ElementsAre(kNone));
  options_.worker_memory_bytes = Largest(MakeWith({kNone}), options_).total();
  EXPECT_THAT(RecomputeOf(Fitted()), ElementsAre(kNone));
}

// The copy that a checkpoint is written from is in the host's memory, and so is the process.
TEST_F(LeastRecompute, CountsOfAGpuWhatIsOnIt) {
  options_.device = config::DeviceKind::kCuda;
  job_.checkpoint = config::Checkpoint{.directory = "runs"};
  const MemoryBytes largest = Largest(MakeWith({kNone}), options_);
  EXPECT_GT(largest[MemoryKind::kSnapshot], 0);
  options_.worker_memory_bytes = CountedBytes(largest, options_.device);
  EXPECT_EQ(largest.on_device() + largest[MemoryKind::kSnapshot] + largest[MemoryKind::kProcess],
            largest.total());
  EXPECT_THAT(RecomputeOf(Fitted()), ElementsAre(kNone));
}

// Under 1F1B rank 0 holds four microbatches, rank 3 one.
TEST_F(LeastRecompute, RecomputesOnTheRanksThatHoldMost) {
  options_.worker_memory_bytes = Largest(MakeWith({kNone}), options_).total() - 1;
  const Candidate fitted = Fitted();
  EXPECT_TRUE(Fits(fitted, options_));
  EXPECT_THAT(RecomputeOf(fitted), ElementsAre(kSelective, kNone, kNone, kNone));
}

TEST_F(LeastRecompute, MayNotFitAtAll) {
  options_.worker_memory_bytes = Largest(MakeWith({kFull}), options_).total() - 1;
  const Candidate fitted = Fitted();
  EXPECT_FALSE(Fits(fitted, options_));
  EXPECT_THAT(RecomputeOf(fitted), ElementsAre(kFull));
}

TEST_F(LeastRecompute, TakesNoMoreTimeThanTheSameModeEverywhere) {
  const std::int64_t least = Largest(MakeWith({kFull}), options_).total();
  const std::int64_t most = Largest(MakeWith({kNone}), options_).total();
  for (int i = 0; i <= 8; ++i) {
    options_.worker_memory_bytes = least + (most - least) * i / 8;
    const Candidate fitted = Fitted();
    EXPECT_TRUE(Fits(fitted, options_)) << i;
    EXPECT_LE(fitted.plan.predicted_step_seconds,
              MakeWith({kFull}).plan.predicted_step_seconds * (1 + 1e-9));
  }
}

}  // namespace
}  // namespace takt::plan
