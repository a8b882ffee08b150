// SPDX-License-Identifier: Apache-2.0
#include "common/config/fp8_devices.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::config {

absl::Status CheckFp8On(model::Fp8Recipe recipe, const Device& device) {
  if (recipe == model::Fp8Recipe::kNone) return absl::OkStatus();
  const bool blocks = recipe == model::Fp8Recipe::kBlock;
  constexpr double kOldestWithFp8 = 8.9;
  double capability = 0;
  const bool known = absl::SimpleAtod(device.compute_capability, &capability);
  if (blocks ? device.compute_capability == "9.0" : known && capability >= kOldestWithFp8)
    return absl::OkStatus();
  return InvalidField(
      {.field = "precision",
       .value = "fp8",
       .rule = absl::StrCat(blocks ? "recipe block needs a GPU of compute capability 9.0"
                                   : "needs a GPU of compute capability 8.9 or newer",
                            ", and ", device.name, " has ", device.compute_capability),
       .fix = "use precision: bf16, or parallelism.device: cpu"});
}

}  // namespace takt::config
