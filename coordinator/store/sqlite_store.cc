// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/sqlite_store.h"

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "coordinator/store/commit_counter.h"
#include "coordinator/store/record_serde.h"
#include "coordinator/store/reserve_file.h"
#include "coordinator/store/sqlite_db.h"
#include "coordinator/store/sqlite_schema.h"
#include "coordinator/store/step_thinning.h"

namespace takt::store {
namespace {

constexpr int kDamageShown = 3;
// Rows of deleted jobs that a transaction takes away besides what it writes: more if it has no
// steps, as then no worker waits for it.
constexpr int kSweepRows = 1000, kSweepRowsAlone = 10'000;

// A message in the file that our own code wrote and that cannot be parsed.
absl::Status Unreadable(const SqliteDb& db, std::string_view what) {
  return absl::DataLossError(absl::StrCat("state file ", db.path(), " is damaged: a ",
                                          std::string(what), " does not parse; ", kRestoreFix));
}

absl::Status Damaged(const SqliteDb& db, std::string_view what) {
  return absl::DataLossError(absl::StrCat("state file ", db.path(),
                                          " is damaged: ", std::string(what), "; ", kRestoreFix));
}

// The store keeps this of the table `meta` while it is open.
struct Books {
  std::string cluster_id;
  std::int64_t commits = 0;
  std::int64_t last_number = 0;
};

class SqliteStore final : public Store {
 public:
  SqliteStore(std::unique_ptr<SqliteDb> db, Books books, StoreLimits limits)
      : limits_(limits),
        cluster_id_(std::move(books.cluster_id)),
        counter_(db->path() + ".commits"),
        reserve_(db->path() + ".reserve", limits.reserve_bytes),
        commits_(books.commits),
        last_number_(books.last_number),
        db_(std::move(db)) {
    reserve_.Take();
  }

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
    snapshot.last_number = last_number_;
    snapshot.cluster_id = cluster_id_;
    ASSIGN_OR_RETURN(snapshot.epoch, ReadMeta(*db_, "epoch"));
    return snapshot;
  }

  absl::StatusOr<std::int64_t> RaiseEpoch() override {
    absl::MutexLock lock(&mutex_);
    ASSIGN_OR_RETURN(const std::int64_t epoch, ReadMeta(*db_, "epoch"));
    absl::Status status = WriteEpoch(epoch + 1);
    if (absl::IsResourceExhausted(status) && reserve_.Release()) status = WriteEpoch(epoch + 1);
    RETURN_IF_ERROR(status);
    return epoch + 1;
  }

  absl::Status Commit(const Changes& changes) override {
    absl::MutexLock lock(&mutex_);
    absl::Status status = WriteAll(changes);
    const bool deletes = !changes.deleted_jobs.empty();
    if (absl::IsResourceExhausted(status) && deletes && reserve_.Release())
      status = WriteAll(changes);
    if (status.ok()) reserve_.Take();
    return status;
  }

  absl::StatusOr<std::vector<StepRecord>> ReadSteps(const std::string& job_id, StepId after,
                                                    int limit) override {
    absl::MutexLock lock(&mutex_);
    std::vector<StepRecord> found;
    const absl::Cleanup reset = [this] { read_steps_.Reset(); };
    read_steps_.Bind(job_id).Bind(after.value()).Bind(limit);
    while (true) {
      ASSIGN_OR_RETURN(const bool row, read_steps_.Next());
      if (!row) return found;
      if (read_steps_.Int(1) == 0) return Damaged(*db_, "the checksum of a step is wrong");
      v1::StepReport report;
      if (!report.ParseFromString(read_steps_.Blob(0))) return Unreadable(*db_, "step report");
      found.push_back(FromProto(report, job_id));
    }
  }

  absl::StatusOr<std::optional<RequestRecord>> FindRequest(const std::string& method,
                                                           const std::string& request_id) override {
    absl::MutexLock lock(&mutex_);
    const absl::Cleanup reset = [this] { find_request_.Reset(); };
    find_request_.Bind(method).Bind(request_id);
    ASSIGN_OR_RETURN(const bool row, find_request_.Next());
    if (!row) return std::optional<RequestRecord>();
    if (find_request_.Int(1) == 0) return Damaged(*db_, "the checksum of a request is wrong");
    RequestRecord found{.method = method, .request_id = request_id};
    if (const std::string bytes = find_request_.Blob(0); !bytes.empty()) {
      v1::JobRecord record;
      if (!record.ParseFromString(bytes)) return Unreadable(*db_, "request record");
      found.job = FromProto(record);
    }
    return std::optional(std::move(found));
  }

  absl::StatusOr<std::vector<LogRecord>> ReadLogs(const std::string& job_id, std::int64_t after,
                                                  int limit) override {
    absl::MutexLock lock(&mutex_);
    std::vector<LogRecord> found;
    const absl::Cleanup reset = [this] { read_logs_.Reset(); };
    read_logs_.Bind(job_id).Bind(after).Bind(limit);
    while (true) {
      ASSIGN_OR_RETURN(const bool row, read_logs_.Next());
      if (!row) return found;
      if (read_logs_.Int(2) == 0) return Damaged(*db_, "the checksum of a log line is wrong");
      v1::LogLine line;
      if (!line.ParseFromString(read_logs_.Blob(1))) return Unreadable(*db_, "log line");
      found.push_back(FromProto(line, job_id));
      found.back().number = read_logs_.Int(0);
    }
  }

  absl::StatusOr<std::string> ReadProfile() override {
    absl::MutexLock lock(&mutex_);
    SqliteStatement read(*db_,
                         "SELECT profile, sum = takt_sum('profile', key, profile) FROM profile");
    ASSIGN_OR_RETURN(const bool row, read.Next());
    if (!row) return std::string();
    if (read.Int(1) == 0) return Damaged(*db_, "the checksum of the profile is wrong");
    return read.Blob(0);
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

  absl::Status WriteEpoch(std::int64_t epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    RETURN_IF_ERROR(Begin());
    return End(WriteMeta(*db_, "epoch", epoch));
  }

  absl::Status WriteAll(const Changes& changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    RETURN_IF_ERROR(Begin());
    return End(Write(changes));
  }

  // Every transaction is between these two. End commits if the writes succeeded, and returns the
  // first error. The counter beside the file comes last: if the process ends in between, the
  // database is ahead by one that nobody was told of.
  absl::Status Begin() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    total_before_ = db_->row_total();
    last_number_before_ = last_number_;
    cluster_id_before_ = cluster_id_;
    return db_->Execute("BEGIN IMMEDIATE");
  }
  absl::Status End(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (status.ok()) status = put_commits_.Bind(commits_ + 1).Run();
    if (status.ok()) status = put_digest_.Bind(static_cast<std::int64_t>(db_->row_total())).Run();
    TAKT_FAILPOINT("store.before_commit");
    if (status.ok()) status = db_->Execute("COMMIT");
    if (!status.ok()) {
      // After a failed COMMIT there may be nothing to roll back.
      db_->Execute("ROLLBACK").IgnoreError();
      db_->set_row_total(total_before_);
      last_number_ = last_number_before_;
      cluster_id_ = cluster_id_before_;
      return status;
    }
    TAKT_FAILPOINT("store.before_counter");
    status = counter_.Write(cluster_id_, ++commits_);
    TAKT_FAILPOINT("store.after_counter");
    return status;
  }

  absl::Status Write(const Changes& changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const JobRecord& job : changes.jobs) {
      last_number_ = std::max(last_number_, job.number);
      RETURN_IF_ERROR(put_job_.Bind(job.number)
                          .Bind(job.id)
                          .Bind(ToRecordProto(job).SerializeAsString())
                          .Run());
    }
    if (changes.identity) RETURN_IF_ERROR(WriteIdentity(*changes.identity));
    if (last_number_ != last_number_before_)
      RETURN_IF_ERROR(WriteMeta(*db_, "last_number", last_number_));
    for (const StepRecord& step : changes.steps) {
      RETURN_IF_ERROR(put_step_.Bind(step.job_id)
                          .Bind(step.step.value())
                          .Bind(step.generation.value())
                          .Bind(ToProto(step).SerializeAsString())
                          .Run());
      for (const StepId gone : StepsToThin(step.step, limits_.steps))
        RETURN_IF_ERROR(thin_steps_.Bind(step.job_id).Bind(gone.value()).Run());
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
    RETURN_IF_ERROR(WriteLogs(changes.logs));
    return Sweep(changes.steps.empty() ? kSweepRowsAlone : kSweepRows);
  }

  absl::Status WriteIdentity(const ClusterIdentity& identity)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    cluster_id_ = identity.cluster_id;
    last_number_ = std::max(last_number_, identity.last_number);
    for (const auto& [name, generation] : identity.generations)
      RETURN_IF_ERROR(RememberGeneration(name, generation.value()));
    RETURN_IF_ERROR(WriteMeta(*db_, "epoch", identity.epoch));
    return WriteClusterId(*db_, cluster_id_);
  }

  absl::Status RememberGeneration(const std::string& name, std::int64_t generation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SqliteStatement remember(
        *db_,
        "INSERT INTO generations VALUES(?1, ?2, takt_sum('generations', ?1, ?2))"
        " ON CONFLICT(name) DO UPDATE SET generation = max(generation, ?2),"
        " sum = takt_sum('generations', name, max(generation, ?2))");
    return remember.Bind(name).Bind(generation).Run();
  }

  absl::Status Delete(const std::string& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    SqliteStatement job(*db_, "SELECT record FROM jobs WHERE id = ?");
    job.Bind(id);
    ASSIGN_OR_RETURN(const bool row, job.Next());
    if (!row) return absl::OkStatus();
    v1::JobRecord record;
    if (!record.ParseFromString(job.Blob(0))) return Unreadable(*db_, "job record");
    job.Reset();
    RETURN_IF_ERROR(RememberGeneration(record.job().name(), record.job().generation()));
    SqliteStatement erase(*db_, "DELETE FROM jobs WHERE id = ?");
    RETURN_IF_ERROR(erase.Bind(id).Run());
    SqliteStatement discard(*db_,
                            "INSERT OR IGNORE INTO garbage VALUES(?1, takt_sum('garbage', ?1))");
    return discard.Bind(id).Run();
  }

  // Deletes steps and log lines of deleted jobs. They may have millions of them, so each
  // transaction takes away a part: about so many rows, and of as many jobs as that suffices for.
  absl::Status Sweep(int rows) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (rows > 0) {
      ASSIGN_OR_RETURN(const bool any, find_garbage_.Next());
      if (!any) return absl::OkStatus();
      const std::string id = find_garbage_.Blob(0);
      find_garbage_.Reset();
      for (SqliteStatement* const sweep : {&sweep_steps_, &sweep_logs_}) {
        RETURN_IF_ERROR(sweep->Bind(id).Bind(std::max(rows, 0)).Run());
        ASSIGN_OR_RETURN(const bool counted, changes_.Next());
        if (counted) rows -= static_cast<int>(changes_.Int(0));
        changes_.Reset();
      }
      ASSIGN_OR_RETURN(const bool counted, has_rows_.Bind(id).Next());
      const bool has_rows = counted && has_rows_.Int(0) != 0;
      has_rows_.Reset();
      if (!has_rows) RETURN_IF_ERROR(end_sweep_.Bind(id).Run());
      --rows;  // a job without any takes time, too
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
  std::string cluster_id_ ABSL_GUARDED_BY(mutex_);
  CommitCounter counter_ ABSL_GUARDED_BY(mutex_);
  ReserveFile reserve_ ABSL_GUARDED_BY(mutex_);
  std::int64_t commits_ ABSL_GUARDED_BY(mutex_);
  std::int64_t last_number_ ABSL_GUARDED_BY(mutex_);  // the highest ever, of deleted jobs too
  // They had these values when the transaction began.
  std::uint64_t total_before_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t last_number_before_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string cluster_id_before_ ABSL_GUARDED_BY(mutex_);
  // Before the statements, which end first.
  const std::unique_ptr<SqliteDb> db_ ABSL_PT_GUARDED_BY(mutex_);
  SqliteStatement put_job_{
      *db_,
      "INSERT INTO jobs VALUES(?1, ?2, ?3, takt_sum('jobs', ?1, ?2, ?3))"
      " ON CONFLICT(id) DO UPDATE SET record = ?3, sum = takt_sum('jobs', number, id, ?3)"};
  SqliteStatement put_step_{
      *db_,
      "INSERT OR IGNORE INTO steps VALUES(?1, ?2, ?3, ?4, takt_sum('steps', ?1, ?2, ?3, ?4))"};
  SqliteStatement thin_steps_{*db_, "DELETE FROM steps WHERE job_id = ?1 AND step = ?2"};
  SqliteStatement put_request_{*db_,
                               "INSERT OR IGNORE INTO requests(method, request_id, job, sum)"
                               " VALUES(?1, ?2, ?3, takt_sum('requests', ?1, ?2, ?3))"};
  SqliteStatement trim_requests_{
      *db_, "DELETE FROM requests WHERE number <= (SELECT max(number) FROM requests) - ?"};
  SqliteStatement drain_{*db_, "INSERT OR IGNORE INTO drained VALUES(?1, takt_sum('drained', ?1))"};
  SqliteStatement undrain_{*db_, "DELETE FROM drained WHERE worker = ?"};
  SqliteStatement put_worker_{
      *db_,
      "INSERT INTO workers VALUES(?1, ?2, takt_sum('workers', ?1, ?2))"
      " ON CONFLICT(name) DO UPDATE SET record = excluded.record, sum = excluded.sum"};
  SqliteStatement erase_worker_{*db_, "DELETE FROM workers WHERE name = ?"};
  SqliteStatement put_profile_{
      *db_,
      "INSERT INTO profile VALUES(0, ?1, takt_sum('profile', 0, ?1))"
      " ON CONFLICT(key) DO UPDATE SET profile = excluded.profile, sum = excluded.sum"};
  SqliteStatement put_log_{
      *db_, "INSERT INTO logs(job_id, line, sum) VALUES(?1, ?2, takt_sum('logs', ?1, ?2))"};
  SqliteStatement trim_logs_{
      *db_,
      "DELETE FROM logs WHERE job_id = ?1 AND number <= (SELECT number FROM logs WHERE job_id = ?1"
      " ORDER BY number DESC LIMIT 1 OFFSET ?2)"};
  SqliteStatement put_commits_{*db_,
                               "UPDATE meta SET value = ?1, sum = takt_sum('meta', key, ?1)"
                               " WHERE key = 'commits'"};
  SqliteStatement put_digest_{*db_,
                              "UPDATE meta SET value = ?1, sum = takt_sum('meta', key, ?1)"
                              " WHERE key = 'digest'"};
  SqliteStatement find_garbage_{*db_, "SELECT job_id FROM garbage LIMIT 1"};
  SqliteStatement sweep_steps_{
      *db_,
      "DELETE FROM steps WHERE (job_id, step, generation) IN"
      " (SELECT job_id, step, generation FROM steps WHERE job_id = ?1 LIMIT ?2)"};
  SqliteStatement sweep_logs_{
      *db_,
      "DELETE FROM logs WHERE number IN (SELECT number FROM logs WHERE job_id = ?1 LIMIT ?2)"};
  SqliteStatement has_rows_{*db_,
                            "SELECT EXISTS(SELECT 1 FROM steps WHERE job_id = ?1)"
                            " OR EXISTS(SELECT 1 FROM logs WHERE job_id = ?1)"};
  SqliteStatement changes_{*db_, "SELECT changes()"};
  SqliteStatement end_sweep_{*db_, "DELETE FROM garbage WHERE job_id = ?"};
  SqliteStatement read_steps_{
      *db_,
      "SELECT report, sum = takt_sum('steps', job_id, step, generation, report) FROM steps"
      " WHERE job_id = ? AND step > ? ORDER BY step, generation LIMIT ?"};
  SqliteStatement find_request_{
      *db_,
      "SELECT job, sum = takt_sum('requests', method, request_id, job) FROM requests"
      " WHERE method = ? AND request_id = ?"};
  SqliteStatement read_logs_{*db_,
                             "SELECT number, line, sum = takt_sum('logs', job_id, line) FROM logs"
                             " WHERE job_id = ? AND number > ? ORDER BY number LIMIT ?"};
};

// Compares the database with the counter beside it. If there is no counter, the state was copied
// here, so it goes on at a later epoch.
absl::Status CheckCounter(SqliteDb& db, const CommitCounter& counter, const Books& books,
                          Origin origin) {
  // A file that was just made or upgraded counts from zero.
  if (origin != Origin::kCurrent) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::optional<std::int64_t> counted, counter.Read(books.cluster_id));
  if (counted) {
    if (*counted <= books.commits) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(
        "state file ", db.path(), " has ", books.commits, " transactions, but ", *counted,
        " were committed (", counter.path(),
        "): its log (-wal) is damaged or missing, or an older copy was put in its place; restore "
        "it with `takt admin restore`. To go on without the missing ones, remove the counter"));
  }
  ASSIGN_OR_RETURN(const std::int64_t epoch, ReadMeta(db, "epoch"));
  Log(LogLevel::kWarning, "the state has no commit counter; taken for a copy, it skips epochs",
      {{"file", db.path()}, {"skipped", absl::StrCat(kEpochsSkipped)}});
  return WriteMeta(db, "epoch", epoch + kEpochsSkipped);
}

absl::StatusOr<Books> OpenBooks(SqliteDb& db) {
  const std::string counter_path = db.path() + ".commits";
  ASSIGN_OR_RETURN(const std::vector<Damage> damage, FindDamage(db, kDamageShown));
  if (!damage.empty()) {
    return Damaged(db, absl::StrJoin(damage, "; ", [](std::string* out, const Damage& it) {
                     out->append(it.ToString());
                   }));
  }
  CommitCounter counter(counter_path);
  ASSIGN_OR_RETURN(const bool empty, IsEmpty(db));
  if (empty && counter.exists()) {
    return Damaged(
        db, absl::StrCat("it is empty, but transactions were committed (", counter_path, ")"));
  }
  ASSIGN_OR_RETURN(const Origin origin, PrepareSchema(db));
  Books books;
  ASSIGN_OR_RETURN(books.cluster_id, ReadClusterId(db));
  ASSIGN_OR_RETURN(books.commits, ReadMeta(db, "commits"));
  ASSIGN_OR_RETURN(books.last_number, ReadMeta(db, "last_number"));
  RETURN_IF_ERROR(CheckCounter(db, counter, books, origin));
  RETURN_IF_ERROR(counter.Write(books.cluster_id, books.commits));
  ASSIGN_OR_RETURN(const std::int64_t digest, ReadMeta(db, "digest"));
  db.set_row_total(static_cast<std::uint64_t>(digest));
  return books;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const std::string& path,
                                                       StoreLimits limits) {
  ASSIGN_OR_RETURN(std::unique_ptr<SqliteDb> db, SqliteDb::Open(path));
  ASSIGN_OR_RETURN(Books books, OpenBooks(*db));
  RETURN_IF_ERROR(WatchRows(*db));
  if (limits.pages > 0) RETURN_IF_ERROR(db->LimitPages(limits.pages));
  db->KeepLogOnClose(false);
  return std::make_unique<SqliteStore>(std::move(db), std::move(books), limits);
}

}  // namespace takt::store
