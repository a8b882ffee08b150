// SPDX-License-Identifier: Apache-2.0
// The limits that kernels are held against: oneDNN's own matmuls and the machine's memory, with as
// many threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/model/model.h"

namespace takt::bench {

// A matmul of a training step, in the words of backend::Matmul.
struct StepMatmul {
  std::string name;
  std::int64_t m = 0, n = 0, k = 0;
  bool a_transposed = false, b_transposed = false;
  int count = 1;  // times a step runs it

  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
};

// Forward, input gradient and weight gradient of every linear layer and of the head; attention is
// not among them.
std::vector<StepMatmul> StepMatmuls(const model::ModelConfig& model, std::int64_t rows);

// Seconds of the fastest of `runs` calls of `f`.
double BestSeconds(int runs, const std::function<void()>& f);

// Seconds that oneDNN needs for one such matmul with its own threading on `threads` threads, best
// of `runs`. f32: the faster of its matmul primitive and its sgemm. bf16 (operands in bf16, result
// in f32): the fastest of its primitive on matrices as they lie, the same with a result of wider
// rows, which it computes in another way, and, where b is a weight, with b in the order it likes
// best.
double OneDnnSeconds(const StepMatmul& matmul, model::Precision precision, int threads, int runs);

// Bytes read plus bytes written per second by memcpy of large blocks on `threads` threads.
double MemcpyBytesPerSecond(int threads);

}  // namespace takt::bench
