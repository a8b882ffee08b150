// SPDX-License-Identifier: Apache-2.0
// Tests jobs planned for GPUs whose head goes over the rows of a microbatch in slices. Where B
// follows F at once, B computes the logits of a slice, and elsewhere F computes all of them.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/layout/stage_layout.h"
#include "common/model/vocabulary.h"
#include "common/plan/plan.h"
#include "tests/numerics/bit_equality.h"

namespace takt::numerics {
namespace {

using config::DeviceKind;
using model::Recompute;

constexpr std::int64_t kSlice = 8;  // of 19 rows: 8, 8 and 3

class HeadSlices : public BitEquality {
 protected:
  static RunResult TrainSliced(const config::JobSpec& job) {
    return Trained({.job = job, .planned_for = DeviceKind::kCuda, .head_slice = kSlice});
  }

  static RunResult TrainSlicedOnDevice(const config::JobSpec& job, bool lazy) {
    std::atomic<std::int64_t> replays = 0;
    RunResult result = Trained(
        {.job = job,
         .planned_for = DeviceKind::kCuda,
         .head_slice = kSlice,
         .make_backends = [&](int threads) {
           return backend::CreateDiscreteBackends(
               {.threads = threads, .lazy = lazy, .prepared_only = true, .replays = &replays});
         }});
    EXPECT_GT(replays, 0) << "nothing was recorded";
    return result;
  }

  // Returns whether any rank computes logits in its B.
  static bool LogitsAreSliced(const config::JobSpec& job) {
    const config::Parallelism& p = job.parallelism;
    absl::StatusOr<plan::Plan> plan = plan::MakePlan(
        job,
        {.max_workers = p.pipeline.value_or(1) * p.data.value_or(1), .device = DeviceKind::kCuda});
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (!plan.ok()) return false;
    plan->model.head_slice = kSlice;
    return std::ranges::any_of(plan->programs, [&](const program::Program& program) {
      return layout::HeadLogitsOf(plan->model, program) == layout::HeadLogits::kSliced;
    });
  }

  // Returns the job with logits that F computes whole, on one rank.
  static config::JobSpec Whole(config::JobSpec job) {
    job.parallelism.pipeline = job.parallelism.chunks = 1;
    job.parallelism.schedule = "gpipe";
    EXPECT_FALSE(LogitsAreSliced(job));
    return job;
  }

  static config::JobSpec On(int pp, const std::string& schedule, config::JobSpec job) {
    job.parallelism.pipeline = pp;
    job.parallelism.schedule = schedule;
    job.parallelism.chunks = std::nullopt;
    return job;
  }

  // Compares the whole logits of one rank with the slices of two ranks.
  static void ExpectSlicedHasTheBitsOfWhole(const config::JobSpec& job) {
    const config::JobSpec sliced = On(2, "1f1b", job);
    EXPECT_TRUE(LogitsAreSliced(sliced));
    ExpectSameBits(TrainSliced(Whole(job)), TrainSliced(sliced));
  }
};

TEST_F(HeadSlices, HaveTheSameBitsOverSchedulesAndRanks) {
  for (const bool bf16 : {false, true}) {
    config::JobSpec job = Job();
    if (bf16) job.precision = config::Precision::kBf16;
    const RunResult reference = TrainSliced(Whole(job));
    struct Way {
      int pp;
      const char* schedule;
      bool sliced;
    };
    for (const auto& [pp, schedule, sliced] : {Way{1, "1f1b", true},
                                               {2, "1f1b", true},
                                               {3, "1f1b", true},
                                               {2, "gpipe", false},
                                               {2, "zb-h1", false},
                                               {2, "zb-v", false}}) {
      SCOPED_TRACE(absl::StrCat(schedule, " pp ", pp, bf16 ? " bf16" : ""));
      const config::JobSpec other = On(pp, schedule, job);
      EXPECT_EQ(LogitsAreSliced(other), sliced);
      ExpectSameBits(reference, TrainSliced(other));
    }
    ExpectSameBits(reference, TrainSliced(On(2, "interleaved-1f1b", job)));
  }
}

TEST_F(HeadSlices, HaveTheSameBitsOnDevices) {
  const config::JobSpec job = Job();
  const RunResult reference = TrainSliced(Whole(job));
  for (const bool lazy : {false, true}) {
    ExpectSameBits(reference, TrainSlicedOnDevice(On(2, "1f1b", job), lazy));
    ExpectSameBits(reference, TrainSlicedOnDevice(Whole(job), lazy));
  }
}

TEST_F(HeadSlices, OfSeveralBlocksOfWords) {
  config::JobSpec job = Job();
  job.model.vocab = 2 * model::kVocabularyBlock + 70;
  job.model.layers = 2;
  job.parallelism.vocabulary = config::Vocabulary::kLast;
  job.steps = 2;
  const std::string path = (directory_ / "train.u16").string();
  std::ofstream data(path, std::ios::binary);
  for (std::int64_t i = 0; i < 3000; ++i) {  // words of all blocks, some of them often
    const std::int64_t word = i % 5 == 0 ? 7 : i * i * 31 % job.model.vocab;
    data.put(static_cast<char>(word % 256)).put(static_cast<char>(word / 256));
  }
  data.close();
  job.train[0] = {.path = path, .format = config::DataFormat::kUint16};
  job.validation->path = path;
  job.validation->format = config::DataFormat::kUint16;
  ExpectSlicedHasTheBitsOfWhole(job);
  job.model = Llama(job.model);
  job.precision = config::Precision::kBf16;
  ExpectSlicedHasTheBitsOfWhole(job);
}

TEST_F(HeadSlices, OverRecompute) {
  config::JobSpec job = Job();
  job.model = Llama(job.model);
  const RunResult reference = TrainSliced(Whole(job));
  for (const Recompute mode : {Recompute::kSelective, Recompute::kFull}) {
    SCOPED_TRACE(std::string(model::Name(mode)));
    config::JobSpec sliced = On(2, "1f1b", job);
    sliced.parallelism.recompute = {mode};
    EXPECT_TRUE(LogitsAreSliced(sliced));
    ExpectSameBits(reference, TrainSliced(sliced));
    ExpectSameBits(reference, TrainSlicedOnDevice(sliced, /*lazy=*/true));
  }
}

// Each step has a loss scale of its own, and losses have terms beside the cross-entropy.
TEST_F(HeadSlices, OfTargetsThatAreNotAllScored) {
  config::JobSpec job = Job();
  job.document_end = ' ';
  job.loss = {.label_smoothing = 0.1, .z_loss = 1e-3};
  ExpectSlicedHasTheBitsOfWhole(job);
  ExpectSameBits(TrainSliced(Whole(job)), TrainSlicedOnDevice(On(2, "1f1b", job), false));
}

TEST_F(HeadSlices, OfReplicasThatShareTheOptimizersState) {
  config::JobSpec job = Job();
  job.global_batch = 24;
  job.parallelism.data = 2;
  ExpectSlicedHasTheBitsOfWhole(job);
  const RunResult reference = TrainSliced(Whole(job));
  job.parallelism.shard = config::Shard::kOptimizer;
  const RunResult shared = TrainSliced(On(2, "1f1b", job));  // ranks have no whole gradients
  ASSERT_EQ(shared.steps.size(), reference.steps.size());
  for (std::size_t i = 0; i < reference.steps.size(); ++i) {
    EXPECT_EQ(shared.steps[i].loss, reference.steps[i].loss);
    EXPECT_EQ(shared.steps[i].grad_norm, reference.steps[i].grad_norm);
  }
  EXPECT_EQ(shared.weights, reference.weights);
}

TEST_F(HeadSlices, OfReplicasWithSeveralLeaves) {
  config::JobSpec job = Job();
  job.parallelism.data_leaves = 2;
  ExpectSlicedHasTheBitsOfWhole(job);
}

TEST_F(HeadSlices, WhereLayersPassOnBf16) {
  config::JobSpec job = Job();
  job.precision = job.residual = config::Precision::kBf16;
  ExpectSlicedHasTheBitsOfWhole(job);
}

// There the F of a microbatch may run in the step before its B.
TEST_F(HeadSlices, WhereStepsOverlap) {
  config::JobSpec job = On(2, "1f1b", Job());
  job.adamw.clip_norm = 0;
  const RunResult reference = TrainSliced(job);
  job.barrier = config::Barrier::kNever;
  EXPECT_FALSE(LogitsAreSliced(job));
  ExpectSameBits(reference, TrainSliced(job));
}

// Every gradient is one update late on all ranks, however many there are.
TEST_F(HeadSlices, WithoutAFlush) {
  config::JobSpec job = Job();
  job.adamw.clip_norm = 0;
  const config::JobSpec on_two = On(2, "pipedream-2bw", job),
                        on_three = On(3, "pipedream-2bw", job);
  EXPECT_TRUE(LogitsAreSliced(on_two));
  const RunResult two = TrainSliced(on_two), three = TrainSliced(on_three);
  ASSERT_EQ(two.steps.size(), three.steps.size());
  for (std::size_t i = 0; i < two.steps.size(); ++i) {
    EXPECT_EQ(two.steps[i].loss, three.steps[i].loss) << "step " << i + 1;
    EXPECT_GT(two.steps[i].loss, 0);
  }
  EXPECT_EQ(two.weights, three.weights);
  EXPECT_EQ(two.validation_loss, three.validation_loss);
}

TEST_F(HeadSlices, GiveNearlyWhatAHeadOfOneSliceDoes) {
  const config::JobSpec job = On(2, "1f1b", Job());
  const RunResult sliced = TrainSliced(job);
  const RunResult whole = Trained({.job = job, .planned_for = DeviceKind::kCuda});
  ASSERT_EQ(sliced.steps.size(), whole.steps.size());
  for (std::size_t i = 0; i < whole.steps.size(); ++i) {
    EXPECT_NEAR(sliced.steps[i].loss, whole.steps[i].loss, 1e-4) << "step " << i + 1;
    EXPECT_NEAR(sliced.steps[i].grad_norm / whole.steps[i].grad_norm, 1, 1e-3) << "step " << i + 1;
  }
}

}  // namespace
}  // namespace takt::numerics
