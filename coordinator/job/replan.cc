// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/replan.h"

#include <algorithm>
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
  replanning.present =
      std::make_shared<const plan::Plan>(plan::Plan{.model = plan.model,
                                                    .mesh = plan.mesh,
                                                    .partition = plan.partition,
                                                    .vocabulary_ends = plan.vocabulary_ends,
                                                    .schedule = plan.schedule});
  return replanning;
}

ReplanDecision DecideReplan(const ReplanFacts& facts, const ReplanOptions& options) {
  using Kind = ReplanDecision::Kind;
  if (!facts.trains) return {};
  if (facts.offer != nullptr && facts.may_switch && facts.offer->gain() >= options.least_gain &&
      Pays(facts)) {
    return {.kind = Kind::kSwitch,
            .reason = absl::StrCat("replanned: predicted ",
                                   TimeText(facts.offer->plan.predicted_step_seconds),
                                   " a step instead of ", TimeText(facts.offer->present_seconds))};
  }
  const bool due = facts.waited >= options.interval && facts.steps_done >= options.least_steps;
  if (due && facts.new_profile && !facts.asked) return {.kind = Kind::kAsk};
  return {};
}

}  // namespace takt::job
