// SPDX-License-Identifier: Apache-2.0
#include "coordinator/profiles/profile_keeper.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/profile/profile_serde.h"

namespace takt::profiles {
namespace {

// The part that new values have beside old ones: a few minutes of another load on a host change the
// profile, one unusual step does not.
constexpr double kWeight = 0.2;

bool CanLearnFrom(const job::Launch& launch) {
  const auto is_known = [](const profile::RankPlace& place) {
    return !place.conditions.machine.empty();
  };
  return static_cast<int>(launch.places.size()) == launch.plan.mesh.size() &&
         std::ranges::all_of(launch.places, is_known);
}

double LargestSnapshot(const plan::Plan& plan) {
  std::int64_t largest = 0;
  for (const MemoryBytes& rank : plan.memory)
    largest = std::max(largest, rank[MemoryKind::kSnapshot]);
  return static_cast<double>(largest);
}

profile::Profile ParseOrDrop(const std::string& bytes) {
  if (bytes.empty()) return {};
  absl::StatusOr<profile::Profile> stored = profile::ParseProfile(bytes);
  if (stored.ok()) return *std::move(stored);
  Log(LogLevel::kWarning, "the stored profile is dropped; jobs are measured again",
      {{"reason", std::string(stored.status().message())}});
  return {};
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProfileKeeper>> ProfileKeeper::Open(
    store::Store* store, const ProfileKeeperOptions& options) {
  ASSIGN_OR_RETURN(const std::string bytes, store->ReadProfile());
  return std::unique_ptr<ProfileKeeper>(new ProfileKeeper(store, options, ParseOrDrop(bytes)));
}

ProfileKeeper::ProfileKeeper(store::Store* store, const ProfileKeeperOptions& options,
                             profile::Profile stored)
    : options_(options),
      store_(store),
      profile_(std::make_shared<const profile::Profile>(std::move(stored))) {}

ProfileKeeper::~ProfileKeeper() {
  if (unsaved_) Save();
}

void ProfileKeeper::Begin(const job::Launch& launch) {
  std::shared_ptr<Run> run;
  if (CanLearnFrom(launch)) {
    run = std::make_shared<Run>(
        Run{.generation = launch.key.generation,
            .model = launch.plan.model,
            .partition = launch.plan.partition,
            .vocabulary_ends = launch.plan.vocabulary_ends,
            .leaves = launch.job.parallelism.LeavesPerReplica(launch.plan.mesh.dp_size),
            .places = launch.places,
            .snapshot_bytes = LargestSnapshot(launch.plan)});
  }
  absl::MutexLock lock(&mutex_);
  runs_.erase(launch.key.job);
  if (run == nullptr) return;
  run->began = ++begun_;
  runs_[launch.key.job] = std::move(run);
  if (runs_.size() <= options_.max_jobs) return;
  runs_.erase(
      std::ranges::min_element(runs_, {}, [](const auto& entry) { return entry.second->began; }));
}

void ProfileKeeper::Forget(const std::string& job) {
  absl::MutexLock lock(&mutex_);
  runs_.erase(job);
}

void ProfileKeeper::LearnPause(const std::string& job, double seconds) {
  absl::MutexLock lock(&mutex_);
  const auto found = runs_.find(job);
  if (found == runs_.end() || found->second->snapshot_bytes == 0) return;
  const Run& run = *found->second;
  pauses_[run.places.front().conditions] = seconds / run.snapshot_bytes;
}

void ProfileKeeper::AddPauses(profile::Profile& learned) {
  std::map<profile::Conditions, double> pauses;
  {
    absl::MutexLock lock(&mutex_);
    pauses.swap(pauses_);
  }
  for (const auto& [conditions, seconds_per_byte] : pauses)
    learned.AddSnapshot(conditions, seconds_per_byte, kWeight);
}

std::shared_ptr<const ProfileKeeper::Run> ProfileKeeper::FindRun(
    const trace::JobTrace& trace) const {
  absl::MutexLock lock(&mutex_);
  const auto found = runs_.find(trace.job);
  const bool fits = found != runs_.end() && found->second->generation == trace.generation &&
                    found->second->places.size() == trace.ranks.size();
  return fits ? found->second : nullptr;
}

void ProfileKeeper::Learn(const trace::JobTrace& trace) {
  const std::shared_ptr<const Run> run = FindRun(trace);
  if (run == nullptr) return;
  auto learned = std::make_shared<profile::Profile>(*Read());
  if (learned->layers().size() >= options_.max_layers) {
    Log(LogLevel::kInfo, "the profile has as many layers as it may have and begins anew");
    *learned = profile::Profile();
  }
  if (learned->links().size() >= options_.max_links) {
    Log(LogLevel::kInfo, "the profile has as many links as it may have; these begin anew");
    learned->ForgetLinks();
  }
  const absl::Status status = profile::Learn(trace,
                                             {.model = run->model,
                                              .partition = run->partition,
                                              .places = run->places,
                                              .vocabulary_ends = run->vocabulary_ends,
                                              .leaves = run->leaves},
                                             kWeight, *learned);
  AddPauses(*learned);
  if (!status.ok()) {
    Log(LogLevel::kDebug, "nothing learned from a step",
        {{"job", trace.job}, {"error", status.ToString()}});
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    profile_ = std::move(learned);
  }
  unsaved_ = true;
  const absl::Duration now = Moment::Of(*options_.clock).steady;
  if (now - saved_at_ >= options_.save_interval) Save();
}

std::shared_ptr<const profile::Profile> ProfileKeeper::Read() const {
  absl::MutexLock lock(&mutex_);
  return profile_;
}

void ProfileKeeper::Save() {
  saved_at_ = Moment::Of(*options_.clock).steady;
  const absl::Status status = store_->Commit({.profile = profile::FormatProfile(*Read())});
  unsaved_ = !status.ok();
  if (status.ok() || std::exchange(complained_, true)) return;
  Log(LogLevel::kWarning, "the profile cannot be stored", {{"error", status.ToString()}});
}

}  // namespace takt::profiles
