// SPDX-License-Identifier: Apache-2.0
// The parts of Muon's update between its products, which work element by element.
#include <algorithm>
#include <cmath>

#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/cuda/kernels/scratch.cuh"

namespace takt::backend::cuda {
namespace {

constexpr unsigned kThreads = 256;

template <class Body>
__global__ __launch_bounds__(kThreads) void ForElementsKernel(Body body, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) body(i);
}

template <class Body>
void ForElements(const Body& body, std::int64_t count, const LaunchContext& context) {
  LaunchKernel(ForElementsKernel<Body>,
               Blocks{{static_cast<unsigned>(CeilDiv(count, kThreads))}, kThreads}, context.stream,
               body, count);
}

// Adds the gradient to the momentum, and writes the direction of the update.
struct Direction {
  const float* gradient;
  float* m;
  float* direction;
  float momentum, scale;
  bool nesterov, foresees;
  __device__ void operator()(std::int64_t i) const {
    const float g = gradient[i] * scale;
    const float next = momentum * m[i] + g;
    if (!foresees) m[i] = next;
    direction[i] = nesterov ? g + momentum * next : next;
  }
};

// Divides by the norm, so that no singular value is above 1.
struct Normalize {
  float* x;
  const double* squares;
  __device__ void operator()(std::int64_t i) const {
    x[i] *= static_cast<float>(1 / (sqrt(*squares) + kMuonEpsilon));
  }
};

// Makes the polynomial of a square matrix from it and its square, which is in `factor`.
struct Polynomial {
  const float* squared;
  float* factor;
  std::int64_t side;
  __device__ void operator()(std::int64_t i) const {
    float value = kMuonQuintic * factor[i] + kMuonCubic * squared[i];
    if (i / side == i % side) value += kMuonLinear;
    factor[i] = value;
  }
};

struct Move {
  float* parameter;
  const float* previous;
  const float* direction;
  float decay, rate;
  bool moves;  // false: every bit of the parameter stays
  __device__ void operator()(std::int64_t i) const {
    const float p = previous[i];
    parameter[i] = moves ? p - (p * decay + rate * direction[i]) : p;
  }
};

Move MoveOf(const MuonUpdate& op) {
  const double size = std::sqrt(static_cast<double>(std::max(op.rows, op.columns)));
  return {.parameter = op.parameter,
          .previous = op.previous != nullptr ? op.previous : op.parameter,
          .direction = MuonScratch(op).X(kMuonIterations),
          // Rounding 1 - lr wd to a float would change the decay.
          .decay = static_cast<float>(op.learning_rate * op.weight_decay),
          .rate = static_cast<float>(op.learning_rate * kMuonUpdateSize * size),
          .moves = op.learning_rate != 0};
}

void LaunchNormalize(const MuonUpdate& op, const LaunchContext& context) {
  const std::int64_t count = op.rows * op.columns;
  float* const x = MuonScratch(op).X(0);
  auto* const squares = static_cast<double*>(context.scratch);
  LaunchContext of_sum = context;
  of_sum.scratch = static_cast<unsigned char*>(context.scratch) + kMuonSumBytes;
  Launch(SumOfSquares{.input = x, .result = squares, .count = count}, of_sum);
  ForElements(Normalize{x, squares}, count, context);
}

}  // namespace

void Launch(const MuonUpdate& op, MuonPart part, const LaunchContext& context) {
  const MuonScratch scratch(op);
  const std::int64_t count = op.rows * op.columns;
  switch (part) {
    case MuonPart::kDirection:
      ForElements(Direction{op.gradient, op.m, scratch.X(0), static_cast<float>(op.momentum),
                            static_cast<float>(op.gradient_scale), op.nesterov, op.foresees},
                  count, context);
      return;
    case MuonPart::kNormalize:
      LaunchNormalize(op, context);
      return;
    case MuonPart::kPolynomial:
      ForElements(Polynomial{scratch.squared, scratch.factor, scratch.side},
                  scratch.side * scratch.side, context);
      return;
    case MuonPart::kMove:
      ForElements(MoveOf(op), count, context);
      return;
  }
}

}  // namespace takt::backend::cuda
