// SPDX-License-Identifier: Apache-2.0
// Learns from the traced steps of jobs what layers, messages and updates take on the workers
// (docs/profiles.md), and keeps it in the coordinator's store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/id.h"
#include "common/mesh/mesh.h"
#include "common/mesh/vocabulary_split.h"
#include "common/model/model.h"
#include "common/profile/learn.h"
#include "common/profile/profile.h"
#include "common/trace/job_trace.h"
#include "coordinator/job/launch.h"
#include "coordinator/store/store.h"
#include "coordinator/timeouts/timeouts.h"

namespace takt::profiles {

struct ProfileKeeperOptions {
  absl::Duration save_interval = timeouts::kSaveProfile;
  std::size_t max_jobs = 32;  // the ones that began last are learned from
  // A profile that has this many layers is emptied, so that it never grows without bound.
  std::size_t max_layers = 10'000;
  // The same for messages between pairs of hosts. Only these are then emptied.
  std::size_t max_links = 10'000;
  const Clock* clock = &Clock::Real();
};

// Thread-safe, but Learn has one caller at a time. The destructor stores what is not stored yet.
class ProfileKeeper final {
 public:
  // Continues with the profile in the store. One that is damaged, or that another version of the
  // program measured, is dropped with a line in the log. store: borrowed. Errors: the store's.
  static absl::StatusOr<std::unique_ptr<ProfileKeeper>> Open(
      store::Store* store, const ProfileKeeperOptions& options = {});
  ~ProfileKeeper();
  ProfileKeeper(const ProfileKeeper&) = delete;
  ProfileKeeper& operator=(const ProfileKeeper&) = delete;

  // A generation begins. Nothing is learned from one with a worker that does not say what it
  // computes on, and only messages from an emulated one.
  void Begin(const job::Launch& launch);
  // The job is deleted.
  void Forget(const std::string& job);

  // Adds what the steps say. Nothing happens unless they are of the generation that began last.
  // Blocks: for the disk, at most once in save_interval.
  void Learn(const trace::JobTrace& trace);

  // A checkpoint of the job paused training for so long, on the slowest rank. It is learned with
  // the next step. Does not block.
  void LearnPause(const std::string& job, double seconds);

  // Never null. What is returned does not change.
  std::shared_ptr<const profile::Profile> Read() const;

 private:
  // What a trace does not say of its job.
  struct Run {
    Generation generation;
    std::int64_t began = 0;  // its number, over all jobs
    model::Model model;
    mesh::Partition partition;
    mesh::VocabularyEnds vocabulary_ends;
    int leaves = 1;                          // of each replica
    std::vector<profile::RankPlace> places;  // by rank
    double snapshot_bytes = 0;               // of the rank with most
  };

  ProfileKeeper(store::Store* store, const ProfileKeeperOptions& options, profile::Profile stored);
  // Null: nothing is learned from it.
  std::shared_ptr<const Run> FindRun(const trace::JobTrace& trace) const;
  void AddPauses(profile::Profile& learned);
  void Save();

  const ProfileKeeperOptions options_;
  store::Store* const store_;
  mutable absl::Mutex mutex_;
  // Runs and the profile are shared with readers, who use them without the lock.
  std::map<std::string, std::shared_ptr<const Run>> runs_ ABSL_GUARDED_BY(mutex_);  // by job
  std::int64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  // Seconds of a snapshot's byte that are not learned yet.
  std::map<profile::Conditions, double> pauses_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const profile::Profile> profile_ ABSL_GUARDED_BY(mutex_);
  // Only Learn and the destructor use these.
  bool unsaved_ = false, complained_ = false;
  absl::Duration saved_at_ = -absl::InfiniteDuration();
};

}  // namespace takt::profiles
