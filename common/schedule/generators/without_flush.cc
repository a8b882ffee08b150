// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/generators/without_flush.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/schedule/generators/loop.h"

namespace takt::schedule {

absl::StatusOr<Schedule> WithoutFlush(const Family& family, const GenerateOptions& options) {
  if (options.num_microbatches < options.num_ranks) {
    return InvalidField(
        {.field = "microbatches",
         .value = absl::StrCat(options.num_microbatches),
         .rule = absl::StrCat(std::string(family.name), " needs at least as many as ranks (",
                              options.num_ranks, ")"),
         .fix = "use more microbatches or fewer ranks"});
  }
  return BuildLoop(family, options,
                   {.warmup = [p = options.num_ranks](int rank) { return p - 1 - rank; }});
}

}  // namespace takt::schedule
