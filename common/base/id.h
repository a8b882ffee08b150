// SPDX-License-Identifier: Apache-2.0
// Distinct integer types for everything that is counted and named: a StageId never converts to a
// MicrobatchId.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <ostream>

namespace takt {

template <class Tag, class Int = std::int32_t>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(Int value) : value_(value) {}
  constexpr Int value() const { return value_; }
  constexpr auto operator<=>(const Id&) const = default;
  constexpr Id& operator++() {
    ++value_;
    return *this;
  }
  friend std::ostream& operator<<(std::ostream& out, Id id) { return out << id.value_; }

  template <class H>
  friend H AbslHashValue(H h, Id id) {
    return H::combine(std::move(h), id.value_);
  }

 private:
  Int value_ = 0;
};

using StageId = Id<struct StageTag>;            // 0 .. S-1, in forward order
using MicrobatchId = Id<struct MicrobatchTag>;  // 0 .. M-1 within a step of one data-parallel rank
using PpRank = Id<struct PpRankTag>;            // 0 .. P-1
using DpRank = Id<struct DpRankTag>;
using CpRank = Id<struct CpRankTag>;
using TpRank = Id<struct TpRankTag>;
using Rank = Id<struct RankTag>;  // global: common/mesh/mesh.h numbers the ranks of a job
using LayerId = Id<struct LayerTag>;
using StepId = Id<struct StepTag, std::int64_t>;  // 1-based, as users see it; 0: none yet
using Generation = Id<struct GenerationTag, std::int64_t>;
using SlotId = Id<struct SlotTag>;
using LaneId = Id<struct LaneTag>;

}  // namespace takt

template <class Tag, class Int>
struct std::hash<takt::Id<Tag, Int>> {
  std::size_t operator()(takt::Id<Tag, Int> id) const noexcept {
    return std::hash<Int>()(id.value());
  }
};
