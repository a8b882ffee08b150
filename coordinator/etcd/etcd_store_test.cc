// SPDX-License-Identifier: Apache-2.0
// What the store in etcd does when etcd, or this process, fails. What it keeps is tested by the
// suite of all stores (coordinator/store/store_test.cc).
#include "coordinator/etcd/etcd_store.h"

#include "coordinator/etcd/fake_leader.h"
#include "coordinator/etcd/keys.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::etcd {
namespace {

using store::Changes;
using store::JobRecord;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class EtcdStoreTest : public ::testing::Test {
 protected:
  EtcdStoreTest() { TAKT_CHECK(first_.Lead("a:1")); }

  static std::unique_ptr<store::Store> Open(FakeCandidate& candidate,
                                            EtcdStoreOptions options = {}) {
    return OpenEtcdStore(&candidate.reader, candidate.leadership.get(), std::move(options)).value();
  }

  static JobRecord Job(std::int64_t number, const std::string& name, std::string reason = "") {
    return {.number = number, .id = "id-" + name, .name = name, .reason = std::move(reason)};
  }
  // So many jobs that they do not fit into one transaction.
  static Changes ManyJobs() {
    Changes changes;
    for (int i = 1; i <= 200; ++i) changes.jobs.push_back(Job(i, "j" + std::to_string(i)));
    return changes;
  }

  FakeEtcd etcd_;
  FakeCandidate first_{etcd_}, second_{etcd_};
};

TEST_F(EtcdStoreTest, ACommitWhoseAnswerIsLostTakesEffectOnce) {
  const auto store = Open(first_);
  etcd_.LoseAnswers(2);
  ASSERT_TRUE(store->Commit({.jobs = {Job(1, "a")}}).ok());
  EXPECT_EQ(etcd_.Get("t/meta/commits"), "1");
  ASSERT_TRUE(store->Commit({.jobs = {Job(2, "b")}}).ok());
  EXPECT_EQ(etcd_.Get("t/meta/commits"), "2");
  EXPECT_THAT(store->Load().value().jobs, SizeIs(2));
}

TEST_F(EtcdStoreTest, ACommitThatEtcdDidNotTakeIsSentAgain) {
  const auto store = Open(first_);
  etcd_.RefuseTransactions(3);
  ASSERT_TRUE(store->Commit({.jobs = {Job(1, "a")}}).ok());
  EXPECT_THAT(store->Load().value().jobs, SizeIs(1));
}

TEST_F(EtcdStoreTest, ADeposedLeaderWritesNothing) {
  const auto old = Open(first_);
  ASSERT_TRUE(old->Commit({.jobs = {Job(1, "a")}}).ok());
  etcd_.ExpireLeases();
  EXPECT_THAT(std::string(old->Commit({.jobs = {Job(2, "b")}}).message()),
              HasSubstr("nobody does"));
  ASSERT_TRUE(second_.Lead("b:2"));
  const auto store = Open(second_);
  const absl::Status refused = old->Commit({.jobs = {Job(3, "c")}});
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("b:2 does"));
  EXPECT_FALSE(old->RaiseEpoch().ok());
  ASSERT_TRUE(store->Commit({.jobs = {Job(4, "d")}}).ok());
  const auto jobs = store->Load().value().jobs;
  ASSERT_THAT(jobs, SizeIs(2));
  EXPECT_EQ(jobs[0].name, "a");
  EXPECT_EQ(jobs[1].name, "d");
}

TEST_F(EtcdStoreTest, AnotherWriterOfTheseKeysIsNoticed) {
  const auto store = Open(first_);
  ASSERT_TRUE(store->Commit({.jobs = {Job(1, "a")}}).ok());
  etcd_.Put("t/meta/commits", "17");
  const absl::Status status = store->Commit({.jobs = {Job(2, "b")}});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("t/meta/commits has \"17\""));
}

TEST_F(EtcdStoreTest, WithoutAQuorumACommitEndsWithTheLease) {
  FakeCandidate candidate(etcd_);
  first_.leadership.reset();
  ASSERT_TRUE(candidate.Lead("c:3", absl::Seconds(1)));
  const auto store = Open(candidate);
  etcd_.StopAfter(0);
  etcd_.ExpireLeases();
  const absl::Status status = store->Commit({.jobs = {Job(1, "a")}});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("within the lease"));
  etcd_.StopAfter(-1);
}

TEST_F(EtcdStoreTest, AFullEtcdKeepsNothingAndTheSameChangesCanComeLater) {
  const auto store = Open(first_, {.limits = {.requests = 1, .log_lines = 2}});
  ASSERT_TRUE(store->Commit({.requests = {{"m", "r1", {}}}}).ok());
  etcd_.SetFull(true);
  const Changes changes{.jobs = {Job(1, "a")},
                        .requests = {{"m", "r2", {}}},
                        .logs = {{.job_id = "id-a", .text = "one"}}};
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = store->Commit(changes);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), HasSubstr("compact and defragment"));
  }
  EXPECT_TRUE(store->FindRequest("m", "r1").value().has_value());
  etcd_.SetFull(false);
  ASSERT_TRUE(store->Commit(changes).ok());
  EXPECT_THAT(store->ReadLogs("id-a", 0, 10).value(), SizeIs(1));
  EXPECT_FALSE(store->FindRequest("m", "r1").value().has_value());
  EXPECT_TRUE(store->FindRequest("m", "r2").value().has_value());
}

TEST_F(EtcdStoreTest, AStaleAnswerIsNotTaken) {
  const auto store = Open(first_);
  ASSERT_TRUE(store->Commit({.jobs = {Job(1, "a")}}).ok());
  ASSERT_TRUE(store->Commit({.jobs = {Job(2, "b")}}).ok());
  etcd_.AnswerStale(2);
  EXPECT_THAT(store->Load().value().jobs, SizeIs(2));
}

TEST_F(EtcdStoreTest, ALargeChangeIsKeptWhole) {
  const auto store = Open(first_);
  ASSERT_TRUE(store->Commit(ManyJobs()).ok());
  EXPECT_THAT(store->Load().value().jobs, SizeIs(200));
  EXPECT_EQ(etcd_.CountKeys("t/redo/"), 0);
  EXPECT_EQ(etcd_.Get("t/meta/commits"), "1");
}

TEST_F(EtcdStoreTest, ALargeChangeIsAllOrNothingWhereverTheLeaderDies) {
  const Changes many = ManyJobs();
  bool was_nothing = false, was_all = false, ended = false;
  for (int step = 0; !ended; ++step) {
    ASSERT_LT(step, 100);
    FakeEtcd etcd;
    FakeCandidate leader(etcd), successor(etcd);
    ASSERT_TRUE(leader.Lead("a:1", absl::Seconds(1)));
    const auto store = Open(leader);
    etcd.StopAfter(step);
    etcd.LoseAnswers(step % 2);
    ended = store->Commit(many).ok();
    etcd.StopAfter(-1);
    etcd.ExpireLeases();
    ASSERT_TRUE(successor.Lead("b:2"));
    const auto jobs = Open(successor)->Load().value().jobs.size();
    EXPECT_TRUE(jobs == 0 || jobs == many.jobs.size()) << jobs << " after " << step;
    EXPECT_EQ(etcd.CountKeys("t/redo/"), 0);
    if (ended) {
      EXPECT_EQ(jobs, many.jobs.size()) << "an acknowledged change is there";
    }
    was_nothing |= jobs == 0;
    was_all |= jobs > 0 && !ended;
  }
  EXPECT_TRUE(was_nothing);
  EXPECT_TRUE(was_all);
}

TEST_F(EtcdStoreTest, AnAttemptThatTakesEffectLateUndoesNoNewerChange) {
  for (const bool large : {false, true}) {
    for (int late = 0; late < (large ? 12 : 1); ++late) {
      FakeEtcd etcd;
      FakeCandidate leader(etcd), successor(etcd);
      ASSERT_TRUE(leader.Lead());
      const auto store = Open(leader);
      etcd.DelayAfter(late);
      ASSERT_TRUE(store->Commit(large ? ManyJobs() : Changes{.jobs = {Job(1, "j1")}}).ok());
      ASSERT_TRUE(store->Commit({.jobs = {Job(1, "j1", "newer")}}).ok());
      etcd.DeliverLate();
      etcd.ExpireLeases();
      ASSERT_TRUE(successor.Lead());
      const auto jobs = Open(successor)->Load().value().jobs;
      ASSERT_FALSE(jobs.empty());
      EXPECT_EQ(jobs[0].reason, "newer") << "large " << large << ", transaction " << late;
    }
  }
}

TEST_F(EtcdStoreTest, PartsOfAChangeThatWasNotDecidedAreDropped) {
  const auto store = Open(first_);
  etcd_.SetFull(true);
  EXPECT_EQ(store->Commit(ManyJobs()).code(), absl::StatusCode::kResourceExhausted);
  etcd_.SetFull(false);
  ASSERT_TRUE(store->Commit({.jobs = {Job(1, "a")}}).ok());
  etcd_.ExpireLeases();
  ASSERT_TRUE(second_.Lead());
  EXPECT_THAT(Open(second_)->Load().value().jobs, SizeIs(1));
}

TEST_F(EtcdStoreTest, LargeValuesAreReadBackAndShrink) {
  const auto store = Open(first_, {.writes = {.value_bytes = 1000, .part_bytes = 4000}});
  const std::string large(20'000, 'x');
  ASSERT_TRUE(store->Commit({.jobs = {Job(1, "a", large), Job(2, "b")}, .profile = large}).ok());
  EXPECT_EQ(store->Load().value().jobs[0].reason, large);
  EXPECT_EQ(store->ReadProfile().value(), large);
  ASSERT_TRUE(store->Commit({.jobs = {Job(1, "a", "small")}, .profile = "less"}).ok());
  const auto jobs = store->Load().value().jobs;
  ASSERT_THAT(jobs, SizeIs(2));
  EXPECT_EQ(jobs[0].reason, "small");
  EXPECT_EQ(store->ReadProfile().value(), "less");
}

TEST_F(EtcdStoreTest, OnlyTheNewestStepsAreKept) {
  const auto store = Open(first_, {.steps = 100});
  for (int begin = 1; begin <= 512; begin += 64) {
    Changes changes;
    for (int step = begin; step < begin + 64; ++step)
      changes.steps.push_back({.job_id = "x", .generation = Generation(1), .step = StepId(step)});
    ASSERT_TRUE(store->Commit(changes).ok());
  }
  const auto steps = store->ReadSteps("x", StepId(0), 1000).value();
  ASSERT_THAT(steps, SizeIs(100));
  EXPECT_EQ(steps.front().step, StepId(413));
}

TEST_F(EtcdStoreTest, AFollowerReadsAndWritesNothing) {
  const auto store = Open(first_);
  ASSERT_TRUE(store->Commit({.jobs = {Job(1, "a")}}).ok());
  const auto follower = OpenEtcdStore(&second_.reader, nullptr).value();
  EXPECT_THAT(follower->Load().value().jobs, SizeIs(1));
  EXPECT_EQ(follower->Commit({.jobs = {Job(2, "b")}}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(follower->RaiseEpoch().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(EtcdStoreTest, AFollowerDoesNotShowHalfOfALargeChange) {
  etcd_.Put("t/redo/00000000000000000001/00000000000000000000", "");
  const auto follower = OpenEtcdStore(&second_.reader, nullptr).value();
  EXPECT_EQ(follower->Load().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(EtcdStoreTest, WhatDoesNotParseIsNamed) {
  etcd_.Put("t/job/00000000000000000001/id", "\xff");
  const absl::Status status = OpenEtcdStore(&first_.reader, first_.leadership.get()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("t/job/00000000000000000001/id"));
}

}  // namespace
}  // namespace takt::etcd
