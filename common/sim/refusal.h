// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace takt::sim {

// Says why programs are refused, and names the instruction to look at if there is one.
struct Refusal {
  std::string reason;
  int pp_rank = -1;
  std::int32_t instruction = -1;  // index in the rank's body
};

}  // namespace takt::sim
