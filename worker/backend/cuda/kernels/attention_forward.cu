// SPDX-License-Identifier: Apache-2.0
// Computes causal attention after FlashAttention-2 (Dao 2023, algorithm 1): a block has a tile of
// queries of one head and loops over the tiles of keys that they see.
#include "worker/backend/cuda/kernels/attention.cuh"

namespace takt::backend::cuda {
namespace {

template <class T>
struct ForwardShared {
  typename T::Tile q, kv;  // kv: keys, then values
  typename T::Weights p;
};

// Scales the scores of a tile of keys, turns them into unnormalised probabilities, and rescales
// what earlier tiles left in `sums` and `sum` to the new maximum of each row. Where a query has not
// yet seen a key, hidden keys count as 1. The first key that it sees multiplies that by 0.
template <class T>
__device__ inline void UpdateSoftmax(typename T::Scores& p, typename T::Columns& sums,
                                     float (&max)[T::kRowsOfThread], float (&sum)[T::kRowsOfThread],
                                     float scale, const KeysSeen& keys, std::int64_t q_begin,
                                     std::int64_t k_begin) {
  const bool whole = keys.Whole(q_begin, k_begin, T::kRows);
  const auto distance = static_cast<int>(q_begin - k_begin);
#pragma unroll
  for (int a = 0; a < T::kRowsOfThread; ++a) {
    float row_max = max[a];
    const int document = keys.DocumentFrom(q_begin + T::Row(a), k_begin);
#pragma unroll
    for (int b = 0; b < T::kKeysOfThread; ++b) {
      const bool seen =
          whole || (keys.Sees(distance + T::Row(a) - T::Key(b)) && T::Key(b) >= document);
      p[a][b] = seen ? p[a][b] * scale : kMasked;
      row_max = fmaxf(row_max, p[a][b]);
    }
    row_max = WarpMax<T::kLanesOfRow>(row_max);
    const float correction = exp2f(max[a] - row_max);
    max[a] = row_max;
    sum[a] *= correction;
#pragma unroll
    for (int b = 0; b < T::kKeysOfThread; ++b) {
      p[a][b] = exp2f(p[a][b] - row_max);
      sum[a] += p[a][b];
    }
#pragma unroll
    for (int c = 0; c < T::kColumnsOfThread; ++c) sums[a][c] *= correction;
  }
}

template <class T>
__global__ __launch_bounds__(T::kThreads) void AttentionForwardKernel(AttentionForward op,
                                                                      bool aligned) {
  using E = typename T::Element;
  constexpr int kRows = T::kRows, kRowsOfThread = T::kRowsOfThread;
  auto& shared = Shared<ForwardShared<T>>();
  const AttentionShape& s = op.shape;
  const auto size = static_cast<int>(s.head_size);
  const AttentionBlock block =
      BlockOfQueries(s.heads, s.batch * s.heads, CeilDiv(s.context, kRows));
  const std::int64_t kv_head = block.head / (s.heads / s.kv_heads);
  const std::int64_t first_row = block.batch * s.context, q_begin = block.tile * kRows;
  const float scale = kLog2E / sqrtf(static_cast<float>(size));  // scores in powers of two

  T::Fill(shared.q, {As<E>(op.q) + (first_row + q_begin) * s.q_stride + block.head * size,
                     s.q_stride, s.context - q_begin, size, aligned});
  typename T::Columns sums;
  Zero<T>(sums);
  float max[kRowsOfThread], sum[kRowsOfThread];  // sum: of this thread's keys
#pragma unroll
  for (int a = 0; a < kRowsOfThread; ++a) {
    max[a] = kMasked;
    sum[a] = 0;
  }
  const KeysSeen keys(s, op.starts, block.batch);
  for (std::int64_t k_begin = keys.FirstTile(q_begin, kRows); k_begin <= q_begin;
       k_begin += kRows) {
    const std::int64_t kv_offset = (first_row + k_begin) * s.kv_stride + kv_head * size;
    __syncthreads();  // the last tile of values has been read
    T::Fill(shared.kv, {As<E>(op.k) + kv_offset, s.kv_stride, s.context - k_begin, size, aligned});
    __syncthreads();
    typename T::Scores p;
    T::Multiply(shared.q, shared.kv, p);
    UpdateSoftmax<T>(p, sums, max, sum, scale, keys, q_begin, k_begin);
    Put<T>(shared.p, p);
    __syncthreads();  // and the keys have been read
    T::Fill(shared.kv, {As<E>(op.v) + kv_offset, s.kv_stride, s.context - k_begin, size, aligned});
    __syncthreads();
    T::Accumulate(shared.p, shared.kv, sums);
  }
#pragma unroll
  for (int a = 0; a < kRowsOfThread; ++a) {
    const float row_sum = WarpSum<T::kLanesOfRow>(sum[a]);
    const std::int64_t query = q_begin + T::Row(a);
    if (query >= s.context) continue;
    T::StoreRow(sums, a, 1.0F / row_sum,
                As<E>(op.output) + (first_row + query) * s.out_stride + block.head * size, size,
                aligned);
    if (T::FirstLaneOfRow()) {
      op.logsumexp[(block.batch * s.heads + block.head) * s.context + query] =
          max[a] * kLn2 + logf(row_sum);
    }
  }
}

}  // namespace

void Launch(const AttentionForward& op, const LaunchContext& context) {
  const AttentionShape& s = op.shape;
  ForTiling(s, op.q.bf16 != nullptr, context, [&]<class T>(T) {
    static_assert(FitsTiles<T, ForwardShared<T>>());
    const bool aligned = InGroupsOf16Bytes<typename T::Element>(s, op.q, op.k, op.v, op.output);
    const auto blocks = static_cast<unsigned>(s.batch * s.heads * CeilDiv(s.context, T::kRows));
    LaunchKernel(AttentionForwardKernel<T>, Blocks{{blocks}, T::kThreads, sizeof(ForwardShared<T>)},
                 context.stream, op, aligned);
  });
}

}  // namespace takt::backend::cuda
