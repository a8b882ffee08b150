// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/job_table.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::job {
namespace {

// True if the job may still write checkpoints.
bool Saves(const Job& job) {
  return !store::HasEnded(job.record().state) && job.spec().checkpoint.has_value();
}

std::filesystem::path CheckpointPath(const config::JobSpec& spec) {
  return std::filesystem::path(spec.checkpoint->directory + "/").lexically_normal();
}

// Returns the id of the job whose plan was being made, empty if there is none: plans are made in
// the order in which they were asked for.
std::string FirstPlanned(const std::vector<store::JobRecord>& jobs) {
  const store::JobRecord* first = nullptr;
  for (const store::JobRecord& job : jobs) {
    if (job.state != store::JobState::kPlanning || job.transitions.empty()) continue;
    if (first == nullptr || job.transitions.back().time < first->transitions.back().time)
      first = &job;
  }
  return first == nullptr ? "" : first->id;
}

}  // namespace

absl::Status NoSuchJob(const std::string& name, bool held) {
  if (held) {
    return absl::NotFoundError(
        absl::StrCat("job ", name,
                     " is held: its workers train it, and this coordinator does not know it; "
                     "`takt adopt ",
                     name, "` takes it over, and `takt abandon ", name, "` ends it"));
  }
  return absl::NotFoundError(absl::StrCat("no job named ", name, "; `takt jobs` lists them"));
}

JobTable::JobTable(const JobContext* context, store::Snapshot snapshot, Moment now)
    : context_(*context),
      last_number_(snapshot.last_number),
      generations_(std::move(snapshot.generations)) {
  const std::string planned = FirstPlanned(snapshot.jobs);
  for (store::JobRecord& record : snapshot.jobs) {
    context_.outbox->published.push_back(std::make_shared<const store::JobRecord>(record));
    const bool was_planned = record.id == planned;
    Insert(std::move(record)).Restore(was_planned, now);
  }
}

Job& JobTable::Insert(store::JobRecord record) {
  const std::int64_t number = record.number;
  Job& job = jobs_.try_emplace(number, &context_, std::move(record)).first->second;
  by_name_.try_emplace(job.record().name, &job);
  by_id_.try_emplace(job.record().id, &job);
  live_[number] = &job;
  return job;
}

void JobTable::Erase(const Job& job) {
  const store::JobRecord& record = job.record();
  by_name_.erase(record.name);
  by_id_.erase(record.id);
  if (record.end_time) ended_.erase({*record.end_time, record.number});
  const std::int64_t number = record.number;
  live_.erase(number);
  jobs_.erase(number);
}

Job* JobTable::Find(const std::string& name) {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return nullptr;
  found->second->HasNews();
  live_[found->second->record().number] = found->second;
  return found->second;
}

const Job* JobTable::Find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

Job* JobTable::FindById(const std::string& id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return nullptr;
  found->second->HasNews();
  live_[found->second->record().number] = found->second;
  return found->second;
}

void JobTable::Settle() {
  for (auto it = live_.begin(); it != live_.end();) {
    const Job& job = *it->second;
    if (!store::HasEnded(job.record().state) || job.HasWaitingBatch()) {
      ++it;
      continue;
    }
    if (job.record().end_time)
      ended_.try_emplace({*job.record().end_time, job.record().number}, &job);
    it = live_.erase(it);
  }
}

std::vector<EndedJob> JobTable::FirstEnded(int most) const {
  std::vector<EndedJob> first;
  for (const auto& [end, job] : ended_) {
    if (std::ssize(first) >= most) break;
    const store::JobRecord& record = job->record();
    first.push_back({.name = record.name,
                     .end = end.first,
                     .steps = record.last_step ? record.last_step->step.value() : 0});
  }
  return first;
}

Job* JobTable::FindRunning(const control::JobKey& key) {
  Job* const job = Find(key.job);
  return job != nullptr && job->has_run() && job->key() == key ? job : nullptr;
}

absl::Status JobTable::CheckNew(const config::JobSpec& spec) const {
  if (Find(spec.name) != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat(
        "a job named ", spec.name, " exists; choose another name, or delete that one"));
  }
  if (!spec.checkpoint) return absl::OkStatus();
  for (const auto& [number, job] : live_) {
    const store::JobRecord& other = job->record();
    if (!Saves(*job)) continue;
    // Other spellings and links are found by the worker of rank 0, which sees the real directory.
    if (CheckpointPath(job->spec()) != CheckpointPath(spec)) continue;
    return InvalidField({.field = "checkpoint.directory",
                         .value = spec.checkpoint->directory,
                         .rule = absl::StrCat("is that of job ", other.name, ", which is ",
                                              store::Name(other.state)),
                         .fix = "name another one, or end that job first"});
  }
  return absl::OkStatus();
}

std::vector<std::string> JobTable::SavingJobs() const {
  std::vector<std::string> ids;
  for (const auto& [number, job] : live_) {
    if (Saves(*job)) ids.push_back(job->record().id);
  }
  return ids;
}

Job& JobTable::Add(store::JobRecord record) {
  record.number = ++last_number_;
  if (const auto it = generations_.find(record.name); it != generations_.end())
    record.generation = it->second;
  return Insert(std::move(record));
}

absl::Status JobTable::CheckTakeOver(const store::JobRecord& record) const {
  const Job* const known = Find(record.name);
  if (known == nullptr) return absl::OkStatus();
  const store::JobState state = known->record().state;
  if (known->record().id != record.id || store::HasEnded(state)) {
    return absl::AlreadyExistsError(absl::StrCat("this coordinator has a job named ", record.name,
                                                 ", which is ", store::Name(state),
                                                 "; end and delete it first"));
  }
  if (state == store::JobState::kQueued || state == store::JobState::kPaused)
    return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("job ", record.name, " is ", store::Name(state),
                   " in this coordinator's state; try again when it is QUEUED"));
}

Job& JobTable::TakeOver(Adoption adoption, Moment now) {
  store::JobRecord& record = adoption.record;
  if (Job* const known = Find(record.name)) {
    const store::JobRecord& before = known->record();
    record.number = before.number;
    record.owner = before.owner;
    record.create_time = before.create_time;
    record.transitions = before.transitions;
    record.forgotten_transitions = before.forgotten_transitions;
    record.last_step = before.last_step;
    record.notices = before.notices;
    const Generation known_next = std::max(before.next_generation, before.generation);
    record.next_generation = std::max(record.next_generation, known_next);
    record.epoch_base = std::max(record.epoch_base, before.epoch_base);
    Erase(*known);
  } else {
    record.number = ++last_number_;
  }
  Job& job = Insert(std::move(record));
  job.TakeOver(std::move(adoption.spec), now);
  return job;
}

bool JobTable::IsOver(const control::JobKey& key) const {
  if (const Job* const job = Find(key.job)) return job->record().generation >= key.generation;
  const auto deleted = generations_.find(key.job);
  return deleted != generations_.end() && deleted->second >= key.generation;
}

void JobTable::Remove(const Job& job) {
  generations_[job.record().name] = job.record().generation;
  Erase(job);
}

}  // namespace takt::job
