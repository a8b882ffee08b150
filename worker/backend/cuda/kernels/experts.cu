// SPDX-License-Identifier: Apache-2.0
// The ops of a mixture of experts between its products, those between rows and tokens, and those on
// the counts of rows by expert.
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

// Each block has a row.
template <bool kFours>
__global__ __launch_bounds__(kThreads) void PackTokensKernel(PackTokens op) {
  const std::int64_t row = blockIdx.x, columns = op.columns;
  const float* from = op.by_token + op.rows.pairs[row] / op.rows.chosen * columns;
  for (std::int64_t i = threadIdx.x * 4; i < columns; i += kColumns)
    Store<kFours>(op.by_row + row * columns, i, columns, Load<kFours>(from, i, columns));
}

// Returns the row of a pair. The pairs of an expert's rows ascend.
__device__ inline std::int32_t RowOf(const AddRowsToTokens& op, std::int64_t pair) {
  const std::int32_t e = op.choices[pair];
  std::int32_t first = op.rows.offsets[e], last = op.rows.offsets[e + 1] - 1;
  while (first < last) {
    const std::int32_t middle = first + (last - first) / 2;
    if (op.rows.pairs[middle] < pair) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first;
}

// Each block has a token. Its threads find the rows of the token's pairs, and then each thread adds
// these in some columns. The experts of a token, and so its pairs, are in ascending order.
struct TokenShared {
  std::int32_t rows[kThreads];
};
template <bool kFours>
__global__ __launch_bounds__(kThreads) void AddRowsToTokensKernel(AddRowsToTokens op) {
  const std::int64_t token = blockIdx.x, columns = op.columns, chosen = op.rows.chosen;
  float* sums = op.by_token + token * columns;
  auto& rows = Shared<TokenShared>().rows;
  for (std::int64_t begin = 0; begin < chosen; begin += kThreads) {
    const auto count = static_cast<int>(chosen - begin < kThreads ? chosen - begin : kThreads);
    const auto mine = static_cast<int>(threadIdx.x);
    if (mine < count) rows[mine] = RowOf(op, token * chosen + begin + mine);
    __syncthreads();
    for (std::int64_t i = threadIdx.x * 4; i < columns; i += kColumns) {
      Four sum = Load<kFours>(sums, i, columns);
      for (int j = 0; j < count; ++j) {
        const Four x = Load<kFours>(op.by_row + rows[j] * columns, i, columns);
        sum = Each([&](int k) { return sum.v[k] + x.v[k]; });
      }
      Store<kFours>(sums, i, columns, sum);
    }
    __syncthreads();
  }
}

// Each thread has one of so many.
template <class Body>
__global__ __launch_bounds__(kThreads) void ForEachKernel(Body body, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) body(i);
}

template <class Body>
void ForEach(const Body& body, std::int64_t count, const LaunchContext& context) {
  if (count == 0) return;
  LaunchKernel(ForEachKernel<Body>,
               Blocks{{static_cast<unsigned>(CeilDiv(count, kThreads))}, kThreads}, context.stream,
               body, count);
}

struct PackPair {
  PackPairs op;
  __device__ void operator()(std::int64_t row) const {
    op.by_row[row] = op.by_pair[op.rows.pairs[row]];
  }
};

struct UnpackPair {
  UnpackPairs op;
  __device__ void operator()(std::int64_t row) const {
    op.by_pair[op.rows.pairs[row]] = op.by_row[row];
  }
};

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

void Launch(const PackTokens& op, const LaunchContext& context) {
  Choose(InFours(op.columns, op.by_token, op.by_row), [&](auto kFours) {
    LaunchKernel(PackTokensKernel<decltype(kFours)::value>, BlocksOfRows(op.rows, 0),
                 context.stream, op);
  });
}

void Launch(const AddRowsToTokens& op, const LaunchContext& context) {
  Choose(InFours(op.columns, op.by_row, op.by_token), [&](auto kFours) {
    LaunchKernel(AddRowsToTokensKernel<decltype(kFours)::value>,
                 Blocks{{static_cast<unsigned>(op.rows.tokens)}, kThreads, sizeof(TokenShared)},
                 context.stream, op);
  });
}

void Launch(const PackPairs& op, const LaunchContext& context) {
  ForEach(PackPair{op}, op.rows.count(), context);
}

void Launch(const UnpackPairs& op, const LaunchContext& context) {
  ForEach(UnpackPair{op}, op.rows.count(), context);
}

void Launch(const CountExpertRows& op, const LaunchContext& context) {
  ForEach(Count{op}, op.rows.experts, context);
}

void Launch(const AddExpertRows& op, const LaunchContext& context) {
  ForEach(AddCount{op}, op.rows.experts, context);
}

void Launch(const BalanceExperts& op, const LaunchContext& context) {
  ForEach(Balance{op}, op.count, context);
}

}  // namespace takt::backend::cuda
