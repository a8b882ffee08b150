// SPDX-License-Identifier: Apache-2.0
// Every built-in family by name. Each is a small file in generators/.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/cost/costs.h"
#include "common/schedule/schedule.h"

namespace takt::schedule {

struct GenerateOptions {
  int num_ranks = 1;         // P
  int num_microbatches = 1;  // M
  // V; unset: the family's own default (1, or 2 for interleaved ones).
  std::optional<int> num_chunks;
  // N of grouped families; unset: the smallest legal one from P on (P if P divides M), at most M.
  std::optional<int> group;
  // Families that are searched for given costs look at these. The others ignore them.
  cost::Costs costs;
  // Microbatch-chunks that a rank may hold in flight, for families that take a limit; unset: their
  // own. Other families ignore it. Validate checks it.
  std::optional<int> memory;
};

// A family as `takt schedule list` and the documentation show it. The formulas use P, V, M, N (the
// group), r (the rank) and the times F, I, W, B = I + W of one chunk.
struct Family {
  std::string_view name;
  std::string_view summary;    // one line
  std::string_view reference;  // paper
  // The idle time of a rank when all stages are equal and messages take no time, with a barrier at
  // the end of the step.
  std::string_view bubble;
  std::string_view peak;  // chunks in flight on rank r
  // For the page of the family: how it works, what P, V and M may be, what users trip over (or
  // empty).
  std::string_view idea;
  std::string_view sizes;
  std::string_view care;
  Placement placement = Placement::kLoop;
  Updates updates = Updates::kFlush;
  bool splits_backward = false;  // I and W, some of them perhaps joined as B
  bool overlaps = false;         // runs pairs O(F,B)
  int num_chunks = 1;            // V, unless another is asked for
  bool uses_chunks = false;      // another may be asked for
  bool uses_group = false;
  bool uses_costs = false;
  bool uses_memory = false;
};

std::span<const Family> Families();

// kNotFound: there is no such family; the error lists them. kInvalidArgument (FieldError): the
// family cannot serve these sizes; the error names the rule.
absl::StatusOr<Schedule> Generate(std::string_view family, const GenerateOptions& options);

}  // namespace takt::schedule
