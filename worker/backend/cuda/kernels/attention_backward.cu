// SPDX-License-Identifier: Apache-2.0
// Computes the gradient of causal attention. FlashAttention-2 (Dao 2023, algorithm 2) adds to d_q
// from many blocks at once. We compute scores twice instead: once where a block owns a tile of
// queries (d_q) and once where it owns a tile of keys (d_k, d_v). That takes seven products in
// place of five, and the order of no sum changes.
#include "worker/backend/cuda/kernels/attention.cuh"

namespace takt::backend::cuda {
namespace {

template <class T>
struct BackwardShared {
  typename T::Tile q, k, v, d_output;
  typename T::Weights weights;
  float logsumexp[T::kRows];  // of the queries, in powers of two
  float delta[T::kRows];      // sum(d_output * output) of the queries
};

// Computes delta[B,H,T], with a warp for each of its numbers.
constexpr int kDeltaThreads = 256;
template <class E>
__global__ __launch_bounds__(kDeltaThreads) void DeltaKernel(AttentionBackward op, float* delta) {
  const AttentionShape& s = op.shape;
  const std::int64_t item =
      static_cast<std::int64_t>(blockIdx.x) * (kDeltaThreads / kWarpSize) + threadIdx.x / kWarpSize;
  if (item >= s.batch * s.context * s.heads) return;
  const std::int64_t row = item / s.heads, head = item % s.heads;
  const std::int64_t begin = row * s.out_stride + head * s.head_size;
  float sum = 0;
  for (std::int64_t i = threadIdx.x % kWarpSize; i < s.head_size; i += kWarpSize) {
    sum += Widened(As<E>(op.d_output)[begin + i]) * Widened(As<E>(op.output)[begin + i]);
  }
  sum = WarpSum(sum);
  if (threadIdx.x % kWarpSize == 0) {
    delta[(row / s.context * s.heads + head) * s.context + row % s.context] = sum;
  }
}

// Finds and loads what a block reads.
template <class T>
struct Reader {
  using E = typename T::Element;
  const AttentionBackward& op;
  const float* delta;
  bool aligned;
  std::int64_t batch;

  __device__ std::int64_t Row(std::int64_t t) const { return batch * op.shape.context + t; }
  __device__ int Size() const { return static_cast<int>(op.shape.head_size); }

  __device__ void FillQueries(std::int64_t head, std::int64_t begin) const {
    const AttentionShape& s = op.shape;
    auto& shared = Shared<BackwardShared<T>>();
    const std::int64_t left = s.context - begin;
    T::Fill(shared.q, {As<E>(op.q) + Row(begin) * s.q_stride + head * Size(), s.q_stride, left,
                       Size(), aligned});
    T::Fill(shared.d_output, {As<E>(op.d_output) + Row(begin) * s.out_stride + head * Size(),
                              s.out_stride, left, Size(), aligned});
    static_assert(T::kThreads >= T::kRows);
    const auto row = static_cast<int>(threadIdx.x);
    if (row >= T::kRows) return;
    const std::int64_t i = (batch * s.heads + head) * s.context + begin + row;
    shared.logsumexp[row] = row < left ? op.logsumexp[i] * kLog2E : 0;
    shared.delta[row] = row < left ? delta[i] : 0;
  }

  __device__ void FillKeys(std::int64_t kv_head, std::int64_t begin) const {
    const AttentionShape& s = op.shape;
    auto& shared = Shared<BackwardShared<T>>();
    const std::int64_t offset = Row(begin) * s.kv_stride + kv_head * Size();
    T::Fill(shared.k, {As<E>(op.k) + offset, s.kv_stride, s.context - begin, Size(), aligned});
    T::Fill(shared.v, {As<E>(op.v) + offset, s.kv_stride, s.context - begin, Size(), aligned});
  }

  // Computes, from the tiles in shared memory, p (probabilities) and ds (gradients of scores before
  // the scale). Queries and keys beyond the context have zeros for d_output, q and k, and add
  // nothing.
  __device__ void Scores(const KeysSeen& keys, std::int64_t q_begin, std::int64_t k_begin,
                         typename T::Scores& p, typename T::Scores& ds) const {
    const auto& shared = Shared<BackwardShared<T>>();
    const bool whole = keys.Whole(q_begin, k_begin, T::kRows);
    const auto distance = static_cast<int>(q_begin - k_begin);
    const float scale = kLog2E / sqrtf(static_cast<float>(Size()));
    T::Multiply(shared.q, shared.k, p);
    T::Multiply(shared.d_output, shared.v, ds);
#pragma unroll
    for (int a = 0; a < T::kRowsOfThread; ++a) {
      const float logsumexp = shared.logsumexp[T::Row(a)], row_delta = shared.delta[T::Row(a)];
      const int document = keys.DocumentFrom(q_begin + T::Row(a), k_begin);
#pragma unroll
      for (int b = 0; b < T::kKeysOfThread; ++b) {
        const bool seen =
            whole || (keys.Sees(distance + T::Row(a) - T::Key(b)) && T::Key(b) >= document);
        p[a][b] = seen ? exp2f(p[a][b] * scale - logsumexp) : 0;
        ds[a][b] = p[a][b] * (ds[a][b] - row_delta);
      }
    }
  }
};

template <class T>
__global__ __launch_bounds__(T::kThreads) void QueryGradientKernel(AttentionBackward op,
                                                                   const float* delta,
                                                                   bool aligned) {
  using E = typename T::Element;
  constexpr int kRows = T::kRows;
  auto& shared = Shared<BackwardShared<T>>();
  const AttentionShape& s = op.shape;
  const AttentionBlock block =
      BlockOfQueries(s.heads, s.batch * s.heads, CeilDiv(s.context, kRows));
  const Reader<T> read = {op, delta, aligned, block.batch};
  const std::int64_t q_begin = block.tile * kRows;
  read.FillQueries(block.head, q_begin);
  typename T::Columns d_q;
  Zero<T>(d_q);
  const KeysSeen keys(s, op.starts, block.batch);
  for (std::int64_t k_begin = keys.FirstTile(q_begin, kRows); k_begin <= q_begin;
       k_begin += kRows) {
    __syncthreads();  // the last tile of keys has been read
    read.FillKeys(block.head / (s.heads / s.kv_heads), k_begin);
    __syncthreads();
    typename T::Scores p, ds;
    read.Scores(keys, q_begin, k_begin, p, ds);
    Put<T>(shared.weights, ds);
    __syncthreads();
    T::Accumulate(shared.weights, shared.k, d_q);
  }
  const float scale = 1.0F / sqrtf(static_cast<float>(s.head_size));
#pragma unroll
  for (int a = 0; a < T::kRowsOfThread; ++a) {
    const std::int64_t query = q_begin + T::Row(a);
    if (query >= s.context) continue;
    T::StoreRow(d_q, a, scale,
                As<E>(op.d_q) + read.Row(query) * s.q_stride + block.head * read.Size(),
                read.Size(), aligned);
  }
}

template <class T>
__global__ __launch_bounds__(T::kThreads) void KeyGradientKernel(AttentionBackward op,
                                                                 const float* delta, bool aligned) {
  using E = typename T::Element;
  constexpr int kRows = T::kRows;
  auto& shared = Shared<BackwardShared<T>>();
  const AttentionShape& s = op.shape;
  const AttentionBlock block = BlockOfKeys(s.kv_heads, s.batch * s.kv_heads);
  const Reader<T> read = {op, delta, aligned, block.batch};
  const std::int64_t k_begin = block.tile * kRows, group = s.heads / s.kv_heads;
  read.FillKeys(block.head, k_begin);
  typename T::Columns d_k, d_v;
  Zero<T>(d_k);
  Zero<T>(d_v);
  const KeysSeen keys(s, op.starts, block.batch);
  const std::int64_t q_end = keys.EndOfQueries(k_begin, kRows);
  for (std::int64_t head = block.head * group; head < (block.head + 1) * group; ++head) {
    for (std::int64_t q_begin = k_begin; q_begin < q_end; q_begin += kRows) {
      __syncthreads();  // the last tile of queries and its weights have been read
      read.FillQueries(head, q_begin);
      __syncthreads();
      typename T::Scores p, ds;
      read.Scores(keys, q_begin, k_begin, p, ds);
      Put<T>(shared.weights, p);
      __syncthreads();
      T::AccumulateTransposed(shared.weights, shared.d_output, d_v);
      __syncthreads();
      Put<T>(shared.weights, ds);
      __syncthreads();
      T::AccumulateTransposed(shared.weights, shared.q, d_k);
    }
  }
  const float scale = 1.0F / sqrtf(static_cast<float>(s.head_size));
#pragma unroll
  for (int a = 0; a < T::kRowsOfThread; ++a) {
    const std::int64_t key = k_begin + T::Row(a);
    if (key >= s.context) continue;
    const std::int64_t offset = read.Row(key) * s.kv_stride + block.head * read.Size();
    T::StoreRow(d_k, a, scale, As<E>(op.d_k) + offset, read.Size(), aligned);
    T::StoreRow(d_v, a, 1, As<E>(op.d_v) + offset, read.Size(), aligned);
  }
}

}  // namespace

void Launch(const AttentionBackward& op, const LaunchContext& context) {
  const AttentionShape& s = op.shape;
  auto* delta = static_cast<float*>(context.scratch);
  const std::int64_t deltas = s.batch * s.context * s.heads;
  const Blocks delta_blocks = {{static_cast<unsigned>(CeilDiv(deltas, kDeltaThreads / kWarpSize))},
                               kDeltaThreads};
  From(op.q, [&]<class E>(const E*) {
    LaunchKernel(DeltaKernel<E>, delta_blocks, context.stream, op, delta);
  });
  ForTiling(s, op.q.bf16 != nullptr, context, [&]<class T>(T) {
    static_assert(FitsTiles<T, BackwardShared<T>>());
    const bool aligned = InGroupsOf16Bytes<typename T::Element>(s, op.q, op.k, op.v, op.d_output,
                                                                op.d_q, op.d_k, op.d_v);
    const std::int64_t tiles = CeilDiv(s.context, T::kRows);
    const auto blocks = [&](std::int64_t heads) {
      return Blocks{
          {static_cast<unsigned>(s.batch * heads * tiles)}, T::kThreads, sizeof(BackwardShared<T>)};
    };
    LaunchKernel(QueryGradientKernel<T>, blocks(s.heads), context.stream, op, delta, aligned);
    LaunchKernel(KeyGradientKernel<T>, blocks(s.kv_heads), context.stream, op, delta, aligned);
  });
}

}  // namespace takt::backend::cuda
