// SPDX-License-Identifier: Apache-2.0
#include "common/cost/costs.h"

#include <cmath>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::cost {
namespace {

absl::Status CheckCost(std::string_view name, double value) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return InvalidField({.field = absl::StrCat("cost.", std::string(name)),
                       .value = absl::StrCat(value),
                       .rule = "must be a finite number, 0 or more",
                       .fix = "give seconds, or any unit common to all costs"});
}

absl::Status CheckByStage(std::string_view name, const std::vector<double>& values,
                          int num_stages) {
  if (values.size() != 1 && static_cast<int>(values.size()) != num_stages) {
    return InvalidField(
        {.field = absl::StrCat("cost.", std::string(name)),
         .value = absl::StrCat(values.size(), " values"),
         .rule = absl::StrCat("one value, or one for each of the ", num_stages, " stages"),
         .fix = "give one value for all stages"});
  }
  for (const double value : values) RETURN_IF_ERROR(CheckCost(name, value));
  return absl::OkStatus();
}

absl::Status CheckLink(const LinkCost& link) {
  RETURN_IF_ERROR(CheckCost("comm", link.latency));
  return CheckCost("seconds_per_byte", link.seconds_per_byte);
}

}  // namespace

absl::Status CheckCosts(const Costs& costs, int num_stages) {
  RETURN_IF_ERROR(CheckByStage("F", costs.forward, num_stages));
  RETURN_IF_ERROR(CheckByStage("I", costs.input_grad, num_stages));
  RETURN_IF_ERROR(CheckByStage("W", costs.weight_grad, num_stages));
  RETURN_IF_ERROR(CheckByStage("B", costs.backward, num_stages));
  if (!costs.overlap.empty()) RETURN_IF_ERROR(CheckByStage("O", costs.overlap, num_stages));
  RETURN_IF_ERROR(CheckByStage("reduction", costs.reduction, num_stages));
  RETURN_IF_ERROR(CheckCost("tied_reduction", costs.tied_reduction));
  RETURN_IF_ERROR(CheckLink(costs.link));
  for (const auto& [ranks, link] : costs.links) RETURN_IF_ERROR(CheckLink(link));
  for (const double seconds : costs.optimizer) RETURN_IF_ERROR(CheckCost("optimizer", seconds));
  return absl::OkStatus();
}

}  // namespace takt::cost
