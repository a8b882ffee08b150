// SPDX-License-Identifier: Apache-2.0
// Puts the clocks of all ranks on one axis of time.
#pragma once

#include <cstdint>
#include <vector>

#include "common/trace/job_trace.h"

namespace takt::trace {

struct Alignment {
  std::vector<std::int64_t> offset_nanos;  // by rank: add to its times
  // Two ranks can still be this far apart: the sum of the two largest error bounds.
  std::int64_t error_nanos = 0;
  // The messages moved a rank this far beyond what the exchanges on its control stream said.
  std::int64_t correction_nanos = 0;
};

// Takes the offsets from the exchanges with the coordinator, and corrects them by what is certain:
// no message arrives before it was sent, and no exchange of norms ends before the last rank came to
// it. trace: passed CheckJobTrace.
Alignment AlignClocks(const JobTrace& trace);

}  // namespace takt::trace
