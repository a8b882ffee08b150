// SPDX-License-Identifier: Apache-2.0
#include "common/model/tree_sum.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace takt::model {
namespace {

// A rank's sum. The buffers hold formulas instead of tensors.
class Formulas {
 public:
  void Push(const TreeSum::Part& part, const std::string& formula) {
    buffers_.resize(static_cast<std::size_t>(sum_.size()));
    buffers_.push_back(formula);
    most_ = std::max(most_, buffers_.size());
    EXPECT_TRUE(sum_.Push(part, [this](int i) { return Add(i); }).ok());
  }
  std::string Finish() {
    EXPECT_TRUE(sum_.Finish([this](int i) { return Add(i); }).ok());
    return buffers_.front();
  }

  const std::vector<TreeSum::Part>& parts() const { return sum_.parts(); }
  const std::string& operator[](std::size_t i) const { return buffers_[i]; }
  std::size_t most_buffers() const { return most_; }

 private:
  absl::Status Add(int i) {
    const auto left = static_cast<std::size_t>(i);
    buffers_[left] = "(" + buffers_[left] + "+" + buffers_[left + 1] + ")";
    return absl::OkStatus();
  }

  TreeSum sum_;
  std::vector<std::string> buffers_;
  std::size_t most_ = 0;
};

void PushBlocks(int begin, int end, Formulas& sum) {
  for (int block = begin; block < end; ++block) sum.Push({block, 1}, std::to_string(block));
}

std::string OnOneRank(int num_blocks) {
  Formulas sum;
  PushBlocks(0, num_blocks, sum);
  return sum.Finish();
}

TEST(TreeSum, AddsNeighboursFirst) {
  EXPECT_EQ(OnOneRank(1), "0");
  EXPECT_EQ(OnOneRank(2), "(0+1)");
  EXPECT_EQ(OnOneRank(3), "((0+1)+2)");
  EXPECT_EQ(OnOneRank(7), "(((0+1)+(2+3))+((4+5)+6))");
  EXPECT_EQ(OnOneRank(8), "(((0+1)+(2+3))+((4+5)+(6+7)))");
}

TEST(TreeSum, NeedsAsManyBuffersAsItSays) {
  for (int n = 1; n <= 70; ++n) {
    Formulas sum;
    PushBlocks(0, n, sum);
    EXPECT_EQ(sum.most_buffers(), static_cast<std::size_t>(TreeSum::MostBuffers(n))) << n;
  }
}

// Three ranks have any runs of the blocks, also none. Each rank passes on what it could not add.
TEST(TreeSum, IsTheSameSumWhoeverHasWhichBlocks) {
  for (int n = 1; n <= 17; ++n) {
    const std::string expected = OnOneRank(n);
    for (int first_end = 0; first_end <= n; ++first_end) {
      for (int second_end = first_end; second_end <= n; ++second_end) {
        Formulas whole;
        for (const auto& [begin, end] :
             {std::pair(0, first_end), {first_end, second_end}, {second_end, n}}) {
          Formulas run;
          PushBlocks(begin, end, run);
          for (std::size_t i = 0; i < run.parts().size(); ++i) whole.Push(run.parts()[i], run[i]);
        }
        ASSERT_EQ(whole.Finish(), expected) << first_end << " " << second_end;
      }
    }
  }
}

TEST(TreeSum, PassesOnOnePartOfAnAlignedRun) {
  Formulas run;
  PushBlocks(8, 16, run);
  ASSERT_EQ(run.parts().size(), 1U);
  EXPECT_EQ(run.parts()[0], (TreeSum::Part{8, 8}));
}

TEST(TreeSum, StopsAtAnError) {
  TreeSum sum;
  const auto fails = [](int) { return absl::InternalError("device fault"); };
  EXPECT_TRUE(sum.Push({0, 1}, fails).ok());
  EXPECT_EQ(sum.Push({1, 1}, fails).message(), "device fault");
}

}  // namespace
}  // namespace takt::model
