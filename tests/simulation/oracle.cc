// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/oracle.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <span>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/overloaded.h"
#include "common/checkpoint/directory.h"
#include "common/checkpoint/hash.h"
#include "common/checkpoint/layout.h"
#include "common/checkpoint/manifest.h"
#include "tests/simulation/training_state.h"

namespace takt::simulation {

using store::JobRecord;
using store::JobState;

namespace {

std::string Named(const control::JobKey& key) {
  return absl::StrCat("job ", key.job, " generation ", key.generation.value());
}

}  // namespace

void Oracle::Violate(const std::string& invariant, const std::string& what) {
  if (violation_) return;
  trace_.Add("oracle", "VIOLATED: ", invariant, ": ", what);
  violation_ = Violation{invariant, what};
  loop_.Stop();
}

const DurableJob* Oracle::Find(const std::string& name) const {
  for (const auto& [id, job] : jobs_) {
    if (job.name == name) return &job;
  }
  return nullptr;
}

void Oracle::RankDid(const control::JobKey& key, StepId step) {
  done_[key] = std::max(done_[key], step);
}

void Oracle::RankBegins(const control::JobKey& key, Rank rank, const std::string& worker) {
  const auto [it, added] = running_.try_emplace({key, rank}, worker);
  if (added || it->second == worker) return;
  Violate("a rank runs once", absl::StrCat("rank ", rank.value(), " of ", Named(key), " runs on ",
                                           it->second, " and on ", worker));
}

void Oracle::RankIsGone(const control::JobKey& key, Rank rank) { running_.erase({key, rank}); }

void Oracle::Chose(const control::JobKey& key) {
  chose_[key.job] = std::max(chose_[key.job], key.generation);
}

std::string Oracle::WhatIsWrongWith(const DurableJob& job, StepId step) const {
  const std::string path =
      absl::StrCat(root_, "/", job.directory, "/", checkpoint::StepDirectoryName(step));
  const auto manifest = checkpoint::ReadCompleteStep(path);
  if (!manifest.ok()) return std::string(manifest.status().message());
  for (const checkpoint::FileEntry& file : manifest->files) {
    std::ifstream opened(absl::StrCat(path, "/", file.name));
    const std::string text{std::istreambuf_iterator<char>(opened), {}};
    if (checkpoint::HashOf(std::as_bytes(std::span(text))) != file.xxh3_128)
      return absl::StrCat(path, "/", file.name, " is damaged");
  }
  return "";
}

// Whoever has made a checkpoint visible may remove older ones before the coordinator hears of it.
bool Oracle::HasNewerCheckpoint(const DurableJob& job) const {
  for (std::int64_t step = job.stored().value(); step > job.checkpoint.value(); --step) {
    if (WhatIsWrongWith(job, StepId(step)).empty()) return true;
  }
  return false;
}

void Oracle::CheckDirectory(const std::string& directory) {
  for (const auto& [name, relative] : directories_) {
    if (!relative.empty() && absl::StrCat(root_, "/", relative) == directory)
      CheckPublished(name, directory);
  }
  for (const auto& [id, job] : jobs_) {
    if (job.directory.empty() || absl::StrCat(root_, "/", job.directory) != directory) continue;
    if (job.checkpoint > StepId(0)) {
      const std::string wrong = WhatIsWrongWith(job, job.checkpoint);
      if (!wrong.empty() && !HasNewerCheckpoint(job))
        Violate("the newest checkpoint stays", absl::StrCat("job ", job.name, ": ", wrong));
    }
    if (job.state == JobState::kRunning && job.resumed > StepId(0)) {
      if (const std::string wrong = WhatIsWrongWith(job, job.resumed); !wrong.empty())
        Violate("what was resumed from stays", absl::StrCat("job ", job.name, ": ", wrong));
    }
  }
}

// Whoever publishes after a later generation has looked for its step was not fenced off.
void Oracle::CheckPublished(const std::string& job, const std::string& directory) {
  const auto steps = checkpoint::ListSteps(directory);
  if (!steps.ok()) return;
  for (const checkpoint::ListedStep& listed : *steps) {
    if (listed.state != checkpoint::StepState::kComplete) continue;
    const Generation generation = listed.manifest->generation;
    const bool is_new = published_.emplace(directory, listed.name, generation).second;
    if (!is_new || generation >= chose_[job]) continue;
    Violate(
        "no older generation publishes",
        absl::StrCat(listed.name, " of generation ", generation.value(), " of job ", job,
                     " appeared after generation ", chose_[job].value(), " had chosen its step"));
  }
}

void Oracle::CheckAllDirectories() {
  for (const auto& [job, directory] : directories_) {
    if (!directory.empty()) CheckDirectory(absl::StrCat(root_, "/", directory));
  }
}

void Oracle::Begins(std::int64_t epoch) {
  if (epoch <= epoch_)
    Violate("epochs rise", absl::StrCat("epoch ", epoch, " comes after ", epoch_));
  epoch_ = epoch;
}

void Oracle::Starts(const store::Snapshot& snapshot) {
  std::set<std::string> ids;
  for (const JobRecord& record : snapshot.jobs) {
    ids.insert(record.id);
    const auto job = jobs_.find(record.id);
    const StepId last = record.last_step ? record.last_step->step : StepId(0);
    if (job == jobs_.end()) {
      Violate("acknowledged is durable", absl::StrCat("job ", record.name, " came from nowhere"));
    } else if (job->second.state != record.state || job->second.generation != record.generation ||
               job->second.last_step != last) {
      Violate(
          "acknowledged is durable",
          absl::StrCat("job ", record.name, " is ", store::Name(record.state), " at step ",
                       last.value(), " after a restart, and was ", store::Name(job->second.state),
                       " at step ", job->second.last_step.value()));
    }
  }
  for (const auto& [id, job] : jobs_) {
    if (!ids.contains(id))
      Violate("acknowledged is durable", absl::StrCat("job ", job.name, " is lost"));
  }
  if (snapshot.drained != drained_)
    Violate("acknowledged is durable", "other workers are drained after a restart");
}

void Oracle::LosesState() {
  for (const auto& [id, job] : jobs_) lost_[job.name] = job.done();
  jobs_.clear();
  drained_.clear();
  past_generations_.clear();
  epoch_ = 0;
}

void Oracle::Commits(const store::Changes& changes) {
  std::map<std::string, Generation> before;
  for (const auto& [id, job] : jobs_) before[id] = job.generation;
  for (const JobRecord& record : changes.jobs) Apply(record);
  for (const store::StepRecord& step : changes.steps) CheckStep(step, before[step.job_id]);
  for (const JobRecord& record : changes.jobs) {
    if (const auto job = jobs_.find(record.id); job != jobs_.end()) CheckEnd(record, job->second);
  }
  for (const std::string& id : changes.deleted_jobs) {
    const auto job = jobs_.find(id);
    if (job == jobs_.end()) continue;
    Generation& past = past_generations_[job->second.name];
    past = std::max(past, job->second.generation);
    jobs_.erase(job);
  }
  for (const auto& [worker, drained] : changes.drained) {
    if (drained) {
      drained_.insert(worker);
    } else {
      drained_.erase(worker);
    }
  }
  if (!changes.jobs.empty()) CheckRanks();
}

void Oracle::Apply(const JobRecord& record) {
  const auto [it, added] = jobs_.try_emplace(record.id);
  DurableJob& job = it->second;
  if (added) {
    job.name = record.name;
    job.steps = record.steps;
    job.directory = directories_[record.name];
    job.progress = loop_.now();
    job.generation = past_generations_[record.name];
    // A job that is submitted begins in the queue.
    if (record.state == JobState::kRunning) job.adopted_after = lost_[record.name];
  }
  if (record.generation < job.generation) {
    Violate("generations rise",
            absl::StrCat("job ", record.name, " goes from generation ", job.generation.value(),
                         " to ", record.generation.value()));
  }
  if (store::HasEnded(job.state) && record.state != job.state) {
    Violate("ended jobs stay ended",
            absl::StrCat("job ", record.name, " goes from ", store::Name(job.state), " to ",
                         store::Name(record.state)));
  }
  if (job.state != record.state) {
    trace_.Add("coordinator", "job ", record.name, " generation ", record.generation.value(),
               " is ", store::Name(record.state), ": ", record.reason);
    if (store::HasEnded(record.state)) job.progress = loop_.now();
    if (record.state == JobState::kRunning) CountStart(record, job);
  }
  const DurableJob before = job;
  job.generation = record.generation;
  job.state = record.state;
  job.reason = record.reason;
  job.ranks = record.ranks;
  job.stop = record.stop;
  job.halt = record.halt;
  job.resumed = record.resumed_step;
  if (record.checkpoint) job.checkpoint = record.checkpoint->step;
  CheckCheckpoint(record, before);
}

void Oracle::CountStart(const JobRecord& record, DurableJob& job) {
  if (record.memory_step > StepId(0)) ++from_memory_;
  const std::size_t last = std::exchange(job.last_size, record.ranks.size());
  if (last > record.ranks.size()) ++shrunk_;
  if (last > 0 && last < record.ranks.size()) ++grown_;
}

void Oracle::CheckCheckpoint(const JobRecord& record, const DurableJob& before) {
  if (!record.checkpoint) return;
  const StepId step = record.checkpoint->step;
  if (step < before.checkpoint) {
    Violate("committed checkpoints are taken",
            absl::StrCat("job ", record.name, " went on from step ", record.resumed_step.value(),
                         ", though it has a checkpoint of step ", before.checkpoint.value()));
  }
  if (step <= before.checkpoint) return;
  trace_.Add("coordinator", "job ", record.name, " has the checkpoint of step ", step.value());
  if (const std::string wrong = WhatIsWrongWith(jobs_.at(record.id), step); !wrong.empty())
    Violate("acknowledged is durable",
            absl::StrCat("checkpoint of job ", record.name, ": ", wrong));
}

void Oracle::CheckStep(const store::StepRecord& step, Generation before) {
  const auto found = jobs_.find(step.job_id);
  if (found == jobs_.end()) return Violate("steps are one chain", "a step of no job is committed");
  DurableJob& job = found->second;
  const std::string what =
      absl::StrCat("step ", step.step.value(), " of ", Named({job.name, step.generation}));
  // Reports that the lost state had, and that the worker knows of, do not come again.
  const bool first_of_adopted = job.adopted_after > StepId(0) && job.last_step == StepId(0);
  const StepId next((first_of_adopted ? job.stored() : job.done()).value() + 1);
  if (first_of_adopted ? step.step > next : step.step != next) {
    Violate("steps are one chain",
            absl::StrCat(what, " is committed after step ", job.done().value()));
  }
  if (step.generation < before || step.generation < job.last_generation) {
    Violate("one generation commits",
            absl::StrCat(what, " is committed though generation ",
                         std::max(before, job.last_generation).value(), " has begun"));
  }
  if (done_[{job.name, step.generation}] < step.step)
    Violate("what counts was done", absl::StrCat(what, " is committed, but no rank did it"));
  if (step.loss != LossOf(UndisturbedState(job.name, step.step)))
    Violate("losses are those of an undisturbed run", what);
  job.last_step = step.step;
  job.last_generation = step.generation;
  job.progress = loop_.now();
  ++committed_steps_;
}

void Oracle::CheckEnd(const JobRecord& record, const DurableJob& job) {
  if (record.state == JobState::kSucceeded && job.stored() < StepId(job.steps)) {
    Violate("a job that succeeded did all its steps",
            absl::StrCat("job ", job.name, " did ", job.done().value(), " of ", job.steps));
  }
  const StepId saved = std::max(job.checkpoint, job.resumed);
  if (record.state == JobState::kSucceeded && !job.directory.empty() && saved < StepId(job.steps)) {
    Violate("a job that succeeded is saved",
            absl::StrCat("job ", job.name, " is saved up to step ", saved.value()));
  }
  if (record.state != JobState::kFailed) return;
  const bool disk_fails =
      config_.Has(Fault::kDiskFull) || config_.Has(Fault::kDiskErrors) || config_.late_renames > 0;
  const bool saves = !job.directory.empty();
  const bool may_fail = saves ? disk_fails : harmed_;
  // A job that saves no files, and has lost its copies in memory, can only be submitted again.
  if ((saves && record.invalid_input) || !may_fail)
    Violate("no healthy job fails", absl::StrCat("job ", job.name, ": ", record.reason));
}

void Oracle::CheckRanks() {
  std::map<std::pair<std::string, std::string>, std::string> jobs;  // by worker and incarnation
  for (const auto& [id, job] : jobs_) {
    if (job.stop) continue;  // its ranks are on their way out
    for (const control::BoundRank& rank : job.ranks) {
      const auto [it, added] = jobs.try_emplace({rank.worker, rank.incarnation}, job.name);
      if (added) continue;
      Violate("a worker has one job", absl::StrCat("worker ", rank.worker, " has ranks of jobs ",
                                                   it->second, " and ", job.name));
    }
  }
}

void Oracle::Sends(const std::string& worker, const control::Command& command) {
  const auto check = [&](const control::JobKey& key, bool durable, const char* what) {
    if (durable) return;
    Violate("nothing is sent before it is durable",
            absl::StrCat("worker ", worker, " is told to ", what, " for ", Named(key)));
  };
  std::visit(
      Overloaded{[&](const control::Prepare& prepare) {
                   const DurableJob* const job = Find(prepare.key.job);
                   check(prepare.key, job != nullptr && job->generation >= prepare.key.generation,
                         "prepare");
                 },
                 [&](const control::Start& start) {
                   const DurableJob* const job = Find(start.key.job);
                   const bool waits = job != nullptr && job->generation == start.key.generation &&
                                      job->state == JobState::kStarting;
                   check(start.key, job != nullptr && !waits, "start");
                 },
                 [&](const control::CommitCheckpoint& commit) {
                   const DurableJob* const job = Find(commit.key.job);
                   if (commit.manifest.empty() || job == nullptr) return;
                   check(commit.key, job->stored() >= commit.step, "commit a checkpoint");
                 },
                 [](const auto&) {}},
      command);
}

void Oracle::Acknowledges(const control::JobKey& key, StepId step) {
  const DurableJob* const job = Find(key.job);
  if (job != nullptr && job->stored() >= step) return;
  Violate("acknowledged is durable",
          absl::StrCat("reports of step ", step.value(), " of ", Named(key), " are acknowledged"));
}

}  // namespace takt::simulation
