// SPDX-License-Identifier: Apache-2.0
// Says which jobs keep copies of their state in the memory of their workers, from which a lost rank
// is rebuilt (docs/adr/0008-recovery-from-memory.md).
#pragma once

#include <cstdint>
#include <string>

#include "common/config/job_spec.h"
#include "common/mesh/mesh.h"
#include "common/model/model.h"
#include "common/schedule/schedule.h"

namespace takt::plan {

// The copies of a job depend on these. The struct borrows.
struct CopyInputs {
  const config::JobSpec& job;
  const schedule::Schedule& schedule;
  mesh::Mesh mesh;
  config::DeviceKind device = config::DeviceKind::kCpu;
  bool shares = false;  // ranks share the optimizer's state
};

// Returns why the job keeps no copies, for people; empty: it keeps them.
std::string WhyNoCopies(const CopyInputs& inputs);

// Returns whether the job itself asks for copies: by a number, or because it saves no files. Then
// what the plan chooses must not rule them out.
bool AsksForCopies(const config::JobSpec& job);

// Returns whether the job's copies, if it keeps any, need workers of kAllCopiesProtocolVersion.
bool NeedsAllCopies(const config::JobSpec& job, config::DeviceKind device);

struct CopyCounts {
  int own = 0, peer = 0;
};

// Returns how many copies of its own state a rank keeps (two, so that one of them is always whole),
// and how many it keeps of another rank's. Another rank's are kept only if no replica has the same,
// which none has where replicas share the optimizer's state.
CopyCounts CopiesKept(const CopyInputs& inputs);

// Returns the bytes of one copy of the state of the rank that has most. num_writers: each of so
// many replicas copies the layers that it writes to checkpoints; 1: each copies all.
std::int64_t LargestCopyBytes(const model::Model& model, const mesh::Partition& partition,
                              int num_writers = 1);

}  // namespace takt::plan
