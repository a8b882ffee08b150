// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/decide.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace takt::job {
namespace {

using store::JobState;

std::string WorkerAndRank(const RankRun& rank) {
  return absl::StrCat("worker ", rank.bound.worker, " (rank ", rank.bound.rank.value(), ")");
}

std::string LastSeenAt(const RankRun& rank) {
  if (rank.status.last_step == StepId(0) && rank.status.instruction.empty())
    return "before its first report";
  return absl::StrCat("last reported step ", rank.status.last_step.value(),
                      rank.status.instruction.empty()
                          ? ""
                          : absl::StrCat(", instruction ", rank.status.instruction));
}

std::string WhatItDid(const RankRun& rank) {
  const std::string who =
      absl::StrCat("rank ", rank.bound.rank.value(), " (", rank.bound.worker, ")");
  if (rank.phase == RankPhase::kFinished) return absl::StrCat(who, " had finished");
  if (rank.phase == RankPhase::kHalted) return absl::StrCat(who, " had halted");
  if (!IsTerminal(rank.phase))
    return absl::StrCat(who, rank.lost ? " was lost too" : " did not answer");
  if (!rank.status.waiting_for.empty())
    return absl::StrCat(who, " was waiting for ", rank.status.waiting_for);
  if (!rank.status.instruction.empty())
    return absl::StrCat(who, " was at ", rank.status.instruction, ", waiting for nothing");
  return absl::StrCat(who, " was waiting for nothing");
}

// The rank that a failure is blamed on: one that is gone without a word before one that told of an
// error, because the former makes its neighbours fail.
const RankRun* FindSilentlyLost(const JobRun& run) {
  const auto it = std::ranges::find_if(
      run.ranks, [](const RankRun& r) { return r.lost && !IsTerminal(r.phase); });
  return it == run.ranks.end() ? nullptr : &*it;
}

const RankRun* FindCulprit(const JobRun& run) {
  if (const RankRun* lost = FindSilentlyLost(run)) return lost;
  for (const RankPhase phase : {RankPhase::kRefused, RankPhase::kFailed, RankPhase::kAborted}) {
    const auto it = std::ranges::find(run.ranks, phase, &RankRun::phase);
    if (it != run.ranks.end()) return &*it;
  }
  return nullptr;
}

std::string Blame(const RankRun& rank) {
  if (!IsTerminal(rank.phase)) {
    return absl::StrCat(WorkerAndRank(rank), " lost: ", rank.lost.value_or("unknown"), "; ",
                        LastSeenAt(rank));
  }
  const char* verb = rank.phase == RankPhase::kRefused  ? " refused the job: "
                     : rank.phase == RankPhase::kFailed ? " failed: "
                                                        : " gave up: ";
  return absl::StrCat(
      WorkerAndRank(rank), verb, rank.error.empty() ? "no reason given" : rank.error,
      rank.phase == RankPhase::kRefused ? "" : absl::StrCat("; ", LastSeenAt(rank)));
}

std::string Names(const JobRun& run, const std::function<bool(const RankRun&)>& which) {
  std::vector<std::string> names;
  for (const RankRun& rank : run.ranks) {
    if (which(rank))
      names.push_back(absl::StrCat("rank ", rank.bound.rank.value(), " (", rank.bound.worker, ")"));
  }
  return absl::StrJoin(names, ", ");
}

Decision Wait(std::string reason) {
  return {.kind = Decision::Kind::kWait, .reason = std::move(reason)};
}

Decision Stop(std::string reason) {
  return {.kind = Decision::Kind::kStop, .reason = std::move(reason), .state = JobState::kFailed};
}

std::string GoesOnFrom(const JobRun& run) {
  return run.checkpoint > StepId(0)
             ? absl::StrCat("goes on from the checkpoint of step ", run.checkpoint.value())
             : "has no checkpoint of its own yet";
}

// How a stopped run ends.
Decision EndOfStop(const JobRun& run, const DecideOptions& options) {
  const store::JobStop& stop = *run.stop;
  Decision end{.kind = Decision::Kind::kEnd,
               .reason = stop.reason,
               .state = stop.state,
               .invalid_input = stop.invalid_input,
               .violations = stop.violations};
  const bool goes_on = stop.state == JobState::kRecovering || stop.state == JobState::kQueued;
  if (stop.state == JobState::kFailed && !stop.invalid_input) {
    end.reason = DescribeFault(run);
    if (run.has_checkpoints && run.recoveries.count >= options.max_recoveries) {
      absl::StrAppend(&end.reason, "; given up after ", run.recoveries.count,
                      " recoveries without a step after ", run.recoveries.at_step.value(), ": ",
                      absl::StrJoin(run.past_faults, "; "));
    }
  } else if (goes_on) {
    end.state = run.halt ? run.halt->next : JobState::kQueued;
    if (stop.state == JobState::kRecovering) end.reason = DescribeFault(run);
    if (run.halt && run.halt->reason != stop.reason)
      end.reason = absl::StrCat(run.halt->reason, "; ", end.reason);
    absl::StrAppend(&end.reason, "; ", GoesOnFrom(run));
  }
  return end;
}

// A stop was told: wait for the ranks to let go, for a while.
Decision DecideStopping(absl::Duration now, const JobRun& run, const DecideOptions& options) {
  const auto pending = [](const RankRun& r) { return !r.lost && !IsTerminal(r.phase); };
  const bool all_answered = std::ranges::none_of(run.ranks, pending);
  if (!all_answered && now - run.stop_since.value_or(now) < options.stop_grace) {
    return Wait(absl::StrCat(run.stop->reason, "; stopping ", Names(run, pending)));
  }
  if (!run.saving.empty() && run.stop->state != JobState::kCancelled)
    return Wait(absl::StrCat(run.stop->reason, "; waiting for ", run.saving));
  return EndOfStop(run, options);
}

// What must end the job, if anything.
std::optional<Decision> FindFault(absl::Duration now, const JobRun& run,
                                  const DecideOptions& options) {
  if (const RankRun* culprit = FindCulprit(run)) {
    Decision stop = Stop(Blame(*culprit));
    stop.invalid_input = culprit->invalid_input;
    stop.violations = culprit->violations;
    return stop;
  }
  const auto away = [](const RankRun& r) { return r.phase == RankPhase::kAway; };
  if (std::ranges::any_of(run.ranks, away) && now - run.since >= options.return_grace) {
    return Stop(absl::StrCat("the coordinator was away and did not hear again of ",
                             Names(run, away), " within ",
                             absl::FormatDuration(options.return_grace)));
  }
  const auto unadmitted = [](const RankRun& r) { return r.phase == RankPhase::kPreparing; };
  if (run.state == JobState::kStarting && std::ranges::any_of(run.ranks, unadmitted) &&
      now - run.since >= options.admission_timeout) {
    return Stop(absl::StrCat("not admitted within ",
                             absl::FormatDuration(options.admission_timeout), ": ",
                             Names(run, unadmitted)));
  }
  return std::nullopt;
}

// All ranks have done their last step.
Decision DecideFinished(absl::Duration now, const JobRun& run, const DecideOptions& options) {
  if (!run.saving.empty()) return Wait(absl::StrCat("waiting for ", run.saving));
  if (run.committed_steps >= run.steps) {
    return {.kind = Decision::Kind::kEnd,
            .reason = absl::StrCat("all ", run.steps, " steps done"),
            .state = JobState::kSucceeded};
  }
  const std::string missing =
      absl::StrCat("step reports ", run.committed_steps + 1, " to ", run.steps);
  if (now - run.finish_since.value_or(now) < options.reports_grace)
    return Wait(absl::StrCat("waiting for ", missing));
  return {.kind = Decision::Kind::kEnd,
          .reason = absl::StrCat("all ranks finished, but ", missing, " never came"),
          .state = JobState::kSucceeded};
}

// All ranks have ended at the step boundary that was asked for.
Decision DecideHalted(const JobRun& run) {
  const store::JobHalt halt =
      run.halt.value_or(store::JobHalt{.next = JobState::kQueued, .reason = "its ranks halted"});
  if (!run.saving.empty()) return Wait(absl::StrCat(halt.reason, "; waiting for ", run.saving));
  return {.kind = Decision::Kind::kEnd,
          .reason = absl::StrCat(halt.reason, "; ", GoesOnFrom(run)),
          .state = halt.next};
}

Decision DecideRunning(absl::Duration now, const JobRun& run, const DecideOptions& options) {
  const auto away = [](const RankRun& r) { return r.phase == RankPhase::kAway; };
  if (std::ranges::any_of(run.ranks, away)) {
    return Wait(absl::StrCat("the coordinator was away; waiting to hear of ", Names(run, away)));
  }
  const auto trains = [](const RankRun& r) { return !IsTerminal(r.phase); };
  if (std::ranges::any_of(run.ranks, trains)) {
    if (!run.halt) return Wait("training");
    return Wait(absl::StrCat(run.halt->reason, "; waiting for ", Names(run, trains),
                             " to end at a step boundary"));
  }
  const auto halted = [](const RankRun& r) { return r.phase == RankPhase::kHalted; };
  return std::ranges::any_of(run.ranks, halted) ? DecideHalted(run)
                                                : DecideFinished(now, run, options);
}

// Whether another generation may follow the fault that the run has now.
bool MayRecover(const JobRun& run, const DecideOptions& options) {
  return run.has_checkpoints && (run.committed_steps > run.recoveries.at_step.value() ||
                                 run.recoveries.count < options.max_recoveries);
}

// All ranks are ready to train.
Decision DecideAdmitted(const JobRun& run) {
  const StepId resumed = run.ranks.front().resumed_step;
  const auto differs = [&](const RankRun& r) { return r.resumed_step != resumed; };
  if (std::ranges::any_of(run.ranks, differs)) {
    return Stop(absl::StrCat("the ranks loaded different checkpoints: rank 0 that of step ",
                             resumed.value(), ", not so ", Names(run, differs)));
  }
  return {.kind = Decision::Kind::kStart,
          .reason = absl::StrCat(
              "all ", run.ranks.size(), " ranks admitted",
              resumed > StepId(0) ? absl::StrCat("; going on after step ", resumed.value()) : ""),
          .state = JobState::kRunning};
}

Decision DecideUnstopped(absl::Duration now, const JobRun& run, const DecideOptions& options) {
  if (std::optional<Decision> fault = FindFault(now, run, options)) return *std::move(fault);
  if (run.state == JobState::kRunning) return DecideRunning(now, run, options);
  const auto unadmitted = [](const RankRun& r) { return r.phase != RankPhase::kAdmitted; };
  if (std::ranges::any_of(run.ranks, unadmitted)) {
    return Wait(absl::StrCat("waiting for ", Names(run, unadmitted), " to load and connect"));
  }
  return DecideAdmitted(run);
}

}  // namespace

std::string DescribeFault(const JobRun& run) {
  const RankRun* const lost = FindSilentlyLost(run);
  std::string text = lost != nullptr ? Blame(*lost) : run.stop ? run.stop->reason : "";
  for (const RankRun& rank : run.ranks) {
    const bool blamed = lost != nullptr
                            ? &rank == lost
                            : run.stop && IsTerminal(rank.phase) && Blame(rank) == run.stop->reason;
    if (!blamed) absl::StrAppend(&text, "; ", WhatItDid(rank));
  }
  return text;
}

Decision Decide(absl::Duration now, const JobRun& run, const DecideOptions& options) {
  if (run.stop) return DecideStopping(now, run, options);
  Decision decision = DecideUnstopped(now, run, options);
  const bool fault = decision.kind == Decision::Kind::kStop && !decision.invalid_input;
  if (fault && MayRecover(run, options)) decision.state = JobState::kRecovering;
  return decision;
}

}  // namespace takt::job
