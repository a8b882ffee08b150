// SPDX-License-Identifier: Apache-2.0
#include "coordinator/traces/trace_keeper.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/trace/encoding.h"
#include "common/trace/nearest_steps.h"
#include "coordinator/traces/frame_file.h"
#include "coordinator/traces/kept_trace_serde.h"

namespace takt::traces {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kClockKeptNanos = 3600ll * 1'000'000'000;
constexpr char kHeader[] = ".header", kSteps[] = ".steps", kOldSteps[] = ".steps.old";

std::vector<double> LayerWork(const model::Model& model) {
  std::vector<double> work;
  for (const model::Layer& layer : model.layers) work.push_back(layer.cost.Work());
  return work;
}

trace::JobTrace HeaderOf(const job::Launch& launch) {
  return {.job = launch.key.job,
          .generation = launch.key.generation,
          .mesh = launch.plan.mesh,
          .programs = launch.plan.programs,
          .predicted = launch.plan.costs,
          .layer_work = LayerWork(launch.plan.model)};
}

absl::Status NoneKept(const std::string& job) {
  return absl::FailedPreconditionError(
      absl::StrCat("job ", job, " has not been measured: no step of it has run yet"));
}

// Picks those of `steps` (ascending) that are wanted.
absl::StatusOr<std::set<StepId>> Select(const std::string& job, const std::set<StepId>& steps,
                                        const StepRange& range) {
  if (steps.empty()) return NoneKept(job);
  if (const auto center = steps.find(StepId(range.around)); center != steps.end()) {
    auto first = center, end = std::next(center);
    for (int i = 1; i < range.newest && first != steps.begin(); ++i) --first;
    for (int i = 1; i < range.newest && end != steps.end(); ++i) ++end;
    return std::set<StepId>(first, end);
  }
  std::set<StepId> selected;
  if (range.first == 0 && range.last == 0) {
    for (auto step = steps.rbegin();
         step != steps.rend() && static_cast<int>(selected.size()) < std::max(1, range.newest);
         ++step) {
      selected.insert(*step);
    }
    return selected;
  }
  for (const StepId step : steps) {
    if (step >= StepId(range.first) && step <= StepId(range.last)) selected.insert(step);
  }
  if (!selected.empty()) return selected;
  const std::int64_t first = range.around > 0 ? range.around : range.first;
  const std::int64_t last = range.around > 0 ? range.around : range.last;
  const std::string wanted =
      first == last ? absl::StrCat("step ", first, " of job ", job, " is")
                    : absl::StrCat("steps ", first, " to ", last, " of job ", job, " are");
  const std::vector<StepId> kept(steps.begin(), steps.end());
  return absl::NotFoundError(
      absl::StrCat(wanted, " not kept: ", trace::NearestSteps(kept, StepId(first), StepId(last))));
}

}  // namespace

TraceKeeper::TraceKeeper(TraceKeeperOptions options) : options_(std::move(options)) {
  std::error_code error;
  fs::create_directories(options_.directory, error);
  if (error) {
    Log(LogLevel::kWarning, "traces cannot be kept",
        {{"directory", options_.directory}, {"error", error.message()}});
  }
  absl::MutexLock lock(&mutex_);
  for (const fs::directory_entry& entry : fs::directory_iterator(options_.directory, error)) {
    if (entry.path().extension() == kHeader) kept_.insert(entry.path().stem());
  }
}

std::string TraceKeeper::PathOf(const std::string& job, const char* suffix) const {
  return absl::StrCat(options_.directory, "/", job, suffix);
}

void TraceKeeper::Begin(const job::Launch& launch) {
  Run run{.generation = launch.key.generation,
          .header = HeaderOf(launch),
          .recent = RecentSteps(launch.plan.mesh.size(), options_.max_recent_bytes)};
  for (const control::BoundRank& bound : launch.ranks) {
    run.holders.emplace_back(bound.worker, bound.incarnation);
  }
  const std::string header = FormatHeader(run.header, run.holders);
  absl::MutexLock lock(&mutex_);
  std::error_code error;
  for (const char* steps : {kSteps, kOldSteps}) fs::remove(PathOf(launch.key.job, steps), error);
  std::ofstream file(PathOf(launch.key.job, kHeader), std::ios::binary | std::ios::trunc);
  file << header;
  file.flush();
  if (!file.good()) Complain(absl::UnavailableError(PathOf(launch.key.job, kHeader)));
  runs_[launch.key.job] = std::move(run);
  kept_.insert(launch.key.job);
  DropOldJobs();
}

void TraceKeeper::DropOldJobs() {
  std::error_code error;
  std::vector<std::pair<fs::file_time_type, std::string>> jobs;
  for (const fs::directory_entry& entry : fs::directory_iterator(options_.directory, error)) {
    if (entry.path().extension() == kHeader) {
      jobs.emplace_back(entry.last_write_time(error), entry.path().stem());
    }
  }
  std::sort(jobs.begin(), jobs.end());
  for (std::size_t i = 0; i + options_.max_jobs < jobs.size(); ++i) {
    for (const char* suffix : {kHeader, kSteps, kOldSteps}) {
      fs::remove(PathOf(jobs[i].second, suffix), error);
    }
    runs_.erase(jobs[i].second);
    kept_.erase(jobs[i].second);
  }
}

void TraceKeeper::Forget(const std::string& job) {
  absl::MutexLock lock(&mutex_);
  std::error_code error;
  for (const char* suffix : {kHeader, kSteps, kOldSteps}) fs::remove(PathOf(job, suffix), error);
  runs_.erase(job);
  kept_.erase(job);
}

void TraceKeeper::AddClock(const std::string& worker, const std::string& incarnation,
                           std::int64_t sent_nanos, std::int64_t theirs_nanos,
                           std::int64_t received_nanos) {
  absl::MutexLock lock(&mutex_);
  if (!clocks_.contains(worker)) {
    std::erase_if(clocks_, [&](const auto& entry) {
      return received_nanos - entry.second.answered_nanos > kClockKeptNanos;
    });
  }
  WorkerClock& clock = clocks_[worker];
  // The clock of an earlier process may be that of another host.
  if (clock.incarnation != incarnation) clock = {.incarnation = incarnation};
  clock.answered_nanos = received_nanos;
  clock.filter.Add(sent_nanos, theirs_nanos, received_nanos);
}

std::optional<TraceKeeper::Run> TraceKeeper::LoadRun(const std::string& job) const {
  std::ifstream file(PathOf(job, kHeader), std::ios::binary);
  if (!file) return std::nullopt;
  std::stringstream bytes;
  bytes << file.rdbuf();
  auto kept = ParseHeader(bytes.str());
  if (!kept.ok()) return std::nullopt;
  const int num_ranks = kept->header.mesh.size();
  return Run{.generation = kept->header.generation,
             .header = std::move(kept->header),
             .holders = std::move(kept->holders),
             .recent = RecentSteps(num_ranks, options_.max_recent_bytes)};
}

TraceKeeper::Run* TraceKeeper::FindRun(const std::string& job) {
  auto found = runs_.find(job);
  if (found == runs_.end()) {
    // The job may have been known before a restart of the coordinator.
    if (!kept_.contains(job)) return nullptr;
    std::optional<Run> loaded = LoadRun(job);
    if (!loaded.has_value()) return nullptr;
    found = runs_.emplace(job, std::move(loaded)).first;
  }
  return &*found->second;
}

void TraceKeeper::Add(const std::string& worker, const std::string& incarnation, const JobKey& key,
                      const std::string& encoded) {
  // A worker named the job, and the name becomes part of a path.
  if (absl::StrContains(key.job, '/')) return;
  {
    // Most jobs of a large cluster are not kept, and what they send is not even decoded.
    absl::MutexLock lock(&mutex_);
    const Run* const run = FindRun(key.job);
    if (run == nullptr || run->generation != key.generation) return;
  }
  absl::StatusOr<trace::StepTrace> step = trace::Decode(encoded);
  absl::MutexLock lock(&mutex_);
  Run* const run = FindRun(key.job);
  if (!step.ok() || run == nullptr || run->generation != key.generation) return;
  const int rank = step->rank.value();
  if (rank >= static_cast<int>(run->holders.size()) ||
      run->holders[rank] != std::pair(worker, incarnation) ||
      !trace::Fits(*step, run->header.ProgramOf(rank))) {
    return;
  }
  trace::ClockOffset clock;
  const auto found = clocks_.find(worker);
  if (found != clocks_.end() && found->second.incarnation == incarnation) {
    clock = found->second.filter.Offset().value_or(clock);
  }
  Complain(FrameFile(PathOf(key.job, kSteps), options_.max_job_bytes)
               .Append(FormatStep(encoded, clock)));
  run->recent.Add(*std::move(step), clock);
  run->told = ++told_;
  DropOldSteps();
}

void TraceKeeper::DropOldSteps() {
  std::int64_t bytes = 0;
  for (const auto& [job, run] : runs_) bytes += run->recent.bytes();
  while (bytes > options_.max_all_recent_bytes) {
    // It is dropped from the job that reported nothing for longest, never from the one that just
    // did.
    const auto oldest = std::ranges::min_element(runs_, {}, [](const auto& entry) {
      const Run& run = *entry.second;
      return run.recent.bytes() == 0 ? std::numeric_limits<std::int64_t>::max() : run.told;
    });
    Run& run = *oldest->second;
    if (run.told == told_) return;
    bytes -= run.recent.bytes();
    run.recent = RecentSteps(run.header.mesh.size(), options_.max_recent_bytes);
  }
}

std::vector<std::string> TraceKeeper::JobsWithNews() const {
  std::vector<std::string> jobs;
  absl::MutexLock lock(&mutex_);
  for (const auto& [job, run] : runs_) {
    if (run.has_value() && run->recent.newest_complete() > run->taken) jobs.push_back(job);
  }
  return jobs;
}

trace::JobTrace TraceKeeper::TakeNewest(const std::string& job, int count) {
  absl::MutexLock lock(&mutex_);
  const auto found = runs_.find(job);
  if (found == runs_.end() || !found->second.has_value()) return {};
  Run& run = *found->second;
  run.taken = run.recent.newest_complete();
  trace::JobTrace trace = run.header;
  trace.ranks = run.recent.Newest(count);
  return trace;
}

void TraceKeeper::Complain(const absl::Status& status) {
  if (status.ok() || std::exchange(complained_, true)) return;
  Log(LogLevel::kWarning, "traces cannot be kept", {{"error", status.ToString()}});
}

absl::StatusOr<trace::JobTrace> TraceKeeper::Read(const std::string& job,
                                                  const StepRange& range) const {
  std::optional<Run> run;
  FrameReader reader;
  {
    // Header and steps are of one generation. They are read without the lock: steps that are added
    // meanwhile may be there or not.
    absl::MutexLock lock(&mutex_);
    run = LoadRun(job);
    reader = FrameFile(PathOf(job, kSteps), options_.max_job_bytes).Open();
  }
  if (!run.has_value()) return NoneKept(job);
  const std::vector<std::string> frames = reader.Read();
  trace::JobTrace trace = std::move(run->header);
  std::map<StepId, std::map<int, trace::StepTrace>> steps;  // by rank
  trace.ranks.resize(trace.mesh.size());
  for (const std::string& frame : frames) {
    auto kept = ParseStep(frame);
    if (!kept.ok() || kept->step.rank.value() >= trace.num_ranks()) continue;
    const int rank = kept->step.rank.value();
    trace.ranks[rank].clock = kept->clock;  // the newest
    steps[kept->step.step][rank] = std::move(kept->step);
  }
  std::set<StepId> complete;
  for (const auto& [step, ranks] : steps) {
    if (static_cast<int>(ranks.size()) == trace.num_ranks()) complete.insert(step);
  }
  ASSIGN_OR_RETURN(const std::set<StepId> selected, Select(job, complete, range));
  for (const StepId step : selected) {
    for (auto& [rank, of_rank] : steps[step]) trace.ranks[rank].steps.push_back(std::move(of_rank));
  }
  return trace;
}

}  // namespace takt::traces
