// SPDX-License-Identifier: Apache-2.0
// Names for the passes of families with V placement, where stage s is on rank s, or from P on, on
// rank 2P-1-s. A microbatch passes rank r on its way down (to rank P-1) and then up (back to rank
// 0), first forward and then backward:
//   Fd  F of stage r         Fu  F of stage 2P-1-r
//   Id  I of stage 2P-1-r    Iu  I of stage r          Wd, Wu  the W of what Id, Iu was the I of
#pragma once

#include <array>
#include <cstdint>

#include "common/schedule/schedule.h"

namespace takt::schedule {

enum class VPass : std::uint8_t { kFd, kFu, kId, kIu, kWd, kWu };
inline constexpr int kVPasses = 6;

// One rank's row, written pass by pass. Each kind of pass takes microbatches in ascending order.
// The row counts microbatches from `num_microbatches` on, but leaves them out.
class VRow {
 public:
  VRow(int num_ranks, int rank, int num_microbatches);

  void Add(VPass pass);
  // Adds each of the passes in turn, `times` times.
  template <typename... Passes>
  void Repeat(int times, Passes... passes) {
    for (int i = 0; i < times; ++i) (Add(passes), ...);
  }

  int Count(VPass pass) const { return next_[static_cast<int>(pass)]; }
  Row Take() { return std::move(row_); }

 private:
  int down_stage_, up_stage_;
  int num_microbatches_;
  std::array<int, kVPasses> next_{};
  Row row_;
};

}  // namespace takt::schedule
