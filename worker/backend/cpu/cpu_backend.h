// SPDX-License-Identifier: Apache-2.0
// Backends on the host: oneDNN computes matmuls, and vectorised kernels of our own compute all
// other ops (for AVX-512, AVX2 or any processor, chosen at run time).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/backend/fp8.h"
#include "worker/backend/memory_ledger.h"

namespace takt::backend {

struct CpuOptions {
  // The threads of a backend that computes, at least 1. Its caller is one of them; the others are
  // created once.
  int threads = 1;
  // The instruction set of our own kernels: one of CpuInstructionSets, or empty for the best one.
  std::string instruction_set;
  MemoryLedger* ledger = nullptr;  // borrowed, outlives all buffers; null: memory is not counted
  Fp8Counters* fp8_counters = nullptr;  // borrowed, outlives the backends; null: no counting
};

// Errors: kInvalidArgument (threads, or an instruction set that this machine lacks).
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const CpuOptions& options);

std::unique_ptr<BackendFactory> CreateCpuBackends(const CpuOptions& options);

// Returns the instruction sets that this machine can run, best first: "avx512", "avx2", "baseline".
std::vector<std::string> CpuInstructionSets();

}  // namespace takt::backend
