// SPDX-License-Identifier: Apache-2.0
#include "common/cost/costs.h"

#include <algorithm>
#include <bit>
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

// One entry more is that of the rows of a spread vocabulary.
absl::Status CheckReduction(const std::vector<double>& values, int num_stages) {
  const bool with_rows = static_cast<int>(values.size()) == num_stages + 1;
  return CheckByStage("reduction", values, with_rows ? num_stages + 1 : num_stages);
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
  RETURN_IF_ERROR(CheckReduction(costs.reduction, num_stages));
  RETURN_IF_ERROR(CheckCost("tied_reduction", costs.tied_reduction));
  RETURN_IF_ERROR(CheckLink(costs.link));
  for (const auto& [ranks, link] : costs.links) RETURN_IF_ERROR(CheckLink(link));
  for (const double seconds : costs.optimizer) RETURN_IF_ERROR(CheckCost("optimizer", seconds));
  for (const double time : costs.vocabulary_forward) RETURN_IF_ERROR(CheckCost("S", time));
  for (const double time : costs.vocabulary_backward) RETURN_IF_ERROR(CheckCost("T", time));
  return absl::OkStatus();
}

absl::Status CheckCostsByRank(const Costs& costs, int num_ranks) {
  for (const auto& [name, values] : {std::pair("optimizer", &costs.optimizer),
                                     {"S", &costs.vocabulary_forward},
                                     {"T", &costs.vocabulary_backward}}) {
    const int size = static_cast<int>(values->size());
    if (size == 1 || size == num_ranks) continue;
    return InvalidField(
        {.field = absl::StrCat("cost.", name),
         .value = absl::StrCat(size, " values"),
         .rule = absl::StrCat("one value, or one for each of the ", num_ranks, " ranks"),
         .fix = "give one value for all ranks"});
  }
  return absl::OkStatus();
}

LinkCost SlowestLink(const Costs& costs, int num_ranks) {
  if (num_ranks < 2) return {};
  if (costs.links.empty()) return costs.link;
  LinkCost slowest;
  for (int from = 0; from < num_ranks; ++from) {
    for (int to = 0; to < num_ranks; ++to) {
      if (from == to) continue;
      const LinkCost& link = costs.Link(PpRank(from), PpRank(to));
      slowest.latency = std::max(slowest.latency, link.latency);
      slowest.seconds_per_byte = std::max(slowest.seconds_per_byte, link.seconds_per_byte);
    }
  }
  return slowest;
}

double MeetingCost(const LinkCost& slowest, int num_ranks, std::int64_t bytes) {
  const int rounds = std::bit_width(static_cast<unsigned>(num_ranks) - 1);
  return slowest.latency * rounds + slowest.seconds_per_byte * static_cast<double>(bytes);
}

}  // namespace takt::cost
