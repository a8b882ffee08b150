// SPDX-License-Identifier: Apache-2.0
#include "coordinator/etcd/etcd_store.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status.h"
#include "coordinator/etcd/fenced_log.h"
#include "coordinator/etcd/keys.h"
#include "coordinator/etcd/snapshot.h"
#include "coordinator/store/record_serde.h"
#include "takt/v1/job_record.pb.h"

namespace takt::etcd {
namespace {

using store::Changes;
using store::JobRecord;
using store::LogRecord;
using store::RequestRecord;
using store::Snapshot;
using store::StepRecord;

// Log lines of one commit have consecutive numbers, which begin at this multiple of its number.
constexpr std::int64_t kLinesPerCommit = std::int64_t{1} << 20;
// The step log is trimmed when it has grown by so many steps.
constexpr std::int64_t kTrimEvery = 256;

absl::Status OnlyReads() {
  return absl::UnavailableError("this coordinator follows another one and writes nothing");
}

// The next commit depends on this part of the state.
struct Books {
  struct Job {
    std::int64_t number = 0;
    std::string name;
    Generation generation;
  };
  std::map<std::string, Job> jobs;  // by id
  std::map<std::string, Generation> generations;
  std::map<std::string, std::pair<StepId, Generation>> last_steps;  // by job
  std::map<std::string, std::deque<std::int64_t>> lines;  // numbers, by job; read when first needed
  RequestOrder requests;
  std::int64_t last_number = 0;

  explicit Books(const Snapshot& snapshot = {}) {
    for (const JobRecord& job : snapshot.jobs) {
      jobs[job.id] = {job.number, job.name, job.generation};
      if (job.last_step) last_steps[job.id] = {job.last_step->step, job.last_step->generation};
    }
    generations = snapshot.generations;
    last_number = snapshot.last_number;
  }
};

class EtcdStore final : public store::Store {
 public:
  EtcdStore(Reader* reader, const Leadership* leadership, EtcdStoreOptions options)
      : options_(std::move(options)), reader_(*reader), leads_(leadership != nullptr) {
    if (leads_) log_.emplace(reader, leadership);
  }

  // Call it once, before anything else.
  absl::Status Open() {
    if (!leads_) return absl::OkStatus();
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(log_->FinishRedo());
    return ReadBooks();
  }

  absl::StatusOr<Snapshot> Load() override {
    ASSIGN_OR_RETURN(State state, ReadState(reader_));
    if (leads_) return std::move(state.snapshot);
    ASSIGN_OR_RETURN(const Listing redo,
                     reader_.List(kRedo, {.revision = state.revision, .limit = 1}));
    if (redo.entries.empty()) return std::move(state.snapshot);
    return absl::UnavailableError("a large change is being written; read again");
  }

  absl::StatusOr<std::int64_t> RaiseEpoch() override {
    if (!leads_) return OnlyReads();
    absl::MutexLock lock(&mutex_);
    Writes writes(reader_.prefix(), options_.writes);
    writes.Put(kEpochKey, absl::StrCat(epoch_ + 1));
    RETURN_IF_ERROR(log_->Commit(writes));
    return ++epoch_;
  }

  absl::Status Commit(const Changes& changes) override {
    if (!leads_) return OnlyReads();
    absl::MutexLock lock(&mutex_);
    if (has_failed_) RETURN_IF_ERROR(ReadBooks());
    const absl::Status status = Write(changes);
    has_failed_ = !status.ok();
    return status;
  }

  absl::StatusOr<std::vector<StepRecord>> ReadSteps(const std::string& job_id, StepId after,
                                                    int limit) override {
    ASSIGN_OR_RETURN(const Listing listing,
                     reader_.List(StepsOf(job_id),
                                  {.from = StepKey(job_id, after.value() + 1, 0), .limit = limit}));
    std::vector<StepRecord> steps;
    for (const Entry& entry : listing.entries) {
      v1::StepReport report;
      if (!report.ParseFromString(entry.value)) return Unreadable(reader_, entry);
      steps.push_back(store::FromProto(report, job_id));
    }
    return steps;
  }

  absl::StatusOr<std::optional<RequestRecord>> FindRequest(const std::string& method,
                                                           const std::string& request_id) override {
    ASSIGN_OR_RETURN(const Listing found, reader_.Get(RequestKey(method, request_id)));
    if (found.entries.empty()) return std::optional<RequestRecord>();
    RequestRecord request{.method = method, .request_id = request_id};
    if (const Entry& entry = found.entries.front(); !entry.value.empty()) {
      v1::JobRecord record;
      if (!record.ParseFromString(entry.value)) return Unreadable(reader_, entry);
      request.job = store::FromProto(record);
    }
    return std::optional(std::move(request));
  }

  absl::StatusOr<std::vector<LogRecord>> ReadLogs(const std::string& job_id, std::int64_t after,
                                                  int limit) override {
    ASSIGN_OR_RETURN(
        const Listing listing,
        reader_.List(LogsOf(job_id), {.from = LogKey(job_id, after + 1), .limit = limit}));
    std::vector<LogRecord> lines;
    for (const Entry& entry : listing.entries) {
      v1::LogLine line;
      if (!line.ParseFromString(entry.value)) return Unreadable(reader_, entry);
      LogRecord& log = lines.emplace_back(store::FromProto(line, job_id));
      ASSIGN_OR_RETURN(log.number, LineNumber(entry));
    }
    return lines;
  }

  absl::StatusOr<std::string> ReadProfile() override {
    ASSIGN_OR_RETURN(const Listing found, reader_.Get(kProfileKey));
    return found.entries.empty() ? std::string() : found.entries.front().value;
  }

 private:
  absl::StatusOr<std::int64_t> LineNumber(const Entry& entry) const {
    std::int64_t number = 0;
    if (absl::SimpleAtoi(entry.key.substr(entry.key.rfind('/') + 1), &number)) return number;
    return Unreadable(reader_, entry);
  }

  absl::Status ReadBooks() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ASSIGN_OR_RETURN(const State state, ReadState(reader_));
    books_ = Books(state.snapshot);
    epoch_ = state.snapshot.epoch;
    ASSIGN_OR_RETURN(books_.requests, ReadRequestOrder(reader_));
    has_failed_ = false;
    return absl::OkStatus();
  }

  // These change the books as if the writes had succeeded already.
  absl::Status Write(const Changes& changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteJobs(const Changes& changes, Writes& writes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DeleteJob(const std::string& id, Writes& writes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteSteps(const Changes& changes, Writes& writes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteRequests(const Changes& changes, Writes& writes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void WriteWorkers(const Changes& changes, Writes& writes);
  void WriteIdentity(const store::ClusterIdentity& identity, Writes& writes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteLines(const Changes& changes, Writes& writes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ReadLineNumbers(const std::string& job_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const EtcdStoreOptions options_;
  Reader& reader_;
  const bool leads_;
  // It is held during calls to etcd, because commits have an order. Reads do not take it.
  absl::Mutex mutex_;
  std::optional<FencedLog> log_ ABSL_GUARDED_BY(mutex_);  // of a leader
  Books books_ ABSL_GUARDED_BY(mutex_);
  std::int64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  // The last commit has changed the books and not the state.
  bool has_failed_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::Status EtcdStore::Write(const Changes& changes) {
  Writes writes(reader_.prefix(), options_.writes);
  WriteJobs(changes, writes);
  WriteSteps(changes, writes);
  WriteRequests(changes, writes);
  WriteWorkers(changes, writes);
  if (changes.profile) writes.Put(kProfileKey, *changes.profile, /*pieces=*/true);
  if (changes.identity) WriteIdentity(*changes.identity, writes);
  RETURN_IF_ERROR(WriteLines(changes, writes));
  for (const std::string& id : changes.deleted_jobs) DeleteJob(id, writes);
  return log_->Commit(writes);
}

void EtcdStore::WriteJobs(const Changes& changes, Writes& writes) {
  std::map<std::string, const JobRecord*> newest;
  for (const JobRecord& job : changes.jobs) newest[job.id] = &job;
  const std::int64_t before = books_.last_number;
  for (const auto& [id, job] : newest) {
    books_.last_number = std::max(books_.last_number, job->number);
    books_.jobs[id] = {job->number, job->name, job->generation};
    const bool goes = std::find(changes.deleted_jobs.begin(), changes.deleted_jobs.end(), id) !=
                      changes.deleted_jobs.end();
    if (goes) continue;
    writes.Put(JobKey(job->number, id), store::ToRecordProto(*job).SerializeAsString(),
               /*pieces=*/true);
  }
  if (books_.last_number != before) writes.Put(kLastNumberKey, absl::StrCat(books_.last_number));
}

void EtcdStore::DeleteJob(const std::string& id, Writes& writes) {
  const auto job = books_.jobs.find(id);
  if (job == books_.jobs.end()) return;
  Generation& highest = books_.generations[job->second.name];
  highest = std::max(highest, job->second.generation);
  writes.Put(kGenerations + job->second.name, absl::StrCat(highest.value()));
  writes.Erase(JobKey(job->second.number, id), /*pieces=*/true);
  writes.Erase(kLastSteps + id);
  writes.EraseRange(StepsOf(id), EndOf(StepsOf(id)));
  writes.EraseRange(LogsOf(id), EndOf(LogsOf(id)));
  books_.jobs.erase(job);
  books_.last_steps.erase(id);
  books_.lines.erase(id);
}

void EtcdStore::WriteSteps(const Changes& changes, Writes& writes) {
  for (const StepRecord& step : changes.steps) {
    const std::string report = store::ToProto(step).SerializeAsString();
    writes.PutOnce(StepKey(step.job_id, step.step.value(), step.generation.value()), report);
    const std::pair position(step.step, step.generation);
    const auto [last, is_new] = books_.last_steps.try_emplace(step.job_id, position);
    if (!is_new && position <= last->second) continue;
    last->second = position;
    writes.Put(kLastSteps + step.job_id, report);
    const std::int64_t gone = step.step.value() - options_.steps;
    if (options_.steps > 0 && gone > 0 && step.step.value() % kTrimEvery == 0)
      writes.EraseRange(StepsOf(step.job_id), StepKey(step.job_id, gone + 1, 0));
  }
}

void EtcdStore::WriteRequests(const Changes& changes, Writes& writes) {
  for (const RequestRecord& request : changes.requests) {
    const std::string key = RequestKey(request.method, request.request_id);
    writes.Put(key, request.job ? store::ToRecordProto(*request.job).SerializeAsString() : "",
               /*pieces=*/true);
    const std::int64_t number = books_.requests.empty() ? 1 : books_.requests.back().first + 1;
    writes.Put(kRequestOrder + Digits(number), key);
    books_.requests.emplace_back(number, key);
  }
  while (books_.requests.size() > static_cast<std::size_t>(options_.limits.requests)) {
    writes.Erase(kRequestOrder + Digits(books_.requests.front().first));
    writes.Erase(books_.requests.front().second, /*pieces=*/true);
    books_.requests.pop_front();
  }
}

void EtcdStore::WriteWorkers(const Changes& changes, Writes& writes) {
  for (const auto& [worker, drained] : changes.drained) {
    if (drained) {
      writes.Put(kDrained + worker, "");
    } else {
      writes.Erase(kDrained + worker);
    }
  }
  for (const auto& [worker, record] : changes.workers) {
    if (record == store::WorkerRecord()) {
      writes.Erase(kWorkers + worker);
    } else {
      writes.Put(kWorkers + worker, store::ToProto(record).SerializeAsString());
    }
  }
}

void EtcdStore::WriteIdentity(const store::ClusterIdentity& identity, Writes& writes) {
  epoch_ = identity.epoch;
  books_.last_number = std::max(books_.last_number, identity.last_number);
  writes.Put(kClusterKey, identity.cluster_id);
  writes.Put(kEpochKey, absl::StrCat(epoch_));
  writes.Put(kLastNumberKey, absl::StrCat(books_.last_number));
  for (const auto& [name, generation] : identity.generations) {
    Generation& highest = books_.generations[name];
    highest = std::max(highest, generation);
    writes.Put(kGenerations + name, absl::StrCat(highest.value()));
  }
}

absl::Status EtcdStore::ReadLineNumbers(const std::string& job_id) {
  ASSIGN_OR_RETURN(const Listing listing, reader_.List(LogsOf(job_id), {.keys_only = true}));
  std::deque<std::int64_t>& numbers = books_.lines[job_id];
  for (const Entry& entry : listing.entries) {
    ASSIGN_OR_RETURN(const std::int64_t number, LineNumber(entry));
    numbers.push_back(number);
  }
  return absl::OkStatus();
}

absl::Status EtcdStore::WriteLines(const Changes& changes, Writes& writes) {
  std::int64_t number = log_->next() * kLinesPerCommit;
  for (const LogRecord& line : changes.logs) {
    if (!books_.lines.contains(line.job_id)) RETURN_IF_ERROR(ReadLineNumbers(line.job_id));
    books_.lines[line.job_id].push_back(++number);
    writes.Put(LogKey(line.job_id, number), store::ToProto(line).SerializeAsString());
  }
  for (const LogRecord& line : changes.logs) {
    std::deque<std::int64_t>& numbers = books_.lines[line.job_id];
    const auto kept = static_cast<std::size_t>(options_.limits.log_lines);
    if (numbers.size() <= kept) continue;
    numbers.erase(numbers.begin(), numbers.end() - static_cast<std::ptrdiff_t>(kept));
    writes.EraseRange(LogsOf(line.job_id), LogKey(line.job_id, numbers.front()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<store::Store>> OpenEtcdStore(Reader* reader,
                                                            const Leadership* leadership,
                                                            EtcdStoreOptions options) {
  auto store = std::make_unique<EtcdStore>(reader, leadership, std::move(options));
  RETURN_IF_ERROR(store->Open());
  return store;
}

}  // namespace takt::etcd
