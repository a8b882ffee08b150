// SPDX-License-Identifier: Apache-2.0
#include "common/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace takt::data {
namespace {

using testing::ElementsAre;

// Corpora of the first `n` rows as letters.
std::string Turns(const Mixture& mixture, int n) {
  std::string turns;
  for (int p = 0; p < n; ++p) turns += static_cast<char>('A' + mixture.At(p).corpus);
  return turns;
}

TEST(Mixture, CycleIsTheShortestInWhichSharesAreWhole) {
  EXPECT_THAT(RowsInCycle({5}), ElementsAre(1));
  EXPECT_THAT(RowsInCycle({1, 1, 1}), ElementsAre(1, 1, 1));
  EXPECT_THAT(RowsInCycle({2, 1}), ElementsAre(2, 1));
  EXPECT_THAT(RowsInCycle({0.7, 0.3}), ElementsAre(7, 3));
  EXPECT_THAT(RowsInCycle({0.9999, 0.0001}), ElementsAre(9999, 1));
  EXPECT_THAT(RowsInCycle({1.0 / 3, 2.0 / 3}), ElementsAre(1, 2));
}

TEST(Mixture, OtherSharesAreRoundedByLargestRemainder) {
  EXPECT_THAT(RowsInCycle({1, 1.41421356237, 1.73205080757}), ElementsAre(2412, 3411, 4177));
}

TEST(Mixture, TurnsAreSpreadOverTheCycle) {
  EXPECT_EQ(Turns(Mixture({{.weight = 2}, {.weight = 1}}, false, 0), 6), "ABAABA");
  EXPECT_EQ(Turns(Mixture({{.weight = 1}, {.weight = 1}}, true, 0), 4), "ABAB");
  EXPECT_EQ(Turns(Mixture({{.weight = 0.7}, {.weight = 0.3}}, false, 0), 10), "ABAAABAABA");
}

TEST(Mixture, OfOneCorpusIsItsOwnOrder) {
  for (const bool shuffle : {false, true}) {
    const Mixture mixture({{.num_windows = 17, .weight = 3}}, shuffle, 1234);
    const WindowOrder order(17, shuffle, 1234);
    for (int p = 0; p < 60; ++p) EXPECT_EQ(mixture.At(p), (Draw{0, order.WindowAt(p)}));
  }
}

TEST(Mixture, UnshuffledReadsEachCorpusInItsOrder) {
  const Mixture mixture({{.num_windows = 3, .weight = 2}, {.num_windows = 2, .weight = 1}}, false,
                        0);
  std::vector<std::int64_t> first, second;
  for (int p = 0; p < 9; ++p) {
    const Draw draw = mixture.At(p);
    (draw.corpus == 0 ? first : second).push_back(draw.window);
  }
  EXPECT_THAT(first, ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(second, ElementsAre(0, 1, 0));
}

TEST(Mixture, CorporaOfOneSizeAreShuffledDifferently) {
  const Mixture mixture({{.num_windows = 100}, {.num_windows = 100}}, true, 5);
  int same = 0;
  for (int p = 0; p < 200; p += 2) same += mixture.At(p).window == mixture.At(p + 1).window;
  EXPECT_LT(same, 20);
}

// Stored runs depend on it: it must never change.
TEST(Mixture, IsFixedForEver) {
  const Mixture mixture({{.num_windows = 1000, .weight = 0.6}, {.num_windows = 10, .weight = 0.4}},
                        true, 1234);
  std::string seen;
  for (int p = 0; p < 6; ++p) {
    const Draw draw = mixture.At(p);
    seen += std::to_string(draw.corpus) + ":" + std::to_string(draw.window) + " ";
  }
  EXPECT_EQ(seen, "0:448 1:5 0:815 1:9 0:119 0:523 ");
  EXPECT_EQ(mixture.At(5'000'000'000'001), (Draw{1, 7}));
}

std::vector<MixedCorpus> AnyCorpora() {
  std::vector<MixedCorpus> corpora(*rc::gen::inRange(1, 5));
  for (MixedCorpus& corpus : corpora) {
    corpus.num_windows = *rc::gen::inRange(1, 60);
    corpus.weight = *rc::gen::inRange(1, 100) / 10.0;
  }
  return corpora;
}

RC_GTEST_PROP(Mixture, EachCorpusReadsEachWindowOnceAnEpoch, ()) {
  const std::vector<MixedCorpus> corpora = AnyCorpora();
  const Mixture mixture(corpora, *rc::gen::arbitrary<bool>(), *rc::gen::arbitrary<std::uint64_t>());
  std::vector<std::vector<std::int64_t>> drawn(corpora.size());
  for (std::int64_t p = 0; p < 1000; ++p) {
    const Draw draw = mixture.At(p);
    drawn[draw.corpus].push_back(draw.window);
  }
  for (std::size_t c = 0; c < corpora.size(); ++c) {
    const std::int64_t n = corpora[c].num_windows;
    for (std::int64_t begin = 0; begin + n <= std::ssize(drawn[c]); begin += n) {
      const std::set<std::int64_t> epoch(drawn[c].begin() + begin, drawn[c].begin() + begin + n);
      RC_ASSERT(std::ssize(epoch) == n);
      RC_ASSERT(*epoch.begin() == 0 && *epoch.rbegin() == n - 1);
    }
  }
}

RC_GTEST_PROP(Mixture, SharesAreKeptAllAlong, ()) {
  const std::vector<MixedCorpus> corpora = AnyCorpora();
  const Mixture mixture(corpora, true, 1);
  double sum = 0;
  for (const MixedCorpus& corpus : corpora) sum += corpus.weight;
  std::vector<int> rows(corpora.size());
  for (int p = 0; p < 500; ++p) {
    ++rows[mixture.At(p).corpus];
    for (std::size_t c = 0; c < corpora.size(); ++c) {
      const double due = (p + 1) * corpora[c].weight / sum;
      // Every corpus is at most half a row off at its own turns; the others' turns lie between.
      RC_ASSERT(std::abs(rows[c] - due) <= static_cast<double>(corpora.size()));
    }
  }
}

RC_GTEST_PROP(Mixture, MostRowsIsTheMostOfAnyRun, ()) {
  const std::vector<MixedCorpus> corpora = AnyCorpora();
  const Mixture mixture(corpora, false, 0);
  const int length = *rc::gen::inRange(1, 80), corpus = 0;
  const std::string turns = Turns(mixture, 2500);
  std::int64_t most = 0;
  for (std::size_t begin = 0; begin + length <= turns.size(); ++begin) {
    most = std::max<std::int64_t>(
        most, std::count(turns.begin() + begin, turns.begin() + begin + length, 'A'));
  }
  RC_ASSERT(mixture.MostRows(corpus, length) >= most);
  const auto cycle = RowsInCycle([&] {
    std::vector<double> weights;
    for (const MixedCorpus& c : corpora) weights.push_back(c.weight);
    return weights;
  }());
  if (std::accumulate(cycle.begin(), cycle.end(), 0) + length <= 2500)
    RC_ASSERT(mixture.MostRows(corpus, length) == most);
}

// Whatever the degree, the ranks together read the rows of the step, each once; so a run that is
// resumed at any step, with any degree, reads what the undisturbed one would have read.
RC_GTEST_PROP(Mixture, AnyDegreeReadsTheSameRowsOfAStep, ()) {
  const std::vector<MixedCorpus> corpora = AnyCorpora();
  const Mixture mixture(corpora, true, *rc::gen::arbitrary<std::uint64_t>());
  const int dp_size = *rc::gen::inRange(1, 5), microbatch = *rc::gen::inRange(1, 4),
            microbatches = *rc::gen::inRange(1, 4);
  const BatchShape shape{
      .global = dp_size * microbatch * microbatches, .microbatch = microbatch, .dp_size = dp_size};
  const StepId step(*rc::gen::inRange(1, 1 << 20));
  std::vector<Draw> of_ranks, of_run;
  for (int dp = 0; dp < dp_size; ++dp) {
    for (int m = 0; m < microbatches; ++m) {
      for (int row = 0; row < microbatch; ++row) {
        of_ranks.push_back(mixture.At(RowPosition(shape, step, DpRank(dp), MicrobatchId(m), row)));
      }
    }
  }
  for (int row = 0; row < shape.global; ++row) {
    of_run.push_back(mixture.At((step.value() - 1) * shape.global + row));
  }
  RC_ASSERT(of_ranks == of_run);
}

}  // namespace
}  // namespace takt::data
