// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/memory_store.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace takt::store {
namespace {

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(StoreLimits limits) : limits_(limits) {}

  absl::StatusOr<Snapshot> Load() override {
    absl::MutexLock lock(&mutex_);
    Snapshot snapshot{.drained = drained_,
                      .workers = workers_,
                      .last_number = last_number_,
                      .generations = generations_,
                      .cluster_id = cluster_id_,
                      .epoch = epoch_};
    for (const auto& [id, job] : jobs_) {
      snapshot.jobs.push_back(job);
      if (const auto& steps = steps_[id]; !steps.empty()) {
        snapshot.jobs.back().last_step = steps.rbegin()->second;
      }
    }
    std::sort(snapshot.jobs.begin(), snapshot.jobs.end(),
              [](const JobRecord& a, const JobRecord& b) { return a.number < b.number; });
    return snapshot;
  }

  absl::StatusOr<std::int64_t> RaiseEpoch() override {
    absl::MutexLock lock(&mutex_);
    return ++epoch_;
  }

  absl::Status Commit(const Changes& changes) override {
    absl::MutexLock lock(&mutex_);
    for (const JobRecord& job : changes.jobs) {
      JobRecord& kept = jobs_[job.id] = job;
      kept.last_step.reset();
      kept.replan_gain = 0;
      last_number_ = std::max(last_number_, job.number);
    }
    for (const StepRecord& step : changes.steps) {
      steps_[step.job_id].try_emplace({step.step, step.generation}, step);
    }
    for (const std::string& id : changes.deleted_jobs) Delete(id);
    for (const RequestRecord& request : changes.requests) {
      requests_.push_back(request);
      if (requests_.size() > static_cast<std::size_t>(limits_.requests)) requests_.pop_front();
    }
    for (const auto& [worker, drained] : changes.drained) {
      if (drained) {
        drained_.insert(worker);
      } else {
        drained_.erase(worker);
      }
    }
    for (const auto& [worker, record] : changes.workers) {
      if (record == WorkerRecord()) {
        workers_.erase(worker);
      } else {
        workers_[worker] = record;
      }
    }
    for (const LogRecord& log : changes.logs) {
      std::deque<LogRecord>& lines = logs_[log.job_id];
      lines.push_back(log);
      lines.back().number = ++last_log_number_;
      if (lines.size() > static_cast<std::size_t>(limits_.log_lines)) lines.pop_front();
    }
    if (changes.profile) profile_ = *changes.profile;
    if (changes.identity) {
      cluster_id_ = changes.identity->cluster_id;
      epoch_ = changes.identity->epoch;
      last_number_ = std::max(last_number_, changes.identity->last_number);
      for (const auto& [name, generation] : changes.identity->generations)
        generations_[name] = std::max(generations_[name], generation);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<StepRecord>> ReadSteps(const std::string& job_id, StepId after,
                                                    int limit) override {
    absl::MutexLock lock(&mutex_);
    std::vector<StepRecord> found;
    const auto& steps = steps_[job_id];
    auto it = steps.lower_bound({StepId(after.value() + 1), Generation(0)});
    for (; it != steps.end() && static_cast<int>(found.size()) < limit; ++it)
      found.push_back(it->second);
    return found;
  }

  absl::StatusOr<std::optional<RequestRecord>> FindRequest(const std::string& method,
                                                           const std::string& request_id) override {
    absl::MutexLock lock(&mutex_);
    for (const RequestRecord& request : requests_) {
      if (request.method == method && request.request_id == request_id)
        return std::optional(request);
    }
    return std::optional<RequestRecord>();
  }

  absl::StatusOr<std::vector<LogRecord>> ReadLogs(const std::string& job_id, std::int64_t after,
                                                  int limit) override {
    absl::MutexLock lock(&mutex_);
    std::vector<LogRecord> found;
    for (const LogRecord& line : logs_[job_id]) {
      if (line.number > after && static_cast<int>(found.size()) < limit) found.push_back(line);
    }
    return found;
  }

  absl::StatusOr<std::string> ReadProfile() override {
    absl::MutexLock lock(&mutex_);
    return profile_;
  }

 private:
  void Delete(const std::string& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto job = jobs_.find(id);
    if (job == jobs_.end()) return;
    Generation& highest = generations_[job->second.name];
    highest = std::max(highest, job->second.generation);
    jobs_.erase(job);
    steps_.erase(id);
    logs_.erase(id);
  }

  const StoreLimits limits_;
  absl::Mutex mutex_;
  std::map<std::string, JobRecord> jobs_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::map<std::pair<StepId, Generation>, StepRecord>> steps_
      ABSL_GUARDED_BY(mutex_);
  std::deque<RequestRecord> requests_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> drained_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, WorkerRecord> workers_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::deque<LogRecord>> logs_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Generation> generations_ ABSL_GUARDED_BY(mutex_);
  std::string profile_ ABSL_GUARDED_BY(mutex_);
  std::string cluster_id_ ABSL_GUARDED_BY(mutex_) = std::string(32, '0');
  std::int64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t last_log_number_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

std::unique_ptr<Store> NewMemoryStore(StoreLimits limits) {
  return std::make_unique<MemoryStore>(limits);
}

}  // namespace takt::store
