// SPDX-License-Identifier: Apache-2.0
// The ops of a mixture of experts between its products, and those on the counts of rows by expert.
#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kColumns = kThreads * 4;  // of one pass of a block of threads

// Each block has a row.
template <bool kFours, class T>
__global__ __launch_bounds__(kThreads) void ExpertSwigluForwardKernel(ExpertSwigluForward op,
                                                                      T* outputs) {
  const std::int64_t row = blockIdx.x, columns = op.columns;
  const float weight = op.weights[op.rows.pairs[row]];
  const float *gate = op.gate + row * columns, *up = op.up + row * columns;
  for (std::int64_t i = threadIdx.x * 4; i < columns; i += kColumns) {
    const Four x = Load<kFours>(gate, i, columns), y = Load<kFours>(up, i, columns);
    Store<kFours>(outputs + row * columns, i, columns,
                  Each([&](int k) { return x.v[k] / (1.0F + expf(-x.v[k])) * y.v[k] * weight; }));
  }
}

// Each block has a row. The sums of its threads are added along a tree.
struct SwigluShared {
  float sums[kThreads / kWarpSize];
};
template <bool kFours>
__global__ __launch_bounds__(kThreads) void ExpertSwigluBackwardKernel(ExpertSwigluBackward op) {
  const std::int64_t row = blockIdx.x, columns = op.columns;
  const std::int32_t pair = op.rows.pairs[row];
  const float weight = op.weights[pair];
  const float *gate = op.gate + row * columns, *up = op.up + row * columns;
  const float* d_output = op.d_output + row * columns;
  float d_weight = 0;
  for (std::int64_t i = threadIdx.x * 4; i < columns; i += kColumns) {
    const Four x = Load<kFours>(gate, i, columns), y = Load<kFours>(up, i, columns),
               d = Load<kFours>(d_output, i, columns);
    const Four sigmoid = Each([&](int k) { return 1.0F / (1.0F + expf(-x.v[k])); });
#pragma unroll
    for (int k = 0; k < 4; ++k) d_weight += d.v[k] * (x.v[k] * sigmoid.v[k]) * y.v[k];
    Store<kFours>(op.d_gate + row * columns, i, columns, Each([&](int k) {
                    const float s = sigmoid.v[k];
                    return weight * d.v[k] * y.v[k] * (s * (1.0F + x.v[k] * (1.0F - s)));
                  }));
    Store<kFours>(op.d_up + row * columns, i, columns,
                  Each([&](int k) { return weight * d.v[k] * (x.v[k] * sigmoid.v[k]); }));
  }
  d_weight = TeamSum<kThreads>(d_weight, Shared<SwigluShared>().sums);
  if (threadIdx.x == 0) op.d_weights[pair] = d_weight;
}

// Each thread has an expert.
template <class Body>
__global__ __launch_bounds__(kThreads) void ForExpertsKernel(Body body, std::int64_t experts) {
  const std::int64_t e = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (e < experts) body(e);
}

template <class Body>
void ForExperts(const Body& body, std::int64_t experts, const LaunchContext& context) {
  if (experts == 0) return;
  LaunchKernel(ForExpertsKernel<Body>,
               Blocks{{static_cast<unsigned>(CeilDiv(experts, kThreads))}, kThreads},
               context.stream, body, experts);
}

__device__ inline std::int32_t RowsOf(const ExpertRows& rows, std::int64_t expert) {
  return rows.offsets[expert + 1] - rows.offsets[expert];
}

struct Count {
  CountExpertRows op;
  __device__ void operator()(std::int64_t e) const { op.counts[e] = RowsOf(op.rows, e); }
};

struct AddCount {
  AddExpertRows op;
  __device__ void operator()(std::int64_t e) const {
    const auto rows = static_cast<float>(RowsOf(op.rows, e));
    op.sums[e] = op.accumulate ? op.sums[e] + rows : rows;
  }
};

struct Balance {
  BalanceExperts op;
  __device__ void operator()(std::int64_t e) const {
    float step = 0;
    if (op.counts[e] < op.mean) step = op.rate;
    if (op.counts[e] > op.mean) step = -op.rate;
    op.bias[e] = op.previous[e] + step;
  }
};

Blocks BlocksOfRows(const ExpertRows& rows, std::size_t shared_bytes) {
  return {{static_cast<unsigned>(rows.count())}, kThreads, shared_bytes};
}

}  // namespace

void Launch(const ExpertSwigluForward& op, const LaunchContext& context) {
  To(op.output, [&]<class T>(T* output) {
    Choose(InFours(op.columns, op.gate, op.up, output), [&](auto kFours) {
      LaunchKernel(ExpertSwigluForwardKernel<decltype(kFours)::value, T>, BlocksOfRows(op.rows, 0),
                   context.stream, op, output);
    });
  });
}

void Launch(const ExpertSwigluBackward& op, const LaunchContext& context) {
  Choose(InFours(op.columns, op.gate, op.up, op.d_output, op.d_gate, op.d_up), [&](auto kFours) {
    LaunchKernel(ExpertSwigluBackwardKernel<decltype(kFours)::value>,
                 BlocksOfRows(op.rows, sizeof(SwigluShared)), context.stream, op);
  });
}

void Launch(const CountExpertRows& op, const LaunchContext& context) {
  ForExperts(Count{op}, op.rows.experts, context);
}

void Launch(const AddExpertRows& op, const LaunchContext& context) {
  ForExperts(AddCount{op}, op.rows.experts, context);
}

void Launch(const BalanceExperts& op, const LaunchContext& context) {
  ForExperts(Balance{op}, op.count, context);
}

}  // namespace takt::backend::cuda
