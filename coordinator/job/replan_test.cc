// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/replan.h"

#include "gtest/gtest.h"

namespace takt::job {
namespace {

using Kind = ReplanDecision::Kind;

ReplanOffer OfferOf(double present_seconds, double seconds) {
  ReplanOffer offer{.present_seconds = present_seconds};
  offer.plan.predicted_step_seconds = seconds;
  return offer;
}

// Facts by which a job is planned again: a minute and twenty steps have passed.
ReplanFacts Due() {
  return {.trains = true,
          .new_profile = true,
          .waited = absl::Minutes(1),
          .steps_done = 20,
          .steps_left = 100};
}

TEST(ReplanOffer, ItsGainIsTheShareOfAStepThatItSaves) {
  EXPECT_DOUBLE_EQ(OfferOf(1.0, 0.75).gain(), 0.25);
  EXPECT_EQ(OfferOf(1.0, 1.0).gain(), 0);
  EXPECT_EQ(OfferOf(1.0, 1.25).gain(), 0);
  EXPECT_EQ(OfferOf(0, 0).gain(), 0);
}

TEST(DecideReplan, AJobIsPlannedAgainWhenItIsDue) {
  EXPECT_EQ(DecideReplan(Due(), {}).kind, Kind::kAsk);
  ReplanFacts facts = Due();
  facts.waited -= absl::Seconds(1);
  EXPECT_EQ(DecideReplan(facts, {}).kind, Kind::kNone) << "a minute ago";
  facts = Due();
  facts.steps_done = 19;
  EXPECT_EQ(DecideReplan(facts, {}).kind, Kind::kNone) << "the plan has hardly been tried";
  facts = Due();
  facts.new_profile = false;
  EXPECT_EQ(DecideReplan(facts, {}).kind, Kind::kNone) << "nothing was measured";
  facts = Due();
  facts.asked = true;
  EXPECT_EQ(DecideReplan(facts, {}).kind, Kind::kNone) << "one question at a time";
  facts = Due();
  facts.trains = false;
  EXPECT_EQ(DecideReplan(facts, {}).kind, Kind::kNone);
}

TEST(DecideReplan, AJobSwitchesAtACheckpointToAPlanThatGainsEnough) {
  ReplanFacts facts = Due();
  const ReplanOffer offer = OfferOf(1.003, 0.812);
  facts.offer = &offer;
  EXPECT_EQ(DecideReplan(facts, {}).kind, Kind::kAsk);
  facts.may_switch = true;
  const ReplanDecision decision = DecideReplan(facts, {});
  EXPECT_EQ(decision.kind, Kind::kSwitch);
  EXPECT_EQ(decision.reason, "replanned: predicted 812ms a step instead of 1.003s");
  EXPECT_EQ(DecideReplan(facts, {.least_gain = 0.2}).kind, Kind::kAsk);
  const ReplanOffer smaller = OfferOf(1.0, 0.91);
  facts.offer = &smaller;
  EXPECT_EQ(DecideReplan(facts, {}).kind, Kind::kAsk);
  facts.offer = &offer;
  facts.trains = false;
  EXPECT_EQ(DecideReplan(facts, {}).kind, Kind::kNone);
}

// A hundred steps that are 0.25 s shorter save 25 s.
TEST(DecideReplan, AJobThatEndsSoonKeepsItsPlan) {
  ReplanFacts facts = Due();
  const ReplanOffer offer = OfferOf(1.0, 0.75);
  facts.offer = &offer;
  facts.may_switch = true;
  facts.start_time = absl::Seconds(24);
  EXPECT_EQ(DecideReplan(facts, {}).kind, Kind::kSwitch);
  facts.start_time = absl::Seconds(25);
  EXPECT_EQ(DecideReplan(facts, {}).kind, Kind::kAsk);
}

TEST(DecideReplan, ShortStepsAreToldInMicroseconds) {
  ReplanFacts facts = Due();
  const ReplanOffer offer = OfferOf(0.002, 0.0015);
  facts.offer = &offer;
  facts.may_switch = true;
  EXPECT_EQ(DecideReplan(facts, {}).reason, "replanned: predicted 1.5ms a step instead of 2ms");
}

TEST(DecideReplan, AnElasticJobGrowsAtOnceByWorkersThatAreStillThere) {
  ReplanFacts facts = Due();
  facts.new_profile = false;
  ReplanOffer offer = OfferOf(1.003, 0.812);
  offer.plan.mesh.pp_size = 3;
  facts.offer = &offer;
  facts.num_ranks = 2;
  facts.may_switch = true;
  EXPECT_EQ(DecideReplan(facts, {}).kind, Kind::kNone) << "the worker is gone";
  facts.num_spare = 1;
  facts.may_switch = false;
  EXPECT_EQ(DecideReplan(facts, {}).reason,
            "grows from 2 to 3 workers: predicted 812ms a step instead of 1.003s");
  facts.start_time = absl::Minutes(1);
  EXPECT_EQ(DecideReplan(facts, {}).kind, Kind::kNone) << "it does not pay";
}

TEST(DecideReplan, NewIdleWorkersAreAReasonToAskOnceTheJobHasKeptItsSizeForAWhile) {
  ReplanFacts facts = Due();
  facts.new_profile = false;
  facts.new_spare = true;
  facts.waited = absl::Seconds(10);
  EXPECT_EQ(DecideReplan(facts, {}).kind, Kind::kAsk);
  facts.start_time = absl::Seconds(2);
  EXPECT_EQ(DecideReplan(facts, {}).kind, Kind::kNone) << "ten starts are 20 s";
  facts.waited = absl::Seconds(20);
  EXPECT_EQ(DecideReplan(facts, {}).kind, Kind::kAsk);
}

TEST(ReplanningOf, KeepsPlansThatDecideTheBitsOfResults) {
  config::JobSpec job;
  plan::Plan plan{.mesh = {.pp_size = 2}};
  plan.programs.resize(2);
  const Replanning replanning = ReplanningOf(job, plan, nullptr, absl::Seconds(3));
  ASSERT_NE(replanning.present, nullptr);
  EXPECT_EQ(replanning.present->mesh.pp_size, 2);
  EXPECT_EQ(replanning.present->programs.size(), 1u);
  EXPECT_EQ(replanning.since, absl::Seconds(3));
  job.exact = false;
  EXPECT_EQ(ReplanningOf(job, plan, nullptr, {}).present, nullptr);
  job.exact = true;
  plan.schedule.updates = schedule::Updates::kDelayed;
  EXPECT_EQ(ReplanningOf(job, plan, nullptr, {}).present, nullptr);
  plan.schedule.updates = schedule::Updates::kFlush;
  plan.schedule.placement = schedule::Placement::kBidirectional;
  EXPECT_EQ(ReplanningOf(job, plan, nullptr, {}).present, nullptr);
}

}  // namespace
}  // namespace takt::job
