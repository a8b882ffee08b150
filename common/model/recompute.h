// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace takt::model {

// What a stage keeps of a microbatch from F to I, and so what it computes again before I. Losses
// and gradients have the same bits. Numbers equal takt.v1.RecomputeMode and are stored.
enum class Recompute : std::uint8_t {
  kNone = 1,       // everything that I and W read
  kSelective = 2,  // not what norms and activations give
  kFull = 3,       // of every layer its input alone
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
