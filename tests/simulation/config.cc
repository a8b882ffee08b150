// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/config.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/simulation/random.h"

namespace takt::simulation {
namespace {

constexpr std::array<std::string_view, kNumFaults> kFaultNames = {
    "break",         "partition",   "cut_off",     "kill_worker",      "vanish",
    "stop_worker",   "slow_worker", "leave",       "kill_coordinator", "stop_coordinator",
    "failed_commit", "store_full",  "lost_link",   "clock_step",       "disk_full",
    "disk_errors",   "paused_call", "killed_call", "power_cut",        "requests",
    "drain"};

constexpr std::array<std::string_view, 6> kMutationNames = {"none",
                                                            "effects_before_commit",
                                                            "stale_reports",
                                                            "forgotten_reports",
                                                            "forgotten_syncs",
                                                            "forgotten_coordinator"};

// The batch of eight sequences is divided among so many replicas.
constexpr std::array kReplicas = {1, 1, 1, 2, 2, 4};

JobShape DrawJob(int number, int num_workers, Random& random) {
  JobShape job{.name = absl::StrCat("j", number)};
  const int most = num_workers - 1;  // one is left as a spare
  job.data = kReplicas[random.Between(0, std::ssize(kReplicas) - 1)];
  job.data = std::min(job.data, most);
  if (job.data == 3) job.data = 2;
  job.pipeline = static_cast<int>(random.Between(1, std::clamp(most / job.data, 1, kLayers)));
  job.steps = random.Between(5, 40);
  job.step_time = random.Between(absl::Milliseconds(100), absl::Milliseconds(800));
  job.saves = random.Chance(0.8);
  job.every_steps = random.Chance(0.2) ? 0 : random.Between(1, 6);
  job.keep = static_cast<int>(random.Between(1, 3));
  if (job.num_ranks() > 1 && random.Chance(0.4)) job.copy_every_steps = random.Between(1, 4);
  if (job.saves || job.copy_every_steps > 0) {
    if (random.Chance(0.3)) job.least_pipeline = static_cast<int>(random.Between(1, job.pipeline));
    if (random.Chance(0.3)) job.least_data = 1;
  }
  if (random.Chance(0.2)) job.priority = static_cast<int>(random.Between(0, 100));
  job.submit_at = random.Between(absl::ZeroDuration(), absl::Seconds(10));
  return job;
}

absl::Duration DrawMeanTime(Fault fault, Random& random) {
  const bool on = random.Chance(0.35);
  const absl::Duration mean = random.Between(absl::Seconds(3), absl::Seconds(40));
  if (!on) return absl::InfiniteDuration();
  // These touch everything, so they are rarer.
  const bool heavy = fault == Fault::kPowerCut || fault == Fault::kCutOff ||
                     fault == Fault::kDiskFull || fault == Fault::kDiskErrors;
  return heavy ? 2 * mean : mean;
}

// "2", or "1..2" of an elastic job.
std::string SizeText(int size, int least) {
  return least > 0 ? absl::StrCat(least, "..", size) : absl::StrCat(size);
}

}  // namespace

std::string_view Name(Fault fault) { return kFaultNames[static_cast<int>(fault)]; }
std::string_view Name(Mutation mutation) { return kMutationNames[static_cast<int>(mutation)]; }

std::optional<Mutation> FindMutation(std::string_view name) {
  const auto found = std::ranges::find(kMutationNames, name);
  if (found == kMutationNames.end()) return std::nullopt;
  return static_cast<Mutation>(found - kMutationNames.begin());
}

Config DrawConfig(std::uint64_t seed) {
  Random random(Mix(seed, 1));
  Config config{.seed = seed};
  config.num_workers =
      static_cast<int>(random.Chance(0.7) ? random.Between(2, 8) : random.Between(9, 16));
  const std::int64_t num_jobs = random.Between(1, 4);
  for (int number = 0; number < num_jobs; ++number)
    config.jobs.push_back(DrawJob(number, config.num_workers, random));
  for (int fault = 0; fault < kNumFaults; ++fault)
    config.mean_time[fault] = DrawMeanTime(static_cast<Fault>(fault), random);
  config.fault_phase = random.Between(absl::Seconds(20), absl::Seconds(60));
  if (random.Chance(0.3))
    config.most_delay = random.Between(absl::Milliseconds(5), absl::Seconds(1));
  config.tick = random.Between(absl::Milliseconds(100), absl::Seconds(1));
  if (random.Chance(0.7)) config.first_backoff = absl::Seconds(1);
  if (random.Chance(0.7)) config.grow_after = absl::Seconds(2);
  config.exchanges = random.Chance(0.7);
  if (random.Chance(0.2)) config.late_renames = 0.1;
  return config;
}

Config QuietConfig(std::uint64_t seed) {
  Config config{.seed = seed, .num_workers = 3};
  config.jobs.push_back({.name = "j0",
                         .pipeline = 2,
                         .steps = 6,
                         .step_time = absl::Milliseconds(300),
                         .every_steps = 2});
  config.mean_time.fill(absl::InfiniteDuration());
  config.fault_phase = absl::Seconds(20);
  config.first_backoff = absl::Seconds(1);
  config.grow_after = absl::Seconds(2);
  return config;
}

std::string ToString(const Config& config) {
  std::string text = absl::StrCat("workers ", config.num_workers, ", jobs");
  for (const JobShape& job : config.jobs) {
    absl::StrAppend(&text, " ", job.name, "=", SizeText(job.pipeline, job.least_pipeline), "x",
                    SizeText(job.data, job.least_data), "x", job.steps,
                    job.saves ? absl::StrCat("/", job.every_steps) : "",
                    job.copy_every_steps > 0 ? absl::StrCat("+", job.copy_every_steps) : "");
  }
  absl::StrAppend(&text, ", faults");
  for (int fault = 0; fault < kNumFaults; ++fault) {
    if (!config.Has(static_cast<Fault>(fault))) continue;
    absl::StrAppend(&text, " ", std::string(kFaultNames[fault]), "=",
                    absl::FormatDuration(absl::Trunc(config.mean_time[fault], absl::Seconds(1))));
  }
  absl::StrAppend(&text, ", phase ",
                  absl::FormatDuration(absl::Trunc(config.fault_phase, absl::Seconds(1))));
  if (config.late_renames > 0) absl::StrAppend(&text, ", late renames");
  if (!config.exchanges) absl::StrAppend(&text, ", no exchange");
  if (config.mutation != Mutation::kNone)
    absl::StrAppend(&text, ", broken rule ", std::string(Name(config.mutation)));
  return text;
}

}  // namespace takt::simulation
