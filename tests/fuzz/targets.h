// SPDX-License-Identifier: Apache-2.0
// The parsers that read what strangers wrote, each as a function of bytes. Whatever the bytes, it
// returns: it neither crashes, nor runs for long, nor asks for memory beyond measure. What parses
// is used and must keep its promises (written and read again it is the same), or the process ends.
#pragma once

#include <cstddef>
#include <span>

namespace takt::fuzz {

struct Target {
  const char* name;  // of its folder in corpus/
  void (*run)(std::span<const std::byte> input);
};

std::span<const Target> Targets();

}  // namespace takt::fuzz
