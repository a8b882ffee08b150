// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/generators/padding.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/schedule/schedule.h"

namespace takt::schedule {

absl::Status CheckPadded(int num_ranks, std::int64_t width) {
  if (width <= kMaxActions / num_ranks) return absl::OkStatus();
  return InvalidField({.field = "ranks",
                       .value = absl::StrCat(num_ranks),
                       .rule = absl::StrCat("its fill alone has ranks x ", width,
                                            " slots, which must not exceed ", kMaxActions),
                       .fix = "use fewer ranks"});
}

}  // namespace takt::schedule
