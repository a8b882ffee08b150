// SPDX-License-Identifier: Apache-2.0
#include "common/config/evaluate_field.h"

#include "absl/strings/str_cat.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {
namespace {

void ReadGiven(const v1::JobSpec& proto, JobSpec& job, SpecRules& rules) {
  job.evaluation = Evaluation{.weights = proto.evaluate().weights()};
  rules.Check(job.model.family != model::Family::kEmulated,
              {.field = "evaluate",
               .rule = "needs a model that computes something",
               .fix = "use another family than emulated"});
  rules.Check(job.validation.has_value(),
              {.field = "evaluate",
               .rule = "needs data.validation, which is what the job scores",
               .fix = "name a token file"});
  rules.Check(proto.steps() == 1, {.field = "steps",
                                   .value = absl::StrCat(proto.steps()),
                                   .rule = "must be 1 in a job that only evaluates",
                                   .fix = "set steps: 1, or leave out evaluate"});
  rules.Check(!proto.has_checkpoint(), {.field = "checkpoint",
                                        .rule = "must be left out of a job that only evaluates",
                                        .fix = "name the weights in evaluate.weights"});
  rules.Check(!job.evaluation->weights.empty() || !job.init_from.empty(),
              {.field = "evaluate.weights",
               .rule = "is missing, and model.init_from names none either",
               .fix = "name the directory of a checkpoint's step"});
}

}  // namespace

void ReadEvaluation(const v1::JobSpec& proto, JobSpec& job, SpecRules& rules) {
  if (proto.has_evaluate()) return ReadGiven(proto, job, rules);
  if (proto.steps() != 0 || !job.validation.has_value()) {
    rules.AtLeast("steps", proto.steps(), 1);
    return;
  }
  rules.Check(false, {.field = "steps",
                      .value = "0 or missing",
                      .rule = "must be 1 or more",
                      .fix = "set it; to score data.validation without training, use "
                             "`takt eval JOB.yaml`"});
}

}  // namespace takt::config
