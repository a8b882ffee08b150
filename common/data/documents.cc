// SPDX-License-Identifier: Apache-2.0
#include "common/data/documents.h"

#include <cstddef>

#include "common/data/token_values.h"

namespace takt::data {

void StartsFromEnds(std::span<const std::int32_t> tokens, std::int32_t end,
                    std::span<std::int32_t> starts) {
  std::int32_t start = 0;
  for (std::size_t t = 0; t < starts.size(); ++t) {
    const bool ends = tokens[t] == end;
    starts[t] = start;
    if (ends) start = static_cast<std::int32_t>(t) + 1;
  }
}

void StartsFromIds(std::span<const std::int32_t> ids, std::span<std::int32_t> starts) {
  std::int32_t start = 0, last = 0;
  for (std::size_t t = 0; t < starts.size(); ++t) {
    const std::int32_t id = ids[t];
    if (t > 0 && id != last) start = static_cast<std::int32_t>(t);
    last = id;
    starts[t] = start;
  }
}

void StartsFromPositions(std::span<const std::int32_t> positions, std::span<std::int32_t> starts) {
  for (std::size_t t = 0; t < starts.size(); ++t) {
    starts[t] = static_cast<std::int32_t>(t) - positions[t];
  }
}

void IgnoreLastOfDocuments(std::span<const std::int32_t> starts, std::span<std::int32_t> targets) {
  for (std::size_t t = 1; t < starts.size(); ++t) {
    if (starts[t] != starts[t - 1]) targets[t - 1] = kIgnoredTarget;
  }
}

std::int64_t FirstWrongId(std::span<const std::int32_t> ids) {
  std::int32_t last = 0;
  for (std::size_t t = 0; t < ids.size(); ++t) {
    if (ids[t] < last) return static_cast<std::int64_t>(t);
    last = ids[t];
  }
  return std::ssize(ids);
}

std::int64_t FirstWrongPosition(std::span<const std::int32_t> positions) {
  std::int64_t next = 0;
  for (std::size_t t = 0; t < positions.size(); ++t) {
    if (positions[t] != 0 && positions[t] != next) return static_cast<std::int64_t>(t);
    next = std::int64_t{positions[t]} + 1;
  }
  return std::ssize(positions);
}

}  // namespace takt::data
