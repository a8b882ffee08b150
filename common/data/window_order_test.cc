// SPDX-License-Identifier: Apache-2.0
#include "common/data/window_order.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace takt::data {
namespace {

using ::testing::ElementsAre;

std::vector<std::int64_t> Epoch(const WindowOrder& order, std::int64_t n, std::int64_t epoch) {
  std::vector<std::int64_t> windows;
  for (std::int64_t i = 0; i < n; ++i) windows.push_back(order.WindowAt(epoch * n + i));
  return windows;
}

TEST(RowPosition, GoesOverReplicasThenMicrobatchesThenRows) {
  const BatchShape shape{.global = 12, .microbatch = 2, .dp_size = 2};
  const auto at = [&](int step, int dp, int microbatch, int row) {
    return RowPosition(shape, StepId(step), DpRank(dp), MicrobatchId(microbatch), row);
  };
  EXPECT_EQ(at(1, 0, 0, 0), 0);
  EXPECT_EQ(at(1, 0, 2, 1), 5);
  EXPECT_EQ(at(1, 1, 0, 0), 6);
  EXPECT_EQ(at(3, 1, 1, 1), 24 + 6 + 3);
}

TEST(RowPosition, StepsBeyondTheRangeOfIntDoNotOverflow) {
  const BatchShape shape{.global = 1 << 24, .microbatch = 1};
  EXPECT_EQ(RowPosition(shape, StepId(1 << 20), DpRank(0), MicrobatchId(0), 0),
            ((std::int64_t{1} << 20) - 1) << 24);
}

// Returns the rows that all ranks together take in a step.
std::vector<std::int64_t> RowsOf(const BatchShape& shape, StepId step) {
  const int microbatches = shape.global / shape.dp_size / shape.microbatch;
  std::vector<std::int64_t> rows;
  for (int dp = 0; dp < shape.dp_size; ++dp) {
    for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
      for (int row = 0; row < shape.microbatch; ++row)
        rows.push_back(RowPosition(shape, step, DpRank(dp), MicrobatchId(microbatch), row));
    }
  }
  return rows;
}

// Each generation has a mesh of its own, does some steps, and loses those after its last
// checkpoint, which the next one does again.
RC_GTEST_PROP(RowPosition, AJobThatIsKilledAndResizedTakesEachRowOnce, ()) {
  constexpr int kSteps = 30, kGlobal = 24;
  std::vector<std::vector<std::int64_t>> rows_of_step(kSteps + 1);
  const int generations = *rc::gen::inRange(1, 6);
  int saved = 0;
  for (int generation = 1; generation <= generations; ++generation) {
    const bool is_last = generation == generations;
    const BatchShape shape{.global = kGlobal,
                           .microbatch = *rc::gen::element(1, 2, 3),
                           .dp_size = *rc::gen::element(1, 2, 4)};
    const int end = is_last ? kSteps : *rc::gen::inRange(saved, kSteps + 1);
    for (int step = saved + 1; step <= end; ++step)
      rows_of_step[step] = RowsOf(shape, StepId(step));
    saved = is_last ? end : *rc::gen::inRange(saved, end + 1);
  }
  std::vector<std::int64_t> taken;
  for (const std::vector<std::int64_t>& rows : rows_of_step)
    taken.insert(taken.end(), rows.begin(), rows.end());
  std::ranges::sort(taken);
  std::vector<std::int64_t> each(kSteps * kGlobal);
  std::iota(each.begin(), each.end(), 0);
  RC_ASSERT(taken == each);
}

TEST(WindowOrder, UnshuffledIsFileOrderAndStartsOver) {
  const WindowOrder order(3, false, 7);
  EXPECT_THAT(Epoch(order, 7, 0), ElementsAre(0, 1, 2, 0, 1, 2, 0));
}

// Stored runs depend on this order: it must never change.
TEST(WindowOrder, ShuffledOrderIsFixedForEver) {
  EXPECT_THAT(Epoch(WindowOrder(10, true, 1234), 10, 0), ElementsAre(3, 6, 5, 2, 8, 7, 0, 4, 1, 9));
  EXPECT_EQ(WindowOrder(1'000'000'007, true, 1234).WindowAt(5'000'000'000), 33774057);
}

RC_GTEST_PROP(WindowOrder, EveryEpochVisitsEachWindowOnce, ()) {
  const auto n = *rc::gen::inRange<std::int64_t>(1, 3000);
  const WindowOrder order(n, true, *rc::gen::arbitrary<std::uint64_t>());
  std::vector<int> visits(n);
  for (const std::int64_t window : Epoch(order, n, *rc::gen::inRange<std::int64_t>(0, 1 << 20))) {
    RC_ASSERT(window >= 0 && window < n);
    ++visits[window];
  }
  RC_ASSERT(visits == std::vector<int>(n, 1));
}

TEST(WindowOrder, EpochsAndSeedsDiffer) {
  const WindowOrder order(100, true, 1);
  EXPECT_NE(Epoch(order, 100, 0), Epoch(order, 100, 1));
  EXPECT_NE(Epoch(order, 100, 0), Epoch(WindowOrder(100, true, 2), 100, 0));
}

// Each window should land on each place with probability 1/n: chi-square of n*n cells over many
// epochs, whose mean is (n-1)^2 = 961 and whose standard deviation is (n-1)*sqrt(2) = 44; six of
// them are beyond chance.
TEST(WindowOrder, SpreadsWindowsEvenlyOverPlaces) {
  constexpr int kWindows = 32, kEpochs = 20000;
  const WindowOrder order(kWindows, true, 99);
  std::vector<int> counts(kWindows * kWindows);
  for (std::int64_t p = 0; p < std::int64_t{kWindows} * kEpochs; ++p) {
    ++counts[p % kWindows * kWindows + order.WindowAt(p)];
  }
  const double expected = static_cast<double>(kEpochs) / kWindows;
  double chi_square = 0;
  for (const int count : counts) chi_square += (count - expected) * (count - expected) / expected;
  EXPECT_LT(chi_square, 961 + 6 * 44);
}

}  // namespace
}  // namespace takt::data
