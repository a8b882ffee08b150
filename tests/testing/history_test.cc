// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/history.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::StepReport Step(std::int64_t number, double loss = 1) {
  v1::StepReport step;
  step.set_step(number);
  step.set_loss(loss);
  return step;
}

v1::Job JobAt(std::int64_t step, v1::JobState state = v1::JOB_STATE_RUNNING) {
  v1::Job job;
  job.set_name("j");
  job.set_id("i");
  job.set_state(state);
  job.set_generation(1);
  if (step > 0) *job.mutable_last_step() = Step(step);
  return job;
}

class HistoryTest : public ::testing::Test {
 protected:
  HistoryTest() { history_.Acknowledged(Command::kSubmit, "j"); }
  History history_;
};

TEST_F(HistoryTest, ACoordinatorThatForgetsNothingHoldsTheModel) {
  history_.Saw(JobAt(0, v1::JOB_STATE_QUEUED));
  history_.Saw(JobAt(2));
  history_.Acknowledged(Command::kPause, "j");
  history_.SawAtRest(JobAt(3, v1::JOB_STATE_PAUSED));
  history_.Acknowledged(Command::kResume, "j");
  history_.SawAtRest(JobAt(4));
  history_.SawAtRest(JobAt(4, v1::JOB_STATE_SUCCEEDED));
  history_.SawSteps("j", {Step(1), Step(2), Step(3), Step(4)});
  EXPECT_THAT(history_.violations(), IsEmpty());
  EXPECT_THAT(history_.ToString(), HasSubstr("pause j"));
  EXPECT_THAT(history_.JobNames(), ElementsAre("j"));
}

TEST_F(HistoryTest, WhatWasShownMayNotGoBack) {
  v1::Job before = JobAt(5);
  before.set_generation(2);
  before.mutable_checkpoint()->set_step(4);
  history_.Saw(before);
  v1::Job after = JobAt(3);
  after.set_id("other");
  history_.Saw(after);
  EXPECT_THAT(history_.violations(), ElementsAre(HasSubstr("id changed"), HasSubstr("generation 2"),
                                                 HasSubstr("checkpoint of step 4"),
                                                 HasSubstr("step 5 was shown, and now 3")));
}

TEST_F(HistoryTest, AStepKeepsItsLossAndIsInTheLogOnce) {
  history_.Saw(JobAt(2));
  history_.SawSteps("j", {Step(1), Step(2, 3)});
  EXPECT_THAT(history_.violations(), ElementsAre(HasSubstr("with loss 1, and now with 3")));
  history_.SawSteps("j", {Step(1), Step(1)});
  EXPECT_THAT(history_.violations().at(1), HasSubstr("step 1 in place of 2"));
  EXPECT_THAT(history_.violations().at(2), HasSubstr("its log ends at 1"));
}

TEST_F(HistoryTest, AnEndIsFinalAndAskedFor) {
  history_.Saw(JobAt(1, v1::JOB_STATE_PAUSED));
  history_.Saw(JobAt(1, v1::JOB_STATE_CANCELLED));
  history_.Saw(JobAt(1));
  EXPECT_THAT(history_.violations(),
              ElementsAre(HasSubstr("paused, and nobody"), HasSubstr("cancelled, and nobody"),
                          HasSubstr("had ended as JOB_STATE_CANCELLED")));
}

TEST_F(HistoryTest, AtRestAJobIsWhereTheLastCommandSendsIt) {
  history_.Acknowledged(Command::kPause, "j");
  history_.SawAtRest(JobAt(1));
  history_.Acknowledged(Command::kResume, "j");
  history_.SawAtRest(JobAt(1, v1::JOB_STATE_PAUSED));
  history_.Acknowledged(Command::kCancel, "j");
  history_.SawAtRest(JobAt(1));
  EXPECT_THAT(history_.violations(), ElementsAre(HasSubstr("was to pause"), HasSubstr("was to run"),
                                                 HasSubstr("was to be cancelled")));
}

TEST_F(HistoryTest, AWorkerStaysDrained) {
  v1::Worker worker;
  worker.set_name("w0");
  history_.Saw(worker);
  history_.AcknowledgedDrained("w0", true);
  history_.Saw(worker);
  worker.set_drained(true);
  history_.Saw(worker);
  history_.AcknowledgedDrained("w0", false);
  history_.Saw(worker);
  EXPECT_THAT(history_.violations(),
              ElementsAre(HasSubstr("no longer drained"), HasSubstr("drained again")));
}

}  // namespace
}  // namespace takt::testing
