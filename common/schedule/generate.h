// SPDX-License-Identifier: Apache-2.0
// Every built-in family by name. One small file each under generators/.
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
  std::optional<int>
      num_chunks;  // V; unset: the family's own default (1, or 2 for interleaved ones)
  std::optional<int>
      group;  // N of grouped families; unset: the smallest legal one, P if P divides M
  // What families that are searched for given costs look at; others ignore them.
  cost::Costs costs;
  // Microbatch-chunks a rank may hold in flight, for families that take a limit; unset: their own.
  std::optional<int> memory;
};

struct Family {
  std::string_view name;
  std::string_view summary;    // one line for `takt schedule list`
  std::string_view reference;  // paper
  bool splits_backward = false;
  bool uses_chunks = false;
  bool uses_group = false;
  bool uses_costs = false;
  bool uses_memory = false;
};

std::span<const Family> Families();

// kNotFound: no such family (lists them). kInvalidArgument (FieldError): sizes the family cannot
// serve, naming the rule.
absl::StatusOr<Schedule> Generate(std::string_view family, const GenerateOptions& options);

}  // namespace takt::schedule
