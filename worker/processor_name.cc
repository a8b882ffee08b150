// SPDX-License-Identifier: Apache-2.0
#include "worker/processor_name.h"

#include <sys/utsname.h>

#include <cstddef>

#include "absl/strings/ascii.h"
#include "common/base/bounded_text.h"

namespace takt::worker {
namespace {

constexpr std::size_t kMostBytes = 100;

std::string Stripped(std::string text) {
  absl::StripAsciiWhitespace(&text);
  return text;
}

}  // namespace

std::string ProcessorName(std::istream& cpuinfo) {
  for (std::string line; std::getline(cpuinfo, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || Stripped(line.substr(0, colon)) != "model name") continue;
    const std::string name = Stripped(line.substr(colon + 1));
    if (!name.empty()) return std::string(FirstBytes(name, kMostBytes));
  }
  utsname system{};
  return uname(&system) == 0 ? system.machine : "";
}

}  // namespace takt::worker
