// SPDX-License-Identifier: Apache-2.0
// Takes the counts of values that FP8 could not hold from the device to the host's counters.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/cuda/arena.h"
#include "worker/backend/cuda/scratch.h"
#include "worker/backend/fp8.h"

namespace takt::backend::cuda {

// Belongs to one backend. Its thread is the backend's.
class Fp8Tally {
 public:
  // All arguments are borrowed and outlive the object. counters: null: nothing is counted.
  static absl::StatusOr<std::unique_ptr<Fp8Tally>> Create(Arena& arena, cudaStream_t stream,
                                                          Fp8Counters* counters);
  ~Fp8Tally();
  Fp8Tally(const Fp8Tally&) = delete;
  Fp8Tally& operator=(const Fp8Tally&) = delete;

  // Returns LaunchContext::fp8_counts. The address never changes.
  std::uint64_t* counts() const { return on_device_; }

  // Adds the counts that the last call fetched to the counters, and enqueues a copy for the next
  // call. So counts appear one call later, and the host does not wait. Call it once a step.
  absl::Status Report();

  // Adds the counts that are left.  Precondition: the stream has done all its work.
  void Finish();

 private:
  static constexpr std::size_t kNumbers = 2 * kFp8Operands.size();
  static constexpr std::size_t kBytes = kNumbers * sizeof(std::uint64_t);

  Fp8Tally(Arena& arena, cudaStream_t stream, Fp8Counters* counters)
      : memory_(arena), stream_(stream), counters_(counters) {}
  void AddNew();

  Scratch memory_;
  const cudaStream_t stream_;
  Fp8Counters* const counters_;
  std::uint64_t* on_device_ = nullptr;
  volatile std::uint64_t* fetched_ = nullptr;  // pinned: the device writes it
  std::array<std::uint64_t, kNumbers> reported_{};
};

}  // namespace takt::backend::cuda
