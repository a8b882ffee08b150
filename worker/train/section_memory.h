// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "common/layout/tensor.h"
#include "worker/backend/backend.h"

namespace takt::train {

// The memory of a section of a rank's layout: one buffer for each allocation, made in their order.
class SectionMemory {
 public:
  // backend: borrowed for the object's life.  Errors: kResourceExhausted.
  static absl::StatusOr<SectionMemory> Create(const layout::Section& section,
                                              backend::Backend& backend) {
    SectionMemory memory;
    for (const layout::Allocation& each : section.allocations) {
      ASSIGN_OR_RETURN(backend::Buffer buffer,
                       backend.Allocate(static_cast<std::size_t>(each.bytes), each.kind));
      memory.buffers_.push_back(std::move(buffer));
    }
    return memory;
  }

  // Returns where a tensor of the section begins. For an interleaved one that is where all its
  // rooms begin.
  std::byte* At(const layout::Tensor& tensor) const {
    return buffers_[static_cast<std::size_t>(tensor.allocation)].data() + tensor.offset;
  }
  // Returns where an allocation of the section begins.
  std::byte* Begin(int allocation) const {
    return buffers_[static_cast<std::size_t>(allocation)].data();
  }
  float* FloatsAt(const layout::Tensor& tensor) const {
    return reinterpret_cast<float*>(At(tensor));
  }

 private:
  std::vector<backend::Buffer> buffers_;  // by allocation
};

}  // namespace takt::train
