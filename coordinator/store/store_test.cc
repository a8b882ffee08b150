// SPDX-License-Identifier: Apache-2.0
// Tests every store: this is the suite that each passes.
#include "coordinator/store/store.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/etcd/etcd_store.h"
#include "coordinator/etcd/fake_leader.h"
#include "coordinator/store/copy_state.h"
#include "coordinator/store/memory_store.h"
#include "coordinator/store/sqlite_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::store {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

MemoryBytes BytesOf(MemoryKind kind, std::int64_t bytes) {
  MemoryBytes out;
  out[kind] = bytes;
  return out;
}

struct Kind {
  std::string name;
  // Makes a store, and puts what it borrows into `world`.
  std::function<std::unique_ptr<Store>(const std::string& dir, StoreLimits limits,
                                       std::shared_ptr<void>& world)>
      make;
};

std::unique_ptr<Store> NewEtcdStore(const std::string&, StoreLimits limits,
                                    std::shared_ptr<void>& world) {
  auto leader = std::make_shared<etcd::FakeLeader>();
  world = leader;
  return etcd::OpenEtcdStore(&leader->self.reader, leader->self.leadership.get(),
                             {.limits = limits})
      .value();
}

class StoreTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "takt-store-XXXXXX";
    dir_ = mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::unique_ptr<Store> Make(StoreLimits limits = {}) {
    return GetParam().make(dir_, limits, world_);
  }

  static JobRecord Job(std::int64_t number, const std::string& name) {
    return {.number = number,
            .id = "id-" + name,
            .name = name,
            .create_time = absl::FromUnixMillis(1500),
            .generation = Generation(2),
            .steps = 20};
  }
  static StepRecord Step(const std::string& job_id, std::int64_t step, double loss) {
    return {.job_id = job_id, .generation = Generation(2), .step = StepId(step), .loss = loss};
  }
  static std::vector<std::int64_t> StepsOf(Store& store, const std::string& id, std::int64_t after,
                                           int limit) {
    std::vector<std::int64_t> steps;
    const auto found = store.ReadSteps(id, StepId(after), limit).value();
    for (const StepRecord& step : found) steps.push_back(step.step.value());
    return steps;
  }

  std::string dir_;
  std::shared_ptr<void> world_;
};

TEST_P(StoreTest, StartsEmpty) {
  const Snapshot snapshot = Make()->Load().value();
  EXPECT_THAT(snapshot.jobs, IsEmpty());
  EXPECT_THAT(snapshot.drained, IsEmpty());
  EXPECT_EQ(snapshot.last_number, 0);
}

TEST_P(StoreTest, JobsReadBackWithAllFieldsAndTheirLastStep) {
  auto store = Make();
  JobRecord job = Job(1, "a");
  job.state = JobState::kRunning;
  job.reason = "training";
  job.transitions = {{JobState::kQueued, absl::FromUnixNanos(1'000'000'007), "submitted"}};
  job.forgotten_transitions = 7;
  job.end_time = absl::FromUnixSeconds(9);
  job.plan = {.schedule = "1f1b",
              .mesh = {.pp_size = 2, .dp_size = 3, .cp_size = 4, .tp_size = 5},
              .partition = {{StageId(0), PpRank(1), LayerId(2), LayerId(4)}},
              .vocabulary_ends = {3, 7},
              .shares_optimizer = true,
              .predicted_step_seconds = 0.5,
              .predicted_bubble_fraction = 0.25,
              .warnings = {"slow"},
              .model_flops = 1e12,
              .matmul_flops_per_second = 2e11,
              .memory = {BytesOf(MemoryKind::kStash, 5), BytesOf(MemoryKind::kWeights, 6)},
              .checkpoint_every_steps = 50};
  job.ranks = {{Rank(1), "w1", "inc", "127.0.0.1"}};
  job.fault = {{.rank = Rank(1),
                .worker = "w1",
                .last_step = StepId(7),
                .instruction = "1F3",
                .waiting_for = "RECV 1F3 from pp rank 0",
                .instruction_step = StepId(12),
                .instruction_seconds = 4.5,
                .time = absl::FromUnixSeconds(3),
                .recent = {{"0F2", StepId(11), 0.25, 4.75}}}};
  job.invalid_input = true;
  job.violations = {{.field = "f", .value = "v", .rule = "r", .fix = "x", .where = "w"}};
  job.stop = JobStop{.state = JobState::kCancelled,
                     .reason = "asked",
                     .invalid_input = true,
                     .violations = {{.field = "g"}}};
  job.halt = store::JobHalt{.next = JobState::kPaused, .reason = "paused by request"};
  job.checkpoint = {.step = StepId(6), .time = absl::FromUnixSeconds(5)};
  job.resumed_step = StepId(3);
  job.memory_step = StepId(4);
  job.copies = {.workers = {"w1", "w2"}, .since = absl::FromUnixSeconds(8)};
  job.kernel_plan = "12 shapes";
  job.replan_gain = 0.5;
  job.owner = "user/alice";
  job.saving = {.open = {{.step = StepId(7),
                          .written = {Rank(1), Rank(0)},
                          .files = {{.name = "f", .bytes = 9, .xxh3_128 = "ab"}},
                          .snapshot_seconds = 0.5,
                          .write_seconds = 2,
                          .error = "full",
                          .committer = "w1",
                          .committer_incarnation = "inc"}},
                .settled = StepId(6)};
  job.faults = {{.time = absl::FromUnixSeconds(4), .worker = "w1", .step = StepId(6)},
                {.time = absl::FromUnixSeconds(8),
                 .worker = "w2",
                 .error = "INTERNAL: boom",
                 .step = StepId(7),
                 .committed = StepId(5)}};
  job.notices = {"checkpoint of step 4 failed"};
  job.planning_ends = 2;
  job.adoption = JobAdoption{.cluster_id = "0123", .acknowledged = StepId(8)};
  StepRecord step = Step("id-a", 7, 1.0 / 3);
  step.grad_norm = 2;
  step.learning_rate = 3e-4;
  step.tokens = 4096;
  step.step_seconds = 0.125;
  step.bubble_by_pp_rank = {0.1, 0.2};
  step.bubble_fraction = 0.15;
  step.validation_loss = 4.5;
  step.validation_bytes_per_token = 3.5;
  step.schedule = "1f1b";
  step.time = absl::FromUnixMillis(77);
  ASSERT_TRUE(store->Commit({.jobs = {job}, .steps = {Step("id-a", 6, 9), step}}).ok());

  const Snapshot snapshot = store->Load().value();
  ASSERT_THAT(snapshot.jobs, SizeIs(1));
  const JobRecord& got = snapshot.jobs[0];
  EXPECT_EQ(got.number, 1);
  EXPECT_EQ(got.id, "id-a");
  EXPECT_EQ(got.state, JobState::kRunning);
  EXPECT_EQ(got.reason, "training");
  EXPECT_EQ(got.owner, "user/alice");
  ASSERT_THAT(got.transitions, SizeIs(1));
  EXPECT_EQ(got.transitions[0].time, absl::FromUnixNanos(1'000'000'007));
  EXPECT_EQ(got.forgotten_transitions, 7);
  EXPECT_EQ(got.end_time, absl::FromUnixSeconds(9));
  EXPECT_EQ(got.generation, Generation(2));
  EXPECT_EQ(got.plan.schedule, "1f1b");
  EXPECT_EQ(mesh::ToString(got.plan.mesh), "2 x 3 x context 4 x tensor 5");
  ASSERT_THAT(got.plan.partition, SizeIs(1));
  EXPECT_EQ(got.plan.partition[0].last_layer, LayerId(4));
  EXPECT_EQ(got.plan.vocabulary_ends, (mesh::VocabularyEnds{3, 7}));
  EXPECT_TRUE(got.plan.shares_optimizer);
  EXPECT_THAT(got.plan.warnings, ElementsAre("slow"));
  EXPECT_EQ(got.plan.model_flops, 1e12);
  EXPECT_EQ(got.plan.matmul_flops_per_second, 2e11);
  EXPECT_THAT(got.plan.memory,
              ElementsAre(BytesOf(MemoryKind::kStash, 5), BytesOf(MemoryKind::kWeights, 6)));
  EXPECT_EQ(got.plan.checkpoint_every_steps, 50);
  ASSERT_THAT(got.ranks, SizeIs(1));
  EXPECT_EQ(got.ranks[0].incarnation, "inc");
  ASSERT_THAT(got.fault, SizeIs(1));
  EXPECT_EQ(got.fault[0].waiting_for, "RECV 1F3 from pp rank 0");
  EXPECT_EQ(got.fault[0].instruction_step, StepId(12));
  EXPECT_EQ(got.fault[0].instruction_seconds, 4.5);
  EXPECT_EQ(got.fault[0].time, absl::FromUnixSeconds(3));
  ASSERT_THAT(got.fault[0].recent, SizeIs(1));
  EXPECT_EQ(got.fault[0].recent[0].instruction, "0F2");
  EXPECT_EQ(got.fault[0].recent[0].step, StepId(11));
  EXPECT_EQ(got.fault[0].recent[0].seconds, 0.25);
  EXPECT_EQ(got.fault[0].recent[0].ended_seconds_ago, 4.75);
  EXPECT_TRUE(got.invalid_input);
  ASSERT_TRUE(got.stop.has_value());
  EXPECT_EQ(got.stop->state, JobState::kCancelled);
  EXPECT_TRUE(got.stop->invalid_input);
  ASSERT_THAT(got.violations, SizeIs(1));
  EXPECT_EQ(got.violations[0].ToString(), job.violations[0].ToString());
  ASSERT_THAT(got.stop->violations, SizeIs(1));
  EXPECT_EQ(got.stop->violations[0].field, "g");
  EXPECT_EQ(got.halt->next, JobState::kPaused);
  EXPECT_EQ(got.halt->reason, "paused by request");
  EXPECT_EQ(got.checkpoint->step, StepId(6));
  EXPECT_EQ(got.checkpoint->time, absl::FromUnixSeconds(5));
  EXPECT_EQ(got.resumed_step, StepId(3));
  EXPECT_EQ(got.memory_step, StepId(4));
  EXPECT_EQ(got.copies, job.copies);
  EXPECT_EQ(got.kernel_plan, "12 shapes");
  EXPECT_EQ(got.replan_gain, 0) << "it is not stored";
  ASSERT_THAT(got.saving.open, SizeIs(1));
  EXPECT_EQ(got.saving.open[0].step, StepId(7));
  EXPECT_THAT(got.saving.open[0].written, ElementsAre(Rank(1), Rank(0)));
  EXPECT_THAT(got.saving.open[0].files, ElementsAre(job.saving.open[0].files[0]));
  EXPECT_EQ(got.saving.open[0].snapshot_seconds, 0.5);
  EXPECT_EQ(got.saving.open[0].write_seconds, 2);
  EXPECT_EQ(got.saving.open[0].error, "full");
  EXPECT_EQ(got.saving.open[0].committer, "w1");
  EXPECT_EQ(got.saving.open[0].committer_incarnation, "inc");
  EXPECT_EQ(got.saving.settled, StepId(6));
  EXPECT_EQ(got.faults, job.faults);
  EXPECT_THAT(got.notices, ElementsAre("checkpoint of step 4 failed"));
  EXPECT_EQ(got.planning_ends, 2);
  ASSERT_TRUE(got.adoption.has_value());
  EXPECT_EQ(got.adoption->cluster_id, "0123");
  EXPECT_EQ(got.adoption->acknowledged, StepId(8));
  ASSERT_TRUE(got.last_step.has_value());
  EXPECT_EQ(got.last_step->step, StepId(7));
  EXPECT_EQ(got.last_step->loss, 1.0 / 3);
  EXPECT_EQ(got.last_step->validation_loss, 4.5);
  EXPECT_EQ(got.last_step->validation_bytes_per_token, 3.5);
  EXPECT_THAT(got.last_step->bubble_by_pp_rank, ElementsAre(0.1, 0.2));
  EXPECT_EQ(got.last_step->time, absl::FromUnixMillis(77));
}

TEST_P(StoreTest, WritingAJobAgainReplacesIt) {
  auto store = Make();
  JobRecord job = Job(1, "a");
  ASSERT_TRUE(store->Commit({.jobs = {job}}).ok());
  job.state = JobState::kFailed;
  ASSERT_TRUE(store->Commit({.jobs = {job}}).ok());
  const Snapshot snapshot = store->Load().value();
  ASSERT_THAT(snapshot.jobs, SizeIs(1));
  EXPECT_EQ(snapshot.jobs[0].state, JobState::kFailed);
}

TEST_P(StoreTest, StepsComeInOrderByPagesAfterAStep) {
  auto store = Make();
  ASSERT_TRUE(store->Commit({.steps = {Step("x", 3, 0), Step("x", 1, 0), Step("y", 2, 0)}}).ok());
  ASSERT_TRUE(store->Commit({.steps = {Step("x", 2, 0), Step("x", 4, 0)}}).ok());
  EXPECT_THAT(StepsOf(*store, "x", 0, 100), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(StepsOf(*store, "x", 1, 2), ElementsAre(2, 3));
  EXPECT_THAT(StepsOf(*store, "x", 4, 2), IsEmpty());
  EXPECT_THAT(StepsOf(*store, "z", 0, 2), IsEmpty());
}

TEST_P(StoreTest, AStepIsCommittedOnce) {
  auto store = Make();
  ASSERT_TRUE(store->Commit({.steps = {Step("x", 1, 5.0)}}).ok());
  ASSERT_TRUE(store->Commit({.steps = {Step("x", 1, 6.0)}}).ok());
  const auto steps = store->ReadSteps("x", StepId(0), 10).value();
  ASSERT_THAT(steps, SizeIs(1));
  EXPECT_EQ(steps[0].loss, 5.0);
}

TEST_P(StoreTest, RequestsAreFoundByMethodAndIdWithTheirAnswer) {
  auto store = Make();
  ASSERT_TRUE(
      store->Commit({.requests = {{"submit", "r1", Job(1, "a")}, {"delete", "r2", {}}}}).ok());
  const auto submit = store->FindRequest("submit", "r1").value();
  ASSERT_TRUE(submit.has_value());
  ASSERT_TRUE(submit->job.has_value());
  EXPECT_EQ(submit->job->name, "a");
  const auto erased = store->FindRequest("delete", "r2").value();
  ASSERT_TRUE(erased.has_value());
  EXPECT_FALSE(erased->job.has_value());
  EXPECT_FALSE(store->FindRequest("delete", "r1").value().has_value());
}

TEST_P(StoreTest, OnlyTheNewestRequestsAreKept) {
  auto store = Make({.requests = 2});
  for (const char* id : {"r1", "r2", "r3"})
    ASSERT_TRUE(store->Commit({.requests = {{"m", id, {}}}}).ok());
  EXPECT_FALSE(store->FindRequest("m", "r1").value().has_value());
  EXPECT_TRUE(store->FindRequest("m", "r2").value().has_value());
  EXPECT_TRUE(store->FindRequest("m", "r3").value().has_value());
}

TEST_P(StoreTest, DrainedWorkersAreRememberedUntilUndrained) {
  auto store = Make();
  ASSERT_TRUE(store->Commit({.drained = {{"w0", true}, {"w1", true}}}).ok());
  ASSERT_TRUE(store->Commit({.drained = {{"w0", false}, {"w1", true}}}).ok());
  EXPECT_THAT(store->Load().value().drained, ElementsAre("w1"));
}

TEST_P(StoreTest, WhatIsHeldAgainstWorkersIsKeptUntilItIsEmpty) {
  auto store = Make();
  EXPECT_THAT(store->Load().value().workers, IsEmpty());
  const WorkerRecord blamed{.faults = {{absl::FromUnixSeconds(3), "j", "its stream ended"},
                                       {absl::FromUnixSeconds(5), "k", "INTERNAL: boom"}},
                            .quarantined_until = absl::FromUnixSeconds(605),
                            .quarantines = 1};
  const WorkerRecord once{.faults = {{absl::FromUnixSeconds(3), "j", "its stream ended"}}};
  EXPECT_FALSE((Changes{.workers = {{"w0", once}}}).empty());
  ASSERT_TRUE(store->Commit({.workers = {{"w0", once}, {"w1", once}}}).ok());
  ASSERT_TRUE(store->Commit({.workers = {{"w0", blamed}}}).ok());
  EXPECT_THAT(store->Load().value().workers,
              ElementsAre(::testing::Pair("w0", blamed), ::testing::Pair("w1", once)));
  ASSERT_TRUE(store->Commit({.workers = {{"w1", WorkerRecord()}}}).ok());
  EXPECT_THAT(store->Load().value().workers, ElementsAre(::testing::Pair("w0", blamed)));
}

TEST_P(StoreTest, LogsKeepTheNewestLinesOfEachJob) {
  auto store = Make({.log_lines = 2});
  for (const char* text : {"one", "two", "three"}) {
    ASSERT_TRUE(store->Commit({.logs = {{.job_id = "x", .worker = "w0", .text = text}}}).ok());
  }
  ASSERT_TRUE(store->Commit({.logs = {{.job_id = "y", .text = "other"}}}).ok());
  const auto lines = store->ReadLogs("x", 0, 10).value();
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_EQ(lines[0].text, "two");
  EXPECT_EQ(lines[1].text, "three");
  EXPECT_EQ(lines[1].worker, "w0");
  EXPECT_THAT(store->ReadLogs("x", lines[0].number, 10).value(), SizeIs(1));
  EXPECT_THAT(store->ReadLogs("x", 0, 1).value(), SizeIs(1));
}

TEST_P(StoreTest, ADeletedJobTakesItsStepsAndLogsAndLeavesItsGeneration) {
  auto store = Make();
  ASSERT_TRUE(
      store
          ->Commit(
              {.jobs = {Job(5, "a")}, .steps = {Step("id-a", 1, 0)}, .logs = {{.job_id = "id-a"}}})
          .ok());
  ASSERT_TRUE(store->Commit({.deleted_jobs = {"id-a", "id-unknown"}}).ok());
  const Snapshot snapshot = store->Load().value();
  EXPECT_THAT(snapshot.jobs, IsEmpty());
  EXPECT_EQ(snapshot.last_number, 5);
  EXPECT_EQ(snapshot.generations.at("a"), Generation(2));
  EXPECT_THAT(StepsOf(*store, "id-a", 0, 10), IsEmpty());
  EXPECT_THAT(store->ReadLogs("id-a", 0, 10).value(), IsEmpty());
}

TEST_P(StoreTest, TheProfileIsTheOneThatWasCommittedLast) {
  auto store = Make();
  EXPECT_EQ(store->ReadProfile().value(), "");
  EXPECT_FALSE(Changes{.profile = ""}.empty());
  const std::string bytes("\0\xff of any kind", 14);
  ASSERT_TRUE(store->Commit({.profile = "the first"}).ok());
  ASSERT_TRUE(store->Commit({.jobs = {Job(1, "a")}, .profile = bytes}).ok());
  ASSERT_TRUE(store->Commit({.drained = {{"w0", true}}}).ok());
  EXPECT_EQ(store->ReadProfile().value(), bytes);
  ASSERT_TRUE(store->Commit({.profile = ""}).ok());
  EXPECT_EQ(store->ReadProfile().value(), "");
}

TEST_P(StoreTest, ACopyIsTheSameClusterAndGoesOnFromItsNumbers) {
  auto store = Make();
  const ClusterIdentity identity{.cluster_id = std::string(32, 'a'),
                                 .epoch = 40,
                                 .last_number = 9,
                                 .generations = {{"gone", Generation(3)}}};
  EXPECT_FALSE(Changes{.identity = identity}.empty());
  ASSERT_TRUE(store->Commit({.jobs = {Job(5, "a")}, .identity = identity}).ok());
  const Snapshot snapshot = store->Load().value();
  EXPECT_THAT(snapshot.jobs, SizeIs(1));
  EXPECT_EQ(snapshot.cluster_id, identity.cluster_id);
  EXPECT_EQ(snapshot.last_number, 9);
  EXPECT_THAT(snapshot.generations, ElementsAre(::testing::Pair("gone", Generation(3))));
  EXPECT_EQ(store->RaiseEpoch().value(), 41);
  ASSERT_TRUE(store->Commit({.jobs = {Job(6, "b")}}).ok());
  EXPECT_EQ(store->Load().value().cluster_id, identity.cluster_id);
}

TEST_P(StoreTest, AStateIsCopiedFromAnyStoreIntoAnyStore) {
  constexpr int kSteps = 2500;
  auto store = Make();
  const WorkerRecord blamed{.quarantines = 1};
  Changes changes{.jobs = {Job(3, "a"), Job(4, "b")},
                  .drained = {{"w0", true}},
                  .workers = {{"w1", blamed}},
                  .logs = {{.job_id = "id-a", .text = "one"}, {.job_id = "id-a", .text = "two"}},
                  .profile = "measured"};
  for (int step = 1; step <= kSteps; ++step) changes.steps.push_back(Step("id-a", step, step));
  ASSERT_TRUE(store->Commit(changes).ok());
  ASSERT_TRUE(store->Commit({.deleted_jobs = {"id-b"}}).ok());
  ASSERT_TRUE(store->RaiseEpoch().ok());

  const auto memory = NewMemoryStore();
  ASSERT_TRUE(CopyState(*store, *memory).ok());
  const std::string other = dir_ + "/other";
  std::filesystem::create_directory(other);
  std::shared_ptr<void> world;
  const std::unique_ptr<Store> copy = GetParam().make(other, {}, world);
  ASSERT_TRUE(CopyState(*memory, *copy).ok());

  const Snapshot before = store->Load().value(), after = copy->Load().value();
  ASSERT_THAT(after.jobs, SizeIs(1));
  EXPECT_EQ(after.jobs[0].number, 3);
  EXPECT_EQ(after.jobs[0].last_step->step, StepId(kSteps));
  EXPECT_EQ(after.last_number, 4);
  EXPECT_EQ(after.cluster_id, before.cluster_id);
  EXPECT_GE(after.epoch, before.epoch);
  EXPECT_EQ(after.generations, before.generations);
  EXPECT_EQ(after.drained, before.drained);
  EXPECT_EQ(after.workers, before.workers);
  EXPECT_EQ(copy->ReadProfile().value(), "measured");
  EXPECT_THAT(StepsOf(*copy, "id-a", 0, kSteps + 1), SizeIs(kSteps));
  const std::vector<LogRecord> lines = copy->ReadLogs("id-a", 0, 10).value();
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_EQ(lines[0].text, "one");
  EXPECT_EQ(CopyState(*store, *copy).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(StoreTest, TheEpochIsRaisedAndTheClusterIdStays) {
  auto store = Make();
  const Snapshot first = store->Load().value();
  EXPECT_EQ(first.cluster_id.size(), 32u);
  EXPECT_GE(first.epoch, 0);
  EXPECT_EQ(store->RaiseEpoch().value(), first.epoch + 1);
  EXPECT_EQ(store->RaiseEpoch().value(), first.epoch + 2);
  EXPECT_EQ(store->Load().value().epoch, first.epoch + 2);
  EXPECT_EQ(store->Load().value().cluster_id, first.cluster_id);
}

INSTANTIATE_TEST_SUITE_P(
    Stores, StoreTest,
    ::testing::Values(Kind{"Memory", [](const std::string&, StoreLimits limits,
                                        std::shared_ptr<void>&) { return NewMemoryStore(limits); }},
                      Kind{"Sqlite",
                           [](const std::string& dir, StoreLimits limits, std::shared_ptr<void>&) {
                             return OpenSqliteStore(dir + "/state.sqlite", limits).value();
                           }},
                      Kind{"Etcd", NewEtcdStore}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace takt::store
