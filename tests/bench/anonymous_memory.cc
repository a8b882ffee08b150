// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/anonymous_memory.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>

namespace takt::bench {
namespace {

constexpr auto kLook = std::chrono::milliseconds(2);

std::int64_t AnonymousBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key;) {
    std::int64_t kibibytes = 0;
    if (key == "RssAnon:" && status >> kibibytes) return kibibytes << 10;
  }
  return 0;
}

}  // namespace

AnonymousMemory::AnonymousMemory() : before_(AnonymousBytes()), most_(before_) {
  thread_ = std::thread([this] {
    while (!ended_) {
      most_ = std::max<std::int64_t>(most_, AnonymousBytes());
      std::this_thread::sleep_for(kLook);
    }
  });
}

AnonymousMemory::~AnonymousMemory() {
  ended_ = true;
  thread_.join();
}

}  // namespace takt::bench
