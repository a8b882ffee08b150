// SPDX-License-Identifier: Apache-2.0
#include "worker/session/bulk_outbox.h"

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::session {
namespace {

const control::JobKey kJob{"kjv", Generation(1)};

control::RankStepReport Step(std::int64_t step) { return {.step = StepId(step)}; }

// Returns the step of the next item, -1 for a log line, -2 after an interruption.
std::int64_t NextStep(BulkOutbox& outbox) {
  const auto item = outbox.Next();
  if (!item.has_value()) return -2;
  const auto* report = std::get_if<control::RankStepReport>(&*item);
  return report == nullptr ? -1 : report->step.value();
}

TEST(BulkOutbox, ReportsGoInOrderWithSequencesFromOne) {
  BulkOutbox outbox;
  outbox.BeginJob(kJob, Rank(0));
  outbox.AddReport(Step(5));
  outbox.AddReport(Step(6));
  const auto first = std::get<control::RankStepReport>(*outbox.Next());
  EXPECT_EQ(first.sequence, 1);
  EXPECT_EQ(first.key, kJob);
  EXPECT_EQ(first.step, StepId(5));
  EXPECT_EQ(std::get<control::RankStepReport>(*outbox.Next()).sequence, 2);
}

TEST(BulkOutbox, CheckpointsCountInTheSameSequence) {
  BulkOutbox outbox;
  outbox.BeginJob(kJob, Rank(0));
  outbox.AddReport(Step(5));
  outbox.AddReport(control::CheckpointReport{.step = StepId(5)});
  outbox.AddReport(Step(6));
  EXPECT_EQ(std::get<control::RankStepReport>(*outbox.Next()).sequence, 1);
  const auto checkpoint = std::get<control::CheckpointReport>(*outbox.Next());
  EXPECT_EQ(checkpoint.sequence, 2);
  EXPECT_EQ(checkpoint.step, StepId(5));
  outbox.Acknowledge(kJob, 2);
  EXPECT_FALSE(outbox.AllAcknowledged());
}

TEST(BulkOutbox, ACheckpointIsWithdrawnUntilItIsAcknowledged) {
  BulkOutbox outbox;
  outbox.BeginJob(kJob, Rank(0));
  for (const int step : {5, 6}) {
    outbox.AddReport(control::CheckpointReport{
        .step = StepId(step), .files = {{"config.json", 12, std::string(32, 'a')}}});
  }
  outbox.Acknowledge(kJob, 1);
  EXPECT_FALSE(outbox.Withdraw(StepId(5), "replaced"));
  EXPECT_TRUE(outbox.Withdraw(StepId(6), "replaced"));
  EXPECT_FALSE(outbox.Withdraw(StepId(7), "replaced"));
  const auto report = std::get<control::CheckpointReport>(*outbox.Next());
  EXPECT_EQ(report.step, StepId(6));
  EXPECT_EQ(report.error, "replaced");
  EXPECT_TRUE(report.files.empty());
}

TEST(BulkOutbox, KnowsTheNewestStepAndCheckpointThatWereAcknowledged) {
  BulkOutbox outbox;
  outbox.BeginJob(kJob, Rank(0));
  outbox.AddReport(Step(5));
  outbox.AddReport(control::CheckpointReport{.step = StepId(4)});
  outbox.AddReport(Step(6));
  EXPECT_EQ(outbox.acknowledged().step, StepId(0));
  outbox.Acknowledge(kJob, 2);
  EXPECT_EQ(outbox.acknowledged().step, StepId(5));
  EXPECT_EQ(outbox.acknowledged().checkpoint, StepId(4));
  outbox.BeginJob({"next", Generation(1)}, Rank(0));
  EXPECT_EQ(outbox.acknowledged().step, StepId(0));
}

TEST(BulkOutbox, UnacknowledgedReportsGoAgainOnTheSameConnectionIfTold) {
  BulkOutbox outbox;
  outbox.BeginJob(kJob, Rank(0));
  for (int step = 1; step <= 2; ++step) outbox.AddReport(Step(step));
  for (int step = 1; step <= 2; ++step) EXPECT_EQ(NextStep(outbox), step);
  outbox.Acknowledge(kJob, 1);
  outbox.Resend();
  EXPECT_EQ(NextStep(outbox), 2);
}

TEST(BulkOutbox, UnacknowledgedReportsGoAgainAfterReconnection) {
  BulkOutbox outbox;
  outbox.BeginJob(kJob, Rank(0));
  for (int step = 1; step <= 4; ++step) outbox.AddReport(Step(step));
  for (int step = 1; step <= 3; ++step) EXPECT_EQ(NextStep(outbox), step);
  outbox.Acknowledge(kJob, 2);
  EXPECT_EQ(NextStep(outbox), 4);  // an acknowledgement does not change what was already sent
  outbox.Rewind();
  EXPECT_EQ(NextStep(outbox), 3);
  EXPECT_EQ(NextStep(outbox), 4);
  EXPECT_FALSE(outbox.AllAcknowledged());
  outbox.Acknowledge(kJob, 4);
  EXPECT_TRUE(outbox.AllAcknowledged());
}

TEST(BulkOutbox, AcknowledgementOfAnotherGenerationIsIgnored) {
  BulkOutbox outbox;
  outbox.BeginJob(kJob, Rank(0));
  outbox.AddReport(Step(1));
  outbox.Acknowledge({"kjv", Generation(0)}, 1);
  EXPECT_FALSE(outbox.AllAcknowledged());
}

TEST(BulkOutbox, ANewJobDropsTheReportsOfTheOneBefore) {
  BulkOutbox outbox;
  outbox.BeginJob(kJob, Rank(0));
  outbox.AddReport(Step(1));
  outbox.BeginJob({"kjv", Generation(2)}, Rank(0));
  EXPECT_TRUE(outbox.AllAcknowledged());
  outbox.AddReport(Step(9));
  EXPECT_EQ(std::get<control::RankStepReport>(*outbox.Next()).sequence, 1);
}

TEST(BulkOutbox, AFullBufferHoldsTheWriterUntilAnAcknowledgement) {
  BulkOutbox outbox({.max_reports = 2});
  outbox.BeginJob(kJob, Rank(0));
  outbox.AddReport(Step(1));
  outbox.AddReport(Step(2));
  std::thread writer([&] { outbox.AddReport(Step(3)); });
  outbox.Acknowledge(kJob, 1);
  writer.join();
  EXPECT_EQ(NextStep(outbox), 2);
  EXPECT_EQ(NextStep(outbox), 3);
}

TEST(BulkOutbox, EndWaitsFreesAWriterOfAFullBuffer) {
  BulkOutbox outbox({.max_reports = 1});
  outbox.BeginJob(kJob, Rank(0));
  outbox.AddReport(Step(1));
  std::thread writer([&] { outbox.AddReport(Step(2)); });
  outbox.EndWaits();
  writer.join();
  EXPECT_EQ(NextStep(outbox), 1);
}

TEST(BulkOutbox, OldestLogLinesAreDroppedReportsNever) {
  BulkOutbox outbox({.max_logs = 2});
  outbox.BeginJob(kJob, Rank(0));
  for (const char* text : {"a", "b", "c"}) outbox.AddLog(LogLevel::kInfo, text, 0);
  outbox.AddReport(Step(1));
  EXPECT_EQ(NextStep(outbox), 1);  // reports come first
  EXPECT_THAT(std::get<control::LogLine>(*outbox.Next()).text,
              ::testing::HasSubstr("1 line before this one is lost"));
  EXPECT_EQ(std::get<control::LogLine>(*outbox.Next()).text, "b");
  EXPECT_EQ(std::get<control::LogLine>(*outbox.Next()).text, "c");
}

TEST(BulkOutbox, ALogLineSaysTheRankAndItsLastStepAndIsCutBetweenCharacters) {
  BulkOutbox outbox({.max_log_bytes = 4});
  outbox.BeginJob(kJob, Rank(3));
  outbox.AddLog(LogLevel::kInfo, "one", 0);
  outbox.AddReport(Step(7));
  outbox.AddLog(LogLevel::kWarning, "tw\u20ac", 5);
  EXPECT_EQ(NextStep(outbox), 7);
  EXPECT_EQ(std::get<control::LogLine>(*outbox.Next()).step, StepId(0));
  const control::LogLine line = std::get<control::LogLine>(*outbox.Next());
  EXPECT_EQ(line.step, StepId(7));
  EXPECT_EQ(line.rank, Rank(3));
  EXPECT_EQ(line.level, LogLevel::kWarning);
  EXPECT_EQ(line.text, "tw");
  EXPECT_EQ(line.unix_nanos, 5);
}

TEST(BulkOutbox, OldestTracesAreDroppedAndNothingWaitsBehindThem) {
  BulkOutbox outbox({.max_trace_bytes = 10});
  outbox.BeginJob(kJob, Rank(0));
  for (const char* trace : {"aaaa", "bbbb", "cccc"}) outbox.AddTrace(trace);
  outbox.AddLog(LogLevel::kInfo, "line", 0);
  outbox.AddReport(Step(1));
  EXPECT_EQ(NextStep(outbox), 1);
  EXPECT_EQ(std::get<control::LogLine>(*outbox.Next()).text, "line");
  const control::StepTrace trace = std::get<control::StepTrace>(*outbox.Next());
  EXPECT_EQ(trace.trace, "bbbb");
  EXPECT_EQ(trace.key, kJob);
  EXPECT_EQ(std::get<control::StepTrace>(*outbox.Next()).trace, "cccc");
  // A trace that is too large alone is dropped alone.
  outbox.AddTrace("more than ten bytes");
  outbox.AddTrace("dd");
  EXPECT_EQ(std::get<control::StepTrace>(*outbox.Next()).trace, "dd");
}

TEST(BulkOutbox, InterruptFreesTheReaderUntilRewind) {
  BulkOutbox outbox;
  outbox.BeginJob(kJob, Rank(0));
  std::thread reader([&] { EXPECT_EQ(NextStep(outbox), -2); });
  outbox.Interrupt();
  reader.join();
  outbox.AddReport(Step(1));
  EXPECT_EQ(NextStep(outbox), -2);
  outbox.Rewind();
  EXPECT_EQ(NextStep(outbox), 1);
}

}  // namespace
}  // namespace takt::session
