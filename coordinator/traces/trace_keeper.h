// SPDX-License-Identifier: Apache-2.0
// Keeps what workers measured of the last steps of each job, and the difference between their
// clocks and the coordinator's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/control/job_key.h"
#include "common/trace/clock_filter.h"
#include "common/trace/job_trace.h"
#include "coordinator/job/launch.h"
#include "coordinator/traces/recent_steps.h"

namespace takt::traces {

struct TraceKeeperOptions {
  std::string directory;                           // made if missing
  std::int64_t max_job_bytes = 64ll << 20;         // of the steps of one job
  int max_jobs = 32;                               // the ones that began last
  std::int64_t max_recent_bytes = 16ll << 20;      // in memory, of the newest steps of one job
  std::int64_t max_all_recent_bytes = 64ll << 20;  // of all jobs
};

// Which steps are wanted: first to last, or, both 0, the newest. If step `around` is kept, it is
// wanted instead, with the `newest` - 1 kept before it and as many after it.
struct StepRange {
  std::int64_t first = 0, last = 0;
  int newest = 1;
  std::int64_t around = 0;  // 0: none
};

// Thread-safe. It never fails its callers: what cannot be kept is dropped, with one line in the
// log.
class TraceKeeper {
 public:
  using JobKey = control::JobKey;

  explicit TraceKeeper(TraceKeeperOptions options);

  // A generation begins. What was kept of the job before is dropped.
  void Begin(const job::Launch& launch);
  // The job is deleted.
  void Forget(const std::string& job);

  // A worker answered a question about its clock (trace::ClockFilter). The clock is forgotten when
  // the worker has not answered for an hour.
  void AddClock(const std::string& worker, const std::string& incarnation, std::int64_t sent_nanos,
                std::int64_t theirs_nanos, std::int64_t received_nanos);
  // One step of one rank (trace/encoding.h). It is dropped if it is damaged, of another generation,
  // or from a worker that does not hold the rank.
  void Add(const std::string& worker, const std::string& incarnation, const JobKey& key,
           const std::string& encoded);

  // Jobs with a step that all ranks have reported and TakeNewest has not returned yet.
  std::vector<std::string> JobsWithNews() const;
  // The newest steps that all ranks have reported, at most `count`, from memory alone. It has no
  // steps if there are none or the job is deleted.
  trace::JobTrace TakeNewest(const std::string& job, int count);

  // The steps of that range that all ranks have reported. Errors: kFailedPrecondition (there are no
  // steps at all), kNotFound (there are none of that range; says which there are).
  absl::StatusOr<trace::JobTrace> Read(const std::string& job, const StepRange& range) const;

 private:
  struct Run {
    Generation generation;
    trace::JobTrace header;                                    // without steps
    std::vector<std::pair<std::string, std::string>> holders;  // by rank: worker, incarnation
    RecentSteps recent;
    std::int64_t told = 0;  // number of the last step that came, over all jobs
    StepId taken;           // the newest step that TakeNewest returned
  };

  std::string PathOf(const std::string& job, const char* suffix) const;
  Run* FindRun(const std::string& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Run> LoadRun(const std::string& job) const;
  void DropOldJobs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropOldSteps() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Complain(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const TraceKeeperOptions options_;
  mutable absl::Mutex mutex_;
  // By job. A job that only a worker names takes no memory.
  std::map<std::string, std::optional<Run>> runs_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> kept_ ABSL_GUARDED_BY(mutex_);  // jobs with a header in the directory
  std::int64_t told_ ABSL_GUARDED_BY(mutex_) = 0;
  struct WorkerClock {
    std::string incarnation;
    trace::ClockFilter filter;
    std::int64_t answered_nanos = 0;
  };
  std::map<std::string, WorkerClock> clocks_ ABSL_GUARDED_BY(mutex_);  // by worker
  bool complained_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace takt::traces
