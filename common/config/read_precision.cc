// SPDX-License-Identifier: Apache-2.0
#include "common/config/read_precision.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/config/file_names.h"
#include "common/config/spec_rules.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {

static_assert(static_cast<int>(Precision::kBf16) == v1::PRECISION_BF16);
static_assert(static_cast<int>(Precision::kBf16) == v1::RESIDUAL_PRECISION_BF16);
static_assert(static_cast<int>(model::Fp8Recipe::kBlock) == v1::FP8_RECIPE_BLOCK);

namespace {

// Refuses what FP8 cannot be with.
void CheckFp8(const JobSpec& job, SpecRules& rules) {
  const Parallelism& p = job.parallelism;
  const auto check_whole = [&](const char* field, int ranks) {
    rules.Check(ranks == 1,
                {.field = field,
                 .value = absl::StrCat(ranks),
                 .rule = "does not go with precision: fp8, whose scales need an operand "
                         "that one rank has whole",
                 .fix = "use 1, or precision: bf16"});
  };
  check_whole("parallelism.tensor", p.tensor);
  check_whole("parallelism.tensor_leaves", std::max(p.tensor_leaves, 1));
  check_whole("parallelism.context", p.context);
  rules.Check(!job.model.mixture.has_value(), {.field = "precision",
                                               .value = "fp8",
                                               .rule = "does not go with a mixture of experts",
                                               .fix = "use precision: bf16"});
  rules.Check(job.exact, {.field = "exact",
                          .value = "false",
                          .rule = "does not go with precision: fp8, as the gradients of several "
                                  "microbatches would share scales",
                          .fix = "remove it, or use precision: bf16"});
}

// The planner keeps a vocabulary together that the job leaves to it.
void ReadResidual(const v1::JobSpec& proto, JobSpec& job, SpecRules& rules) {
  rules.Supported("residual", NameOf(proto.residual()),
                  v1::ResidualPrecision_IsValid(proto.residual()), "f32 or bf16");
  if (proto.residual() != v1::RESIDUAL_PRECISION_BF16) return;
  if (job.model.family == model::Family::kEmulated) {
    job.warnings.push_back("residual: has no effect on an emulated model, which passes on bytes");
    return;
  }
  rules.Check(job.precision == Precision::kBf16,
              {.field = "residual",
               .value = "bf16",
               .rule = "does not go with precision: f32, whose products would read less than they "
                       "can use",
               .fix = "set precision: bf16 or fp8, or residual: f32"});
  rules.Check(job.parallelism.vocabulary != Vocabulary::kSpread,
              {.field = "residual",
               .value = "bf16",
               .rule = "does not go with parallelism.vocabulary: spread, whose ranks add up f32",
               .fix = "set parallelism.vocabulary: last, or residual: f32"});
  job.residual = Precision::kBf16;
}

void ReadProducts(const v1::JobSpec& proto, JobSpec& job, SpecRules& rules) {
  const bool is_fp8 = proto.precision() == v1::PRECISION_FP8;
  rules.Supported("precision", NameOf(proto.precision()), v1::Precision_IsValid(proto.precision()),
                  "f32, bf16 or fp8");
  const v1::Fp8Recipe recipe = proto.fp8().recipe();
  rules.Supported("fp8.recipe", NameOf(recipe), v1::Fp8Recipe_IsValid(recipe), "tensor or block");
  rules.Check(is_fp8 || !proto.has_fp8(), {.field = "fp8",
                                           .rule = "is for precision: fp8 alone",
                                           .fix = "set precision: fp8, or remove it"});
  if (!is_fp8 && proto.precision() != v1::PRECISION_BF16) return;
  if (job.model.family == model::Family::kEmulated) {
    job.warnings.push_back(
        "precision: has no effect on an emulated model, which multiplies nothing");
    return;
  }
  job.precision = Precision::kBf16;
  if (!is_fp8) return;
  job.fp8 = recipe == v1::FP8_RECIPE_BLOCK ? model::Fp8Recipe::kBlock : model::Fp8Recipe::kTensor;
  CheckFp8(job, rules);
}

}  // namespace

void ReadPrecision(const v1::JobSpec& proto, JobSpec& job, SpecRules& rules) {
  ReadProducts(proto, job, rules);
  ReadResidual(proto, job, rules);
}

}  // namespace takt::config
