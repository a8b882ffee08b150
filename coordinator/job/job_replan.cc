// SPDX-License-Identifier: Apache-2.0
// This file has how a Job that trains gets a better plan. replan.h has the rules.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "coordinator/job/job.h"

namespace takt::job {

using store::JobState;

namespace {

// Returns how long the generation that trains took from its plan to its first step.
absl::Duration StartTime(const std::vector<store::Transition>& transitions) {
  absl::Time running = absl::InfinitePast();
  for (auto it = transitions.rbegin(); it != transitions.rend(); ++it) {
    if (it->state == JobState::kRunning) running = it->time;
    if (it->state == JobState::kPlanning) return running - it->time;
  }
  return absl::ZeroDuration();
}

}  // namespace

ReplanFacts Job::FactsForReplanning(const profile::Profile* profile, Moment now) const {
  const Replanning& replanning = run_->replanning;
  const std::int64_t done = run_->committed_steps();
  const StepId checkpoint = record_.checkpoint ? record_.checkpoint->step : StepId(0);
  const bool all_run = std::ranges::all_of(run_->ranks, [](const RankRun& rank) {
    return rank.phase == RankPhase::kRunning && !rank.lost && !rank.away;
  });
  return {
      .trains = all_run && record_.state == JobState::kRunning && !record_.stop && !record_.halt,
      .asked = replanning.asked,
      .new_profile = profile != replanning.profile.get(),
      .waited = now.steady - replanning.since,
      .steps_done = done - record_.resumed_step.value(),
      .steps_left = record_.steps - done,
      .offer = replanning.offer ? &*replanning.offer : nullptr,
      .may_switch =
          spec_.replan == config::Replan::kAtCheckpoint && checkpoint > replanning.checkpoint,
      .start_time = StartTime(record_.transitions)};
}

void Job::ConsiderReplanning(Moment now) {
  if (run_->replanning.present == nullptr) return;
  std::shared_ptr<const profile::Profile> profile = context_.read_profile();
  const ReplanDecision decision =
      DecideReplan(FactsForReplanning(profile.get(), now), context_.replan);
  switch (decision.kind) {
    case ReplanDecision::Kind::kNone:
      return;
    case ReplanDecision::Kind::kAsk:
      return AskPlanner(std::move(profile));
    case ReplanDecision::Kind::kSwitch:
      plan::Plan plan = std::move(run_->replanning.offer->plan);
      run_->replanning.offer.reset();
      RequestHalt({.next = JobState::kQueued, .reason = decision.reason}, now);
      if (run_) run_->next_plan = std::move(plan);
      return;
  }
}

void Job::AskPlanner(std::shared_ptr<const profile::Profile> profile) {
  Replanning& replanning = run_->replanning;
  config::JobSpec spec = spec_;
  spec.parallelism.data = replanning.present->mesh.dp_size;  // another number changes bits
  const placement::Workers& workers = context_.workers->workers();
  placement::Gang gang;
  for (const control::BoundRank& bound : record_.ranks) gang.push_back(&workers.at(bound.worker));
  plan::PlanOptions options = placement::PlanOptionsFor(spec, gang, record_.plan.device, workers);
  options.profile = profile;
  replanning.profile = std::move(profile);
  replanning.asked = true;
  context_.outbox->effects.push_back(Replan{record_.id, record_.generation, replanning.present,
                                            std::move(spec), std::move(options)});
}

void Job::Replanned(absl::StatusOr<ReplanOffer> offer, Moment now) {
  if (!run_ || !run_->replanning.asked) return;
  Replanning& replanning = run_->replanning;
  replanning.asked = false;
  replanning.since = now.steady;
  replanning.checkpoint = record_.checkpoint ? record_.checkpoint->step : StepId(0);
  replanning.offer.reset();
  if (offer.ok()) {
    Log(LogLevel::kDebug, "job planned again",
        {{"job", record_.name},
         {"present_seconds", absl::StrCat(offer->present_seconds)},
         {"schedule", offer->plan.schedule.name},
         {"ranks", absl::StrCat(offer->plan.mesh.size())},
         {"seconds", absl::StrCat(offer->plan.predicted_step_seconds)}});
    replanning.offer = *std::move(offer);
  } else {
    Log(LogLevel::kInfo, "job not planned again; it keeps its plan",
        {{"job", record_.name}, {"error", offer.status().ToString()}});
  }
  const double gain = replanning.offer ? replanning.offer->gain() : 0;
  grown_ |= gain != record_.replan_gain;
  record_.replan_gain = gain;
}

bool Job::GoOnWith(plan::Plan plan, const std::vector<std::string>& workers, std::string reason,
                   Moment now) {
  const control::JobKey last = key();
  context_.workers->Reserve(workers, last);
  const placement::Gang gang = context_.workers->Reserved(last, record_.plan.device);
  const bool enough = plan.mesh.size() <= static_cast<int>(gang.size());
  if (enough) {
    RaiseGeneration();
    SetState(JobState::kPlanning, std::move(reason), now);
    Launch(std::move(plan), gang, now);
  }
  context_.workers->ReleaseReserved(last);
  return enough;
}

}  // namespace takt::job
