// SPDX-License-Identifier: Apache-2.0
// Watches a simulation and says which promise was broken first. It keeps a second account of what
// the store must hold, made of the commits alone. README.md lists the invariants.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/id.h"
#include "common/control/assignment.h"
#include "common/control/attachment.h"
#include "common/control/job_key.h"
#include "coordinator/store/store.h"
#include "tests/simulation/config.h"
#include "tests/simulation/event_loop.h"
#include "tests/simulation/trace.h"

namespace takt::simulation {

struct Violation {
  std::string invariant, what;
};

// Holds the part of a job that is durable.
struct DurableJob {
  std::string name, directory;  // directory: of its checkpoints; empty: it has none
  std::int64_t steps = 0;
  Generation generation;
  store::JobState state = store::JobState::kQueued;
  std::string reason;
  std::vector<control::BoundRank> ranks;
  std::size_t last_size = 0;  // of the last generation that ran; 0: none did
  std::optional<store::JobStop> stop;
  std::optional<store::JobHalt> halt;
  StepId checkpoint;  // 0: none
  StepId resumed, last_step;
  Generation last_generation;  // of last_step
  // The last step that the lost state had of a job that was adopted. 0: it was submitted.
  StepId adopted_after;
  absl::Duration progress = absl::ZeroDuration();  // when it last did a step or ended

  // Returns the step after which the job continues.
  StepId done() const { return std::max(resumed, last_step); }
  // Returns the last step that some coordinator has stored.
  StepId stored() const { return std::max(done(), adopted_after); }
};

// One thread.
class Oracle final {
 public:
  // All are borrowed.
  Oracle(const Config* config, EventLoop* loop, Trace* trace)
      : config_(*config), loop_(*loop), trace_(*trace) {}

  // Sets the directory that holds the checkpoint directories of all jobs.
  void set_disk(const std::string& root) { root_ = root; }

  // Only the first violation counts. The simulation ends.
  void Violate(const std::string& invariant, const std::string& what);
  const std::optional<Violation>& violation() const { return violation_; }

  // The world calls these when something happens in it.
  void SubmitsTo(const std::string& job, const std::string& directory) {
    directories_[job] = directory;
  }
  void RankDid(const control::JobKey& key, StepId step);
  // A rank begins to run, or its process is through with it.
  void RankBegins(const control::JobKey& key, Rank rank, const std::string& worker);
  void RankIsGone(const control::JobKey& key, Rank rank);
  // The first rank of this generation has looked for the step from which it resumes.
  void Chose(const control::JobKey& key);
  // From now on a job without checkpoints may fail.
  void HarmsRanks() { harmed_ = true; }
  // A step in this directory got its name or lost it.
  void CheckDirectory(const std::string& directory);
  void CheckAllDirectories();

  // With these calls the coordinator tells what it does.
  void Begins(std::int64_t epoch);
  void Starts(const store::Snapshot& snapshot);
  // The next coordinator has an empty state of another cluster.
  void LosesState();
  void Commits(const store::Changes& changes);
  void Sends(const std::string& worker, const control::Command& command);
  // All reports up to this step are said to be durable.
  void Acknowledges(const control::JobKey& key, StepId step);

  // Returns the jobs that are durable, by id.
  const std::map<std::string, DurableJob>& jobs() const { return jobs_; }
  // Returns null if no job of that name is durable.
  const DurableJob* Find(const std::string& name) const;
  const std::set<std::string>& drained() const { return drained_; }
  std::int64_t committed_steps() const { return committed_steps_; }
  // Returns how many generations resumed from copies in memory.
  std::int64_t from_memory() const { return from_memory_; }
  // Return how many generations had fewer or more ranks than the one before.
  std::int64_t shrunk() const { return shrunk_; }
  std::int64_t grown() const { return grown_; }

 private:
  void Apply(const store::JobRecord& record);
  void CountStart(const store::JobRecord& record, DurableJob& job);
  void CheckCheckpoint(const store::JobRecord& record, const DurableJob& before);
  void CheckEnd(const store::JobRecord& record, const DurableJob& job);
  void CheckStep(const store::StepRecord& step, Generation before);
  void CheckRanks();
  void CheckPublished(const std::string& job, const std::string& directory);
  // Returns what is wrong with a checkpoint of a job, empty if nothing is.
  std::string WhatIsWrongWith(const DurableJob& job, StepId step) const;
  bool HasNewerCheckpoint(const DurableJob& job) const;

  const Config& config_;
  EventLoop& loop_;
  Trace& trace_;
  std::string root_;
  std::optional<Violation> violation_;
  bool harmed_ = false;
  std::int64_t epoch_ = 0;                          // of the last coordinator
  std::map<std::string, std::string> directories_;  // by name of job
  std::map<std::string, DurableJob> jobs_;          // by id
  std::map<std::string, StepId> lost_;              // by name: the last steps that a lost state had
  std::set<std::string> drained_;
  std::map<std::string, Generation> past_generations_;  // of deleted jobs, by name
  std::map<control::JobKey, StepId> done_;              // by any rank of each generation
  std::map<std::pair<control::JobKey, Rank>, std::string> running_;  // the worker
  std::map<std::string, Generation> chose_;                          // the newest, by job
  // Complete steps that were seen: directory, name and generation.
  std::set<std::tuple<std::string, std::string, Generation>> published_;
  std::int64_t committed_steps_ = 0, from_memory_ = 0, shrunk_ = 0, grown_ = 0;
};

}  // namespace takt::simulation
