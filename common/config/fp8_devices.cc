// SPDX-License-Identifier: Apache-2.0
#include "common/config/fp8_devices.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::config {
namespace {

using model::Fp8Recipe;

bool Multiplies(Fp8Recipe recipe, const Device& device) {
  if (recipe == Fp8Recipe::kNone) return true;
  if (recipe == Fp8Recipe::kBlock) return device.compute_capability == "9.0";
  constexpr double kOldestWithFp8 = 8.9;
  double capability = 0;
  return absl::SimpleAtod(device.compute_capability, &capability) && capability >= kOldestWithFp8;
}

}  // namespace

absl::Status CheckFp8On(Fp8Recipe recipe, const Device& device) {
  if (Multiplies(recipe, device)) return absl::OkStatus();
  const bool blocks = recipe == Fp8Recipe::kBlock;
  return InvalidField(
      {.field = "precision",
       .value = "fp8",
       .rule = absl::StrCat(blocks ? "recipe block needs a GPU of compute capability 9.0"
                                   : "needs a GPU of compute capability 8.9 or newer",
                            ", and ", device.name, " has ", device.compute_capability),
       .fix = "use precision: bf16, or parallelism.device: cpu"});
}

Fp8Recipe MostFp8On(const Device& device) {
  const bool known = !device.compute_capability.empty();
  if (!known || Multiplies(Fp8Recipe::kBlock, device)) return Fp8Recipe::kBlock;
  return Multiplies(Fp8Recipe::kTensor, device) ? Fp8Recipe::kTensor : Fp8Recipe::kNone;
}

}  // namespace takt::config
