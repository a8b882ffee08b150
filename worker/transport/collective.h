// SPDX-License-Identifier: Apache-2.0
// Sums over a group of ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/id.h"
#include "worker/backend/stream.h"

namespace takt::transport {

struct CollectiveOptions {
  // The name of the group. It is the same on all ranks of the group, and two groups that share two
  // ranks have different names.
  std::string name;
  std::vector<Rank> ranks;      // in the order of summation; at least one
  int index = 0;                // of this rank in `ranks`
  std::int64_t generation = 0;  // goes into the tags of messages
};

// Adds values of the ranks of a group in rank order, so that the result has the same bits on every
// rank and in every run. Thread: one caller at a time per object.  Errors: as the transport's.
class Collective {
 public:
  virtual ~Collective() = default;
  virtual int size() const = 0;
  // Replaces element i by ((x0 + x1) + x2) + ... by group rank. Floats lie in device memory if the
  // group is one of devices; doubles always lie in host memory.
  virtual absl::Status AllReduceSum(StepId step, std::span<float> data) = 0;
  virtual absl::Status AllReduceSum(StepId step, std::span<double> data) = 0;
  // The stream on which a sum of floats is left to be done later. Null: it is done on return.
  virtual backend::Stream* stream() { return nullptr; }
};

}  // namespace takt::transport
