// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/held_jobs.h"

#include <algorithm>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
#include "common/base/status.h"
#include "common/control/shared_assignment.h"
#include "coordinator/job/fault_record.h"
#include "coordinator/job/received_text.h"
#include "coordinator/job/spec_serde.h"

namespace takt::job {
namespace {

using control::RankDescription;

// A rank that has not read its assignment is asked again after this time.
constexpr absl::Duration kAskAgain = absl::Seconds(1);
// A rank that is away may know generations and epochs that nobody here has seen, so the next ones
// are far above.
constexpr std::int64_t kMargin = 1000;
constexpr std::size_t kMostIdBytes = 64;
// A number that a worker says is bounded, so that no sum overflows.
constexpr std::int64_t kMostNumber = std::int64_t{1} << 50;

std::int64_t Bounded64(std::int64_t number) {
  return std::clamp<std::int64_t>(number, 0, kMostNumber);
}

template <class Id>
void Bound(Id& id) {
  id = Id(Bounded64(id.value()));
}

std::string RankAndWorker(Rank rank, const std::string& worker) {
  return absl::StrCat("rank ", rank.value(), " (", worker, ")");
}

// Returns what keeps this rank of the binding from being adopted; empty: nothing.
std::string WhyNot(const HeldJob& job, const control::BoundRank& bound,
                   const std::string& hash_of_first, const WorkerTable& workers) {
  const std::string who = RankAndWorker(bound.rank, bound.worker);
  const auto claim = job.ranks.find(bound.worker);
  if (claim == job.ranks.end() || claim->second.rank != bound.rank ||
      claim->second.incarnation != bound.incarnation ||
      workers.FindAttached(bound.worker, bound.incarnation) == nullptr) {
    return absl::StrCat(who, " is not here");
  }
  const std::optional<RankDescription>& description = claim->second.description;
  if (!description.has_value() || description->assignment_hash.empty())
    return absl::StrCat(who, " has not described itself yet");
  if (description->assignment_hash != hash_of_first)
    return absl::StrCat(who, " was given another assignment than rank 0");
  return "";
}

// A worker may say anything. What is used as a name or an id must be one.
absl::StatusOr<control::Assignment> ReadAssignment(const RankDescription& description) {
  ASSIGN_OR_RETURN(control::Assignment assignment, control::ParseShared(description.assignment));
  if (assignment.key != description.key || assignment.job.name != description.key.job)
    return absl::InvalidArgumentError("its assignment is of another job");
  const std::string& id = assignment.job_id;
  const bool is_id = !id.empty() && id.size() <= kMostIdBytes &&
                     std::ranges::all_of(id, [](char c) { return absl::ascii_isxdigit(c); });
  if (!is_id)
    return absl::InvalidArgumentError("its assignment has no id of the job, so it is too old");
  assignment.owner = Bounded(assignment.owner);
  assignment.epoch = Bounded64(assignment.epoch);
  return assignment;
}

}  // namespace

const RankDescription* HeldJob::FindWhole() const {
  for (const auto& [worker, rank] : ranks) {
    if (rank.rank == Rank(0) && rank.description.has_value()) return &*rank.description;
  }
  return nullptr;
}

std::vector<control::BoundRank> HeldJob::BoundRanks() const {
  if (!assignment->sparse_meeting) return assignment->ranks;
  std::vector<control::BoundRank> bound;
  for (const auto& [worker, held] : ranks)
    bound.push_back({held.rank, worker, held.incarnation, held.data_address});
  std::ranges::stable_sort(bound, {}, &control::BoundRank::rank);
  return bound;
}

bool HeldJobs::Claim(const control::Hello& hello, Moment now) {
  const control::RunningJob& running = *hello.running;
  const std::string& name = hello.worker;
  HeldRank rank{.incarnation = hello.incarnation,
                .data_address = hello.data_address,
                .rank = running.rank,
                .describes = running.describes,
                .status = {.rank = running.rank, .worker = name, .last_step = running.last_step}};
  Forget(name);
  const auto [job, is_new] = jobs_.try_emplace(running.key);
  if (is_new) {
    job->second.key = running.key;
    job->second.cluster_id = running.cluster_id;
    job->second.since = now.steady;
  }
  job->second.ranks[name] = std::move(rank);
  return is_new;
}

void HeldJobs::Forget(const std::string& worker) {
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    job->second.ranks.erase(worker);
    job = job->second.ranks.empty() ? jobs_.erase(job) : std::next(job);
  }
}

bool HeldJobs::Holds(const std::string& worker) const {
  return std::ranges::any_of(
      jobs_, [&](const auto& entry) { return entry.second.ranks.contains(worker); });
}

HeldRank* HeldJobs::FindRank(const std::string& worker, const control::JobKey& key) {
  const auto job = jobs_.find(key);
  if (job == jobs_.end()) return nullptr;
  const auto rank = job->second.ranks.find(worker);
  return rank == job->second.ranks.end() ? nullptr : &rank->second;
}

void HeldJobs::SetStatus(const std::string& worker, const control::RankStatus& status, Moment now) {
  for (auto& [key, job] : jobs_) {
    const auto rank = job.ranks.find(worker);
    if (rank == job.ranks.end()) continue;
    const control::BoundRank bound{.rank = rank->second.rank, .worker = worker};
    rank->second.status = ToKeep(status, bound, now.wall);
  }
}

void HeldJobs::SetEnd(const std::string& worker, const control::JobUpdate& update) {
  HeldRank* const rank = FindRank(worker, update.key);
  if (rank == nullptr) return;
  rank->end = update.phase == control::Phase::kAdmitted ? "" : Name(update.phase);
  if (!update.failure.error.empty())
    absl::StrAppend(&rank->end, ": ", Bounded(update.failure.error));
}

void HeldJobs::Describe(const std::string& worker, RankDescription description) {
  HeldRank* const rank = FindRank(worker, description.key);
  if (rank == nullptr || description.rank != rank->rank) return;
  if (!description.assignment.empty()) {
    absl::StatusOr<control::Assignment> assignment = ReadAssignment(description);
    if (assignment.ok()) {
      jobs_.at(description.key).assignment = *std::move(assignment);
    } else {
      description.directory_error = std::string(assignment.status().message());
    }
    description.assignment.clear();  // it is kept as a value
  }
  Bound(description.acknowledged_step);
  Bound(description.acknowledged_checkpoint);
  Bound(description.resumed);
  Bound(description.saved);
  Bound(description.highest_generation);
  description.epoch = Bounded64(description.epoch);
  description.directory_error = Bounded(description.directory_error);
  description.kernel_plan = Bounded(description.kernel_plan);
  description.schedule = Bounded(description.schedule);
  rank->description = std::move(description);
}

std::vector<std::pair<std::string, control::Describe>> HeldJobs::TakeQuestions(Moment now) {
  std::vector<std::pair<std::string, control::Describe>> questions;
  for (auto& [key, job] : jobs_) {
    for (auto& [worker, rank] : job.ranks) {
      const bool known = rank.description && !rank.description->assignment_hash.empty();
      if (known || !rank.describes || now.steady - rank.asked < kAskAgain) continue;
      rank.asked = now.steady;
      questions.emplace_back(worker, control::Describe{key, /*whole=*/rank.rank == Rank(0)});
    }
  }
  return questions;
}

const HeldJob* HeldJobs::Find(const std::string& name) const {
  const HeldJob* found = nullptr;
  for (const auto& [key, job] : jobs_) {
    if (key.job == name) found = &job;  // the keys of a name are in the order of generations
  }
  return found;
}

std::string HeldJobs::OwnerOf(const HeldJob& job) {
  return job.assignment.has_value() ? job.assignment->owner : "";
}

std::string HeldJobs::WhyNotAdoptable(const HeldJob& job, const WorkerTable& workers) const {
  for (const auto& [key, other] : jobs_) {
    if (key.job == job.key.job && key != job.key) {
      return absl::StrCat(
          RankAndWorker(other.ranks.begin()->second.rank, other.ranks.begin()->first),
          " claims generation ", key.generation.value(), ", others generation ",
          job.key.generation.value());
    }
  }
  for (const auto& [worker, rank] : job.ranks) {
    if (!rank.describes) {
      return absl::StrCat(RankAndWorker(rank.rank, worker),
                          ": its worker's program is too old to be adopted");
    }
  }
  const RankDescription* const whole = job.FindWhole();
  if (whole == nullptr || !job.assignment.has_value()) {
    return whole != nullptr && !whole->directory_error.empty()
               ? absl::StrCat("rank 0: ", whole->directory_error)
               : "rank 0 has not described the job yet";
  }
  if (!whole->directory_error.empty())
    return absl::StrCat("rank 0 cannot read the checkpoints: ", whole->directory_error);
  const std::vector<control::BoundRank> ranks = job.BoundRanks();
  for (const control::BoundRank& bound : ranks) {
    if (std::string why = WhyNot(job, bound, whole->assignment_hash, workers); !why.empty())
      return why;
  }
  const auto num_ranks = static_cast<std::size_t>(job.assignment->mesh.size());
  if (job.ranks.size() > num_ranks) {
    return absl::StrCat(job.ranks.size(), " workers claim one of its ",
                        Counted(static_cast<std::int64_t>(num_ranks), "rank"));
  }
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    if (rank >= ranks.size() || ranks[rank].rank != Rank(static_cast<int>(rank)))
      return absl::StrCat("rank ", rank, " is not here");
  }
  return "";
}

std::vector<HeldJobView> HeldJobs::List(const WorkerTable& workers) const {
  std::vector<HeldJobView> views;
  for (const auto& [key, job] : jobs_) {
    HeldJobView view{.key = key,
                     .owner = OwnerOf(job),
                     .cluster_id = job.cluster_id,
                     .why_not = WhyNotAdoptable(job, workers)};
    if (job.assignment.has_value()) view.num_ranks = job.assignment->mesh.size();
    for (const auto& [worker, rank] : job.ranks) {
      view.ranks.push_back(rank.status);
      if (!rank.end.empty()) view.ranks.back().waiting_for = rank.end;
    }
    std::ranges::sort(view.ranks, {}, &control::RankStatus::rank);
    views.push_back(std::move(view));
  }
  return views;
}

std::vector<std::string> HeldJobs::SavingJobs() const {
  std::vector<std::string> ids;
  for (const auto& [key, job] : jobs_) {
    if (job.assignment.has_value() && job.assignment->job.checkpoint.has_value())
      ids.push_back(job.assignment->job_id);
  }
  return ids;
}

Adoption AdoptionOf(const HeldJob& job, std::int64_t epoch, Moment now) {
  const control::Assignment& assignment = *job.assignment;
  const RankDescription& whole = *job.FindWhole();
  Adoption adoption{.spec = assignment.job};
  StepId acknowledged, settled;
  std::int64_t seen_epoch = assignment.epoch;
  for (const auto& [worker, rank] : job.ranks) {
    const RankDescription& description = *rank.description;
    acknowledged = std::max(acknowledged, description.acknowledged_step);
    settled = std::max(settled, description.acknowledged_checkpoint);
    seen_epoch = std::max(seen_epoch, description.epoch);
  }
  const std::int64_t every = assignment.job.checkpoint ? assignment.job.checkpoint->every_steps : 0;
  store::JobRecord& record = adoption.record;
  record.id = assignment.job_id;
  record.name = job.key.job;
  record.spec = FormatSpec(assignment.job);
  record.owner = assignment.owner;
  record.create_time = now.wall;
  record.generation = job.key.generation;
  record.steps = assignment.job.steps;
  record.plan = {.device = assignment.device,
                 .schedule = whole.schedule,
                 .mesh = assignment.mesh,
                 .partition = assignment.partition,
                 .vocabulary_ends = assignment.vocabulary_ends,
                 .shares_optimizer = program::ShardsOptimizer(assignment.program),
                 .predicted_step_seconds = assignment.predicted_step_seconds,
                 .predicted_bubble_fraction = assignment.predicted_bubble_fraction,
                 .checkpoint_every_steps = every,
                 .copy_every_steps = assignment.copies.every_steps};
  record.ranks = job.BoundRanks();
  // A generation that resumed from memory has no checkpoint of that step.
  record.resumed_step = whole.from_memory ? assignment.saved : whole.resumed;
  if (whole.from_memory) record.memory_step = whole.resumed;
  const StepId newest = std::max(whole.saved, record.resumed_step);
  if (newest > StepId(0)) record.checkpoint = {.step = newest, .time = now.wall};
  record.kernel_plan = whole.kernel_plan;
  record.saving.settled = settled;
  const Generation highest = std::max(job.key.generation, whole.highest_generation);
  record.next_generation = Generation(Bounded64(highest.value()) + kMargin);
  record.adoption = store::JobAdoption{.cluster_id = job.cluster_id, .acknowledged = acknowledged};
  record.epoch_base = std::max<std::int64_t>(0, seen_epoch - epoch) + kMargin;
  return adoption;
}

}  // namespace takt::job
