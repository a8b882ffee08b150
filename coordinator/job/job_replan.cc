// SPDX-License-Identifier: Apache-2.0
// This file has how a Job that trains gets a better plan, grows, or replaces a straggler. replan.h
// and stragglers.h have the rules.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <set>
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

int Job::Growth() const {
  if (spec_.elastic == config::Elastic()) return 0;
  const bool trains = run_ && record_.state == JobState::kRunning && !record_.halt && !record_.stop;
  if (!trains || (!spec_.checkpoint && !run_->keeps_copies)) return 0;
  const int least = WantsToEvict() ? 1 : 0;
  if (!spec_.elastic.Resizes()) return least;
  const int most = NextSpec().MostWorkers().value_or(std::numeric_limits<int>::max());
  return std::max(least, most - record_.plan.mesh.size());
}

void Job::SetSpare(const std::vector<std::string>& workers, Moment now) {
  if (!run_) return;
  std::map<std::string, absl::Duration>& spare = run_->replanning.spare;
  std::erase_if(spare, [&](const auto& entry) {
    return std::ranges::find(workers, entry.first) == workers.end();
  });
  for (const std::string& worker : workers) spare.try_emplace(worker, now.steady);
}

std::set<std::string> Job::LongSpare(Moment now) const {
  const absl::Duration after = GrowAfter(StartTime(record_.transitions), context_.replan);
  const placement::Workers& workers = context_.workers->workers();
  std::set<std::string> names;
  for (const auto& [name, since] : run_->replanning.spare) {
    const auto worker = workers.find(name);
    const bool idle = worker != workers.end() && worker->second.TakesWork();
    if (idle && now.steady - since >= after) names.insert(name);
  }
  return names;
}

std::set<std::string> Job::SpareToGrow(Moment now) const {
  return spec_.elastic.Resizes() ? LongSpare(now) : std::set<std::string>();
}

ReplanFacts Job::FactsForReplanning(const profile::Profile* profile, Moment now) const {
  const Replanning& replanning = run_->replanning;
  const std::int64_t done = run_->committed_steps();
  const std::set<std::string> spare = SpareToGrow(now);
  const StepId checkpoint = record_.checkpoint ? record_.checkpoint->step : StepId(0);
  const bool all_run = std::ranges::all_of(run_->ranks, [](const RankRun& rank) {
    return rank.phase == RankPhase::kRunning && !rank.lost && !rank.away;
  });
  return {
      .trains = all_run && record_.state == JobState::kRunning && !record_.stop && !record_.halt,
      .asked = replanning.asked,
      .new_profile = replanning.present != nullptr && profile != replanning.profile.get(),
      .waited = now.steady - replanning.since,
      .steps_done = done - std::max(record_.resumed_step, record_.memory_step).value(),
      .steps_left = record_.steps - done,
      .offer = replanning.offer ? &*replanning.offer : nullptr,
      .may_switch = replanning.present != nullptr &&
                    spec_.replan == config::Replan::kAtCheckpoint &&
                    checkpoint > replanning.checkpoint,
      .start_time = StartTime(record_.transitions),
      .num_ranks = static_cast<int>(run_->ranks.size()),
      .num_spare = static_cast<int>(spare.size()),
      .new_spare = !spare.empty() && spare != replanning.asked_with};
}

void Job::ConsiderReplanning(Moment now) {
  if (run_->replanning.present == nullptr && !spec_.elastic.Resizes()) return;
  std::shared_ptr<const profile::Profile> profile = context_.read_profile();
  const ReplanDecision decision =
      DecideReplan(FactsForReplanning(profile.get(), now), context_.replan);
  switch (decision.kind) {
    case ReplanDecision::Kind::kNone:
      return;
    case ReplanDecision::Kind::kAsk:
      return AskPlanner(std::move(profile), now);
    case ReplanDecision::Kind::kSwitch:
      return SwitchTo(decision.reason, now);
  }
}

// The workers that the plan needs besides those of this generation are held for it from now on.
void Job::SwitchTo(const std::string& reason, Moment now) {
  Replanning& replanning = run_->replanning;
  plan::Plan plan = std::move(replanning.offer->plan);
  replanning.offer.reset();
  const std::set<std::string> spare = SpareToGrow(now);
  std::vector<std::string> more(spare.begin(), spare.end());
  const auto missing = static_cast<std::size_t>(
      std::max(0, plan.mesh.size() - static_cast<int>(run_->ranks.size())));
  if (more.size() > missing) more.resize(missing);
  RequestHalt({.next = JobState::kQueued, .reason = reason, .in_memory = run_->keeps_copies}, now);
  if (!run_) return;
  context_.workers->Reserve(more, key());
  run_->next_plan = std::move(plan);
}

void Job::AskPlanner(std::shared_ptr<const profile::Profile> profile, Moment now) {
  Replanning& replanning = run_->replanning;
  replanning.asked_with = SpareToGrow(now);
  config::JobSpec spec = NextSpec();
  // Another number of replicas changes bits. So only a job that grows gets one, if it says so.
  if (replanning.asked_with.empty() || !spec_.elastic.data)
    spec.parallelism.data = record_.plan.mesh.dp_size;
  const placement::Workers& workers = context_.workers->workers();
  placement::Gang gang;
  for (const control::BoundRank& bound : record_.ranks) gang.push_back(&workers.at(bound.worker));
  for (const std::string& worker : replanning.asked_with) gang.push_back(&workers.at(worker));
  plan::PlanOptions options = OptionsFor(spec, gang);
  options.profile = profile;
  replanning.profile = std::move(profile);
  replanning.asked = true;
  context_.outbox->effects.push_back(Replan{.job_id = record_.id,
                                            .generation = record_.generation,
                                            .present = replanning.present,
                                            .present_seconds = record_.plan.predicted_step_seconds,
                                            .spec = std::move(spec),
                                            .options = std::move(options)});
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

bool Job::WantsToEvict() const {
  const std::optional<Straggler>& slow = run_->stragglers.named();
  if (!spec_.elastic.evict_stragglers || !slow) return false;
  const mesh::Mesh& mesh = record_.plan.mesh;
  return !evicted_from_.contains({mesh.pp_size, mesh.PpRankOf(slow->rank)});
}

// The run ends as for a drained worker, and the queue finds others.
void Job::ConsiderEviction(Moment now) {
  if (Growth() == 0 || !WantsToEvict() || LongSpare(now).empty()) return;
  const Straggler slow = *run_->stragglers.named();
  const std::string worker = run_->ranks[slow.rank.value()].bound.worker;
  const mesh::Mesh& mesh = record_.plan.mesh;
  evicted_from_.emplace(mesh.pp_size, mesh.PpRankOf(slow.rank));
  evicted_workers_.insert(worker);
  context_.workers->Blame(worker, record_.name, absl::StrCat("it ", DescribeStraggler(slow)), now);
  RequestHalt({.next = JobState::kQueued,
               .reason = absl::StrCat("worker ", worker, " (rank ", slow.rank.value(),
                                      ") is evicted: it ", DescribeStraggler(slow)),
               .in_memory = run_->keeps_copies},
              now);
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
