// SPDX-License-Identifier: Apache-2.0
#include "common/cost/costs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
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

absl::Status CheckStages(std::string_view name, std::size_t size, int num_stages) {
  if (size == 1 || static_cast<int>(size) == num_stages) return absl::OkStatus();
  return InvalidField(
      {.field = absl::StrCat("cost.", std::string(name)),
       .value = absl::StrCat(size, " values"),
       .rule = absl::StrCat("one value, or one for each of the ", Counted(num_stages, "stage")),
       .fix = "give one value for all stages"});
}

absl::Status CheckByStage(std::string_view name, const std::vector<double>& values,
                          int num_stages) {
  RETURN_IF_ERROR(CheckStages(name, values.size(), num_stages));
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

absl::Status CheckGroups(std::string_view name, const std::vector<GroupCost>& groups) {
  for (const GroupCost& group : groups) {
    RETURN_IF_ERROR(CheckLink(group.link));
    if (group.size >= 1) continue;
    return InvalidField({.field = absl::StrCat("cost.", std::string(name)),
                         .value = absl::StrCat(group.size),
                         .rule = "at least one rank",
                         .fix = "give the number of ranks that meet"});
  }
  return absl::OkStatus();
}

absl::Status CheckByRank(std::string_view name, std::size_t size, int num_ranks) {
  if (size == 1 || size == static_cast<std::size_t>(num_ranks)) return absl::OkStatus();
  return InvalidField(
      {.field = absl::StrCat("cost.", std::string(name)),
       .value = absl::StrCat(size, " values"),
       .rule = absl::StrCat("one value, or one for each of the ", Counted(num_ranks, "rank")),
       .fix = "give one value for all ranks"});
}

}  // namespace

absl::Status CheckCosts(const Costs& costs, int num_stages) {
  RETURN_IF_ERROR(CheckByStage("F", costs.forward, num_stages));
  RETURN_IF_ERROR(CheckByStage("I", costs.input_grad, num_stages));
  RETURN_IF_ERROR(CheckByStage("W", costs.weight_grad, num_stages));
  RETURN_IF_ERROR(CheckByStage("B", costs.backward, num_stages));
  RETURN_IF_ERROR(CheckByStage("forward_meetings", costs.forward_meetings, num_stages));
  RETURN_IF_ERROR(CheckByStage("backward_meetings", costs.backward_meetings, num_stages));
  RETURN_IF_ERROR(CheckCost("pair_ratio", costs.pair_ratio));
  if (!costs.overlap.empty()) RETURN_IF_ERROR(CheckStages("O", costs.overlap.size(), num_stages));
  for (const std::optional<double>& time : costs.overlap) {
    if (time.has_value()) RETURN_IF_ERROR(CheckCost("O", *time));
  }
  RETURN_IF_ERROR(CheckReduction(costs.reduction, num_stages));
  if (costs.terms < 1) return absl::InvalidArgumentError("a sum has no terms of its ranks");
  RETURN_IF_ERROR(CheckCost("tied_reduction", costs.tied_reduction));
  RETURN_IF_ERROR(CheckLink(costs.link));
  for (const auto& [ranks, link] : costs.links) RETURN_IF_ERROR(CheckLink(link));
  for (const double seconds : costs.optimizer) RETURN_IF_ERROR(CheckCost("optimizer", seconds));
  for (const double seconds : costs.embedding_update)
    RETURN_IF_ERROR(CheckCost("embedding_update", seconds));
  for (const double seconds : costs.head_update) RETURN_IF_ERROR(CheckCost("head_update", seconds));
  for (const double time : costs.vocabulary_forward) RETURN_IF_ERROR(CheckCost("S", time));
  for (const double time : costs.vocabulary_backward) RETURN_IF_ERROR(CheckCost("T", time));
  RETURN_IF_ERROR(CheckGroups("tensor", costs.tensor));
  return CheckGroups("context", costs.context);
}

absl::Status CheckCostsByRank(const Costs& costs, int num_ranks) {
  RETURN_IF_ERROR(CheckByRank("optimizer", costs.optimizer.size(), num_ranks));
  RETURN_IF_ERROR(CheckByRank("embedding_update", costs.embedding_update.size(), num_ranks));
  RETURN_IF_ERROR(CheckByRank("head_update", costs.head_update.size(), num_ranks));
  RETURN_IF_ERROR(CheckByRank("S", costs.vocabulary_forward.size(), num_ranks));
  RETURN_IF_ERROR(CheckByRank("T", costs.vocabulary_backward.size(), num_ranks));
  RETURN_IF_ERROR(CheckByRank("tensor", costs.tensor.size(), num_ranks));
  return CheckByRank("context", costs.context.size(), num_ranks);
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

double MeetingCost(const GroupCost& group, std::int64_t bytes) {
  return group.link.latency * (group.size - 1) +
         group.link.seconds_per_byte * static_cast<double>(bytes);
}

}  // namespace takt::cost
