// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/decide.h"

#include <algorithm>
#include <cstddef>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/counted.h"
#include "coordinator/job/blame.h"
#include "coordinator/job/rank_names.h"

namespace takt::job {
namespace {

using store::JobRecord;
using store::JobState;

// A fault tells of so many ranks besides the one at fault.
constexpr std::size_t kMostToldOthers = 8;

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
  const std::string who = NameOf(rank.bound);
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

const RankRun* FindCulprit(const JobRun& run) {
  if (const RankRun* lost = FindSilentlyLost(run)) return lost;
  const auto wrong = std::ranges::find(run.ranks, true, &RankRun::invalid_input);
  if (wrong != run.ranks.end()) return &*wrong;
  if (const RankRun* guilty = FindAtFault(run)) return guilty;
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
  RankNames names;
  for (const RankRun& rank : run.ranks) {
    if (which(rank)) names.Add(rank.bound);
  }
  return names.ToString();
}

Decision Wait(std::string reason) {
  return {.kind = Decision::Kind::kWait, .reason = std::move(reason)};
}

Decision Stop(std::string reason) {
  return {.kind = Decision::Kind::kStop, .reason = std::move(reason), .state = JobState::kFailed};
}

std::string GoesOnFrom(const JobRecord& job, bool from_copies) {
  if (from_copies) {
    return absl::StrCat("goes on from the newest step that its workers hold in memory",
                        job.checkpoint ? absl::StrCat(", or from the checkpoint of step ",
                                                      job.checkpoint->step.value())
                                       : "");
  }
  return job.checkpoint
             ? absl::StrCat("goes on from the checkpoint of step ", job.checkpoint->step.value())
             : "has no checkpoint of its own yet";
}

// Returns the reasons of so many faults before the one for which the job is RECOVERING now.
std::vector<std::string> PastFaults(const JobRecord& job, std::size_t count) {
  std::vector<std::string> faults;
  for (const store::Transition& transition : job.transitions) {
    if (transition.state == JobState::kRecovering) faults.push_back(transition.reason);
  }
  if (!faults.empty()) faults.pop_back();
  faults.erase(faults.begin(),
               faults.end() - static_cast<std::ptrdiff_t>(std::min(faults.size(), count)));
  return faults;
}

// Decides how a stopped run ends.
Decision EndOfStop(Moment now, const JobRecord& job, const JobRun& run,
                   const DecideOptions& options) {
  const store::JobStop& stop = *job.stop;
  Decision end{.kind = Decision::Kind::kEnd,
               .reason = stop.reason,
               .state = stop.state,
               .invalid_input = stop.invalid_input,
               .violations = stop.violations};
  if (stop.state == JobState::kCancelled || stop.invalid_input) return end;
  if (stop.state != JobState::kQueued) end.reason = DescribeFault(job, run);
  if (stop.state == JobState::kRecovering) {
    const std::vector<store::JobFault> faults = FaultsWith(job, run, now);
    if (const std::optional<std::string> why = WhyGivenUp(faults, options)) {
      end.state = JobState::kFailed;
      absl::StrAppend(&end.reason, "; ", *why, ": ",
                      absl::StrJoin(PastFaults(job, faults.size() - 1), "; "));
      end.violations = WrongFields(faults, FindGuilty(run), options);
      end.invalid_input = !end.violations.empty();
      return end;
    }
  }
  if (stop.state != JobState::kFailed) {
    end.state = job.halt ? job.halt->next : JobState::kQueued;
    if (job.halt && job.halt->reason != stop.reason)
      end.reason = absl::StrCat(job.halt->reason, "; ", end.reason);
    const bool from_copies = run.keeps_copies && stop.state == JobState::kRecovering;
    absl::StrAppend(&end.reason, "; ", GoesOnFrom(job, from_copies));
  }
  return end;
}

// True if the rank has ended, and its reports of the last steps that it did are on their way.
bool OwesReports(const JobRun& run, const RankRun& rank) {
  const StepId last = rank.status.last_step;
  return !rank.lost && IsTerminal(rank.phase) && last > rank.resumed_step &&
         run.steps.newest_of(rank.bound.rank) < last;
}

// The ranks were told to stop. Waits until they have let go, at most for stop_grace.
Decision DecideStopping(Moment now, const JobRecord& job, const JobRun& run,
                        const DecideOptions& options) {
  const auto pending = [](const RankRun& r) { return !r.lost && !IsTerminal(r.phase); };
  const bool all_answered = std::ranges::none_of(run.ranks, pending);
  const bool waits = now.steady - run.stop_since.value_or(now.steady) < options.stop_grace;
  if (!all_answered && waits)
    return Wait(absl::StrCat(job.stop->reason, "; stopping ", Names(run, pending)));
  // A job goes on in memory from no later step than the last one that is committed.
  const auto reports = [&](const RankRun& r) { return OwesReports(run, r); };
  if (waits && run.keeps_copies && std::ranges::any_of(run.ranks, reports)) {
    return Wait(
        absl::StrCat(job.stop->reason, "; waiting for step reports of ", Names(run, reports)));
  }
  if (!run.saving.empty() && job.stop->state != JobState::kCancelled)
    return Wait(absl::StrCat(job.stop->reason, "; waiting for ", run.saving));
  return EndOfStop(now, job, run, options);
}

// A rank that waits for nobody before it is admitted loads.
bool Loads(const RankRun& rank) {
  return rank.phase == RankPhase::kPreparing && !rank.status.instruction.empty() &&
         rank.status.waiting_for.empty();
}

// Decides whether the job is wrong or the worker of `culprit`, whose rank refused the inputs.
Decision JudgeInputs(absl::Duration now, const JobRun& run, const RankRun& culprit,
                     const DecideOptions& options) {
  const auto looks = [](const RankRun& r) { return !r.lost && r.phase == RankPhase::kPreparing; };
  const bool waits = now - run.refused_since.value_or(now) < options.inputs_grace;
  if (waits && std::ranges::any_of(run.ranks, looks))
    return Wait(absl::StrCat(Blame(culprit),
                             "; waiting until these have looked, too: ", Names(run, looks)));
  Decision stop = Stop(Blame(culprit));
  stop.invalid_input = std::ranges::all_of(run.ranks, RefusesInputs);
  if (stop.invalid_input) stop.violations = culprit.violations;
  return stop;
}

// Finds what must end the run, if anything must.
std::optional<Decision> FindFault(absl::Duration now, const JobRecord& job, const JobRun& run,
                                  const DecideOptions& options) {
  if (const RankRun* culprit = FindCulprit(run)) {
    if (RefusesInputs(*culprit)) return JudgeInputs(now, run, *culprit, options);
    Decision stop = Stop(Blame(*culprit));
    stop.invalid_input = culprit->invalid_input;
    if (stop.invalid_input) stop.violations = culprit->violations;
    return stop;
  }
  const auto unadmitted = [](const RankRun& r) { return r.phase == RankPhase::kPreparing; };
  const absl::Duration limit =
      std::ranges::any_of(run.ranks, Loads) ? options.loading_timeout : options.admission_timeout;
  if (job.state == JobState::kStarting && std::ranges::any_of(run.ranks, unadmitted) &&
      now - std::max(run.since, run.progress) >= limit) {
    return Stop(absl::StrCat("no rank got any further within ", absl::FormatDuration(limit),
                             "; not admitted: ", Names(run, unadmitted)));
  }
  return std::nullopt;
}

// Returns "all 4 steps", or "its only step".
std::string AllOf(std::int64_t number, std::string_view noun) {
  return number == 1 ? "its only " + std::string(noun) : "all " + Counted(number, noun);
}

// All ranks have done their last step.
Decision DecideFinished(absl::Duration now, const JobRecord& job, const JobRun& run,
                        const DecideOptions& options) {
  if (!run.saving.empty()) return Wait(absl::StrCat("waiting for ", run.saving));
  if (run.has_checkpoints && SavedStep(job) < StepId(job.steps)) {
    return Stop(absl::StrCat(
        AllOf(job.steps, "step"), job.steps == 1 ? " is done, but " : " are done, but ",
        run.failed_save.empty()
            ? absl::StrCat("the checkpoint of step ", job.steps, " is not visible")
            : run.failed_save));
  }
  if (run.committed_steps() >= job.steps) {
    return {.kind = Decision::Kind::kEnd,
            .reason = absl::StrCat(AllOf(job.steps, "step"), " done"),
            .state = JobState::kSucceeded};
  }
  const std::string missing =
      absl::StrCat("step reports ", run.committed_steps() + 1, " to ", job.steps);
  if (now - run.finish_since.value_or(now) < options.reports_grace)
    return Wait(absl::StrCat("waiting for ", missing));
  return {.kind = Decision::Kind::kEnd,
          .reason = absl::StrCat("all ranks finished, but ", missing, " never came"),
          .state = JobState::kSucceeded};
}

// All ranks have ended at the step boundary that was asked for.
Decision DecideHalted(absl::Duration now, const JobRecord& job, const JobRun& run,
                      const DecideOptions& options) {
  const store::JobHalt halt =
      job.halt.value_or(store::JobHalt{.next = JobState::kQueued, .reason = "its ranks halted"});
  if (!run.saving.empty()) return Wait(absl::StrCat(halt.reason, "; waiting for ", run.saving));
  // A job goes on in memory from no later step than the last one that is committed.
  const auto reports = [&](const RankRun& r) { return OwesReports(run, r); };
  const bool waits = now - run.finish_since.value_or(now) < options.reports_grace;
  if (waits && run.keeps_copies && std::ranges::any_of(run.ranks, reports)) {
    return Wait(absl::StrCat(halt.reason, "; waiting for step reports of ", Names(run, reports)));
  }
  const bool from_copies = run.keeps_copies && halt.next == JobState::kQueued;
  return {.kind = Decision::Kind::kEnd,
          .reason = absl::StrCat(halt.reason, "; ", GoesOnFrom(job, from_copies)),
          .state = halt.next};
}

// Says for people that the run trains, and which rank is slow.
std::string Trains(const JobRun& run) {
  const std::optional<Straggler>& slow = run.stragglers.named();
  if (!slow) return "training";
  return absl::StrCat("training; ", NameOf(run.ranks[slow->rank.value()].bound), " ",
                      DescribeStraggler(*slow));
}

Decision DecideRunning(absl::Duration now, const JobRecord& job, const JobRun& run,
                       const DecideOptions& options) {
  const auto trains = [](const RankRun& r) { return !IsTerminal(r.phase); };
  const auto away = [](const RankRun& r) { return r.away && !IsTerminal(r.phase); };
  if (std::ranges::any_of(run.ranks, trains)) {
    const std::string goes_on = job.halt
                                    ? absl::StrCat(job.halt->reason, "; waiting for ",
                                                   Names(run, trains), " to end at a step boundary")
                                    : Trains(run);
    if (std::ranges::none_of(run.ranks, away)) return Wait(goes_on);
    return Wait(absl::StrCat(goes_on, "; nothing is heard of ", Names(run, away)));
  }
  const auto halted = [](const RankRun& r) { return r.phase == RankPhase::kHalted; };
  return std::ranges::any_of(run.ranks, halted) ? DecideHalted(now, job, run, options)
                                                : DecideFinished(now, job, run, options);
}

// True if a worker refused its rank for a reason of its own. The job has lost nothing then.
bool IsRefusedByAWorker(const JobRun& run) {
  const RankRun* const guilty = FindAtFault(run);
  return guilty != nullptr && guilty->phase == RankPhase::kRefused &&
         guilty->cause != control::Cause::kUnknown;
}

// All ranks are ready to train.
Decision DecideAdmitted(const JobRecord& job, const JobRun& run) {
  const StepId resumed = run.ranks.front().resumed_step;
  const auto differs = [&](const RankRun& r) { return r.resumed_step != resumed; };
  if (std::ranges::any_of(run.ranks, differs)) {
    return Stop(absl::StrCat("the ranks loaded different checkpoints: rank 0 that of step ",
                             resumed.value(), ", not so ", Names(run, differs)));
  }
  if (resumed == StepId(0) && SavedStep(job) > StepId(0)) {
    return Stop(
        absl::StrCat("the ranks would begin with step 1, though the job has a checkpoint of "
                     "step ",
                     SavedStep(job).value()));
  }
  if (resumed == StepId(0) && !run.has_checkpoints && CommittedStep(job) > StepId(0)) {
    return Stop(absl::StrCat("the ranks would begin with step 1, though the job has done ",
                             Counted(CommittedStep(job).value(), "step"),
                             ": it saves no files, and its workers keep no copies now"));
  }
  return {.kind = Decision::Kind::kStart,
          .reason = absl::StrCat(
              AllOf(std::ssize(run.ranks), "rank"), " admitted",
              resumed > StepId(0) ? absl::StrCat("; going on after step ", resumed.value()) : "",
              run.ranks.front().from_memory ? ", from copies in memory" : ""),
          .state = JobState::kRunning};
}

Decision DecideUnstopped(absl::Duration now, const JobRecord& job, const JobRun& run,
                         const DecideOptions& options) {
  if (std::optional<Decision> fault = FindFault(now, job, run, options)) return *std::move(fault);
  if (job.state == JobState::kRunning) return DecideRunning(now, job, run, options);
  const auto unadmitted = [](const RankRun& r) { return r.phase != RankPhase::kAdmitted; };
  if (std::ranges::any_of(run.ranks, unadmitted)) {
    return Wait(absl::StrCat("waiting for ", Names(run, unadmitted), " to load and connect"));
  }
  return DecideAdmitted(job, run);
}

}  // namespace

StepId SavedStep(const JobRecord& job) {
  return std::max(job.resumed_step, job.checkpoint ? job.checkpoint->step : StepId(0));
}

StepId CommittedStep(const JobRecord& job) {
  const StepId logged = job.last_step ? job.last_step->step : StepId(0);
  // Of a job that was adopted, an earlier coordinator has logged the first ones.
  return std::max(logged, job.faults.empty() ? StepId(0) : job.faults.back().committed);
}

std::string DescribeFault(const JobRecord& job, const JobRun& run) {
  const RankRun* const guilty = FindAtFault(run);
  std::string text = guilty != nullptr ? Blame(*guilty) : job.stop ? job.stop->reason : "";
  std::size_t others = 0;
  for (const RankRun& rank : run.ranks) {
    const bool blamed = guilty != nullptr
                            ? &rank == guilty
                            : job.stop && IsTerminal(rank.phase) && Blame(rank) == job.stop->reason;
    if (!blamed && others++ < kMostToldOthers) absl::StrAppend(&text, "; ", WhatItDid(rank));
  }
  if (others > kMostToldOthers) {
    absl::StrAppend(&text, "; and ",
                    Counted(static_cast<std::int64_t>(others - kMostToldOthers), "more rank"),
                    ", which takt job ", job.name, " shows");
  }
  return text;
}

JobRun JobRun::Of(const JobRecord& job, const config::JobSpec& spec, mesh::Mesh mesh,
                  RankPhase phase, absl::Duration now) {
  const StepId last =
      std::max({job.resumed_step, job.memory_step, job.last_step ? job.last_step->step : StepId(0),
                job.adoption ? job.adoption->acknowledged : StepId(0)});
  JobRun run{.has_checkpoints = spec.checkpoint.has_value(),
             .keeps_copies = job.plan.copy_every_steps > 0,
             .steps = StepCollector(mesh, last),
             .since = now,
             .replanning = {.since = now}};
  for (const control::BoundRank& bound : job.ranks) {
    run.ranks.push_back(
        {.bound = bound, .phase = phase, .status = {.rank = bound.rank, .worker = bound.worker}});
  }
  return run;
}

Decision Decide(Moment now, const JobRecord& job, const JobRun& run, const DecideOptions& options) {
  if (job.stop) return DecideStopping(now, job, run, options);
  Decision decision = DecideUnstopped(now.steady, job, run, options);
  const bool fault = decision.kind == Decision::Kind::kStop && !decision.invalid_input;
  // The job is given up, or not, once its ranks have told what they saw of the fault.
  if (fault && (run.has_checkpoints || run.keeps_copies || IsRefusedByAWorker(run)))
    decision.state = JobState::kRecovering;
  return decision;
}

}  // namespace takt::job
