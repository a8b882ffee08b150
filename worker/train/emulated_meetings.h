// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/program/program.h"
#include "worker/transport/collective.h"

namespace takt::train {

// The meetings inside the passes of emulated layers: the ranks that share them gather a tensor, or
// add up partial sums of it, as real layers would. The values say what they are, and every rank
// verifies them. Thread: the compute lane only.
class EmulatedMeetings {
 public:
  // group: borrowed; null: no rank shares the layers. bytes: of the tensor.
  EmulatedMeetings(transport::Collective* group, std::int64_t bytes);

  // serial: a number that all ranks of the group give this meeting.
  // Errors: those of the group; kInternal (a rank was at another meeting).
  absl::Status Meet(StepId step, program::PartKind kind, std::int64_t serial);

 private:
  absl::Status Gather(StepId step, std::int64_t serial);
  absl::Status Scatter(StepId step, std::int64_t serial);

  transport::Collective* const group_;
  std::vector<float> tensor_;
  std::vector<std::span<float>> parts_;  // of tensor_, by rank
};

}  // namespace takt::train
