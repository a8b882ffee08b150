// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/sqlite_store.h"

#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "coordinator/store/record_serde.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SqliteStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "takt-sqlite-XXXXXX";
    dir_ = mkdtemp(pattern.data());
    path_ = dir_ + "/state.sqlite";
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::string dir_, path_;
};

TEST_F(SqliteStoreTest, WhatWasCommittedSurvivesReopening) {
  ASSERT_TRUE(OpenSqliteStore(path_)
                  .value()
                  ->Commit({.jobs = {{.number = 3, .id = "i", .name = "n"}}})
                  .ok());
  const Snapshot snapshot = OpenSqliteStore(path_).value()->Load().value();
  ASSERT_EQ(snapshot.jobs.size(), 1u);
  EXPECT_EQ(snapshot.jobs[0].name, "n");
  EXPECT_EQ(snapshot.jobs[0].number, 3);
}

TEST_F(SqliteStoreTest, OldStepsAreThinnedOutAndTheFileStaysWhole) {
  {
    const auto store = OpenSqliteStore(path_, {.steps = 10}).value();
    for (int step = 1; step <= 25; ++step) {
      const StepRecord record{
          .job_id = "x", .generation = Generation(1), .step = StepId(step), .loss = 0.5 * step};
      ASSERT_TRUE(store->Commit({.steps = {record}}).ok());
    }
  }
  // Opening it checks every row and the total of all.
  const auto store = OpenSqliteStore(path_).value();
  std::vector<std::int64_t> left;
  const std::vector<StepRecord> steps = store->ReadSteps("x", StepId(0), 1000).value();
  for (const StepRecord& step : steps) {
    left.push_back(step.step.value());
    EXPECT_EQ(step.loss, 0.5 * static_cast<double>(step.step.value()));
  }
  EXPECT_THAT(left, ElementsAre(10, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25));
}

// The child is killed with the file open and the log not checkpointed.
TEST_F(SqliteStoreTest, WhatWasCommittedSurvivesAKilledProcess) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto store = OpenSqliteStore(path_);
    for (int step = 1; step <= 50; ++step) {
      if (!(*store)
               ->Commit(
                   {.steps = {{.job_id = "x", .generation = Generation(1), .step = StepId(step)}}})
               .ok())
        _exit(1);
    }
    if (write(ready[1], "x", 1) != 1) _exit(1);
    pause();
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  close(ready[0]);
  close(ready[1]);
  EXPECT_EQ(OpenSqliteStore(path_).value()->ReadSteps("x", StepId(0), 100).value().size(), 50u);
}

// Copies the file as `sqlite3 FILE ".backup COPY"` does.
TEST_F(SqliteStoreTest, IsBackedUpWhileItIsOpen) {
  const auto store = OpenSqliteStore(path_).value();
  ASSERT_TRUE(store->Commit({.jobs = {{.number = 3, .id = "i", .name = "n"}}}).ok());
  const std::string copy = dir_ + "/copy.sqlite";
  sqlite3* from = nullptr;
  sqlite3* to = nullptr;
  ASSERT_EQ(sqlite3_open_v2(path_.c_str(), &from, SQLITE_OPEN_READWRITE, nullptr), SQLITE_OK);
  ASSERT_EQ(sqlite3_open(copy.c_str(), &to), SQLITE_OK);
  sqlite3_backup* const backup = sqlite3_backup_init(to, "main", from, "main");
  ASSERT_NE(backup, nullptr);
  EXPECT_EQ(sqlite3_backup_step(backup, /*nPage=*/1), SQLITE_OK);
  EXPECT_TRUE(store->Commit({.jobs = {{.number = 4, .id = "k", .name = "later"}}}).ok());
  EXPECT_EQ(sqlite3_backup_step(backup, /*nPage=*/-1), SQLITE_DONE);
  sqlite3_backup_finish(backup);
  sqlite3_close(from);
  sqlite3_close(to);
  EXPECT_EQ(OpenSqliteStore(copy).value()->Load().value().jobs.size(), 2u);
}

TEST_F(SqliteStoreTest, AFailedCommitKeepsNothing) {
  auto store = OpenSqliteStore(path_).value();
  // Two jobs cannot have one number, so the transaction fails at its second statement.
  const absl::Status status =
      store->Commit({.jobs = {{.number = 1, .id = "a"}, {.number = 1, .id = "b"}}});
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.ToString(), HasSubstr(path_));
  EXPECT_TRUE(store->Load().value().jobs.empty());
  EXPECT_TRUE(store->Commit({.jobs = {{.number = 1, .id = "a"}}}).ok());
}

TEST_F(SqliteStoreTest, GarbageIsDataLossNamingTheFile) {
  std::ofstream(path_) << std::string(8192, 'x');
  const absl::Status status = OpenSqliteStore(path_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.ToString(), HasSubstr(path_));
}

TEST_F(SqliteStoreTest, DamagedPagesAreDataLossNamingTheFile) {
  {
    auto store = OpenSqliteStore(path_).value();
    for (int number = 1; number <= 200; ++number) {
      ASSERT_TRUE(store
                      ->Commit({.jobs = {{.number = number,
                                          .id = std::to_string(number),
                                          .spec = std::string(500, 'j')}}})
                      .ok());
    }
  }
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(4096);
  file << std::string(16384, '\x5a');
  file.close();
  const absl::Status status = OpenSqliteStore(path_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.ToString(), HasSubstr(path_));
}

TEST_F(SqliteStoreTest, ANewerSchemaIsRefusedNamingBothVersions) {
  OpenSqliteStore(path_).value().reset();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "UPDATE meta SET value = 7", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  const absl::Status status = OpenSqliteStore(path_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.ToString(), HasSubstr("schema 7"));
  EXPECT_THAT(status.ToString(), HasSubstr("up to 2"));
}

// The tables of version 1, as the first program made them.
constexpr char kVersion1[] = R"sql(
CREATE TABLE meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE jobs(number INTEGER PRIMARY KEY AUTOINCREMENT, id BLOB NOT NULL UNIQUE, record BLOB NOT NULL);
CREATE TABLE steps(job_id BLOB, step INTEGER, generation INTEGER, report BLOB NOT NULL,
                   PRIMARY KEY(job_id, step, generation)) WITHOUT ROWID;
CREATE TABLE requests(number INTEGER PRIMARY KEY AUTOINCREMENT, method BLOB NOT NULL, request_id BLOB NOT NULL,
                      job BLOB, UNIQUE(method, request_id));
CREATE TABLE drained(worker BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE logs(number INTEGER PRIMARY KEY AUTOINCREMENT, job_id BLOB NOT NULL, line BLOB NOT NULL);
CREATE INDEX logs_of_job ON logs(job_id, number);
CREATE TABLE generations(name BLOB PRIMARY KEY, generation INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES('schema_version', 1);
INSERT INTO drained VALUES(x'7731');
INSERT INTO generations VALUES(x'6f6c64', 4);
)sql";

TEST_F(SqliteStoreTest, AFileOfTheVersionBeforeIsUpgraded) {
  const JobRecord job{.number = 3, .id = "i", .name = "n"};
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, kVersion1, nullptr, nullptr, nullptr), SQLITE_OK);
  const std::string insert =
      absl::StrCat("INSERT INTO jobs VALUES(3, x'69', x'",
                   absl::BytesToHexString(ToRecordProto(job).SerializeAsString()), "')");
  ASSERT_EQ(sqlite3_exec(db, insert.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  std::string cluster_id;
  {
    const auto store = OpenSqliteStore(path_).value();
    const Snapshot snapshot = store->Load().value();
    cluster_id = snapshot.cluster_id;
    EXPECT_EQ(cluster_id.size(), 32u);
    EXPECT_EQ(snapshot.epoch, 0);
    EXPECT_EQ(snapshot.last_number, 3);
    ASSERT_EQ(snapshot.jobs.size(), 1u);
    EXPECT_EQ(snapshot.jobs[0].name, "n");
    EXPECT_THAT(snapshot.drained, ::testing::ElementsAre("w1"));
    EXPECT_EQ(snapshot.generations.at("old"), Generation(4));
    EXPECT_TRUE(store->Commit({.profile = "measured"}).ok());
  }
  const auto store = OpenSqliteStore(path_).value();
  EXPECT_EQ(store->ReadProfile().value(), "measured");
  EXPECT_EQ(store->Load().value().cluster_id, cluster_id);
}

TEST_F(SqliteStoreTest, AnotherProgramsDatabaseIsRefused) {
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "CREATE TABLE songs(name)", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  EXPECT_THAT(OpenSqliteStore(path_).status().ToString(), HasSubstr("not a coordinator's"));
}

TEST_F(SqliteStoreTest, AMissingFolderIsUnavailableNamingTheFile) {
  const absl::Status status = OpenSqliteStore(dir_ + "/no/such/state.sqlite").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.ToString(), HasSubstr("/no/such/state.sqlite"));
}

}  // namespace
}  // namespace takt::store
