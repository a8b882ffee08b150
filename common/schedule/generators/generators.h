// SPDX-License-Identifier: Apache-2.0
// One function per built-in family; each has a file of its own, and an entry in generate.cc.
#pragma once

#include "absl/status/statusor.h"
#include "common/schedule/generate.h"
#include "common/schedule/schedule.h"

namespace takt::schedule {

struct Generator {
  Family family;
  // options: sizes at least 1 and within kMaxActions, num_chunks set, group set only if
  // the family uses them, costs checked if it does.
  absl::StatusOr<Schedule> (*generate)(const GenerateOptions& options);
};

Generator Naive();
Generator Gpipe();
Generator OneForwardOneBackward();
Generator InterleavedOneForwardOneBackward();
Generator LoopedBfs();
Generator ZbH1();
Generator ZbH2();
Generator Zb1p();
Generator Zb2p();
Generator InterleavedZb();
Generator Gis();
Generator ZbV();
Generator VHalf();
Generator VMin();
Generator DualPipe();
Generator DualPipeV();
Generator Chimera();
Generator PipeDream();
Generator PipeDream2Bw();

}  // namespace takt::schedule
