// SPDX-License-Identifier: Apache-2.0
#include "common/base/memory_kind.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace takt {

std::string FormatMemory(std::int64_t bytes) {
  constexpr double kMebi = 1 << 20;
  const double mebi = static_cast<double>(bytes) / kMebi;
  if (mebi < 1) return absl::StrFormat("%d B", bytes);
  return mebi < 1024 ? absl::StrFormat("%.0f MiB", mebi) : absl::StrFormat("%.1f GiB", mebi / 1024);
}

std::string ToString(const MemoryBytes& bytes) {
  std::vector<std::pair<std::int64_t, std::string_view>> parts;
  for (std::size_t i = 0; i < kNumMemoryKinds; ++i) {
    const auto kind = static_cast<MemoryKind>(i);
    if (bytes[kind] > 0) parts.emplace_back(bytes[kind], Name(kind));
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  return absl::StrCat(FormatMemory(bytes.total()), ": ",
                      absl::StrJoin(parts, ", ", [](std::string* out, const auto& part) {
                        absl::StrAppend(out, std::string(part.second), " ",
                                        FormatMemory(part.first));
                      }));
}

}  // namespace takt
