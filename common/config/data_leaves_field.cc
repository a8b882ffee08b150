// SPDX-License-Identifier: Apache-2.0
#include "common/config/data_leaves_field.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace takt::config {
namespace {

constexpr char kField[] = "parallelism.data_leaves";

void CheckReplicas(const JobSpec& job, FieldRules& rules) {
  const Parallelism& p = job.parallelism;
  const int leaves = p.data_leaves;
  if (p.data.has_value()) {
    rules.Check(*p.data >= 1 && leaves % *p.data == 0,
                {.field = kField,
                 .value = absl::StrCat(leaves),
                 .rule = absl::StrCat("must be a multiple of parallelism.data (", *p.data, ")"),
                 .fix = "change one of them"});
  }
  if (job.elastic.data.has_value()) {
    const auto [least, most] = *job.elastic.data;
    bool divides = false;
    for (int size = least; size <= most && !divides; ++size) divides = leaves % size == 0;
    rules.Check(divides,
                {.field = "elastic.data",
                 .value = absl::StrCat(least, " to ", most),
                 .rule = absl::StrCat("must have a number of replicas that divides ", kField, " (",
                                      leaves, ")"),
                 .fix = absl::StrCat(
                     "use a range with one of its divisors, e.g. {min: 1, max: ", leaves, "}")});
  }
  // A plan that chooses the microbatch looks for one that fits.
  const std::int64_t per_step = std::int64_t{leaves} * (job.microbatch_auto ? 1 : job.microbatch);
  rules.Check(
      per_step >= 1 && job.global_batch % per_step == 0,
      {.field = "batch.global",
       .value = absl::StrCat(job.global_batch),
       .rule = absl::StrCat("must be divisible by batch.microbatch x ", kField, " = ", per_step),
       .fix = "change one of them"});
}

}  // namespace

void CheckDataLeaves(const JobSpec& job, FieldRules& rules) {
  const Parallelism& p = job.parallelism;
  if (p.data_leaves == 0) return;
  CheckReplicas(job, rules);
  const auto refuse_if = [&](bool holds, std::string rule, std::string fix) {
    rules.Check(!holds, {.field = kField,
                         .value = absl::StrCat(p.data_leaves),
                         .rule = std::move(rule),
                         .fix = std::move(fix)});
  };
  refuse_if(job.model.family == model::Family::kEmulated, "emulated layers compute no sums",
            "remove it");
  refuse_if(p.context > 1,
            "does not go with parallelism.context, whose ranks have terms between "
            "those of a replica",
            "use context: 1, or remove it");
  refuse_if(p.expert > 1, "does not go with replicas that share experts (parallelism.expert)",
            "use expert: 1, or remove it");
  refuse_if(p.vocabulary == Vocabulary::kSpread,
            "does not go with vocabulary: spread, whose rows have one term of each replica",
            "use vocabulary: last or auto, or remove it");
  refuse_if(!job.exact, "fixes the bits of results, which exact: false leaves open",
            "use exact: true, or remove it");
}

}  // namespace takt::config
