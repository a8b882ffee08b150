// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/blame.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/bounded_text.h"

namespace takt::job {
namespace {

using store::JobFault;

// So many bytes of an error are kept, and so many faults of a job: the first one, because it says
// since when, and the newest.
constexpr std::size_t kMostErrorBytes = 256;
constexpr std::size_t kMostFaults = 32;

bool HasCode(const std::string& error, absl::StatusCode code) {
  return absl::StartsWith(error, absl::StatusCodeToString(code));
}

// True if the error tells only that another rank, or the connection to it, is gone.
bool IsOfALink(const std::string& error) {
  constexpr std::array kCodes = {absl::StatusCode::kUnavailable,
                                 absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kAborted,
                                 absl::StatusCode::kCancelled};
  return std::ranges::any_of(kCodes, [&](absl::StatusCode code) { return HasCode(error, code); });
}

bool HasError(const RankRun& rank) {
  return rank.phase == RankPhase::kRefused || rank.phase == RankPhase::kFailed;
}

// True if the rank says of its error that it is due to `cause`.
bool Says(const RankRun& rank, control::Cause cause) {
  return HasError(rank) && rank.cause == cause && !rank.invalid_input;
}

// Returns the first rank that says that its error is due to its worker, or for which that follows
// from what the others say; null if there is none.
const RankRun* FindOwnError(const JobRun& run) {
  for (const control::Cause cause :
       {control::Cause::kWorker, control::Cause::kInputs, control::Cause::kUnknown}) {
    if (cause == control::Cause::kInputs && std::ranges::all_of(run.ranks, RefusesInputs)) continue;
    const auto own = std::ranges::find_if(run.ranks, [cause](const RankRun& rank) {
      return Says(rank, cause) && !(cause == control::Cause::kUnknown && IsOfALink(rank.error));
    });
    if (own != run.ranks.end()) return &*own;
  }
  return nullptr;
}

// Returns the error that is the job's, empty if there is none.
std::string ErrorOfTheJob(const JobRun& run) {
  const auto told = std::ranges::find_if(run.ranks, [](const RankRun& rank) {
    return Says(rank, control::Cause::kJob) || RefusesInputs(rank);
  });
  if (told != run.ranks.end()) return told->error;
  const auto finished = [](const RankRun& rank) { return rank.phase == RankPhase::kFinished; };
  return std::ranges::all_of(run.ranks, finished) ? run.failed_save : "";
}

// Returns the one rank that waited for nothing while another rank ran out of time, null if there is
// none or there are several.
const RankRun* FindStuck(const JobRun& run) {
  const auto timed_out = [](const RankRun& rank) {
    return HasError(rank) && HasCode(rank.error, absl::StatusCode::kDeadlineExceeded);
  };
  if (std::ranges::none_of(run.ranks, timed_out)) return nullptr;
  const RankRun* stuck = nullptr;
  for (const RankRun& rank : run.ranks) {
    const bool worked = rank.phase == RankPhase::kAborted || !IsTerminal(rank.phase);
    const bool waited = !rank.status.waiting_for.empty() || rank.status.instruction.empty();
    if (!worked || waited) continue;
    if (stuck != nullptr) return nullptr;
    stuck = &rank;
  }
  return stuck;
}

std::string Cut(const std::string& text) { return std::string(FirstBytes(text, kMostErrorBytes)); }

bool IsError(const JobFault& fault) { return !fault.error.empty(); }

// Returns the first fault with the newest error on another worker, null if there is none.
const JobFault* FindSameElsewhere(const std::vector<JobFault>& faults) {
  const JobFault& newest = faults.back();
  const auto same = std::ranges::find_if(faults, [&](const JobFault& fault) {
    return IsError(fault) && fault.error == newest.error && fault.step == newest.step &&
           fault.worker != newest.worker;
  });
  return same == faults.end() ? nullptr : &*same;
}

// Returns how long a job has been tried since its first fault. What a wall clock says of the time
// while no coordinator was there does not count: it may have been set.
absl::Duration TimeTried(const std::vector<JobFault>& faults) {
  absl::Duration time;
  for (std::size_t i = 1; i < faults.size(); ++i) time += faults[i].tried;
  return time;
}

}  // namespace

const RankRun* FindSilentlyLost(const JobRun& run) {
  const auto it = std::ranges::find_if(
      run.ranks, [](const RankRun& r) { return r.lost && !IsTerminal(r.phase); });
  return it == run.ranks.end() ? nullptr : &*it;
}

const RankRun* FindAtFault(const JobRun& run) {
  const RankRun* const lost = FindSilentlyLost(run);
  return lost != nullptr ? lost : FindOwnError(run);
}

bool RefusesInputs(const RankRun& rank) {
  return rank.phase == RankPhase::kRefused && rank.cause == control::Cause::kInputs;
}

Culprit FindGuilty(const JobRun& run) {
  if (const RankRun* const lost = FindSilentlyLost(run))
    return {.rank = lost, .what = Cut(*lost->lost)};
  if (const RankRun* const own = FindOwnError(run)) {
    const std::string error = Cut(own->error);
    return {.rank = own, .error = own->leaves ? "" : error, .what = error};
  }
  if (const RankRun* const stuck = FindStuck(run)) {
    return {.rank = stuck,
            .what = absl::StrCat("it was stuck at ", Cut(stuck->status.instruction))};
  }
  return {.error = Cut(ErrorOfTheJob(run))};
}

std::vector<JobFault> FaultsWith(const store::JobRecord& job, const JobRun& run, Moment now) {
  const Culprit guilty = FindGuilty(run);
  JobFault fault{.time = now.wall,
                 .tried = now.steady - run.tried_since,
                 .error = guilty.error,
                 .committed = run.steps.last_taken()};
  if (guilty.rank != nullptr) {
    fault.worker = guilty.rank->bound.worker;
    fault.step = guilty.rank->status.last_step;
  }
  std::vector<JobFault> faults = job.faults;
  if (!faults.empty() && fault.committed > faults.back().committed) faults.clear();
  if (faults.size() == kMostFaults) {
    faults[2].tried += faults[1].tried;
    faults.erase(faults.begin() + 1);
  }
  faults.push_back(std::move(fault));
  return faults;
}

std::optional<std::string> WhyGivenUp(const std::vector<JobFault>& faults,
                                      const DecideOptions& options) {
  const JobFault& newest = faults.back();
  if (const JobFault* const same = FindSameElsewhere(faults)) {
    return absl::StrCat("given up, because workers ", same->worker, " and ", newest.worker,
                        " failed with the same error after step ", newest.step.value(),
                        ", so it is the job's");
  }
  const std::string without = absl::StrCat(" without a step after ", newest.committed.value());
  if (std::ranges::count_if(faults, IsError) > options.max_recoveries && IsError(newest))
    return absl::StrCat("given up after ", faults.size() - 1, " recoveries", without);
  const absl::Duration time = TimeTried(faults);
  const bool tried = faults.size() > static_cast<std::size_t>(options.max_recoveries);
  if (tried && time >= options.give_up_after) {
    return absl::StrCat("given up after ", faults.size() - 1, " recoveries in ",
                        absl::FormatDuration(absl::Floor(time, absl::Seconds(1))), without);
  }
  return std::nullopt;
}

bool IsOfTheJob(const std::vector<JobFault>& faults, const Culprit& guilty,
                const DecideOptions& options) {
  if (guilty.rank == nullptr || guilty.error.empty() || RefusesInputs(*guilty.rank)) return false;
  if (FindSameElsewhere(faults) != nullptr) return true;
  if (guilty.rank->phase != RankPhase::kRefused || guilty.rank->violations.empty()) return false;
  const auto differs = [&](const JobFault& fault) {
    return IsError(fault) && fault.error != guilty.error;
  };
  return std::ranges::count_if(faults, IsError) > options.max_recoveries &&
         std::ranges::none_of(faults, differs);
}

std::vector<FieldError> WrongFields(const std::vector<JobFault>& faults, const Culprit& guilty,
                                    const DecideOptions& options) {
  const bool refused = guilty.rank != nullptr && guilty.rank->phase == RankPhase::kRefused;
  if (!refused || faults.back().committed > StepId(0) || !IsOfTheJob(faults, guilty, options))
    return {};
  return guilty.rank->violations;
}

absl::Duration BackoffAfter(std::size_t num_faults, const DecideOptions& options) {
  if (num_faults < 2) return absl::ZeroDuration();
  const double doublings = std::min(static_cast<double>(num_faults - 2), 30.0);
  return std::min(options.first_backoff * std::exp2(doublings), options.longest_backoff);
}

}  // namespace takt::job
