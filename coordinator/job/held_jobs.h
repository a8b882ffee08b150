// SPDX-License-Identifier: Apache-2.0
// Keeps the jobs that workers hold and the store does not know, as after the loss of a state
// directory. Their ranks keep training. No rank is told to abort until a user adopts or abandons
// the job. All of it comes from workers and is forgotten with the process. It is pure.
//
//   (a worker attaches with a rank of it) -> held --(every rank is here and described)--> adoptable
//      held, adoptable --(Cluster::Adopt)-->   a job of this coordinator
//      held, adoptable --(Cluster::Abandon)--> its workers are told to abort
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/control/assignment.h"
#include "common/control/attachment.h"
#include "coordinator/job/worker_table.h"
#include "coordinator/store/record.h"

namespace takt::job {

// A rank of a held job, as its worker claims it.
struct HeldRank {
  std::string incarnation, data_address;  // of the worker
  Rank rank;
  bool describes = false;  // the worker's program can describe the rank
  control::RankStatus status;
  std::string end;  // how the rank ended, for people; empty: it has not
  std::optional<control::RankDescription> description;
  absl::Duration asked = -absl::InfiniteDuration();  // steady; for the description
};

struct HeldJob {
  control::JobKey key;
  std::string cluster_id;                 // of the coordinator that began it; empty: not known
  absl::Duration since;                   // steady
  std::map<std::string, HeldRank> ranks;  // by worker
  std::optional<control::Assignment> assignment;  // what all ranks share, as rank 0 described it

  // Returns the description of rank 0, null if there is none.
  const control::RankDescription* FindWhole() const;
  // Returns who has its ranks, in their order: as the assignment says or, if the ranks meet
  // sparsely and it names none, as the workers claim. Precondition: the assignment is there.
  std::vector<control::BoundRank> BoundRanks() const;
};

// For people.
struct HeldJobView {
  control::JobKey key;
  std::string owner, cluster_id;
  int num_ranks = 0;  // 0: not known
  std::vector<control::RankStatus> ranks;
  std::string why_not;  // it cannot be adopted; empty: it can
};

// One caller at a time.
class HeldJobs final {
 public:
  // A worker has attached with the rank of hello.running. Returns true if no worker had claimed a
  // rank of that generation.
  bool Claim(const control::Hello& hello, Moment now);
  // The worker is lost, or has released its rank.
  void Forget(const std::string& worker);
  void Remove(const control::JobKey& key) { jobs_.erase(key); }

  // Returns true if this worker claims a rank of a held job.
  bool Holds(const std::string& worker) const;
  // Returns true if any worker claims a rank of this generation.
  bool Knows(const control::JobKey& key) const { return jobs_.contains(key); }
  // These take what workers say of their ranks. Nothing happens if the worker claims none of that
  // job.
  void SetStatus(const std::string& worker, const control::RankStatus& status, Moment now);
  void SetEnd(const std::string& worker, const control::JobUpdate& update);
  void Describe(const std::string& worker, control::RankDescription description);

  // Returns the questions that are due, with the worker that each is for. A rank that has not read
  // its assignment is asked again.
  std::vector<std::pair<std::string, control::Describe>> TakeQuestions(Moment now);

  // Returns the held generation of that name, the newest if there are several; null: none.
  const HeldJob* Find(const std::string& name) const;
  // Returns the owner that rank 0 named. Empty: it has none, or it is not known.
  static std::string OwnerOf(const HeldJob& job);
  // Returns why the job cannot be adopted now, for people; empty: it can.
  std::string WhyNotAdoptable(const HeldJob& job, const WorkerTable& workers) const;
  std::vector<HeldJobView> List(const WorkerTable& workers) const;

  // Returns the ids of held jobs that have checkpoints.
  std::vector<std::string> SavingJobs() const;

  auto begin() const { return jobs_.begin(); }
  auto end() const { return jobs_.end(); }
  const HeldJob& at(const control::JobKey& key) const { return jobs_.at(key); }
  std::size_t size() const { return jobs_.size(); }

 private:
  HeldRank* FindRank(const std::string& worker, const control::JobKey& key);

  std::map<control::JobKey, HeldJob> jobs_;
};

// The state with which an adopted job continues.
struct Adoption {
  store::JobRecord record;
  config::JobSpec spec;
};

// Makes the record of a job that can be adopted (WhyNotAdoptable). epoch: the coordinator's.
Adoption AdoptionOf(const HeldJob& job, std::int64_t epoch, Moment now);

}  // namespace takt::job
