// SPDX-License-Identifier: Apache-2.0
#include "cli/job/step_printer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

class StepPrinterTest : public testing::Test {
 protected:
  Context MakeContext(bool err_is_tty, OutputFormat output = OutputFormat::kText) {
    return {.terminal = {.out = out_, .err = err_, .err_is_tty = err_is_tty, .columns = 100},
            .output = output};
  }
  static v1::Job Running(std::int64_t steps) {
    v1::Job job;
    job.set_name("j");
    job.set_state(v1::JOB_STATE_RUNNING);
    job.set_steps(steps);
    return job;
  }
  static v1::StepReport Step(std::int64_t step) {
    v1::StepReport report;
    report.set_step(step);
    report.set_loss(2.5);
    report.set_step_seconds(2);
    report.set_tokens_per_second(12345);
    report.set_bubble_fraction(0.25);
    return report;
  }
  auto NumLines() {
    const std::string text = out_.str();
    return std::count(text.begin(), text.end(), '\n');
  }

  std::ostringstream out_, err_;
  FakeClock clock_;
};

TEST_F(StepPrinterTest, PrintsALongJobNowAndThen) {
  const Context context = MakeContext(false);
  StepPrinter printer(context, clock_);
  printer.OnJob(Running(1000));
  for (int step = 1; step <= 1000; ++step) {
    clock_.Advance(absl::Milliseconds(100));
    EXPECT_TRUE(printer.OnStep(Step(step)));
  }
  // The job takes 100 s and prints a line every 2 s, and always the first and the last step.
  EXPECT_GE(NumLines(), 50);
  EXPECT_LE(NumLines(), 52);
  EXPECT_THAT(out_.str(), HasSubstr("step 1/1000  loss 2.50000"));
  EXPECT_THAT(out_.str(), HasSubstr("step 1000/1000"));
}

TEST(StepLine, ALossThatIsNoNumberHasNoSign) {
  v1::StepReport step;
  step.set_loss(std::copysign(std::numeric_limits<double>::quiet_NaN(), -1.0));
  step.set_grad_norm(step.loss());
  step.set_validation_loss(step.loss());
  const std::string line = StepLine(step, 5);
  EXPECT_THAT(line, HasSubstr("loss nan  grad_norm nan"));
  EXPECT_THAT(line, HasSubstr("validation_loss nan"));
}

TEST_F(StepPrinterTest, PrintsAShortJobWhole) {
  const Context context = MakeContext(false);
  StepPrinter printer(context, clock_);
  printer.OnJob(Running(5));
  for (int step = 1; step <= 5; ++step) printer.OnStep(Step(step));
  EXPECT_EQ(NumLines(), 5);
}

TEST_F(StepPrinterTest, SaysWhenACheckpointIsThere) {
  const Context context = MakeContext(false);
  StepPrinter printer(context, clock_);
  v1::Job job = Running(5);
  job.mutable_checkpoint()->set_step(2);  // from before the printer began
  printer.OnJob(job);
  job.mutable_checkpoint()->set_step(4);
  printer.OnJob(job);
  EXPECT_THAT(err_.str(), Not(HasSubstr("step 2")));
  EXPECT_THAT(err_.str(), HasSubstr("checkpoint: step 4\n"));
}

TEST_F(StepPrinterTest, DrawsNoBarUnlessStderrIsATerminal) {
  const Context context = MakeContext(false);
  StepPrinter printer(context, clock_);
  printer.OnJob(Running(5));
  printer.OnStep(Step(1));
  EXPECT_THAT(err_.str(), Not(HasSubstr("\x1b")));
}

TEST_F(StepPrinterTest, BarShowsProgressAndEtaAndIsWiped) {
  const Context context = MakeContext(true);
  {
    StepPrinter printer(context, clock_);
    printer.OnJob(Running(100));
    printer.OnStep(Step(40));
    EXPECT_THAT(err_.str(), HasSubstr("40/100 40.0%"));
    EXPECT_THAT(err_.str(), HasSubstr("12.3k tokens/s"));
    EXPECT_THAT(err_.str(), HasSubstr("ETA 2m00s"));
  }
  const std::string err = err_.str();
  EXPECT_EQ(err.substr(err.size() - 4), "\r\x1b[K");
}

TEST_F(StepPrinterTest, JsonIsEveryStepOnStdoutAlone) {
  const Context context = MakeContext(false, OutputFormat::kJson);
  StepPrinter printer(context, clock_);
  printer.OnJob(Running(1000));
  for (int step = 1; step <= 100; ++step) printer.OnStep(Step(step));
  EXPECT_EQ(NumLines(), 100);
  EXPECT_THAT(out_.str(), Not(HasSubstr("RUNNING")));
}

TEST_F(StepPrinterTest, SaysAStateOnce) {
  const Context context = MakeContext(false);
  StepPrinter printer(context, clock_);
  v1::Job job = Running(5);
  job.set_state(v1::JOB_STATE_QUEUED);
  job.set_reason("needs 4 workers, 2 idle");
  printer.OnJob(job);
  printer.OnJob(job);
  EXPECT_EQ(err_.str(), "j: QUEUED (needs 4 workers, 2 idle)\n");
}

TEST_F(StepPrinterTest, SaysTheWarningsOfThePlanOnceWhenTheyCome) {
  const Context context = MakeContext(false);
  StepPrinter printer(context, clock_);
  v1::Job job = Running(5);
  printer.OnJob(job);
  job.add_warnings("slow links");
  printer.OnJob(job);
  printer.OnJob(job);
  const std::string said = err_.str();
  EXPECT_THAT(said, HasSubstr("warning: slow links\n"));
  EXPECT_EQ(said.find("warning"), said.rfind("warning"));
}

TEST_F(StepPrinterTest, TellsWhenStdoutIsClosed) {
  const Context context = MakeContext(false);
  StepPrinter printer(context, clock_);
  printer.OnJob(Running(5));
  out_.setstate(std::ios::badbit);
  EXPECT_FALSE(printer.OnStep(Step(1)));
}

TEST_F(StepPrinterTest, EndNamesWhatEachRankWasDoing) {
  const Context context = MakeContext(false);
  StepPrinter printer(context, clock_);
  v1::Job job = Running(5);
  job.set_state(v1::JOB_STATE_FAILED);
  job.set_reason("worker w1 was lost");
  v1::RankStatus* rank = job.add_fault();
  rank->set_rank(2);
  rank->set_worker("w2");
  rank->set_last_step(3);
  rank->set_instruction("2RECV_F4");
  rank->set_waiting_for("1F4 from pp rank 1");
  printer.OnEnd(job);
  EXPECT_THAT(err_.str(), HasSubstr("j: FAILED (worker w1 was lost)"));
  EXPECT_THAT(err_.str(),
              HasSubstr("rank 2 (w2): last step 3, at 2RECV_F4, waiting for 1F4 from pp rank 1"));
}

TEST_F(StepPrinterTest, AFaultThatTheJobOutlivedIsNotItsLastWord) {
  const Context context = MakeContext(false);
  StepPrinter printer(context, clock_);
  v1::Job job = Running(5);
  job.set_state(v1::JOB_STATE_SUCCEEDED);
  job.add_fault()->set_instruction("2RECV_F4");
  printer.OnEnd(job);
  EXPECT_THAT(err_.str(), Not(HasSubstr("2RECV_F4")));
}

}  // namespace
}  // namespace takt::cli
