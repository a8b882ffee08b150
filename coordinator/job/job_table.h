// SPDX-License-Identifier: Apache-2.0
// Holds all jobs of a coordinator in the order of their submission, which is the order of the
// queue.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/job/held_jobs.h"
#include "coordinator/job/job.h"
#include "coordinator/job/retention.h"
#include "coordinator/store/store.h"

namespace takt::job {

// Returns kNotFound with a message for people. held: workers hold a job of that name.
absl::Status NoSuchJob(const std::string& name, bool held);

// One thread.
class JobTable final {
 public:
  // context: borrowed. Jobs that had not ended when `snapshot` was stored go on.
  JobTable(const JobContext* context, store::Snapshot snapshot, Moment now);

  // Returns the job of that name, or null; FindById does the same by id. The caller may change the
  // job, so it is among the live ones until Settle.
  Job* Find(const std::string& name);
  const Job* Find(const std::string& name) const;
  Job* FindById(const std::string& id);
  // Returns the job whose run is this generation, or null.
  Job* FindRunning(const control::JobKey& key);

  // Errors: kAlreadyExists (the name is taken), kInvalidArgument (a job that has not ended writes
  // its checkpoints to the same directory).
  absl::Status CheckNew(const config::JobSpec& spec) const;
  // Returns the ids of the jobs that have checkpoints and have not ended.
  std::vector<std::string> SavingJobs() const;
  // The record needs no number and no generation. Precondition: CheckNew.
  Job& Add(store::JobRecord record);
  // Returns why a job of this name cannot be taken over from its workers; OK: it can. Errors:
  // kAlreadyExists (there is another job of that name), kFailedPrecondition (it has a run).
  absl::Status CheckTakeOver(const store::JobRecord& record) const;
  // Adds the job, or puts it in the place of its older self. Precondition: CheckTakeOver.
  Job& TakeOver(Adoption adoption, Moment now);
  // Returns true if this generation is known to be over, or a later one is known.
  bool IsOver(const control::JobKey& key) const;
  // A job of that name that is added later continues the generation numbers of this one.
  void Remove(const Job& job);

  // Lists by number the jobs that have not ended, and those that may have changed since Settle. So
  // the cost of a round does not grow with the ended jobs that are kept.
  const std::map<std::int64_t, Job*>& live() const { return live_; }
  // Call this after every job in live() was flushed. Those that have ended leave it.
  void Settle();

  // Return how many jobs have ended and settled, and those of them that ended first.
  std::int64_t num_ended() const { return static_cast<std::int64_t>(ended_.size()); }
  std::vector<EndedJob> FirstEnded(int most) const;

 private:
  Job& Insert(store::JobRecord record);
  void Erase(const Job& job);

  const JobContext& context_;
  std::map<std::int64_t, Job> jobs_;  // by number
  std::unordered_map<std::string, Job*> by_name_, by_id_;
  std::map<std::int64_t, Job*> live_;
  std::map<std::pair<absl::Time, std::int64_t>, const Job*> ended_;  // by end and number
  std::int64_t last_number_;
  std::map<std::string, Generation> generations_;  // of deleted jobs, by name
};

}  // namespace takt::job
