// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>

#include "common/layout/testing/jobs.h"
#include "gtest/gtest.h"

namespace takt::layout {
namespace {

using model::Precision;

constexpr std::int64_t kRows = 2 * 40, kSlice = 32;  // two slices and a part
constexpr StageId kLast{1};

// The head has three blocks of words.
Job JobOf(const std::string& schedule, Precision activations, std::int64_t slice) {
  Case c{.config = WideVocabulary(model::Family::kLlama), .schedule = schedule};
  c.config.vocab = 2 * model::kVocabularyBlock + 100;
  c.config.context = c.config.positions = kRows / 2;
  c.precisions = {activations, activations};
  Job job(c);
  job.model.head_slice = slice;
  return job;
}

RankLayout LayoutOfLast(const Job& job) {
  RankLayout layout = job.LayoutOf(1);
  ExpectSound(layout);
  return layout;
}

TEST(HeadLayout, HasTheLogitsOfASliceInScratchWhereBackwardsFollowForwards) {
  for (const Precision activations : {Precision::kF32, Precision::kBf16}) {
    const Job whole = JobOf("1f1b", activations, 0);
    Job sliced = JobOf("1f1b", activations, kSlice);
    const RankLayout layout = LayoutOfLast(whole), of_slices = LayoutOfLast(sliced);
    const StageLayout& before = layout.stages.at(kLast);
    const StageLayout& after = of_slices.stages.at(kLast);
    EXPECT_FALSE(before.slices_head());
    EXPECT_TRUE(after.slices_head());
    const bool bf16 = activations == Precision::kBf16;
    const std::int64_t row_of_logits =
        (bf16 ? 2 : 4) * (2 * model::kVocabularyBlock + (bf16 ? 128 : 100));
    const std::int64_t softmax = 16 * (3 + 1) * kRows;
    EXPECT_EQ(before.stash_bytes - after.stash_bytes, row_of_logits * kRows + softmax);
    // Of the two buffers of the sum over blocks the second has the rows of a slice.
    const std::int64_t row = 4 * whole.model.config.hidden;
    EXPECT_GE(after.scratch_bytes, row * (kRows + kSlice) + softmax + row_of_logits * kSlice);
    EXPECT_LT(of_slices.bytes().total(), layout.bytes().total());

    SizeHeadStash(sliced.model, sliced.partition, sliced.programs);
    int slots = 0;
    for (const program::Slot& slot : sliced.programs[1].slots) {
      if (slot.kind != program::SlotKind::kStash) continue;
      EXPECT_EQ(slot.bytes, after.stash_bytes);
      ++slots;
    }
    EXPECT_EQ(slots, 1);
  }
}

TEST(HeadLayout, KeepsWholeLogitsElsewhere) {
  struct Kept {
    const char* schedule;
    std::int64_t slice;
  };
  for (const auto& [schedule, slice] : {Kept{"1f1b", kRows}, Kept{"1f1b", kRows + 1},
                                        Kept{"gpipe", kSlice}, Kept{"zb-h1", kSlice}}) {
    const RankLayout layout = LayoutOfLast(JobOf(schedule, Precision::kBf16, slice));
    EXPECT_EQ(layout.bytes(), LayoutOfLast(JobOf(schedule, Precision::kBf16, 0)).bytes())
        << schedule << " " << slice;
  }
}

}  // namespace
}  // namespace takt::layout
