// SPDX-License-Identifier: Apache-2.0
// Says where documents begin in a window, and which targets are not scored for that reason. A
// document begins at the start of each window, even where the window begins in the middle of one.
// docs/data.md says it for users.
#pragma once

#include <cstdint>
#include <span>

namespace takt::data {

// These fill `starts`: for each token of a window, the position at which its document begins.
// Their inputs have the same length, and may be `starts` itself.
void StartsFromEnds(std::span<const std::int32_t> tokens, std::int32_t end,
                    std::span<std::int32_t> starts);
void StartsFromIds(std::span<const std::int32_t> ids, std::span<std::int32_t> starts);
// Precondition: FirstWrongPosition finds nothing.
void StartsFromPositions(std::span<const std::int32_t> positions, std::span<std::int32_t> starts);

// Makes targets kIgnoredTarget that belong to the last token of a document which another follows in
// the window.
void IgnoreLastOfDocuments(std::span<const std::int32_t> starts, std::span<std::int32_t> targets);

// Returns the index of the first id that is below 0 or below the one before it; the number of ids
// if there is none.
std::int64_t FirstWrongId(std::span<const std::int32_t> ids);

// Returns the index of the first position that is neither 0 nor follows the one before it; the
// number of positions if there is none. The first position must be 0.
std::int64_t FirstWrongPosition(std::span<const std::int32_t> positions);

}  // namespace takt::data
