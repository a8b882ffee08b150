// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "worker/backend/cuda/device.h"

namespace takt::backend::cuda {

// Memory of the device beside the arena, for work before step 1: no plan counts it, and giving it
// back waits for the device.
class Region {
 public:
  Region() = default;
  ~Region() { Free(); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // Replaces what it has.  Errors: kResourceExhausted, which is no error of the job.
  absl::Status Allocate(std::int64_t bytes, const char* what) {
    Free();
    return ToStatus(cudaMalloc(&data_, static_cast<std::size_t>(bytes)), what);
  }

  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void Free() {
    if (data_ != nullptr) static_cast<void>(cudaFree(data_));
    data_ = nullptr;
  }

  void* data_ = nullptr;
};

}  // namespace takt::backend::cuda
