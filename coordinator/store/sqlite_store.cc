// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/sqlite_store.h"

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status.h"
#include "coordinator/store/record_serde.h"
#include "coordinator/store/sqlite_db.h"

namespace takt::store {
namespace {

constexpr char kSchema[] = R"sql(
BEGIN;
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
COMMIT;
)sql";

// Tables that came later. Programs that do not know them leave them alone, so the version stays.
constexpr char kLaterTables[] = R"sql(
CREATE TABLE IF NOT EXISTS profile(key INTEGER PRIMARY KEY CHECK(key = 0), profile BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS workers(name BLOB PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
)sql";

// A message in the file that our own code wrote and that cannot be parsed.
absl::Status Unreadable(const SqliteDb& db, std::string_view what) {
  return absl::DataLossError(absl::StrCat(
      "state file ", db.path(), " is damaged: a ", std::string(what),
      " does not parse; restore it from a backup, or move it away to start with no jobs"));
}

// Creates the tables in an empty file; refuses files of newer programs.
absl::Status PrepareFirstTables(SqliteDb& db) {
  SqliteStatement tables(db, "SELECT count(*) FROM sqlite_master");
  ASSIGN_OR_RETURN(const bool counted, tables.Next());
  if (!counted || tables.Int(0) == 0) {
    tables.Reset();
    return db.Execute(kSchema);
  }
  SqliteStatement version(db, "SELECT value FROM meta WHERE key = 'schema_version'");
  const absl::StatusOr<bool> row = version.Next();
  if (!row.ok() || !*row) {
    return absl::DataLossError(
        absl::StrCat("state file ", db.path(),
                     " has no schema version: it is not a coordinator's; use another --state"));
  }
  if (version.Int(0) > kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "state file ", db.path(), " has schema ", version.Int(0), ", this program knows up to ",
        kSchemaVersion, "; use the program that wrote it or a newer one"));
  }
  return absl::OkStatus();
}

absl::Status PrepareSchema(SqliteDb& db) {
  RETURN_IF_ERROR(PrepareFirstTables(db));
  return db.Execute(kLaterTables);
}

class SqliteStore final : public Store {
 public:
  SqliteStore(std::unique_ptr<SqliteDb> db, StoreLimits limits)
      : limits_(limits), db_(std::move(db)) {}

  absl::StatusOr<Snapshot> Load() override {
    absl::MutexLock lock(&mutex_);
    Snapshot snapshot;
    RETURN_IF_ERROR(LoadJobs(snapshot));
    SqliteStatement drained(*db_, "SELECT worker FROM drained");
    while (true) {
      ASSIGN_OR_RETURN(const bool row, drained.Next());
      if (!row) break;
      snapshot.drained.insert(drained.Blob(0));
    }
    RETURN_IF_ERROR(LoadWorkers(snapshot));
    SqliteStatement generations(*db_, "SELECT name, generation FROM generations");
    while (true) {
      ASSIGN_OR_RETURN(const bool row, generations.Next());
      if (!row) break;
      snapshot.generations[generations.Blob(0)] = Generation(generations.Int(1));
    }
    // Deleted jobs count too: AUTOINCREMENT remembers them.
    SqliteStatement last(*db_, "SELECT seq FROM sqlite_sequence WHERE name = 'jobs'");
    ASSIGN_OR_RETURN(const bool any, last.Next());
    if (any) snapshot.last_number = last.Int(0);
    return snapshot;
  }

  absl::Status Commit(const Changes& changes) override {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(db_->Execute("BEGIN IMMEDIATE"));
    absl::Status status = Write(changes);
    if (status.ok()) status = db_->Execute("COMMIT");
    // After a failed COMMIT there may be nothing to roll back: the first error is the one that
    // matters.
    if (!status.ok()) db_->Execute("ROLLBACK").IgnoreError();
    return status;
  }

  absl::StatusOr<std::vector<StepRecord>> ReadSteps(const std::string& job_id, StepId after,
                                                    int limit) override {
    absl::MutexLock lock(&mutex_);
    std::vector<StepRecord> found;
    read_steps_.Bind(job_id).Bind(after.value()).Bind(limit);
    while (true) {
      ASSIGN_OR_RETURN(const bool row, read_steps_.Next());
      if (!row) return found;
      v1::StepReport report;
      if (!report.ParseFromString(read_steps_.Blob(0))) return Unreadable(*db_, "step report");
      found.push_back(FromProto(report, job_id));
    }
  }

  absl::StatusOr<std::optional<RequestRecord>> FindRequest(const std::string& method,
                                                           const std::string& request_id) override {
    absl::MutexLock lock(&mutex_);
    find_request_.Reset();
    find_request_.Bind(method).Bind(request_id);
    ASSIGN_OR_RETURN(const bool row, find_request_.Next());
    if (!row) return std::optional<RequestRecord>();
    RequestRecord found{.method = method, .request_id = request_id};
    if (const std::string bytes = find_request_.Blob(0); !bytes.empty()) {
      v1::JobRecord record;
      if (!record.ParseFromString(bytes)) return Unreadable(*db_, "request record");
      found.job = FromProto(record);
    }
    find_request_.Reset();
    return std::optional(std::move(found));
  }

  absl::StatusOr<std::vector<LogRecord>> ReadLogs(const std::string& job_id, std::int64_t after,
                                                  int limit) override {
    absl::MutexLock lock(&mutex_);
    std::vector<LogRecord> found;
    read_logs_.Bind(job_id).Bind(after).Bind(limit);
    while (true) {
      ASSIGN_OR_RETURN(const bool row, read_logs_.Next());
      if (!row) return found;
      v1::LogLine line;
      if (!line.ParseFromString(read_logs_.Blob(1))) return Unreadable(*db_, "log line");
      found.push_back(FromProto(line, job_id));
      found.back().number = read_logs_.Int(0);
    }
  }

  absl::StatusOr<std::string> ReadProfile() override {
    absl::MutexLock lock(&mutex_);
    SqliteStatement read(*db_, "SELECT profile FROM profile");
    ASSIGN_OR_RETURN(const bool row, read.Next());
    return row ? read.Blob(0) : std::string();
  }

 private:
  absl::Status LoadJobs(Snapshot& snapshot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SqliteStatement jobs(*db_,
                         "SELECT number, record, (SELECT report FROM steps WHERE job_id = jobs.id"
                         " ORDER BY step DESC, generation DESC LIMIT 1) FROM jobs ORDER BY number");
    while (true) {
      ASSIGN_OR_RETURN(const bool row, jobs.Next());
      if (!row) return absl::OkStatus();
      v1::JobRecord record;
      if (!record.ParseFromString(jobs.Blob(1))) return Unreadable(*db_, "job record");
      JobRecord& job = snapshot.jobs.emplace_back(FromProto(record));
      job.number = jobs.Int(0);
      if (const std::string bytes = jobs.Blob(2); !bytes.empty()) {
        v1::StepReport report;
        if (!report.ParseFromString(bytes)) return Unreadable(*db_, "step report");
        job.last_step = FromProto(report, job.id);
      }
    }
  }

  absl::Status LoadWorkers(Snapshot& snapshot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SqliteStatement workers(*db_, "SELECT name, record FROM workers");
    while (true) {
      ASSIGN_OR_RETURN(const bool row, workers.Next());
      if (!row) return absl::OkStatus();
      v1::WorkerRecord record;
      if (!record.ParseFromString(workers.Blob(1))) return Unreadable(*db_, "worker record");
      snapshot.workers[workers.Blob(0)] = FromProto(record);
    }
  }

  absl::Status Write(const Changes& changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const JobRecord& job : changes.jobs) {
      RETURN_IF_ERROR(put_job_.Bind(job.number)
                          .Bind(job.id)
                          .Bind(ToRecordProto(job).SerializeAsString())
                          .Run());
    }
    for (const StepRecord& step : changes.steps) {
      RETURN_IF_ERROR(put_step_.Bind(step.job_id)
                          .Bind(step.step.value())
                          .Bind(step.generation.value())
                          .Bind(ToProto(step).SerializeAsString())
                          .Run());
    }
    for (const std::string& id : changes.deleted_jobs) RETURN_IF_ERROR(Delete(id));
    for (const RequestRecord& request : changes.requests) {
      const std::string job = request.job ? ToRecordProto(*request.job).SerializeAsString() : "";
      RETURN_IF_ERROR(put_request_.Bind(request.method).Bind(request.request_id).Bind(job).Run());
    }
    if (!changes.requests.empty()) RETURN_IF_ERROR(trim_requests_.Bind(limits_.requests).Run());
    for (const auto& [worker, drained] : changes.drained) {
      RETURN_IF_ERROR((drained ? drain_ : undrain_).Bind(worker).Run());
    }
    for (const auto& [worker, record] : changes.workers) {
      const bool empty = record == WorkerRecord();
      RETURN_IF_ERROR(
          empty ? erase_worker_.Bind(worker).Run()
                : put_worker_.Bind(worker).Bind(ToProto(record).SerializeAsString()).Run());
    }
    if (changes.profile) RETURN_IF_ERROR(put_profile_.Bind(*changes.profile).Run());
    return WriteLogs(changes.logs);
  }

  absl::Status Delete(const std::string& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SqliteStatement job(*db_, "SELECT record FROM jobs WHERE id = ?");
    job.Bind(id);
    ASSIGN_OR_RETURN(const bool row, job.Next());
    if (!row) return absl::OkStatus();
    v1::JobRecord record;
    if (!record.ParseFromString(job.Blob(0))) return Unreadable(*db_, "job record");
    job.Reset();
    SqliteStatement remember(
        *db_,
        "INSERT INTO generations VALUES(?1, ?2) ON CONFLICT(name) DO UPDATE SET"
        " generation = max(generation, excluded.generation)");
    RETURN_IF_ERROR(remember.Bind(record.job().name()).Bind(record.job().generation()).Run());
    for (const char* table : {"jobs WHERE id", "steps WHERE job_id", "logs WHERE job_id"}) {
      SqliteStatement erase(*db_, absl::StrCat("DELETE FROM ", table, " = ?"));
      RETURN_IF_ERROR(erase.Bind(id).Run());
    }
    return absl::OkStatus();
  }

  absl::Status WriteLogs(const std::vector<LogRecord>& logs) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::set<std::string> grown;
    for (const LogRecord& log : logs) {
      RETURN_IF_ERROR(put_log_.Bind(log.job_id).Bind(ToProto(log).SerializeAsString()).Run());
      grown.insert(log.job_id);
    }
    for (const std::string& id : grown)
      RETURN_IF_ERROR(trim_logs_.Bind(id).Bind(limits_.log_lines).Run());
    return absl::OkStatus();
  }

  const StoreLimits limits_;
  absl::Mutex mutex_;
  // Before the statements, which end first.
  const std::unique_ptr<SqliteDb> db_ ABSL_PT_GUARDED_BY(mutex_);
  SqliteStatement put_job_{
      *db_,
      "INSERT INTO jobs VALUES(?, ?, ?) ON CONFLICT(id) DO UPDATE SET record = excluded.record"};
  SqliteStatement put_step_{*db_, "INSERT OR IGNORE INTO steps VALUES(?, ?, ?, ?)"};
  SqliteStatement put_request_{
      *db_, "INSERT OR IGNORE INTO requests(method, request_id, job) VALUES(?, ?, ?)"};
  SqliteStatement trim_requests_{
      *db_, "DELETE FROM requests WHERE number <= (SELECT max(number) FROM requests) - ?"};
  SqliteStatement drain_{*db_, "INSERT OR IGNORE INTO drained VALUES(?)"};
  SqliteStatement undrain_{*db_, "DELETE FROM drained WHERE worker = ?"};
  SqliteStatement put_worker_{*db_, "INSERT OR REPLACE INTO workers VALUES(?, ?)"};
  SqliteStatement erase_worker_{*db_, "DELETE FROM workers WHERE name = ?"};
  SqliteStatement put_profile_{*db_, "INSERT OR REPLACE INTO profile VALUES(0, ?)"};
  SqliteStatement put_log_{*db_, "INSERT INTO logs(job_id, line) VALUES(?, ?)"};
  SqliteStatement trim_logs_{
      *db_,
      "DELETE FROM logs WHERE job_id = ?1 AND number <= (SELECT number FROM logs WHERE job_id = ?1"
      " ORDER BY number DESC LIMIT 1 OFFSET ?2)"};
  SqliteStatement read_steps_{
      *db_,
      "SELECT report FROM steps WHERE job_id = ? AND step > ? ORDER BY step, generation LIMIT ?"};
  SqliteStatement find_request_{*db_,
                                "SELECT job FROM requests WHERE method = ? AND request_id = ?"};
  SqliteStatement read_logs_{
      *db_,
      "SELECT number, line FROM logs WHERE job_id = ? AND number > ? ORDER BY number LIMIT ?"};
};

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const std::string& path,
                                                       StoreLimits limits) {
  ASSIGN_OR_RETURN(std::unique_ptr<SqliteDb> db, SqliteDb::Open(path));
  RETURN_IF_ERROR(PrepareSchema(*db));
  return std::make_unique<SqliteStore>(std::move(db), limits);
}

}  // namespace takt::store
