// SPDX-License-Identifier: Apache-2.0
#include "common/explain/advice.h"

#include <optional>
#include <vector>

#include "common/explain/text.h"
#include "common/program/lowering.h"
#include "common/program/remove_barrier.h"
#include "common/schedule/generate.h"
#include "common/schedule/spread_vocabulary.h"
#include "common/trace/testing/synthetic_trace.h"
#include "gmock/gmock.h"

namespace takt::explain {
namespace {

using program::Op;
using ::testing::HasSubstr;
using trace::SyntheticOptions;
using trace::SyntheticTrace;

std::optional<Advice> Find(SyntheticTrace& synthetic, Advice::Kind kind,
                           const AdviceOptions& options = {}) {
  const auto advice =
      Advise(trace::MakeTimeline(synthetic.Get()).value(), StepId(2), options).value();
  for (const Advice& each : advice) {
    if (each.kind == kind) return each;
  }
  return std::nullopt;
}

double StepSeconds(SyntheticTrace& synthetic) {
  const trace::Timeline timeline = trace::MakeTimeline(synthetic.Get()).value();
  return static_cast<double>(timeline.steps[1].end_nanos - timeline.steps[1].start_nanos) * 1e-9;
}

TEST(Advise, SavesWhatDoingItSaves) {
  SyntheticTrace healthy("1f1b", 4, 8);
  const double healthy_seconds = StepSeconds(healthy);

  SyntheticTrace slow_rank("1f1b", 4, 8);
  for (const Op op : {Op::kForward, Op::kBackward}) slow_rank.Slow(1, op, 1.5);
  const auto speed_up = Find(slow_rank, Advice::Kind::kSlowRank);
  ASSERT_TRUE(speed_up.has_value());
  EXPECT_NEAR(speed_up->saved_seconds, StepSeconds(slow_rank) - healthy_seconds, 1e-6);
  EXPECT_THAT(speed_up->text, HasSubstr("rank 1 computes 50 % longer than the others"));

  SyntheticTrace slow_link("1f1b", 4, 8);
  slow_link.Delay(2, 1, 0.02);
  const auto link = Find(slow_link, Advice::Kind::kLink);
  ASSERT_TRUE(link.has_value());
  EXPECT_NEAR(link->saved_seconds, StepSeconds(slow_link) - healthy_seconds, 1e-6);
  EXPECT_THAT(link->text, HasSubstr("from rank 2 to rank 1 take 20.05 ms, others 0.05 ms"));

  SyntheticTrace slow_data("1f1b", 4, 8);
  slow_data.Duration(0, "LOAD") = 0.1;
  const auto data = Find(slow_data, Advice::Kind::kData);
  ASSERT_TRUE(data.has_value());
  EXPECT_NEAR(data->saved_seconds, StepSeconds(slow_data) - healthy_seconds, 2e-4);
}

// A trace where one stage of `ranks` has `more` layers than the others.
SyntheticTrace WithLayers(const std::vector<int>& layers) {
  SyntheticOptions options;
  options.stage_layers = layers;
  return {"1f1b", static_cast<int>(layers.size()), 8, options};
}

TEST(Advise, MovesALayerWhereItSavesMost) {
  SyntheticTrace uneven = WithLayers({2, 2, 4, 4, 6});
  const auto move = Find(uneven, Advice::Kind::kMoveLayer);
  ASSERT_TRUE(move.has_value());
  EXPECT_THAT(move->text, HasSubstr("stage 4 is 67 % slower than the mean: moving one layer to"));
  // The step takes as long as the text says once the layer has moved there.
  double best = StepSeconds(uneven);
  for (const std::vector<int>& moved : {std::vector{3, 2, 4, 4, 5}, std::vector{2, 3, 4, 4, 5},
                                        std::vector{2, 2, 5, 4, 5}, std::vector{2, 2, 4, 5, 5}}) {
    SyntheticTrace other = WithLayers(moved);
    best = std::min(best, StepSeconds(other));
  }
  EXPECT_NEAR(move->saved_seconds, StepSeconds(uneven) - best, 1e-6);
}

TEST(Advise, KnowsThatLayersDiffer) {
  SyntheticTrace uneven = WithLayers({2, 2, 2, 3});
  ASSERT_TRUE(Find(uneven, Advice::Kind::kMoveLayer).has_value());
  // The first layer of the last stage has no work, so moving it changes nothing.
  uneven.Get().layer_work = {1, 1, 1, 1, 1, 1, 0, 1, 1};
  EXPECT_FALSE(Find(uneven, Advice::Kind::kMoveLayer).has_value());
  // A stage of one layer keeps it.
  SyntheticTrace single("1f1b", 4, 8);
  single.Slow(3, Op::kBackward, 2);
  EXPECT_FALSE(Find(single, Advice::Kind::kMoveLayer).has_value());
}

TEST(Advise, KnowsABetterSchedule) {
  SyntheticTrace gpipe("gpipe", 4, 8);
  const auto other = Find(gpipe, Advice::Kind::kSchedule);
  ASSERT_TRUE(other.has_value());
  EXPECT_THAT(other->text, HasSubstr("schedule zb-"));
  EXPECT_THAT(other->text,
              HasSubstr("instead of gpipe, with 7 microbatches in flight instead of 8"));
  // The schedule that is best for its memory has no such suggestion, nor has one with pairs that
  // takes as long.
  for (const char* const family : {"zb-v", "dualpipe-v"}) {
    SyntheticTrace best(family, 4, 8);
    EXPECT_FALSE(Find(best, Advice::Kind::kSchedule).has_value()) << family;
  }
  // Without a flush the weights are others, so no suggestion leads there or away.
  SyntheticTrace dualpipe("dualpipe", 4, 8);
  EXPECT_FALSE(Find(dualpipe, Advice::Kind::kSchedule).has_value());
}

// Where ranks meet inside them, pairs are measured as a whole.
TEST(Advise, ReadsPairsAsTheirForwardAndTheirBackward) {
  for (const int tp_size : {1, 2}) {
    SyntheticOptions options{.tp_size = tp_size, .meeting = 1e-4};
    options.stage_layers = {7, 3, 3, 2};
    SyntheticTrace uneven("dualpipe-v", 2, 8, options);
    const auto move = Find(uneven, Advice::Kind::kMoveLayer);
    ASSERT_TRUE(move.has_value());
    EXPECT_THAT(move->text, HasSubstr("stage 0 is 87 % slower than the mean")) << tp_size;
    const auto worst =
        Explain(trace::MakeTimeline(uneven.Get()).value(), StepId(2)).value().worst_op;
    ASSERT_TRUE(worst.has_value());
    EXPECT_EQ(worst->stage, StageId(0)) << tp_size;
    EXPECT_EQ(worst->op, Op::kBackward) << tp_size;
    EXPECT_NEAR(worst->seconds, 0.14, 1e-6) << tp_size;
  }
}

// What pairs gain by hiding meetings is in none of the times that schedules are compared by.
TEST(Advise, ComparesNoScheduleWhosePairsHideMeetings) {
  SyntheticOptions options{.tp_size = 2};
  options.input_grad = 3 * options.forward;
  options.weight_grad = options.forward / 2;
  SyntheticTrace hides("dualpipe-v", 4, 8, options);
  EXPECT_FALSE(Find(hides, Advice::Kind::kSchedule, {.least_fraction = 1e-3}).has_value());
  options.halves_run_beside = false;
  SyntheticTrace in_turn("dualpipe-v", 4, 8, options);
  EXPECT_TRUE(Find(in_turn, Advice::Kind::kSchedule, {.least_fraction = 1e-3}).has_value());
}

TEST(Advise, SaysNothingAboutAHealthyStep) {
  SyntheticTrace healthy("zb-v", 4, 16);
  EXPECT_TRUE(Advise(trace::MakeTimeline(healthy.Get()).value(), StepId(2)).value().empty());
}

// Rows have slots of a stage that does not exist. Where steps overlap, they are foreseen, too.
TEST(Advise, KnowsASpreadVocabulary) {
  const auto schedule = schedule::Generate("1f1b", {.num_ranks = 4, .num_microbatches = 8}).value();
  const auto spread = schedule::SpreadVocabulary(schedule, {}, /*depth=*/2).value();
  program::LowerOptions options{.vocabulary = program::VocabularyShape{}};
  for (int s = 0; s < 4; ++s)
    options.stages.push_back({.first_layer = LayerId(2 * s), .last_layer = LayerId(2 * s + 2)});
  const std::vector<program::Program> programs = program::Lower(spread, options).value();
  for (const auto& steps : {programs, program::RemoveBarrier(programs).value()}) {
    SyntheticTrace slow(steps, {});
    for (const Op op : {Op::kForward, Op::kBackward}) slow.Slow(1, op, 2);
    const auto speed_up = Find(slow, Advice::Kind::kSlowRank);
    ASSERT_TRUE(speed_up.has_value());
    EXPECT_THAT(speed_up->text, HasSubstr("rank 1 computes"));
    const auto move = Find(slow, Advice::Kind::kMoveLayer);
    ASSERT_TRUE(move.has_value());
    EXPECT_THAT(move->text, HasSubstr("moving one layer to stage"));
  }
}

// They are made beside what is computed, for the meetings that pass them.
TEST(Explanation, CountsForeseenRowsAsCommunication) {
  const auto schedule =
      schedule::Generate("zb-h2", {.num_ranks = 4, .num_microbatches = 8}).value();
  const auto spread = schedule::SpreadVocabulary(schedule, {}, /*depth=*/0).value();
  const auto programs =
      program::RemoveBarrier(
          program::Lower(spread, {.vocabulary = program::VocabularyShape{}}).value())
          .value();
  const auto explained = [&](double seconds) {
    SyntheticTrace synthetic(programs, {});
    for (int rank = 0; rank < 4; ++rank) synthetic.Duration(rank, "SPECULATE(rows)") = seconds;
    return Explain(trace::MakeTimeline(synthetic.Get()).value(), StepId(2)).value();
  };
  const auto part = [](const Parts& parts, Part which) { return parts[static_cast<int>(which)]; };
  const Explanation quick = explained(0), slow = explained(0.1);
  EXPECT_GT(part(slow.parts, Part::kCommunication), part(quick.parts, Part::kCommunication) + 0.05);
  EXPECT_NEAR(part(slow.parts, Part::kCompute), part(quick.parts, Part::kCompute), 1e-9);
  EXPECT_GE(part(slow.parts, Part::kSchedule), -1e-9);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_NEAR(slow.ranks[rank].busy_seconds, quick.ranks[rank].busy_seconds, 1e-9);
  }
}

TEST(Explanation, PrintsEveryPartAndRank) {
  SyntheticTrace slow("1f1b", 4, 8);
  for (const Op op : {Op::kForward, Op::kBackward}) slow.Slow(2, op, 1.3);
  const trace::Timeline timeline = trace::MakeTimeline(slow.Get()).value();
  const std::string text =
      ToString(Explain(timeline, StepId(2)).value(), Advise(timeline, StepId(2)).value());
  for (const char* part : {"step 2 took ", "compute ", "imbalance ", "schedule ", "communication ",
                           "data ", "sync ", "runtime ", "\n0 ", "\n3 ",
                           "slowest: B of stage 2 on "
                           "rank 2, 26.00 ms; mean of all ranks 21.50 ms",
                           "would help, as simulated:\n  rank 2 computes 30 % longer"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

}  // namespace
}  // namespace takt::explain
