// SPDX-License-Identifier: Apache-2.0
#include "common/base/failpoint.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace takt {
namespace {

struct Armed {
  std::string name;  // empty: none is armed
  int passing = 0;
};

Armed ReadArmed() {
  const char* const text = std::getenv("TAKT_FAILPOINT");
  if (text == nullptr) return {};
  const std::string armed = text;
  const std::size_t colon = armed.find(':');
  if (colon == std::string::npos) return {};
  return {.name = armed.substr(0, colon), .passing = std::atoi(armed.c_str() + colon + 1)};
}

}  // namespace

void PassFailpoint(std::string_view name) {
  static const Armed* const armed = new Armed(ReadArmed());  // threads may outlive main
  static std::atomic<int> passed = 0;
  if (armed->name != name || ++passed != armed->passing) return;
  std::fprintf(stderr, "failpoint %s\n", armed->name.c_str());
  _exit(kFailpointExit);
}

}  // namespace takt
