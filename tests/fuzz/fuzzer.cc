// SPDX-License-Identifier: Apache-2.0
// What libFuzzer calls; built once for every target, whose name is TAKT_FUZZ_TARGET.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto target = std::ranges::find(
      takt::fuzz::Targets(), std::string_view(TAKT_FUZZ_TARGET),
      [](const takt::fuzz::Target& candidate) { return std::string_view(candidate.name); });
  target->run(std::as_bytes(std::span(data, size)));
  return 0;
}
