// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/replan.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace takt::job {
namespace {

std::string TimeText(double seconds) {
  const absl::Duration time = absl::Seconds(seconds);
  const absl::Duration unit =
      time < absl::Milliseconds(10) ? absl::Microseconds(1) : absl::Milliseconds(1);
  return absl::FormatDuration(absl::Floor(time + unit / 2, unit));
}

// True if the steps that the job still has save more time than a new generation takes to start.
bool Pays(const ReplanFacts& facts) {
  const double saved = facts.offer->present_seconds - facts.offer->plan.predicted_step_seconds;
  return absl::Seconds(saved * static_cast<double>(facts.steps_left)) > facts.start_time;
}

// True if the job may change to the plan that was offered.
bool MaySwitch(const ReplanFacts& facts) {
  const int needed = facts.offer->plan.mesh.size();
  return needed > facts.num_ranks ? needed <= facts.num_ranks + facts.num_spare : facts.may_switch;
}

std::string WhySwitch(const ReplanFacts& facts) {
  const plan::Plan& plan = facts.offer->plan;
  const std::string what =
      plan.mesh.size() > facts.num_ranks
          ? absl::StrCat("grows from ", facts.num_ranks, " to ", plan.mesh.size(), " workers")
          : "replanned";
  return absl::StrCat(what, ": predicted ", TimeText(plan.predicted_step_seconds),
                      " a step instead of ", TimeText(facts.offer->present_seconds));
}

}  // namespace

double ReplanOffer::gain() const {
  if (!(present_seconds > 0)) return 0;
  return std::max(0.0, 1 - plan.predicted_step_seconds / present_seconds);
}

Replanning ReplanningOf(const config::JobSpec& job, const plan::Plan& plan,
                        std::shared_ptr<const profile::Profile> profile, absl::Duration now) {
  Replanning replanning{.profile = std::move(profile), .since = now};
  const bool keeps_bits = job.exact && plan.schedule.updates == schedule::Updates::kFlush &&
                          plan.schedule.placement != schedule::Placement::kBidirectional;
  if (!keeps_bits) return replanning;
  // Programs of all ranks overlap steps and share state alike.
  const auto first = plan.programs.begin() + std::min<std::ptrdiff_t>(1, std::ssize(plan.programs));
  replanning.present =
      std::make_shared<const plan::Plan>(plan::Plan{.model = plan.model,
                                                    .mesh = plan.mesh,
                                                    .partition = plan.partition,
                                                    .vocabulary_ends = plan.vocabulary_ends,
                                                    .schedule = plan.schedule,
                                                    .programs = {plan.programs.begin(), first}});
  return replanning;
}

absl::Duration GrowAfter(absl::Duration start_time, const ReplanOptions& options) {
  return std::max(options.grow_after, options.grow_after_starts * start_time);
}

ReplanDecision DecideReplan(const ReplanFacts& facts, const ReplanOptions& options) {
  using Kind = ReplanDecision::Kind;
  if (!facts.trains) return {};
  if (facts.offer != nullptr && MaySwitch(facts) && facts.offer->gain() >= options.least_gain &&
      Pays(facts)) {
    return {.kind = Kind::kSwitch, .reason = WhySwitch(facts)};
  }
  const bool tried = facts.steps_done >= options.least_steps;
  const bool by_profile = facts.new_profile && facts.waited >= options.interval;
  const bool by_spare = facts.new_spare && facts.waited >= GrowAfter(facts.start_time, options);
  if (tried && !facts.asked && (by_profile || by_spare)) return {.kind = Kind::kAsk};
  return {};
}

}  // namespace takt::job
