// SPDX-License-Identifier: Apache-2.0
#include "cli/job/replan_advice.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/base/text.h"
#include "cli/job/attached_workers.h"
#include "common/base/counted.h"
#include "common/base/median.h"
#include "common/base/status.h"
#include "common/config/job_spec_serde.h"
#include "common/plan/plan.h"

namespace takt::cli {
namespace {

// A plan that saves less is not worth an interruption.
constexpr double kLeastFraction = 0.1;

bool HasPlan(const v1::Job& job, const plan::Plan& plan) {
  const auto is_same = [](const v1::StageAssignment& has, const mesh::Stage& stage) {
    return has.last_layer() == stage.last_layer.value() && has.pp_rank() == stage.pp_rank.value() &&
           static_cast<int>(has.recompute()) == static_cast<int>(stage.recompute);
  };
  return job.schedule() == plan.schedule.name &&
         std::ranges::equal(job.vocabulary_ends(), plan.vocabulary_ends) &&
         std::ranges::equal(job.stages(), plan.partition, is_same);
}

double UsualStepSeconds(const trace::Timeline& timeline) {
  std::vector<double> seconds;
  for (const trace::StepWindow& step : timeline.steps)
    seconds.push_back(static_cast<double>(step.end_nanos - step.start_nanos) * 1e-9);
  return Median(std::move(seconds));
}

absl::StatusOr<plan::Plan> PlanAgain(Client& client, const v1::Job& job, int num_ranks) {
  ASSIGN_OR_RETURN(const config::JobSpec spec, config::ToJobSpec(job.spec()));
  ASSIGN_OR_RETURN(const std::vector<v1::Worker> workers, client.ListWorkers());
  ASSIGN_OR_RETURN(plan::PlanOptions options, OptionsForWorkers(spec, workers));
  ASSIGN_OR_RETURN(options.profile, ReadProfile(client));
  if (options.profile == nullptr) return absl::UnimplementedError("no profile");
  options.max_workers = num_ranks;
  return plan::MakePlan(spec.WithOpenSizes(), options);
}

std::string How(const v1::Job& job) {
  if (job.spec().replan() == v1::REPLAN_MODE_AT_CHECKPOINT)
    return "the job changes to it after its next checkpoint (replan: at_checkpoint)";
  if (!job.spec().checkpoint().directory().empty())
    return absl::StrCat("`takt pause ", job.name(), "`, then `takt resume ", job.name(), "`");
  return "submit it again (it has no checkpoint directory)";
}

}  // namespace

std::optional<explain::Advice> AdviseReplanning(Client& client, const std::string& name,
                                                const trace::Timeline& timeline) {
  const absl::StatusOr<v1::Job> job = client.GetJob(name);
  if (!job.ok() || job->state() != v1::JOB_STATE_RUNNING) return std::nullopt;
  const absl::StatusOr<plan::Plan> plan = PlanAgain(client, *job, timeline.trace->num_ranks());
  if (!plan.ok() || HasPlan(*job, *plan)) return std::nullopt;
  const double usual = UsualStepSeconds(timeline);
  const double saved = usual - plan->predicted_step_seconds;
  if (saved < kLeastFraction * usual) return std::nullopt;
  return explain::Advice{
      .kind = explain::Advice::Kind::kReplan,
      .text = absl::StrCat("a plan made now (", plan->schedule.name, " on ",
                           Counted(plan->mesh.size(), "rank"), ") is predicted to take ",
                           FormatSeconds(plan->predicted_step_seconds), " a step: ", How(*job)),
      .saved_seconds = saved,
      .saved_fraction = saved / usual};
}

}  // namespace takt::cli
