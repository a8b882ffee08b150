// SPDX-License-Identifier: Apache-2.0
// A timeline as a picture that stands alone.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/trace/timeline.h"

namespace takt::trace {

// More would be a file that no viewer likes; the page and Perfetto have no such limit.
inline constexpr std::size_t kMostSvgShapes = 50'000;

// A row a rank: work in the colours of its kind and labelled where there is room, idle time in
// those of its cause, arrows for messages; under it the prediction. kResourceExhausted: more than
// kMostSvgShapes.
absl::StatusOr<std::string> RenderSvg(const Timeline& timeline);

}  // namespace takt::trace
