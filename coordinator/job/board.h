// SPDX-License-Identifier: Apache-2.0
// Shows the jobs to readers: the last committed record of each, and where the time of its newest
// explained step went. A reader can be called after every change.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/job/step_split.h"
#include "coordinator/store/record.h"

namespace takt::job {

using JobView = std::shared_ptr<const store::JobRecord>;
using SplitView = std::shared_ptr<const StepSplit>;

// Thread-safe.
class Board final {
 public:
  // The board calls it after every change of its job, on the publishing thread, without holding a
  // lock. It must be short.
  using Listener = std::function<void()>;
  // Ends when destroyed; a call in progress may still finish.
  using Subscription = std::shared_ptr<const Listener>;

  void Publish(JobView job);  // not null
  void Publish(store::JobRecord job);
  void Remove(const std::string& id);
  // Replaces the names of the jobs that only workers know. They are not among those that Find and
  // List return.
  void ShowHeld(std::set<std::string> names);
  // Nothing happens unless the job is there and its generation is the split's.
  void ShowSplit(const std::string& name, StepSplit split);

  // Returns whether workers hold a job of this name, as of the last ShowHeld.
  bool IsHeld(const std::string& name) const;
  // Returns whether the worker holds a rank of the job. The cost does not grow with the ranks.
  bool HoldsRank(const std::string& job, const std::string& worker) const;
  // Returns whether a worker whose name is `prefix` and digits holds a rank of the job.
  bool HoldsNumberedRank(const std::string& job, const std::string& prefix) const;
  JobView FindByName(const std::string& name) const;
  JobView FindById(const std::string& id) const;
  // Returns null if no step of this generation has been explained yet.
  SplitView FindSplit(const std::string& id) const;
  // Lists the jobs for which `shown` is true, newest first: at most `limit` with a number below
  // `before` (0: all). owner: only the jobs of this owner are looked at; nullopt: all are.
  std::vector<JobView> List(std::int64_t before, int limit,
                            const std::function<bool(const store::JobRecord&)>& shown,
                            const std::optional<std::string>& owner = std::nullopt) const;
  // The cost does not grow with the number of jobs.
  std::map<store::JobState, int> CountByState() const;

  Subscription Subscribe(const std::string& id, Listener listener);

 private:
  // Call this before the job is shown. before: what is shown now, or null.
  void SetHoldersLocked(const JobView& before, const store::JobRecord& job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Subscription> ListenersLocked(const std::string& id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::map<std::int64_t, JobView> jobs_ ABSL_GUARDED_BY(mutex_);
  std::map<store::JobState, int> counts_ ABSL_GUARDED_BY(mutex_);     // of `jobs_`
  std::map<std::int64_t, SplitView> splits_ ABSL_GUARDED_BY(mutex_);  // of jobs in `jobs_`
  // By number: the workers of each job that has ranks, of the generation that is shown.
  std::map<std::int64_t, std::set<std::string>> holders_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> held_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::int64_t> number_by_name_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::int64_t> number_by_id_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::set<std::int64_t>> numbers_by_owner_ ABSL_GUARDED_BY(mutex_);
  std::multimap<std::string, std::weak_ptr<const Listener>> listeners_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace takt::job
