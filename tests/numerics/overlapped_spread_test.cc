// SPDX-License-Identifier: Apache-2.0
// Tests that steps without a barrier have the bits of steps with one where the vocabulary is spread
// over all ranks.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/numerics/spread_bit_equality.h"

namespace takt::numerics {
namespace {

class OverlappedSpread : public SpreadBitEquality {
 protected:
  OverlappedSpread() {
    std::ofstream documents(directory_ / "documents.u16", std::ios::binary);
    for (std::int64_t i = 0; i < 3000; ++i) {
      const std::int64_t word = i % 11 == 0 ? kEnd : 4 + i * i * 31 % (kVocab - 4);
      documents.put(static_cast<char>(word % 256)).put(static_cast<char>(word / 256));
    }
  }

  static constexpr int kEnd = 3;  // of a document

  config::JobSpec JobOf(model::Family family = model::Family::kGpt2) const {
    config::JobSpec job = Job(family);
    job.steps = 5;
    job.parallelism.shard = config::Shard::kNone;
    return job;
  }

  // Returns the result on one rank, which is that with a barrier.
  static RunResult Reference(config::JobSpec job) {
    job.parallelism.shard = config::Shard::kNone;
    job.barrier = config::Barrier::kAlways;
    return Train(job);
  }

  static config::JobSpec WithoutBarrier(int pp, const std::string& schedule,
                                        const config::JobSpec& job) {
    config::JobSpec overlapped = On(pp, schedule, job);
    overlapped.barrier = config::Barrier::kNever;
    return overlapped;
  }

  // Returns a bound that clips some steps and not others.
  static double BetweenNorms(config::JobSpec job) {
    job.adamw.clip_norm = 0;
    const RunResult run = Reference(job);
    const auto [least, most] = std::ranges::minmax(run.steps, {}, &train::StepResult::grad_norm);
    return std::sqrt(least.grad_norm * most.grad_norm);
  }

  static std::int64_t Undone(const RunResult& run) {
    return std::ranges::count_if(run.steps, &train::StepResult::undone);
  }
};

TEST_F(OverlappedSpread, HasTheBitsOfABarrierOverFamiliesSchedulesAndClips) {
  for (const model::Family family : {model::Family::kGpt2, model::Family::kLlama}) {
    for (const double clip_norm : {0.0, 0.01, -1.0}) {
      config::JobSpec job = JobOf(family);
      job.adamw.clip_norm = clip_norm < 0 ? BetweenNorms(job) : clip_norm;
      const RunResult reference = Reference(job);
      for (const char* schedule : {"1f1b", "zb-h2", "zb-v", "auto"}) {
        for (const int pp : {2, 3}) {
          SCOPED_TRACE(absl::StrCat("family ", static_cast<int>(family), " ", schedule, " pp ", pp,
                                    " clip ", clip_norm));
          const RunResult run = TrainSpread(WithoutBarrier(pp, schedule, job));
          ExpectSameBits(reference, run);
          const std::int64_t steps = std::ssize(run.steps);
          if (clip_norm < 0) {
            EXPECT_GT(Undone(run), 0);
            EXPECT_LT(Undone(run), steps);
          } else {
            EXPECT_EQ(Undone(run), clip_norm > 0 ? steps : 0);
          }
        }
      }
    }
  }
}

TEST_F(OverlappedSpread, HasTheBitsOfABarrierUnderDataParallelismAndSharedState) {
  for (const model::Family family : {model::Family::kGpt2, model::Family::kLlama}) {
    for (const config::Precision precision : {config::Precision::kF32, config::Precision::kBf16}) {
      for (const double clip_norm : {0.0, 0.01}) {
        config::JobSpec job = JobOf(family);
        job.precision = precision;
        job.parallelism.data = 2;
        job.adamw.clip_norm = clip_norm;
        RunResult reference = Reference(job);
        ExpectSameBits(reference, TrainSpread(WithoutBarrier(2, "zb-h2", job)));
        // A rank that shares the state has sums of its shard of the gradients alone.
        reference.gradients.clear();
        job.parallelism.shard = config::Shard::kOptimizer;
        ExpectSameBits(reference, TrainSpread(WithoutBarrier(2, "zb-h2", job)));
        ExpectSameBits(reference,
                       Trained({.job = WithoutBarrier(2, "zb-v", job), .stop_every = 2}));
      }
    }
  }
}

TEST_F(OverlappedSpread, HasTheBitsOfABarrierWithOtherOptimizers) {
  for (const int optimizer : {1, 2, 3}) {
    config::JobSpec job = JobOf();
    if (optimizer == 1) job.lion = config::Lion{.learning_rate = 1e-3, .clip_norm = 0.5};
    if (optimizer == 2) job.sgd = config::Sgd{.learning_rate = 0.1, .nesterov = true};
    if (optimizer == 3) job.muon = config::Muon{.learning_rate = 3e-3, .clip_norm = 0.5};
    ExpectSameBits(Reference(job), TrainSpread(WithoutBarrier(3, "zb-h2", job)));
  }
}

// One rank then has all words, and the others have no rows to foresee.
TEST_F(OverlappedSpread, HasTheBitsOfABarrierWithASingleBlock) {
  config::JobSpec job = JobOf();
  job.model.vocab = model::kVocabularyBlock;
  job.train[0].format = job.validation->format = config::DataFormat::kBytes;
  ExpectSameBits(Reference(job), TrainSpread(WithoutBarrier(3, "zb-h2", job)));
}

// What tells documents apart is read until the last I.
TEST_F(OverlappedSpread, HasTheBitsOfABarrierWithDocumentsApartAndWhatIsRecomputed) {
  for (const model::Family family : {model::Family::kGpt2, model::Family::kLlama}) {
    config::JobSpec job = JobOf(family);
    job.train[0].path = job.validation->path = (directory_ / "documents.u16").string();
    job.document_end = kEnd;
    const RunResult reference = Reference(job);
    for (const model::Recompute mode : {model::Recompute::kNone, model::Recompute::kFull}) {
      config::JobSpec overlapped = WithoutBarrier(3, "zb-h2", job);
      overlapped.parallelism.recompute = {mode};
      ExpectSameBits(reference, TrainSpread(overlapped));
    }
  }
}

TEST_F(OverlappedSpread, HasTheBitsOfABarrierWithMergedWeightGradients) {
  config::JobSpec job = On(2, "zb-h1", JobOf());
  // Whole cache lines, so that neighbouring slots adjoin.
  job.model.hidden = job.model.context = job.model.positions = 16;
  job.model.heads = job.model.kv_heads = 4;
  job.model.inner = 64;
  job.exact = false;
  job.barrier = config::Barrier::kAlways;
  const RunResult reference = TrainSpread(job);
  ExpectSameBits(reference, TrainSpread(WithoutBarrier(2, "zb-h1", job)));
}

TEST_F(OverlappedSpread, HasTheBitsOfABarrierWhereverItStops) {
  for (const double clip_norm : {0.0, 0.01}) {
    config::JobSpec job = JobOf();
    job.adamw.clip_norm = clip_norm;
    const RunResult reference = Reference(job);
    const config::JobSpec overlapped = WithoutBarrier(3, "zb-h2", job);
    for (const std::int64_t stop_every : {1, 3})
      ExpectSameBits(reference, Trained({.job = overlapped, .stop_every = stop_every}));
    config::JobSpec first = overlapped;
    first.steps = 2;
    const RunResult half = Train(first);
    RunResult rest = Trained({.job = overlapped, .resume = &half});
    rest.steps.insert(rest.steps.begin(), half.steps.begin(), half.steps.end());
    ExpectSameBits(reference, rest);
  }
}

// Steps hold until ten were not clipped. In these, rows too are foreseen by the true norm.
TEST_F(OverlappedSpread, HasTheBitsOfABarrierWhereStepsHold) {
  for (const double clip_norm : {100.0, 0.01}) {
    for (const int dp : {1, 2}) {
      config::JobSpec job = JobOf();
      job.adamw.clip_norm = clip_norm;
      job.parallelism.data = dp;
      job.steps = 14;
      const RunResult reference = Reference(job);
      const RunResult run = Trained({.job = On(2, "zb-h2", job), .planned_without_barrier = true});
      ExpectSameBits(reference, run);
      for (std::size_t i = 0; i < run.steps.size(); ++i) {
        EXPECT_EQ(run.steps[i].held, i < 10 || clip_norm < 1) << i;
        EXPECT_FALSE(run.steps[i].undone) << i;
      }
    }
  }
}

}  // namespace
}  // namespace takt::numerics
