// SPDX-License-Identifier: Apache-2.0
#include "worker/session/rank_lifecycle.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::session {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using State = RankLifecycle::State;

const control::JobKey kJob{"kjv", Generation(1)};
const control::JobKey kNewer{"kjv", Generation(2)};
const control::RankStatus kAtStep7{
    .last_step = StepId(7), .instruction = "1F3", .waiting_for = "RECV 0F3 from pp rank 0"};
constexpr absl::Duration kNow = absl::Seconds(100);

// Prints one line for each effect, so that a test case reads as a list of events.
std::vector<std::string> Print(const Effects& effects) {
  struct Printer {
    std::string operator()(const EffectBuild& e) {
      return "build " + std::to_string(e.key.generation.value());
    }
    std::string operator()(const EffectRun&) { return "run"; }
    std::string operator()(const EffectHalt& e) { return e.in_memory ? "halt in memory" : "halt"; }
    std::string operator()(const EffectHeartbeat&) { return "heartbeat"; }
    std::string operator()(const EffectStop& e) {
      return "stop " + std::string(e.reason.message());
    }
    std::string operator()(const EffectRelease&) { return "release"; }
    std::string operator()(const EffectSend& e) {
      const char* const names[] = {"",       "admitted", "refused", "finished",
                                   "failed", "aborted",  "halted"};
      return "send " + std::string(names[static_cast<int>(e.update.phase)]) + " " +
             std::to_string(e.update.key.generation.value());
    }
    std::string operator()(const EffectLeaving&) { return "leaving"; }
    std::string operator()(const EffectExit& e) { return "exit " + std::to_string(e.code); }
  };
  std::vector<std::string> lines;
  for (const Effect& effect : effects) lines.push_back(std::visit(Printer(), effect));
  return lines;
}

RankLifecycle JobIn(State state) {
  RankLifecycle held;
  if (state == State::kIdle) return held;
  held.Prepare(kJob, Rank(1));
  if (state == State::kPreparing) return held;
  held.Built(control::Resumed(), kNow);
  if (state == State::kAdmitted) return held;
  held.Start(kJob);
  if (state == State::kRunning) return held;
  if (state == State::kStopping) {
    held.Abort(kJob, "cancelled", kAtStep7, kNow);
    return held;
  }
  held.RunEnded(RunEnd::kLastStep, kAtStep7, kNow);
  if (state == State::kFlushing) return held;
  held.Flushed(kAtStep7, kNow);
  return held;  // ended, but its thread is not gone yet
}

TEST(RankLifecycle, GoesFromPrepareToAcknowledgedFinish) {
  RankLifecycle held;
  EXPECT_THAT(Print(held.Prepare(kJob, Rank(1))), ElementsAre("build 1"));
  EXPECT_THAT(Print(held.Built(control::Resumed(), kNow)), ElementsAre("send admitted 1"));
  EXPECT_THAT(Print(held.Start(kJob)), ElementsAre("run", "heartbeat"));
  EXPECT_THAT(Print(held.FirstStepDone()), ElementsAre("heartbeat"));
  EXPECT_THAT(Print(held.RunEnded(RunEnd::kLastStep, kAtStep7, kNow)), IsEmpty());
  EXPECT_THAT(Print(held.Flushed(kAtStep7, kNow)), ElementsAre("send finished 1", "release"));
  EXPECT_THAT(Print(held.Gone()), IsEmpty());
  EXPECT_EQ(held.state(), State::kEnded);
  held.Acknowledge(kJob);
  EXPECT_EQ(held.state(), State::kIdle);
}

TEST(RankLifecycle, BuildErrorIsRefusedAndTornDown) {
  RankLifecycle held = JobIn(State::kPreparing);
  EXPECT_THAT(Print(held.Built(absl::InvalidArgumentError("no such file"), kNow)),
              ElementsAre("send refused 1", "release"));
  EXPECT_EQ(held.end()->failure.error, "no such file");
}

TEST(RankLifecycle, RunErrorIsToldWithWhatItWaitedFor) {
  RankLifecycle held = JobIn(State::kRunning);
  EXPECT_THAT(Print(held.RunEnded(absl::UnavailableError("peer left"), kAtStep7, kNow)),
              ElementsAre("send failed 1", "release"));
  EXPECT_EQ(held.end()->status.waiting_for, kAtStep7.waiting_for);
  EXPECT_EQ(held.end()->rank, Rank(1));
}

TEST(RankLifecycle, AHaltedRunIsToldAsSuchOnceEverythingIsFlushed) {
  RankLifecycle held = JobIn(State::kRunning);
  EXPECT_THAT(Print(held.Halt(kJob, /*in_memory=*/true)), ElementsAre("halt in memory"));
  EXPECT_THAT(Print(held.Halt(kJob)), ElementsAre("halt"));
  EXPECT_THAT(Print(held.Halt(kJob)), ElementsAre("halt"));  // sent again after a reconnection
  EXPECT_EQ(held.state(), State::kRunning);
  EXPECT_THAT(Print(held.RunEnded(RunEnd::kHalted, kAtStep7, kNow)), IsEmpty());
  EXPECT_THAT(Print(held.Flushed(kAtStep7, kNow)), ElementsAre("send halted 1", "release"));
  EXPECT_EQ(held.end()->status.last_step, kAtStep7.last_step);
}

TEST(RankLifecycle, HaltConcernsWhatRunsOrWillAndNothingElse) {
  for (const State state : {State::kPreparing, State::kAdmitted, State::kRunning}) {
    EXPECT_THAT(Print(JobIn(state).Halt(kJob)), ElementsAre("halt"));
    EXPECT_THAT(Print(JobIn(state).Halt(kNewer)), IsEmpty());
  }
  for (const State state : {State::kIdle, State::kFlushing, State::kStopping, State::kEnded})
    EXPECT_THAT(Print(JobIn(state).Halt(kJob)), IsEmpty());
}

TEST(RankLifecycle, AnAdmissionSaysWhatTheRankGoesOnFrom) {
  RankLifecycle held = JobIn(State::kPreparing);
  const Effects admitted =
      held.Built(control::Resumed{.step = StepId(40), .notes = {"step 50: damaged"}}, kNow);
  ASSERT_THAT(Print(admitted), ElementsAre("send admitted 1"));
  for (const Effects& effects : {admitted, held.Attached()}) {
    const control::JobUpdate& update = std::get<EffectSend>(effects[0]).update;
    EXPECT_EQ(update.resumed.step, StepId(40));
    EXPECT_EQ(update.status.last_step, StepId(40));
    EXPECT_THAT(update.resumed.notes, ElementsAre("step 50: damaged"));
  }
}

TEST(RankLifecycle, AbortEndsEveryBusyStateAndTellsTheStatusFromBefore) {
  for (const State state :
       {State::kPreparing, State::kAdmitted, State::kRunning, State::kFlushing}) {
    RankLifecycle held = JobIn(state);
    EXPECT_THAT(Print(held.Abort(kJob, "worker w2 died", kAtStep7, kNow)),
                ElementsAre("stop worker w2 died"));
    EXPECT_THAT(Print(held.Built(absl::AbortedError("stopped"), kNow)), IsEmpty());
    EXPECT_THAT(Print(held.RunEnded(absl::AbortedError("stopped"), {}, kNow)), IsEmpty());
    EXPECT_THAT(Print(held.Gone()), ElementsAre("send aborted 1"));
    EXPECT_EQ(held.end()->status.waiting_for, kAtStep7.waiting_for);
    held.Acknowledge(kJob);
    EXPECT_EQ(held.state(), State::kIdle);
  }
}

TEST(RankLifecycle, AbortOfAnotherGenerationIsAnsweredAndTouchesNothing) {
  RankLifecycle held = JobIn(State::kRunning);
  EXPECT_THAT(Print(held.Abort(kNewer, "x", {}, kNow)), ElementsAre("send aborted 2"));
  EXPECT_EQ(held.state(), State::kRunning);
  RankLifecycle idle;
  EXPECT_THAT(Print(idle.Abort(kJob, "x", {}, kNow)), ElementsAre("send aborted 1"));
}

TEST(RankLifecycle, AbortAfterTheEndTellsTheEndAgain) {
  RankLifecycle held = JobIn(State::kEnded);
  EXPECT_THAT(Print(held.Abort(kJob, "x", {}, kNow)), ElementsAre("send finished 1"));
}

TEST(RankLifecycle, ReconnectionTellsAgainWhatTheCoordinatorMayHaveMissed) {
  EXPECT_THAT(Print(JobIn(State::kIdle).Attached()), IsEmpty());
  EXPECT_THAT(Print(JobIn(State::kAdmitted).Attached()), ElementsAre("send admitted 1"));
  EXPECT_THAT(Print(JobIn(State::kRunning).Attached()), IsEmpty());
  EXPECT_THAT(Print(JobIn(State::kEnded).Attached()), ElementsAre("send finished 1"));
}

TEST(RankLifecycle, PrepareToldTwiceBuildsOnce) {
  RankLifecycle held = JobIn(State::kAdmitted);
  EXPECT_THAT(Print(held.Prepare(kJob, Rank(1))), ElementsAre("send admitted 1"));
  RankLifecycle running = JobIn(State::kRunning);
  EXPECT_THAT(Print(running.Prepare(kJob, Rank(1))), IsEmpty());
}

TEST(RankLifecycle, PrepareWhileBusyIsRefusedNamingWhatIsHeld) {
  RankLifecycle held = JobIn(State::kRunning);
  const Effects effects = held.Prepare(kNewer, Rank(0));
  EXPECT_THAT(Print(effects), ElementsAre("send refused 2"));
  EXPECT_EQ(std::get<EffectSend>(effects[0]).update.failure.error,
            "FAILED_PRECONDITION: the worker holds job kjv generation 1");
  EXPECT_EQ(held.state(), State::kRunning);
}

TEST(RankLifecycle, PrepareDuringTeardownWaitsForItsEnd) {
  RankLifecycle held = JobIn(State::kStopping);
  EXPECT_THAT(Print(held.Prepare(kNewer, Rank(0))), IsEmpty());
  EXPECT_THAT(Print(held.Gone()), ElementsAre("send aborted 1", "build 2"));
  EXPECT_EQ(held.key(), kNewer);
  EXPECT_EQ(held.rank(), Rank(0));
}

TEST(RankLifecycle, AbortOfAPrepareThatWaitsForgetsIt) {
  RankLifecycle held = JobIn(State::kStopping);
  held.Prepare(kNewer, Rank(0));
  EXPECT_THAT(Print(held.Abort(kNewer, "x", {}, kNow)), ElementsAre("send aborted 2"));
  EXPECT_THAT(Print(held.Gone()), ElementsAre("send aborted 1"));
}

TEST(RankLifecycle, PrepareAfterAnUnacknowledgedEndReplacesIt) {
  RankLifecycle held = JobIn(State::kEnded);
  held.Gone();
  EXPECT_THAT(Print(held.Prepare(kNewer, Rank(0))), ElementsAre("build 2"));
}

TEST(RankLifecycle, AcknowledgedBeforeTheThreadIsGoneBecomesIdleOnceItIs) {
  RankLifecycle held = JobIn(State::kEnded);
  held.Acknowledge(kJob);
  EXPECT_EQ(held.state(), State::kEnded);
  held.Gone();
  EXPECT_EQ(held.state(), State::kIdle);
}

TEST(RankLifecycle, StartOfAnotherGenerationOrTwiceDoesNothing) {
  RankLifecycle held = JobIn(State::kAdmitted);
  EXPECT_THAT(Print(held.Start(kNewer)), IsEmpty());
  EXPECT_THAT(Print(held.Start(kJob)), ElementsAre("run", "heartbeat"));
  EXPECT_THAT(Print(held.Start(kJob)), IsEmpty());
}

TEST(RankLifecycle, AStuckTeardownEndsTheProcess) {
  RankLifecycle held = JobIn(State::kStopping);
  EXPECT_THAT(Print(held.Tick(kNow + RankLifecycle::kTeardownTimeout - absl::Nanoseconds(1))),
              IsEmpty());
  EXPECT_THAT(Print(held.Tick(kNow + RankLifecycle::kTeardownTimeout)), ElementsAre("exit 70"));
  held.Gone();
  EXPECT_THAT(Print(held.Tick(kNow + RankLifecycle::kTeardownTimeout)), IsEmpty());
  EXPECT_THAT(Print(JobIn(State::kRunning).Tick(absl::Hours(1000))), IsEmpty());
}

TEST(RankLifecycle, LeavingWhileIdleExitsAtOnce) {
  RankLifecycle held;
  EXPECT_THAT(Print(held.Leave({}, kNow)), ElementsAre("exit 0"));
}

TEST(RankLifecycle, LeavingWhileBusyWaitsForTheCoordinatorToHaltTheJob) {
  RankLifecycle held = JobIn(State::kRunning);
  EXPECT_THAT(Print(held.Leave(kAtStep7, kNow)), ElementsAre("leaving"));
  EXPECT_THAT(Print(held.Prepare(kNewer, Rank(0))), ElementsAre("send refused 2"));
  EXPECT_THAT(Print(held.Attached()), ElementsAre("leaving"));
  EXPECT_THAT(Print(held.Halt(kJob)), ElementsAre("halt"));
  held.RunEnded(RunEnd::kHalted, kAtStep7, kNow);
  EXPECT_THAT(Print(held.Flushed(kAtStep7, kNow)), ElementsAre("send halted 1", "release"));
  EXPECT_THAT(Print(held.Gone()), IsEmpty());
  EXPECT_THAT(Print(held.Acknowledge(kJob)), ElementsAre("exit 0"));
}

TEST(RankLifecycle, LeavingAfterAnAbortWaitsForItsAcknowledgement) {
  RankLifecycle held = JobIn(State::kRunning);
  held.Leave(kAtStep7, kNow);
  held.Abort(kJob, "worker w1 leaves", kAtStep7, kNow);
  EXPECT_THAT(Print(held.Gone()), ElementsAre("send aborted 1"));
  EXPECT_THAT(Print(held.Acknowledge(kJob)), ElementsAre("exit 0"));
}

TEST(RankLifecycle, LeavingWithoutACoordinatorOrWhenAskedTwiceFailsTheRank) {
  for (const bool twice : {true, false}) {
    RankLifecycle held = JobIn(State::kRunning);
    held.Leave(kAtStep7, kNow);
    EXPECT_THAT(Print(twice ? held.Leave(kAtStep7, kNow) : held.Detached(kAtStep7, kNow)),
                ElementsAre("send failed 1", "stop the worker was asked to leave (SIGTERM)"));
    EXPECT_THAT(Print(held.Leave(kAtStep7, kNow)), IsEmpty());
    EXPECT_THAT(Print(held.Gone()), ElementsAre("exit 0"));
  }
  EXPECT_THAT(Print(JobIn(State::kRunning).Detached(kAtStep7, kNow)), IsEmpty());
}

TEST(RankLifecycle, LeavingIsDueAgainAfterItsTimeout) {
  RankLifecycle held = JobIn(State::kRunning);
  EXPECT_FALSE(held.LeaveIsDue(absl::Hours(1000)));
  held.Leave(kAtStep7, kNow);
  EXPECT_FALSE(held.LeaveIsDue(kNow + absl::Seconds(59)));
  EXPECT_TRUE(held.LeaveIsDue(kNow + absl::Minutes(1)));
  held.Leave(kAtStep7, kNow + absl::Minutes(1));
  EXPECT_FALSE(held.LeaveIsDue(kNow + absl::Hours(1)));
}

TEST(RankLifecycle, PoisonedItBeginsAnewOnceTheEndIsStored) {
  const absl::Status lost = absl::InternalError("an illegal memory access was encountered");
  RankLifecycle held = JobIn(State::kRunning);
  held.RunEnded(lost, kAtStep7, kNow);
  EXPECT_THAT(Print(held.Poisoned(lost)), ElementsAre("leaving"));
  EXPECT_THAT(Print(held.Gone()), IsEmpty());
  EXPECT_THAT(Print(held.Attached()), ElementsAre("leaving", "send failed 1"));
  const Effects effects = held.Acknowledge(kJob);
  ASSERT_THAT(Print(effects), ElementsAre("exit 71"));
  EXPECT_THAT(std::get<EffectExit>(effects[0]).reason, HasSubstr("illegal memory access"));
}

TEST(RankLifecycle, PoisonedItHoldsNothingMore) {
  RankLifecycle acknowledged = JobIn(State::kEnded);
  acknowledged.Poisoned(absl::InternalError("lost"));
  EXPECT_THAT(Print(acknowledged.Acknowledge(kJob)), IsEmpty());
  EXPECT_THAT(Print(acknowledged.Gone()), ElementsAre("exit 71"));

  RankLifecycle replaced = JobIn(State::kEnded);
  replaced.Poisoned(absl::InternalError("lost"));
  EXPECT_THAT(Print(replaced.Prepare(kNewer, Rank(0))), IsEmpty());
  EXPECT_THAT(Print(replaced.Gone()), ElementsAre("exit 71"));

  RankLifecycle aborted = JobIn(State::kStopping);
  aborted.Poisoned(absl::InternalError("lost"));
  EXPECT_THAT(Print(aborted.Gone()), ElementsAre("send aborted 1"));
  EXPECT_THAT(Print(aborted.Prepare(kNewer, Rank(0))), ElementsAre("exit 71"));
}

}  // namespace
}  // namespace takt::session
