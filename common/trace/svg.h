// SPDX-License-Identifier: Apache-2.0
// A timeline as a picture in a file of its own.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/trace/timeline.h"

namespace takt::trace {

// Viewers are slow with larger files. The page and Perfetto have no such limit.
inline constexpr std::size_t kMostSvgShapes = 50'000;

// Every rank has a row. Work has the colour of its kind, and a label where there is room. Idle time
// has the colour of its cause, and arrows are messages. The prediction is under the row.
// kResourceExhausted: there are more than kMostSvgShapes shapes.
absl::StatusOr<std::string> RenderSvg(const Timeline& timeline);

}  // namespace takt::trace
