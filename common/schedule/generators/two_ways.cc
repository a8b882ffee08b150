// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/generators/two_ways.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::schedule {

absl::Status CheckEven(std::string_view family, std::string_view field, int value) {
  if (value % 2 == 0) return absl::OkStatus();
  return InvalidField(
      {.field = std::string(field),
       .value = absl::StrCat(value),
       .rule = absl::StrCat(std::string(family), " needs an even number: half go either way"),
       .fix = absl::StrCat("use ", value + 1, value > 1 ? absl::StrCat(" or ", value - 1) : "",
                           ", or a schedule that goes one way")});
}

absl::Status CheckTwiceRanks(std::string_view family, const GenerateOptions& options) {
  if (options.num_microbatches / 2 >= options.num_ranks) return absl::OkStatus();
  return InvalidField(
      {.field = "microbatches",
       .value = absl::StrCat(options.num_microbatches),
       .rule = absl::StrCat(std::string(family), " needs at least twice the ranks (",
                            2 * std::int64_t{options.num_ranks}, ")"),
       .fix = "use more or smaller microbatches, fewer ranks, or schedule zb-v"});
}

}  // namespace takt::schedule
