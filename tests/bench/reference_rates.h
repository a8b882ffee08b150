// SPDX-License-Identifier: Apache-2.0
// Measures the limits of kernels: oneDNN's own matmuls and the machine's memory, with as many
// threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/model/model.h"

namespace takt::bench {

// A matmul of a training step. The names are those of backend::Matmul.
struct StepMatmul {
  std::string name;
  std::int64_t m = 0, n = 0, k = 0;
  bool a_transposed = false, b_transposed = false;
  int count = 1;  // how often a step runs it

  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
};

// Returns the forward, input gradient and weight gradient of every linear layer, expert and head,
// without attention. All experts have equally many rows.
std::vector<StepMatmul> StepMatmuls(const model::ModelConfig& model, std::int64_t rows);

// Returns the seconds of the fastest of `runs` calls of `f`.
double BestSeconds(int runs, const std::function<void()>& f);

// Returns the seconds that oneDNN needs for one such matmul with its own threading on `threads`
// threads, as the best of `runs`. For f32 this is the faster of its matmul primitive and its sgemm.
// For bf16 (operands in bf16, result in f32) it is the fastest of three forms of the primitive: on
// plain matrices, with wider rows in the result, which oneDNN computes in another way, and, if b is
// a weight, with b in the order that oneDNN chooses. Processors without bf16 products get the time
// for f32.
double OneDnnSeconds(const StepMatmul& matmul, model::Precision precision, int threads, int runs);

// Returns the bytes that memcpy of large blocks reads and writes per second on `threads` threads.
double MemcpyBytesPerSecond(int threads);

}  // namespace takt::bench
