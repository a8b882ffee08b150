// SPDX-License-Identifier: Apache-2.0
#include "coordinator/placement/queue.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::placement {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Returns workers named "w0", "w1", ... from `first` on.
std::vector<GangWorker> Workers(int count, int first = 0) {
  std::vector<GangWorker> workers;
  for (int i = first; i < first + count; ++i) workers.push_back({.name = "w" + std::to_string(i)});
  return workers;
}

// Returns a job that holds `count` workers for `seconds` more.
Holder Held(const std::string& name, int count, std::optional<double> seconds = std::nullopt) {
  return {.name = name, .workers = Workers(count, /*first=*/100), .ends_in = seconds};
}

WaitingJob Waiting(const std::string& name, int workers,
                   std::optional<double> seconds = std::nullopt) {
  return {.name = name, .need = {.workers = workers}, .seconds = seconds};
}

TEST(GrantGangs, AJobThatFitsGetsItsGangInOrder) {
  const auto grants = GrantGangs({Waiting("a", 2)}, {.idle = Workers(3)});
  EXPECT_THAT(grants[0].workers, ElementsAre("w0", "w1"));
  EXPECT_EQ(grants[0].reserved_in, std::nullopt);
}

TEST(GrantGangs, AJobTakesTheWorkersThatItBlamesLast) {
  WaitingJob job = Waiting("a", 2);
  job.blamed = {{"w0", 1}, {"w2", 3}};
  EXPECT_THAT(GrantGangs({job}, {.idle = Workers(4)})[0].workers, ElementsAre("w1", "w3"));
  EXPECT_THAT(GrantGangs({job}, {.idle = Workers(3)})[0].workers, ElementsAre("w0", "w1"));
  EXPECT_THAT(GrantGangs({job}, {.idle = Workers(2)})[0].workers, ElementsAre("w0", "w1"));
  // Another job takes what is left.
  const auto grants = GrantGangs({job, Waiting("b", 1)}, {.idle = Workers(4)});
  EXPECT_THAT(grants[1].workers, ElementsAre("w0"));
}

TEST(GrantGangs, NobodyGetsTheWorkersThatHoldTheOnlyStateOfAJobThatWaits) {
  WaitingJob job = Waiting("a", 3);
  job.recovers = true;
  job.preferred = {"w0"};
  // It fits later, when workers that others hold are free, or never.
  for (const Holder& holder : {Held("x", 1, 600), Held("x", 0)}) {
    const Capacity capacity = {.idle = Workers(2), .held = {holder}};
    const std::vector<WaitingJob> jobs = {job, Waiting("b", 1, 60), Waiting("c", 1, 60)};
    EXPECT_THAT(GrantGangs(jobs, capacity)[1].workers, ElementsAre("w0"));  // "a" has files
    job.keeps_preferred = true;
    const auto grants = GrantGangs({job, jobs[1], jobs[2]}, capacity);
    EXPECT_THAT(grants[0].workers, IsEmpty());
    EXPECT_THAT(grants[1].workers, ElementsAre("w1"));
    EXPECT_THAT(grants[2].workers, IsEmpty());
    EXPECT_THAT(grants[2].reason, ::testing::HasSubstr("1 idle: reserved for job a"));
    job.keeps_preferred = false;
  }
  // While it waits after a fault, it may reserve other workers than those with its state.
  job.stopping = job.keeps_preferred = true;
  job.need.workers = 1;
  job.preferred = {"w1", "w2"};
  const auto later = GrantGangs({job, Waiting("b", 2), Waiting("c", 1)}, {.idle = Workers(3)});
  EXPECT_THAT(later[1].workers, IsEmpty());
  EXPECT_THAT(later[2].workers, ElementsAre("w0"));
  job.stopping = false;
  job.need.workers = 3;
  job.preferred = {"w0"};
  // It gets them when the others come.
  job.keeps_preferred = true;
  EXPECT_THAT(GrantGangs({job, Waiting("b", 1)}, {.idle = Workers(3)})[0].workers, SizeIs(3));
  // A job over its quota keeps them, too.
  job.owner = "u";
  const auto grants =
      GrantGangs({job, Waiting("b", 1)}, {.idle = Workers(4), .quotas = Quotas({{"u", 2}})});
  EXPECT_THAT(grants[0].workers, IsEmpty());
  EXPECT_THAT(grants[1].workers, ElementsAre("w1"));
}

TEST(GrantGangs, AnEarlierJobTakesTheOnlyStateOfOthersLast) {
  std::vector<WaitingJob> jobs = {Waiting("first", 1), Waiting("second", 4), Waiting("third", 4)};
  jobs[1].preferred = {"w0"};
  jobs[2].preferred = {"w1"};
  jobs[1].keeps_preferred = jobs[2].keeps_preferred = true;
  jobs[0].blamed = {{"w2", 1}};
  EXPECT_THAT(GrantGangs(jobs, {.idle = Workers(3)})[0].workers, ElementsAre("w2"));
  EXPECT_THAT(GrantGangs(jobs, {.idle = Workers(2)})[0].workers, ElementsAre("w1"));
  EXPECT_THAT(GrantGangs(jobs, {.idle = Workers(1)})[0].workers, ElementsAre("w0"));
}

TEST(GrantGangs, TheOnlyStateOfOthersBelongsToNoWholeGroup) {
  std::vector<GangWorker> idle = Workers(4);
  for (int i = 0; i < 4; ++i) idle[i].host = i < 2 ? "a" : "b";
  WaitingJob first = Waiting("first", 2), second = Waiting("second", 5);
  first.need.group = 2;
  second.preferred = {"w0"};
  second.keeps_preferred = true;
  EXPECT_THAT(GrantGangs({first, second}, {.idle = idle})[0].workers, ElementsAre("w2", "w3"));
}

TEST(GrantGangs, AJobWaitsForWorkersWhoseProgramsKnowIt) {
  std::vector<GangWorker> idle = Workers(3);
  idle[0].protocol = kProtocolVersion - 1;
  WaitingJob job = Waiting("new", 3);
  EXPECT_THAT(GrantGangs({job}, {.idle = idle})[0].workers, ElementsAre("w0", "w1", "w2"));
  job.need.workers = 2;  // the newest are taken first
  EXPECT_THAT(GrantGangs({job}, {.idle = idle})[0].workers, ElementsAre("w1", "w2"));
  job.need.protocol = kProtocolVersion;
  EXPECT_THAT(GrantGangs({job}, {.idle = idle})[0].workers, ElementsAre("w1", "w2"));
  idle[2].protocol = kProtocolVersion - 1;
  const Grant grant = GrantGangs({job}, {.idle = idle})[0];
  EXPECT_THAT(grant.workers, IsEmpty());
  EXPECT_EQ(grant.reason,
            "needs 2 workers, 1 idle: 2 idle whose takt-worker is too old for the job");
}

TEST(GrantGangs, HostsThatCanHoldWholeGroupsOfAJobAreTakenFirst) {
  std::vector<GangWorker> idle = Workers(8);
  for (const int i : {0, 1, 2}) idle[i].host = "a";
  for (const int i : {3, 4, 5, 6}) idle[i].host = "b";
  idle[7].host = "c";
  WaitingJob job = Waiting("j", 4);
  EXPECT_THAT(GrantGangs({job}, {.idle = idle})[0].workers, ElementsAre("w0", "w1", "w2", "w3"));
  job.need.group = 2;
  EXPECT_THAT(GrantGangs({job}, {.idle = idle})[0].workers, ElementsAre("w0", "w1", "w3", "w4"));
  job.need.group = 4;
  EXPECT_THAT(GrantGangs({job}, {.idle = idle})[0].workers, ElementsAre("w3", "w4", "w5", "w6"));
  // A worker that it blames is in no group.
  job.blamed = {{"w3", 1}};
  EXPECT_THAT(GrantGangs({job}, {.idle = idle})[0].workers, ElementsAre("w0", "w1", "w2", "w4"));
  // It does not wait for a host that could hold more groups.
  job.need.workers = 8;
  EXPECT_THAT(GrantGangs({job}, {.idle = idle})[0].workers, SizeIs(8));
}

TEST(GrantGangs, AJobThatTakesAllDoesWithoutThoseThatItBlamesTwice) {
  WaitingJob job = Waiting("a", 2);
  job.need.up_to_all = true;
  job.blamed = {{"w0", 1}, {"w2", 2}};
  EXPECT_THAT(GrantGangs({job}, {.idle = Workers(4)})[0].workers, ElementsAre("w0", "w1", "w3"));
  // It needs as many as that.
  job.need.workers = 4;
  EXPECT_THAT(GrantGangs({job}, {.idle = Workers(4)})[0].workers, SizeIs(4));
}

TEST(GrantGangs, AGangIsGivenWholeOrNotAtAllAndTheReasonSaysWhoHasTheRest) {
  const auto grants =
      GrantGangs({Waiting("a", 4)},
                 {.idle = Workers(2), .held = {Held("x", 1)}, .drained = 1, .quarantined = 3});
  EXPECT_THAT(grants[0].workers, IsEmpty());
  EXPECT_EQ(grants[0].reason, "needs 4 workers, 2 idle: 1 held by job x, 1 drained, 3 quarantined");
  EXPECT_EQ(grants[0].reserved_in, std::nullopt);
}

TEST(GrantGangs, SeveralJobsGetDisjointGangs) {
  const auto grants = GrantGangs({Waiting("a", 1), Waiting("b", 2)}, {.idle = Workers(3)});
  EXPECT_THAT(grants[0].workers, ElementsAre("w0"));
  EXPECT_THAT(grants[1].workers, ElementsAre("w1", "w2"));
}

TEST(GrantGangs, WhatAnEarlierJobGotIsNamedInTheReasonOfALaterOne) {
  const auto grants = GrantGangs({Waiting("a", 2), Waiting("b", 2)}, {.idle = Workers(2)});
  EXPECT_EQ(grants[1].reason,
            "needs 2 workers, 0 idle: 2 held by job a; 2 are reserved for it at a time that is not "
            "known yet");
}

TEST(GrantGangs, JobsAreServedByRecoveryThenPriorityThenArrival) {
  WaitingJob first = Waiting("first", 1), second = Waiting("second", 1), high = Waiting("high", 1),
             recovers = Waiting("recovers", 1);
  first.number = 1, second.number = 2, high.number = 3, recovers.number = 4;
  high.priority = 51;
  recovers.recovers = true;
  recovers.priority = 0;
  for (int idle = 0; idle <= 4; ++idle) {
    const auto grants = GrantGangs({second, recovers, first, high}, {.idle = Workers(idle)});
    EXPECT_EQ(grants[1].workers.size(), idle >= 1 ? 1u : 0u);
    EXPECT_EQ(grants[3].workers.size(), idle >= 2 ? 1u : 0u);
    EXPECT_EQ(grants[2].workers.size(), idle >= 3 ? 1u : 0u);
    EXPECT_EQ(grants[0].workers.size(), idle >= 4 ? 1u : 0u);
  }
}

TEST(GrantGangs, AJobThatDoesNotFitReservesForTheTimeAtWhichItsGangIsFree) {
  const auto grants = GrantGangs(
      {Waiting("a", 4)}, {.idle = Workers(1), .held = {Held("x", 2, 900), Held("y", 1, 100)}});
  EXPECT_EQ(grants[0].reserved_in, 900);
  EXPECT_EQ(grants[0].reason,
            "needs 4 workers, 1 idle: 2 held by job x, 1 held by job y; 4 are reserved for it in "
            "about 15 min");
}

TEST(GrantGangs, AJobThatMustWaitForAnUnknownEndReservesAfterAllThatIsKnown) {
  const auto grants = GrantGangs({Waiting("a", 2, 60), Waiting("b", 1, 1e6), Waiting("c", 1)},
                                 {.idle = Workers(1), .held = {Held("x", 1)}});
  EXPECT_EQ(grants[0].reserved_in, kUnknownSeconds);
  EXPECT_THAT(grants[1].workers, ElementsAre("w0"));  // it ends at some time
  EXPECT_THAT(grants[2].workers, IsEmpty());
}

TEST(GrantGangs, AJobThatFitsPassesOneThatNeverWill) {
  const auto grants = GrantGangs({Waiting("big", 3), Waiting("small", 1)}, {.idle = Workers(2)});
  EXPECT_THAT(grants[0].workers, IsEmpty());
  EXPECT_THAT(grants[1].workers, ElementsAre("w0"));
}

TEST(GrantGangs, AJobOvertakesIfItEndsBeforeTheReservation) {
  const Capacity capacity{.idle = Workers(2), .held = {Held("x", 2, 100)}};
  const auto small = [&](std::optional<double> seconds) {
    return GrantGangs({Waiting("big", 4), Waiting("small", 1, seconds)}, capacity)[1];
  };
  EXPECT_THAT(small(100).workers, SizeIs(1));
  EXPECT_THAT(small(101).workers, IsEmpty());
  EXPECT_THAT(small(std::nullopt).workers, IsEmpty());
  EXPECT_EQ(small(std::nullopt).reason,
            "needs 1 worker, 2 idle: reserved for job big; 1 is reserved for it at a time that is "
            "not known yet");
}

TEST(GrantGangs, AJobOvertakesOnWorkersThatTheReservationDoesNotNeed) {
  const auto grants = GrantGangs({Waiting("big", 3), Waiting("small", 1), Waiting("other", 1)},
                                 {.idle = Workers(2), .held = {Held("x", 2, 100)}});
  EXPECT_EQ(grants[0].reserved_in, 100);
  EXPECT_THAT(grants[1].workers, SizeIs(1));
  EXPECT_THAT(grants[2].workers, IsEmpty());
}

TEST(GrantGangs, EachWaitingJobReserves) {
  const auto grants = GrantGangs(
      {Waiting("a", 3, 50), Waiting("b", 4, 50), Waiting("c", 1, 140), Waiting("d", 1, 150)},
      {.idle = Workers(1), .held = {Held("x", 3, 100)}});
  EXPECT_EQ(grants[0].reserved_in, 100);
  EXPECT_EQ(grants[1].reserved_in, 150);
  EXPECT_THAT(grants[2].workers, SizeIs(1));  // beside a, and ends before b
  EXPECT_EQ(grants[3].reserved_in, 200);
}

TEST(GrantGangs, OnlySoManyJobsReserve) {
  std::vector<WaitingJob> jobs;
  for (int i = 0; i < kMaxReservations + 2; ++i)
    jobs.push_back(Waiting("j" + std::to_string(i), 2, 10));
  jobs.back().need.workers = 1;
  const auto grants = GrantGangs(jobs, {.idle = Workers(1), .held = {Held("x", 1, 10)}});
  EXPECT_EQ(grants[kMaxReservations - 1].reserved_in, 10 * kMaxReservations);
  EXPECT_EQ(grants[kMaxReservations].reserved_in, std::nullopt);
  EXPECT_EQ(grants[kMaxReservations].reason,
            "needs 2 workers, 1 idle: 1 held by job x; 256 jobs before it reserve workers");
  EXPECT_THAT(grants.back().workers, SizeIs(1));  // it delays none of the reservations
}

TEST(GrantGangs, AStoppingJobReservesButIsNotGranted) {
  WaitingJob recovers = Waiting("recovers", 2);
  recovers.recovers = recovers.stopping = true;
  const auto grants = GrantGangs({Waiting("a", 1), recovers},
                                 {.idle = Workers(1), .held = {Held("recovers", 1, 2)}});
  EXPECT_THAT(grants[0].workers, IsEmpty());
  EXPECT_THAT(grants[1].workers, IsEmpty());
  EXPECT_EQ(grants[1].reserved_in, 2);
}

TEST(GrantGangs, AJobWithoutAFixedSizeTakesAllThatAreIdle) {
  WaitingJob all = Waiting("a", 1);
  all.need.up_to_all = true;
  EXPECT_THAT(GrantGangs({all}, {.idle = Workers(3)})[0].workers, SizeIs(3));
}

TEST(GrantGangs, AJobWithALargestSizeTakesNoMore) {
  WaitingJob some = Waiting("a", 2);
  some.need.up_to_all = true;
  some.need.most = 3;
  EXPECT_THAT(GrantGangs({some}, {.idle = Workers(5)})[0].workers, SizeIs(3));
  EXPECT_THAT(GrantGangs({some}, {.idle = Workers(2)})[0].workers, SizeIs(2));
  EXPECT_THAT(GrantGangs({some}, {.idle = Workers(1)})[0].workers, IsEmpty());
}

WaitingJob Growing(const std::string& name, int most) {
  WaitingJob job = Waiting(name, 1);
  job.grows = job.need.up_to_all = true;
  job.need.most = most;
  return job;
}

TEST(GrantGangs, ARunningJobGrowsByWhatNoWaitingJobNeeds) {
  WaitingJob grows = Growing("x", 2);
  grows.priority = 100;
  const std::vector<WaitingJob> jobs = {grows, Waiting("a", 2)};
  EXPECT_THAT(GrantGangs(jobs, {.idle = Workers(5)})[0].workers, ElementsAre("w2", "w3"));
  EXPECT_THAT(GrantGangs(jobs, {.idle = Workers(3)})[0].workers, ElementsAre("w2"));
  EXPECT_THAT(GrantGangs(jobs, {.idle = Workers(2)})[0].workers, IsEmpty());
  // The waiting job reserves the one that is idle.
  const Capacity held{.idle = Workers(1), .held = {Held("y", 1, 100)}};
  EXPECT_THAT(GrantGangs(jobs, held)[0].workers, IsEmpty());
  EXPECT_EQ(GrantGangs(jobs, held)[1].reserved_in, 100);
}

TEST(GrantGangs, ARunningJobGrowsWithinItsOwnersQuota) {
  WaitingJob grows = Growing("x", 5);
  grows.owner = "user/ada";
  Holder itself = Held("x", 2);
  itself.owner = "user/ada";
  const Capacity capacity{
      .idle = Workers(5), .held = {itself}, .quotas = Quotas({{"user/ada", 3}})};
  EXPECT_THAT(GrantGangs({grows}, capacity)[0].workers, SizeIs(1));
}

TEST(GrantGangs, AJobWithoutAFixedSizeLeavesTheReservationsWhole) {
  WaitingJob all = Waiting("all", 1);
  all.need.up_to_all = true;
  const Capacity capacity{.idle = Workers(3), .held = {Held("x", 2, 100)}};
  EXPECT_THAT(GrantGangs({Waiting("big", 4), all}, capacity)[1].workers, SizeIs(1));
  EXPECT_THAT(GrantGangs({Waiting("big", 5), all}, capacity)[1].workers, IsEmpty());
  all.seconds = 100;
  EXPECT_THAT(GrantGangs({Waiting("big", 5), all}, capacity)[1].workers, SizeIs(3));
}

TEST(GrantGangs, AJobOverItsQuotaReservesNoWorkersAndTheReasonSaysSo) {
  WaitingJob over = Waiting("over", 4), small = Waiting("small", 2, 50),
             other = Waiting("other", 3);
  over.owner = small.owner = "user/ada";
  other.owner = "user/bob";
  Holder held = Held("x", 2, 100);
  held.owner = "user/ada";
  const Capacity capacity{.idle = Workers(5), .held = {held}, .quotas = Quotas({{"*", 5}})};
  const auto grants = GrantGangs({over, small, other}, capacity);
  EXPECT_EQ(grants[0].reason, "needs 4 workers: user/ada may hold 5 at once and holds 2");
  EXPECT_EQ(grants[0].reserved_in, std::nullopt);
  EXPECT_THAT(grants[1].workers, SizeIs(2));  // it ends before the quota of `over` is free
  EXPECT_THAT(grants[2].workers, SizeIs(3));
}

TEST(GrantGangs, SmallJobsOfAnOwnerDoNotTakeTheQuotaOfALargerOneForEver) {
  WaitingJob over = Waiting("over", 4), small = Waiting("small", 2, 101);
  over.owner = small.owner = "user/ada";
  Holder held = Held("x", 2, 100);
  held.owner = "user/ada";
  const auto grants = GrantGangs(
      {over, small}, {.idle = Workers(9), .held = {held}, .quotas = Quotas({{"user/ada", 5}})});
  EXPECT_THAT(grants[1].workers, IsEmpty());
}

TEST(GrantGangs, AStoppingJobIsNotOverItsQuotaByWhatItHolds) {
  WaitingJob job = Waiting("x", 2);
  job.stopping = true;
  job.owner = "user/ada";
  Holder held = Held("x", 1, 30);
  held.owner = "user/ada";
  held.num_others = 1;
  const auto grants = GrantGangs(
      {job, Waiting("b", 1)}, {.idle = Workers(1), .held = {held}, .quotas = Quotas({{"*", 2}})});
  EXPECT_EQ(grants[0].reserved_in, 30);
  EXPECT_THAT(grants[1].workers, IsEmpty());
}

TEST(GrantGangs, AJobWithoutAFixedSizeStaysWithinItsQuota) {
  WaitingJob all = Waiting("a", 1);
  all.need.up_to_all = true;
  const auto grants =
      GrantGangs({all}, {.idle = Workers(9), .quotas = Quotas({{"", 4}, {"*", 2}})});
  EXPECT_THAT(grants[0].workers, SizeIs(4));
}

// A job of priority 10 that can be paused.
Holder Pausable(const std::string& name, int count, double held_seconds) {
  Holder holder = Held(name, count, 1000);
  holder.priority = 10;
  holder.can_pause = true;
  holder.held_seconds = held_seconds;
  return holder;
}

TEST(GrantGangs, TheFewestJobsArePausedForAJobOfHigherPriority) {
  const auto grants = GrantGangs(
      {Waiting("a", 4)}, {.idle = Workers(1),
                          .held = {Pausable("x", 1, 5), Pausable("y", 3, 9), Pausable("z", 2, 5)}});
  EXPECT_THAT(grants[0].preempts, ElementsAre("y"));
  EXPECT_EQ(
      grants[0].reason,
      "needs 4 workers, 1 idle: 3 held by job y, 2 held by job z, 1 held by job x; job y of a "
      "lower priority is paused for it");
  EXPECT_EQ(grants[0].reserved_in, 60);
}

TEST(GrantGangs, TheLowestPriorityThenTheLatestStartIsPaused) {
  Capacity capacity{.held = {Pausable("old", 1, 9), Pausable("new", 1, 5), Pausable("low", 1, 99)}};
  EXPECT_THAT(GrantGangs({Waiting("a", 1)}, capacity)[0].preempts, ElementsAre("new"));
  capacity.held[2].priority = 9;
  EXPECT_THAT(GrantGangs({Waiting("a", 1)}, capacity)[0].preempts, ElementsAre("low"));
  EXPECT_THAT(GrantGangs({Waiting("a", 2)}, capacity)[0].preempts, ElementsAre("low", "new"));
}

TEST(GrantGangs, NobodyIsPausedInVain) {
  Holder busy = Pausable("x", 2, 5);
  EXPECT_THAT(GrantGangs({Waiting("a", 3)}, {.held = {busy}})[0].preempts, IsEmpty());
  busy.priority = config::kDefaultPriority;
  EXPECT_THAT(GrantGangs({Waiting("a", 2)}, {.held = {busy}})[0].preempts, IsEmpty());
  busy.priority = 10;
  busy.can_pause = false;
  EXPECT_THAT(GrantGangs({Waiting("a", 2)}, {.held = {busy}})[0].preempts, IsEmpty());
  busy.can_pause = true;
  busy.ends_in = 30;
  EXPECT_THAT(GrantGangs({Waiting("a", 2)}, {.held = {busy}})[0].preempts, IsEmpty());
  busy.ends_in = 1000;
  EXPECT_THAT(GrantGangs({Waiting("a", 2)}, {.held = {busy}})[0].preempts, ElementsAre("x"));
}

TEST(GrantGangs, AReasonSaysWhichJobIsHaltingAlready) {
  Holder holder = Held("x", 2, 30);
  holder.halting = true;
  EXPECT_EQ(
      GrantGangs({Waiting("a", 2)}, {.held = {holder}})[0].reason,
      "needs 2 workers, 0 idle: 2 held by job x (halting); 2 are reserved for it in less than "
      "a minute");
}

TEST(GrantGangs, NobodyIsPausedTwice) {
  const auto grants = GrantGangs({Waiting("a", 2), Waiting("b", 2)},
                                 {.held = {Pausable("x", 2, 5), Pausable("y", 2, 6)}});
  EXPECT_THAT(grants[0].preempts, ElementsAre("x"));
  EXPECT_THAT(grants[1].preempts, ElementsAre("y"));
}

TEST(GrantGangs, AnEmptyClusterIsSaidToBeEmpty) {
  EXPECT_EQ(GrantGangs({Waiting("a", 1)}, {})[0].reason,
            "needs 1 worker, 0 idle: no other is attached");
}

}  // namespace
}  // namespace takt::placement
