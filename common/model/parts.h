// SPDX-License-Identifier: Apache-2.0
// The parts of a pass over a layer that several ranks share: what each computes alone, and in
// between the meetings of all of them (docs/adr/0010-mesh-of-more-axes.md).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace takt::model {

// The numbers equal takt.v1.PartKind and are stored.
enum class PartKind : std::uint8_t {
  kCompute = 1,
  kGather = 2,    // each rank gives its part of a tensor to all others
  kScatter = 3,   // all ranks' partial sums are added, and each gets its part of the sum
  kExchange = 4,  // anything else that all ranks of the group do together
};

// The ranks that meet. The numbers equal takt.v1.PartGroup and are stored.
enum class PartGroup : std::uint8_t { kNone = 0, kTensor = 1, kContext = 2, kExpert = 3 };

struct Part {
  PartKind kind = PartKind::kCompute;
  PartGroup group = PartGroup::kNone;  // of a meeting
  // Of a meeting: what one rank passes on to all others together. It is for costs alone.
  std::int64_t bytes = 0;
  bool operator==(const Part&) const = default;

  bool meets() const { return kind != PartKind::kCompute; }
};

// "compute", "gather", "scatter", "exchange".
constexpr std::string_view Name(PartKind kind) {
  switch (kind) {
    case PartKind::kCompute:
      return "compute";
    case PartKind::kGather:
      return "gather";
    case PartKind::kScatter:
      return "scatter";
    case PartKind::kExchange:
      return "exchange";
  }
  return "unknown";
}

// The parts of the passes of one layer, in their order. A list may be empty: then the pass only
// computes.
struct LayerParts {
  std::vector<Part> forward, input_grad, weight_grad;
  // Says what I does first where the stage recomputes in this mode.
  std::vector<Part> selective, full;
  // In the one meeting of NORM_PARTIAL a rank passes on so many bytes of the layer.
  std::int64_t norm_bytes = 0;
};

}  // namespace takt::model
