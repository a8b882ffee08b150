// SPDX-License-Identifier: Apache-2.0
#include "worker/session/copy_choice.h"

#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace takt::session {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr CopyLimits kAll{.at_least = StepId(0), .at_most = StepId(1000)};

std::string HashAt(std::int64_t step, int layer) { return absl::StrCat("h", step, "-", layer); }

// A rank that needs `needs` and whose worker holds `held` of these steps.
CopyOffer Offer(const std::vector<int>& needs, const std::vector<int>& held,
                const std::vector<std::int64_t>& steps) {
  CopyOffer offer;
  for (const int layer : needs) offer.needs.emplace_back(layer);
  for (const std::int64_t step : steps) {
    for (const int layer : held) offer.held[StepId(step)][LayerId(layer)] = HashAt(step, layer);
  }
  return offer;
}

// Three ranks with a layer each, and copies of the one before: rank 1 was lost, a spare has it now.
std::vector<CopyOffer> AfterALoss() {
  return {Offer({0}, {0, 2}, {40, 41}), Offer({1}, {}, {}), Offer({2}, {1, 2}, {40, 41})};
}

TEST(CopyChoice, ASpareGetsItsLayersFromTheNeighbourOfTheLostRank) {
  const CopyChoice choice = ChooseCopies(AfterALoss(), kAll);
  EXPECT_EQ(choice.step, StepId(41));
  EXPECT_THAT(choice.moves, ElementsAre(CopyMove{Rank(2), Rank(1), LayerId(1)}));
  EXPECT_THAT(choice.reason, IsEmpty());
}

TEST(CopyChoice, ARankThatHoldsTheStepTellsItsKernels) {
  std::vector<CopyOffer> offers = AfterALoss();
  CopyLimits limits = kAll;
  EXPECT_EQ(ChooseCopies(offers, limits).kernels, std::nullopt);
  limits.needs_kernels = true;
  offers[1].kernels = "of an older step";
  EXPECT_EQ(ChooseCopies(offers, limits).step, StepId(0));
  EXPECT_EQ(ChooseCopies(offers, limits).reason, "no worker knows the kernel plan of step 41");
  offers[2].kernels = "aa";
  const CopyChoice choice = ChooseCopies(offers, limits);
  EXPECT_EQ(choice.step, StepId(41));
  EXPECT_EQ(choice.kernels, Rank(2));
  EXPECT_EQ(ParseChoice(FormatChoice(choice), 3).value(), choice);
  EXPECT_FALSE(ParseChoice(FormatChoice(choice), 2).ok());
  EXPECT_EQ(ParseOffer(FormatOffer(offers[2])).value(), offers[2]);
  offers[0].kernels = "bb";
  EXPECT_EQ(ChooseCopies(offers, limits).reason, "the kernel plans of step 41 differ");
}

TEST(CopyChoice, AnOlderStepIsTakenIfTheNewestIsNotWhole) {
  std::vector<CopyOffer> offers = AfterALoss();
  offers[2].held[StepId(41)].erase(LayerId(1));
  const CopyChoice choice = ChooseCopies(offers, kAll);
  EXPECT_EQ(choice.step, StepId(40));
  EXPECT_EQ(choice.reason, "no worker holds layers 1 of step 41");
}

TEST(CopyChoice, WhatHasTwoHashesIsNotTrusted) {
  std::vector<CopyOffer> offers = AfterALoss();
  offers[0].held[StepId(41)][LayerId(2)] = "other";
  const CopyChoice choice = ChooseCopies(offers, kAll);
  EXPECT_EQ(choice.step, StepId(40));
  EXPECT_EQ(choice.reason, "the copies of layers 2 of step 41 differ");
}

TEST(CopyChoice, WithoutTheHolderThereIsNoStep) {
  std::vector<CopyOffer> offers = AfterALoss();
  offers[2] = Offer({2}, {}, {});
  const CopyChoice choice = ChooseCopies(offers, kAll);
  EXPECT_EQ(choice.step, StepId(0));
  EXPECT_EQ(choice.reason, "no worker holds layers 1 of step 41");
}

TEST(CopyChoice, KeepsToItsLimits) {
  EXPECT_EQ(ChooseCopies(AfterALoss(), {.at_least = StepId(0), .at_most = StepId(40)}).step,
            StepId(40));
  const CopyChoice none =
      ChooseCopies(AfterALoss(), {.at_least = StepId(42), .at_most = StepId(50)});
  EXPECT_EQ(none.step, StepId(0));
  EXPECT_EQ(none.reason, "no worker holds a copy of a step from 42 to 50");
}

TEST(CopyChoice, ReplicasShareTheSending) {
  // Ranks 2 and 3 are new and need both layers, which ranks 0 and 1 hold.
  const std::vector<CopyOffer> offers = {Offer({0, 1}, {0, 1}, {5}), Offer({0, 1}, {0, 1}, {5}),
                                         Offer({0, 1}, {}, {}), Offer({0, 1}, {}, {})};
  std::map<Rank, int> sent;
  for (const CopyMove& move : ChooseCopies(offers, kAll).moves) ++sent[move.from];
  EXPECT_EQ(sent[Rank(0)], 2);
  EXPECT_EQ(sent[Rank(1)], 2);
}

TEST(CopyChoice, TextsAreReadAsTheyWereWritten) {
  for (const CopyOffer& offer : AfterALoss())
    EXPECT_EQ(ParseOffer(FormatOffer(offer)).value(), offer);
  CopyChoice choice = ChooseCopies(AfterALoss(), kAll);
  EXPECT_EQ(FormatChoice(choice), "41 2>1:1");
  EXPECT_EQ(ParseChoice("41 2>1:1", 3).value(), choice);
}

TEST(CopyChoice, TextsOfAPeerThatAreWrongAreRefused) {
  for (const char* text : {"", "\n", "needs x", "needs -1", "0 1:a", "forty 1:a", "40 1", "40 :a",
                           "40 1:", "needs 1\n\n"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseOffer(text).status())) << text;
  }
  for (const char* text : {"", "x", "0", "-1", "40 1", "40 1>2", "40 1>2:x", "40 1>3:0", "40 3>1:0",
                           "40 1>1:0", "40 1:2>0:1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseChoice(text, 3).status())) << text;
  }
}

// Whatever is held, every need is served from a holder of the step, or no step is taken.
RC_GTEST_PROP(CopyChoiceProperty, AChosenStepServesAllNeeds, ()) {
  const int num_ranks = *rc::gen::inRange(1, 6);
  std::vector<CopyOffer> offers(num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) {
    offers[rank].needs.emplace_back(rank);
    for (const std::int64_t step : {1, 2, 3}) {
      for (int layer = 0; layer < num_ranks; ++layer) {
        if (*rc::gen::inRange(0, 3) > 0)
          offers[rank].held[StepId(step)][LayerId(layer)] = HashAt(step, layer);
      }
    }
  }
  const CopyChoice choice = ChooseCopies(offers, kAll);
  const auto holds = [&](int rank, StepId step, LayerId layer) {
    const auto held = offers[rank].held.find(step);
    return held != offers[rank].held.end() && held->second.contains(layer);
  };
  const auto is_whole = [&](StepId step) {
    for (int layer = 0; layer < num_ranks; ++layer) {
      bool any = false;
      for (int rank = 0; rank < num_ranks; ++rank) any |= holds(rank, step, LayerId(layer));
      if (!any) return false;
    }
    return true;
  };
  for (std::int64_t step = 3; step > choice.step.value(); --step)
    RC_ASSERT(!is_whole(StepId(step)));
  if (choice.step == StepId(0)) return;
  RC_ASSERT(is_whole(choice.step));
  std::set<int> served;
  for (const CopyMove& move : choice.moves) {
    RC_ASSERT(holds(move.from.value(), choice.step, move.layer));
    RC_ASSERT(move.to.value() == move.layer.value());
    served.insert(move.layer.value());
  }
  for (int rank = 0; rank < num_ranks; ++rank) {
    const bool own = holds(rank, choice.step, LayerId(rank));
    RC_ASSERT(own != served.contains(rank));
  }
}

}  // namespace
}  // namespace takt::session
