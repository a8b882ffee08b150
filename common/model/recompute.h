// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace takt::model {

// Says what a stage keeps of a microbatch from F to I; it computes the rest again before I. Losses
// and gradients have the same bits in all modes. The numbers equal takt.v1.RecomputeMode and are
// stored.
enum class Recompute : std::uint8_t {
  kNone = 1,       // everything that I and W read
  kSelective = 2,  // all but the results of norms and activations
  kFull = 3,       // only the input of every layer
};

constexpr std::string_view Name(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return "none";
    case Recompute::kSelective:
      return "selective";
    case Recompute::kFull:
      return "full";
  }
  return "unknown";
}

}  // namespace takt::model
