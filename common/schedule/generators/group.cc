// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/generators/group.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::schedule {

absl::StatusOr<int> ChooseGroup(std::string_view family, const GenerateOptions& options,
                                int least) {
  const int microbatches = options.num_microbatches;
  const std::string ranks =
      absl::StrCat(least < options.num_ranks ? "half the ranks" : "ranks", " (", least, ")");
  if (microbatches < least) {
    return InvalidField(
        {.field = "microbatches",
         .value = absl::StrCat(microbatches),
         .rule = absl::StrCat(std::string(family), " needs at least as many as ", ranks),
         .fix = "use more or smaller microbatches, fewer ranks, or schedule 1f1b"});
  }
  const auto is_legal = [&](int group) {
    const int rest = microbatches % group;
    return group >= least && group <= microbatches && (rest == 0 || rest >= least);
  };
  if (!options.group.has_value()) {
    int group = std::min(options.num_ranks, microbatches);
    while (!is_legal(group)) ++group;  // ends: one group of all microbatches is legal
    return group;
  }
  if (is_legal(*options.group)) return *options.group;
  return InvalidField(
      {.field = "group",
       .value = absl::StrCat(*options.group),
       .rule =
           absl::StrCat("must be from ", ranks, " to microbatches (", microbatches,
                        ") and leave a last group that is full or has at least as many as ", ranks),
       .fix = "leave it out to take the smallest that fits"});
}

}  // namespace takt::schedule
