// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/maintenance.h"

#include <sqlite3.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/store/memory_store.h"
#include "coordinator/store/sqlite_db.h"
#include "coordinator/store/sqlite_store.h"
#include "coordinator/store/state_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace takt::store {
namespace {

using ::testing::HasSubstr;

class MaintenanceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "takt-maintenance-XXXXXX";
    root_ = mkdtemp(pattern.data());
    state_ = root_ + "/state";
    file_ = state_ + "/coordinator.sqlite";
    std::filesystem::create_directory(state_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  std::unique_ptr<Store> Open() { return OpenSqliteStore(file_, {.reserve_bytes = 0}).value(); }
  static absl::Status Put(Store& store, int number) {
    const std::string id = std::to_string(number);
    return store.Commit({.jobs = {{.number = number, .id = id, .name = "job-" + id}}});
  }
  // The coordinator has ended with its last transaction in the log, which is not in the database.
  void LeaveKilledState() {
    const std::string running = root_ + "/running";
    std::filesystem::create_directory(running);
    {
      const auto store =
          OpenSqliteStore(running + "/coordinator.sqlite", {.reserve_bytes = 0}).value();
      for (const int number : {1, 2}) ASSERT_TRUE(Put(*store, number).ok());
      std::filesystem::create_directory(state_);
      for (const char* suffix : {"", "-wal", ".commits"})
        std::filesystem::copy_file(running + "/coordinator.sqlite" + suffix, file_ + suffix);
    }
    std::filesystem::remove_all(running);
  }
  // The state does not open, and nothing is made in its place.
  void ExpectRefused() {
    const absl::Status status = OpenSqliteStore(file_, {.reserve_bytes = 0}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(status.ToString(), HasSubstr("`takt admin restore` again"));
    EXPECT_NE(Run({"fsck", state_, "text"}), 0);
  }

  int Run(const std::vector<std::string>& arguments) {
    return RunMaintenance(arguments, out_, errors_);
  }
  void Execute(const std::string& sql) {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(file_.c_str(), &db), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(db);
  }

  std::string root_, state_, file_;
  std::ostringstream out_, errors_;
};

TEST_F(MaintenanceTest, ABackupOfARunningCoordinatorIsRestoredAtALaterEpoch) {
  const std::string copy = root_ + "/copy";
  std::string cluster_id;
  {
    const StateDir running = StateDir::Acquire(state_).value();
    const auto store = Open();
    ASSERT_EQ(store->RaiseEpoch().value(), 1);
    ASSERT_TRUE(Put(*store, 1).ok());
    cluster_id = store->Load().value().cluster_id;
    ASSERT_EQ(Run({"backup", state_, copy}), 0) << errors_.str();
    ASSERT_TRUE(Put(*store, 2).ok());
    EXPECT_EQ(Run({"restore", copy, state_}), 1);
    EXPECT_THAT(errors_.str(), HasSubstr("running coordinator"));
  }
  struct stat info = {};
  ASSERT_EQ(stat(copy.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(Run({"backup", state_, copy}), 1) << "it does not overwrite";
  ASSERT_EQ(Run({"restore", copy, state_}), 0) << errors_.str();
  const Snapshot snapshot = Open()->Load().value();
  EXPECT_EQ(snapshot.jobs.size(), 1u);
  EXPECT_EQ(snapshot.cluster_id, cluster_id);
  EXPECT_EQ(snapshot.epoch, 1 + kEpochsSkipped);
  EXPECT_EQ(OpenSqliteStore(file_ + ".replaced").value()->Load().value().jobs.size(), 2u);
}

TEST_F(MaintenanceTest, OfADamagedBackupItAsksForAnotherOne) {
  const std::string copy = root_ + "/copy";
  std::ofstream(copy) << std::string(5000, 'x');
  EXPECT_EQ(Run({"restore", copy, state_}), 1);
  EXPECT_THAT(errors_.str(), HasSubstr("is damaged: file is not a database; restore another copy"));
  EXPECT_THAT(errors_.str(), ::testing::Not(HasSubstr("`takt admin restore`")));
  EXPECT_FALSE(std::filesystem::exists(file_));
}

TEST_F(MaintenanceTest, NoRestoreLosesWhatAnEarlierOneReplaced) {
  const std::string copy = root_ + "/copy";
  ASSERT_TRUE(Put(*Open(), 1).ok());
  ASSERT_EQ(Run({"backup", state_, copy}), 0) << errors_.str();
  for (int jobs = 2; jobs <= 3; ++jobs) ASSERT_TRUE(Put(*Open(), jobs).ok());
  for (int i = 0; i < 3; ++i) ASSERT_EQ(Run({"restore", copy, state_}), 0) << errors_.str();
  const auto jobs_of = [&](const std::string& name) {
    return OpenSqliteStore(file_ + name).value()->Load().value().jobs.size();
  };
  EXPECT_EQ(jobs_of(".replaced-1"), 3u);
  // It is interrupted while it makes way for what it replaces.
  const std::string in_the_way = file_ + ".replaced-3.commits";
  std::ofstream(file_ + ".replaced.commits") << "1";
  std::filesystem::create_directory(in_the_way);
  EXPECT_EQ(Run({"restore", copy, state_}), 1);
  std::filesystem::remove(in_the_way);
  EXPECT_EQ(Run({"restore", copy, state_}), 0) << errors_.str();
  EXPECT_TRUE(std::filesystem::exists(file_ + ".replaced-3.commits"));
  EXPECT_TRUE(std::filesystem::exists(file_ + ".replaced-3"));
  EXPECT_EQ(jobs_of(".replaced-2"), 1u);
  EXPECT_EQ(jobs_of(".replaced"), 1u);
}

TEST_F(MaintenanceTest, AStateWhoseRestoreWasInterruptedIsRefusedUntilItIsRestored) {
  const std::string copy = root_ + "/copy";
  ASSERT_TRUE(Put(*Open(), 1).ok());
  ASSERT_EQ(Run({"backup", state_, copy}), 0) << errors_.str();
  for (const char* const suffix : {"-wal", "", ".commits"}) {
    SCOPED_TRACE(suffix);
    std::filesystem::remove_all(state_);
    LeaveKilledState();
    // The file cannot take the name of a directory, so the restore ends before this move.
    const std::string in_the_way = file_ + ".replaced" + suffix;
    std::filesystem::create_directory(in_the_way);
    ASSERT_EQ(Run({"restore", copy, state_}), 1);
    ExpectRefused();
    std::filesystem::remove(in_the_way);
    ASSERT_EQ(Run({"restore", copy, state_}), 0) << errors_.str();
    EXPECT_EQ(Open()->Load().value().jobs.size(), 1u);
    const auto before = OpenSqliteStore(file_ + ".replaced", {.reserve_bytes = 0});
    ASSERT_TRUE(before.ok()) << before.status();
    EXPECT_EQ((*before)->Load().value().jobs.size(), 2u) << "it is not lost by the second try";
  }
}

TEST_F(MaintenanceTest, AStateThatLacksOnlyTheLastMoveOfItsRestoreIsRefused) {
  const std::string copy = root_ + "/copy";
  ASSERT_TRUE(Put(*Open(), 1).ok());
  ASSERT_EQ(Run({"backup", state_, copy}), 0) << errors_.str();
  ASSERT_EQ(Run({"restore", copy, state_}), 0) << errors_.str();
  for (const char* const suffix : {".commits", "-wal", "-shm"})
    std::filesystem::remove(file_ + suffix);
  std::filesystem::rename(file_, file_ + kRestored);
  ExpectRefused();
  EXPECT_FALSE(std::filesystem::exists(file_));
  ASSERT_EQ(Run({"restore", copy, state_}), 0) << errors_.str();
  EXPECT_EQ(Open()->Load().value().jobs.size(), 1u);
}

TEST_F(MaintenanceTest, ABackupOfAnyStoreIsAStateFileThatAnyStoreTakes) {
  const auto first = NewMemoryStore();
  ASSERT_TRUE(Put(*first, 1).ok());
  const std::string scratch = root_ + "/scratch", copy = root_ + "/copy";
  {
    const absl::StatusOr<FileDescriptor> backup = OpenBackup(*first, scratch);
    ASSERT_TRUE(backup.ok()) << backup.status();
    std::filesystem::copy_file(absl::StrCat("/proc/self/fd/", backup->get()), copy);
  }
  const auto second = NewMemoryStore();
  ASSERT_TRUE(ImportState(copy, scratch, *second).ok());
  EXPECT_EQ(second->Load().value().jobs.size(), 1u);
  EXPECT_EQ(second->Load().value().epoch, kEpochsSkipped);
  ASSERT_EQ(Run({"restore", copy, state_}), 0) << errors_.str();
  EXPECT_EQ(Open()->Load().value().jobs.size(), 1u);
  EXPECT_EQ(ImportState(copy, scratch, *second).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ImportState(root_ + "/none", scratch, *second).code(), absl::StatusCode::kNotFound);
  for (const auto& entry : std::filesystem::directory_iterator(root_))
    EXPECT_THAT(entry.path().filename().string(), ::testing::Not(HasSubstr("scratch")));
}

TEST_F(MaintenanceTest, FsckNamesEachDamagedRow) {
  ASSERT_TRUE(Put(*Open(), 1).ok());
  ASSERT_EQ(Run({"fsck", state_, "text"}), 0) << errors_.str();
  EXPECT_EQ(out_.str(), "no damage\n");
  Execute("UPDATE jobs SET record = x'00'; UPDATE meta SET sum = 1 WHERE key = 'epoch'");
  out_.str("");
  EXPECT_EQ(Run({"fsck", state_, "json"}), 1);
  const auto object = nlohmann::json::parse(out_.str());
  ASSERT_EQ(object["damage"].size(), 2u) << object;
  EXPECT_EQ(object["damage"][0]["table"], "meta");
  EXPECT_EQ(object["damage"][0]["key"], "epoch");
  EXPECT_EQ(object["damage"][1]["table"], "jobs");
  EXPECT_EQ(object["damage"][1]["key"], "1");
}

TEST_F(MaintenanceTest, FsckFindsMissingTransactions) {
  const std::string older = root_ + "/older";
  ASSERT_TRUE(Put(*Open(), 1).ok());
  std::filesystem::copy_file(file_, older);
  ASSERT_TRUE(Put(*Open(), 2).ok());
  std::filesystem::copy_file(older, file_, std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(Run({"fsck", state_, "text"}), 1);
  EXPECT_THAT(out_.str(), HasSubstr("1 of 2 transactions are missing"));
}

TEST_F(MaintenanceTest, TheProfileAloneIsForgotten) {
  ASSERT_TRUE(Open()->Commit({.jobs = {{.number = 1, .id = "i"}}, .profile = "measured"}).ok());
  ASSERT_EQ(Run({"forget-profile", state_}), 0) << errors_.str();
  EXPECT_EQ(Open()->ReadProfile().value(), "");
  EXPECT_EQ(Open()->Load().value().jobs.size(), 1u);
}

TEST_F(MaintenanceTest, ADamagedCopyIsNotRestored) {
  ASSERT_TRUE(Put(*Open(), 1).ok());
  const std::string copy = root_ + "/copy";
  std::ofstream(copy) << std::string(8192, 'x');
  EXPECT_EQ(Run({"restore", copy, state_}), 1);
  EXPECT_EQ(Open()->Load().value().jobs.size(), 1u);
}

TEST_F(MaintenanceTest, WhatIsNoCoordinatorsStateIsNotRestored) {
  ASSERT_TRUE(Put(*Open(), 1).ok());
  const std::string empty = root_ + "/empty", other = root_ + "/other";
  std::ofstream(empty).flush();
  ASSERT_TRUE(SqliteDb::Open(other).value()->Execute("CREATE TABLE t (x)").ok());
  EXPECT_EQ(Run({"restore", empty, state_}), 1);
  EXPECT_THAT(errors_.str(), HasSubstr(empty + " is empty; restore another copy"));
  EXPECT_EQ(Run({"restore", other, state_}), 1);
  EXPECT_THAT(errors_.str(), HasSubstr("state file " + other +
                                       " has no schema version: it is not a coordinator's; "
                                       "restore another copy"));
  EXPECT_FALSE(std::filesystem::exists(file_ + ".replaced"));
  EXPECT_FALSE(std::filesystem::exists(file_ + ".copied"));
  EXPECT_EQ(Open()->Load().value().jobs.size(), 1u);
}

TEST_F(MaintenanceTest, AMissingStateIsNotFound) {
  EXPECT_EQ(Run({"fsck", state_, "text"}), 4);
  EXPECT_EQ(Run({"backup", state_, root_ + "/copy"}), 4);
  EXPECT_EQ(Run({"restore", root_ + "/copy", state_}), 4);
  EXPECT_EQ(Run({}), 2);
  EXPECT_FALSE(std::filesystem::exists(root_ + "/copy"));
}

}  // namespace
}  // namespace takt::store
