// SPDX-License-Identifier: Apache-2.0
// Damages a state file, its log and its counter, and fills its disk.
#include <sqlite3.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/store/record_serde.h"
#include "coordinator/store/sqlite_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::store {
namespace {

using ::testing::HasSubstr;

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

void WriteAll(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

class SqliteIntegrityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "takt-integrity-XXXXXX";
    dir_ = mkdtemp(pattern.data());
    path_ = dir_ + "/state.sqlite";
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  absl::StatusOr<std::unique_ptr<Store>> Open(std::int64_t pages = 0) {
    return OpenSqliteStore(path_, {.reserve_bytes = 0, .pages = pages});
  }

  static absl::Status Put(Store& store, int number, const std::string& reason = "") {
    return store.Commit({.jobs = {{.number = number,
                                   .id = absl::StrCat("id-", number),
                                   .name = absl::StrCat("job-", number),
                                   .reason = reason}}});
  }

  // Makes a copy of the folder as a killed process would leave it, with the log.
  std::string CopyAsKilled() {
    const std::string copy = dir_ + "/copy";
    std::filesystem::create_directory(copy);
    for (const char* suffix : {"", "-wal", ".commits"}) {
      std::filesystem::copy_file(path_ + suffix, copy + "/state.sqlite" + suffix);
    }
    return copy + "/state.sqlite";
  }

  // Returns, as text, what a coordinator would start from, and what it would answer from job-1's
  // steps, log lines and submission.
  static absl::StatusOr<std::string> StateOf(Store& store) {
    ASSIGN_OR_RETURN(const Snapshot snapshot, store.Load());
    ASSIGN_OR_RETURN(const std::string profile, store.ReadProfile());
    std::string state = absl::StrCat(snapshot.cluster_id, " ", snapshot.epoch, " ",
                                     snapshot.last_number, " ", profile);
    for (const JobRecord& job : snapshot.jobs)
      absl::StrAppend(&state, "\n", job.number, ToRecordProto(job).SerializeAsString());
    for (const auto& [name, generation] : snapshot.generations)
      absl::StrAppend(&state, "\n", name, " ", generation.value());
    for (const std::string& worker : snapshot.drained) absl::StrAppend(&state, "\n", worker);
    for (const auto& [name, worker] : snapshot.workers) {
      absl::StrAppend(&state, "\n", name, absl::FormatTime(worker.quarantined_until),
                      worker.quarantines);
    }
    ASSIGN_OR_RETURN(const std::vector<StepRecord> steps, store.ReadSteps("id-1", StepId(0), 10));
    for (const StepRecord& step : steps) {
      absl::StrAppend(&state, "\n", step.generation.value(), " ", step.step.value(), " ", step.loss,
                      " ", step.tokens, " ", step.bubble_fraction, " ", step.schedule);
    }
    ASSIGN_OR_RETURN(const std::vector<LogRecord> logs, store.ReadLogs("id-1", 0, 10));
    for (const LogRecord& line : logs) {
      absl::StrAppend(&state, "\n", line.number, line.worker, line.step.value(), line.level,
                      line.text, line.unix_nanos);
    }
    ASSIGN_OR_RETURN(const auto request, store.FindRequest("SubmitJob", "request-1"));
    if (request.has_value())
      absl::StrAppend(&state, "\n", ToRecordProto(*request->job).SerializeAsString());
    return state;
  }

  // Changes the file as another program would.
  void Execute(const std::string& sql) const {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(path_.c_str(), &db), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(db);
  }

  std::string dir_, path_;
};

// A small database, of which a test flips single bits.
class FlippedBitTest : public SqliteIntegrityTest {
 protected:
  void SetUp() override {
    SqliteIntegrityTest::SetUp();
    Fill("a small reason");
  }

  // Writes what the test flips bits of.
  void Fill(const std::string& reason) {
    {
      const auto store = Open().value();
      ASSERT_TRUE(Put(*store, 1, reason).ok());
      ASSERT_TRUE(Put(*store, 2).ok());
      ASSERT_TRUE(store->Commit({.deleted_jobs = {"id-2"}, .drained = {{"w1", true}}}).ok());
      ASSERT_TRUE(store->Commit({.profile = "measured"}).ok());
      ASSERT_TRUE(PutOneOfEach(*store).ok());
      state_ = StateOf(*store).value();
    }
    whole_ = ReadAll(path_);
    counter_ = ReadAll(path_ + ".commits");
  }

  // A row of each other table.
  static absl::Status PutOneOfEach(Store& store) {
    return store.Commit(
        {.steps = {{.job_id = "id-1",
                    .generation = Generation(3),
                    .step = StepId(7),
                    .loss = 1.5,
                    .tokens = 64,
                    .bubble_fraction = 0.25,
                    .schedule = "zb-h1"}},
         .requests = {{"SubmitJob", "request-1", JobRecord{.number = 1, .name = "job-1"}}},
         .workers = {{"w2", {.quarantined_until = absl::UnixEpoch(), .quarantines = 2}}},
         .logs = {{.job_id = "id-1",
                   .worker = "w2",
                   .step = StepId(7),
                   .level = "warning",
                   .text = "slow",
                   .unix_nanos = 9}}});
  }

  // The store names the file, or has the same state.
  void Flip(std::size_t byte, std::size_t bit) {
    std::string flipped = whole_;
    flipped[byte] = static_cast<char>(flipped[byte] ^ (1 << bit));
    for (const char* suffix : {"-wal", "-shm"}) std::filesystem::remove(path_ + suffix);
    WriteAll(path_, flipped);
    WriteAll(path_ + ".commits", counter_);
    const auto store = Open();
    const absl::StatusOr<std::string> state = store.ok() ? StateOf(**store) : store.status();
    if (state.ok()) {
      ASSERT_EQ(*state, state_) << "bit " << bit << " of byte " << byte;
    } else {
      EXPECT_THAT(state.status().ToString(), HasSubstr(path_)) << "byte " << byte;
      ++named_;
    }
  }

  std::string state_, whole_, counter_;
  int named_ = 0;
};

// Flips one bit of each third byte that is not zero, and of a few that are, for those are mostly
// unused. All eight bits come in turn.
TEST_F(FlippedBitTest, IsNamedOrChangesNothing) {
  for (std::size_t at = 0; at < whole_.size(); ++at) {
    if (at % (whole_[at] == 0 ? 61 : 3) != 0) continue;
    ASSERT_NO_FATAL_FAILURE(Flip(at, at % 8));
  }
  EXPECT_GT(named_, 100);
}

// Every bit of 4 KiB of used pages. `tests/long.sh flips` runs it.
TEST_F(FlippedBitTest, DISABLED_EachOfUsedPagesIsNamedOrChangesNothing) {
  constexpr int kBytes = 4096;
  Fill(std::string(kBytes / 2, 'r'));
  int used = 0;
  for (std::size_t at = 0; at < whole_.size() && used < kBytes; ++at) {
    if (whole_[at] == 0) continue;
    ++used;
    for (std::size_t bit = 0; bit < 8; ++bit) ASSERT_NO_FATAL_FAILURE(Flip(at, bit));
  }
  EXPECT_EQ(used, kBytes) << "the database is too small";
  std::cout << named_ << " of " << 8 * kBytes << " flipped bits were named, the others changed "
            << "nothing" << std::endl;
}

TEST_F(SqliteIntegrityTest, ATruncatedOrGarbledLogIsDataLossWithTheFix) {
  const auto store = Open().value();
  for (int number = 1; number <= 3; ++number) ASSERT_TRUE(Put(*store, number).ok());
  const std::string copy = CopyAsKilled();
  const std::string log = ReadAll(copy + "-wal");
  ASSERT_GT(log.size(), 100u);
  std::string garbled = log;
  garbled[log.size() - 50] = static_cast<char>(garbled[log.size() - 50] ^ 4);
  for (const std::string& damaged : {log.substr(0, log.size() - 1), garbled, std::string()}) {
    std::filesystem::remove(copy + "-shm");
    WriteAll(copy + "-wal", damaged);
    const absl::Status status = OpenSqliteStore(copy).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(status.ToString(), HasSubstr("takt admin"));
  }
  std::filesystem::remove(copy + "-shm");
  WriteAll(copy + "-wal", log);
  EXPECT_EQ(OpenSqliteStore(copy).value()->Load().value().jobs.size(), 3u);
}

TEST_F(SqliteIntegrityTest, RowsDamagedWhileItIsOpenLeaveTheNextReadAlone) {
  const auto store = Open().value();
  Changes changes;
  for (const int step : {1, 2})
    changes.steps.push_back({.job_id = "a", .generation = Generation(1), .step = StepId(step)});
  changes.steps.push_back({.job_id = "b", .generation = Generation(1), .step = StepId(7)});
  for (const char* job : {"a", "a", "b"}) changes.logs.push_back({.job_id = job, .text = job});
  ASSERT_TRUE(store->Commit(changes).ok());
  Execute(
      "UPDATE steps SET report = x'00' WHERE step = 1; UPDATE logs SET sum = 0 WHERE number = 1");
  EXPECT_EQ(store->ReadSteps("a", StepId(0), 10).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(store->ReadLogs("a", 0, 10).status().code(), absl::StatusCode::kDataLoss);
  const auto steps = store->ReadSteps("b", StepId(0), 10);
  ASSERT_TRUE(steps.ok()) << steps.status();
  ASSERT_EQ(steps->size(), 1u);
  EXPECT_EQ(steps->front().step, StepId(7));
  const auto logs = store->ReadLogs("b", 0, 10);
  ASSERT_TRUE(logs.ok()) << logs.status();
  ASSERT_EQ(logs->size(), 1u);
  EXPECT_EQ(logs->front().text, "b");
}

TEST_F(SqliteIntegrityTest, AKillBetweenCommitAndCounterLosesNothing) {
  const auto store = Open().value();
  ASSERT_TRUE(Put(*store, 1).ok());
  const std::string counter = ReadAll(path_ + ".commits");
  ASSERT_TRUE(Put(*store, 2).ok());
  const std::string copy = CopyAsKilled();
  WriteAll(copy + ".commits", counter);
  const Snapshot snapshot = OpenSqliteStore(copy).value()->Load().value();
  EXPECT_EQ(snapshot.jobs.size(), 2u);
  EXPECT_EQ(snapshot.epoch, 0);
}

TEST_F(SqliteIntegrityTest, AnEmptiedFileIsNotTakenForANewOne) {
  Open().value().reset();
  WriteAll(path_, "");
  const absl::Status status = Open().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.ToString(), HasSubstr("empty"));
}

TEST_F(SqliteIntegrityTest, ACopyWithoutItsCounterSkipsEpochs) {
  EXPECT_EQ(Open().value()->RaiseEpoch().value(), 1);
  std::filesystem::remove(path_ + ".commits");
  EXPECT_EQ(Open().value()->Load().value().epoch, 1 + kEpochsSkipped);
  EXPECT_EQ(Open().value()->RaiseEpoch().value(), 2 + kEpochsSkipped);
}

TEST_F(SqliteIntegrityTest, ADamagedCounterIsDataLoss) {
  ASSERT_TRUE(Open().value()->RaiseEpoch().ok());
  WriteAll(path_ + ".commits", std::string(1024, 'x'));
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(SqliteIntegrityTest, AFullDiskKeepsNothingAndLetsJobsBeDeleted) {
  const auto store = Open(/*pages=*/40).value();
  int number = 0;
  absl::Status status;
  const std::string reason(3000, 's');
  while (status.ok() && number < 100) status = Put(*store, ++number, reason);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(status.ToString(), HasSubstr(path_));
  EXPECT_EQ(store->Load().value().jobs.size(), static_cast<std::size_t>(number - 1));
  EXPECT_TRUE(store->Commit({.deleted_jobs = {"id-1", "id-2"}}).ok());
  EXPECT_TRUE(Put(*store, number, reason).ok()) << "the same changes may be committed later";
}

TEST_F(SqliteIntegrityTest, AFullDiskGivesUpTheReserveOnlyForDeletions) {
  const StoreLimits limits{.reserve_bytes = 1 << 20, .pages = 40};
  const auto store = OpenSqliteStore(path_, limits).value();
  const std::string reserve = path_ + ".reserve";
  EXPECT_EQ(std::filesystem::file_size(reserve), 1u << 20);
  EXPECT_EQ(Put(*store, 1, std::string(400'000, 's')).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(std::filesystem::exists(reserve));
  // This one does not fit either, whatever is given up.
  EXPECT_FALSE(
      store
          ->Commit({.jobs = {{.number = 1, .id = "a", .reason = std::string(400'000, 's')}},
                    .deleted_jobs = {"b"}})
          .ok());
  EXPECT_FALSE(std::filesystem::exists(reserve));
  EXPECT_TRUE(Put(*store, 1).ok());
  EXPECT_TRUE(std::filesystem::exists(reserve)) << "it is taken again once there is room";
}

TEST_F(SqliteIntegrityTest, ADeletedJobsRowsGoInParts) {
  const auto store = Open().value();
  Changes changes{.jobs = {{.number = 1, .id = "x", .name = "n"}, {.number = 2, .id = "y"}}};
  for (int step = 1; step <= 25'000; ++step) {
    changes.steps.push_back({.job_id = "x", .generation = Generation(1), .step = StepId(step)});
  }
  ASSERT_TRUE(store->Commit(changes).ok());
  const auto left = [&] { return store->ReadSteps("x", StepId(0), 30'000).value().size(); };
  ASSERT_TRUE(store->Commit({.deleted_jobs = {"x"}}).ok());
  EXPECT_EQ(left(), 15'000u);
  // Workers wait for commits that have steps.
  const StepRecord step{.job_id = "y", .generation = Generation(1), .step = StepId(1)};
  ASSERT_TRUE(store->Commit({.steps = {step}}).ok());
  EXPECT_EQ(left(), 14'000u);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(store->Commit({.profile = "any"}).ok());
  EXPECT_EQ(left(), 0u);
}

TEST_F(SqliteIntegrityTest, TheRowsOfManySmallDeletedJobsGoTogether) {
  const auto store = Open().value();
  Changes changes, deletions;
  for (int i = 1; i <= 100; ++i) {
    const std::string id = absl::StrCat("job", i);
    changes.jobs.push_back({.number = i, .id = id, .name = id});
    for (int step = 1; step <= 10; ++step)
      changes.steps.push_back({.job_id = id, .generation = Generation(1), .step = StepId(step)});
    deletions.deleted_jobs.push_back(id);
  }
  ASSERT_TRUE(store->Commit(changes).ok());
  ASSERT_TRUE(store->Commit(deletions).ok());
  for (const std::string& id : deletions.deleted_jobs)
    EXPECT_TRUE(store->ReadSteps(id, StepId(0), 100).value().empty()) << id;
}

}  // namespace
}  // namespace takt::store
