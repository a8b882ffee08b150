// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace takt {

// Returns a number with its noun: "1 rank", "2 ranks", "2 microbatches".
inline std::string Counted(std::int64_t number, std::string_view noun) {
  const char* const ending = number == 1 ? "" : noun.ends_with("ch") ? "es" : "s";
  return std::to_string(number) + " " + std::string(noun) + ending;
}

}  // namespace takt
