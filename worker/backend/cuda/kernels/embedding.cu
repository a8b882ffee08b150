// SPDX-License-Identifier: Apache-2.0
// The embedding: the forward copies rows of a table by token, and the backward sums rows of equal
// token in row order.
//
// The backward first puts the rows in order of (token, row). The place of a row is the number of
// others that come before it, which every row counts for itself. That takes N^2 comparisons of
// integers, about 0.4 ms at N = 65536 rows and a sixteenth of it at a quarter of them (derived). It
// needs no atomics and no memory but the order itself. Then the block at the place where a token
// begins adds up the rows of that token.
#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kColumns = kThreads * 4;  // of a block

template <bool kFours, class OutputType>
__global__ __launch_bounds__(kThreads) void EmbeddingForwardKernel(EmbeddingForward op,
                                                                   OutputType* output) {
  const std::int64_t row = blockIdx.x, columns = op.columns;
  const std::int64_t word = op.tokens != nullptr ? op.tokens[row] - op.first_word : row;
  const bool here = op.num_words == 0 || (word >= 0 && word < op.num_words);
  const float* token = op.token_table + (here ? word : 0) * columns;
  for (std::int64_t i = threadIdx.x * 4; i < columns; i += kColumns) {
    Four x = Load<kFours>(token, i, columns);
    if (op.position_table != nullptr) {
      const std::int64_t start = op.starts != nullptr ? op.starts[row] : 0;
      const Four position =
          Load<kFours>(op.position_table + (row % op.context - start) * columns, i, columns);
      x = Each([&](int k) { return x.v[k] + position.v[k]; });
    }
    if (!here) x = Each([](int) { return -0.0F; });
    Store<kFours>(output + row * columns, i, columns, x);
  }
}

// order[p] becomes the row in place p among all rows by (token, row).
constexpr int kOrderThreads = 256;
struct OrderShared {
  std::int32_t tokens[kOrderThreads];
};
__global__ __launch_bounds__(kOrderThreads) void OrderByTokenKernel(const std::int32_t* tokens,
                                                                    std::int32_t rows,
                                                                    std::int32_t* order) {
  std::int32_t* tile = Shared<OrderShared>().tokens;
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const auto tiles = (rows + kOrderThreads - 1) / kOrderThreads;
  const auto own_tile = static_cast<std::int32_t>(blockIdx.x);
  const std::int32_t row = own_tile * kOrderThreads + thread;
  const std::int32_t token = row < rows ? tokens[row] : 0;
  std::int32_t place = 0;
  for (std::int32_t t = 0; t < tiles; ++t) {
    const std::int32_t other = t * kOrderThreads + thread;
    __syncthreads();
    tile[thread] = other < rows ? tokens[other] : INT32_MAX;  // after every token
    __syncthreads();
    // Among equal tokens, those of rows before this one come first.
    const std::int32_t ties = t < own_tile ? kOrderThreads : t > own_tile ? 0 : thread;
#pragma unroll 16
    for (std::int32_t i = 0; i < kOrderThreads; ++i) {
      place += tile[i] < token || (tile[i] == token && i < ties) ? 1 : 0;
    }
  }
  if (row < rows) order[place] = row;
}

// Block (place, columns) sums all rows of a token if the token begins at the place.
template <bool kFours, class D>
__global__ __launch_bounds__(kThreads) void SumTokensKernel(EmbeddingBackward op, const D* d_output,
                                                            const std::int32_t* order) {
  const std::int64_t rows = op.batch * op.context, columns = op.columns;
  const std::int64_t place = blockIdx.x;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x) * 4;
  const std::int32_t token = op.tokens[order[place]];
  if (place > 0 && op.tokens[order[place - 1]] == token) return;
  const std::int64_t word = token - op.first_word;
  if (column >= columns || word < 0 || word >= op.vocab) return;
  float* output = op.d_token_table + word * columns;
  Four sum = {};
  if (op.accumulate) sum = Load<kFours>(output, column, columns);
  constexpr int kAhead = 4;  // rows whose loads do not wait for each other
  for (std::int64_t p = place; p < rows; p += kAhead) {
    std::int32_t row[kAhead];
    Four d[kAhead] = {};
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      row[a] = p + a < rows ? order[p + a] : -1;
      if (row[a] >= 0 && op.tokens[row[a]] != token) row[a] = -1;
      if (row[a] >= 0) d[a] = Load<kFours>(d_output + row[a] * columns, column, columns);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (row[a] >= 0) sum = Each([&](int k) { return sum.v[k] + d[a].v[k]; });
    }
    if (row[kAhead - 1] < 0) break;
  }
  Store<kFours>(output, column, columns, sum);
}

// Block (position, columns) sums the rows of its position in all documents, in row order. Beyond
// the context the sum is zero.
template <bool kFours, class D>
__global__ __launch_bounds__(kThreads) void SumPositionsKernel(EmbeddingBackward op,
                                                               const D* d_output) {
  const std::int64_t columns = op.columns, position = blockIdx.x;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x) * 4;
  if (column >= columns) return;
  float* output = op.d_position_table + position * columns;
  Four sum = {};
  if (op.accumulate) sum = Load<kFours>(output, column, columns);
  if (position < op.context && op.starts != nullptr) {
    for (std::int64_t row = 0; row < op.batch * op.context; ++row) {
      if (row % op.context - op.starts[row] != position) continue;
      const Four d = Load<kFours>(d_output + row * columns, column, columns);
      sum = Each([&](int k) { return sum.v[k] + d.v[k]; });
    }
  } else if (position < op.context) {
#pragma unroll 4
    for (std::int64_t b = 0; b < op.batch; ++b) {
      const Four d =
          Load<kFours>(d_output + (b * op.context + position) * columns, column, columns);
      sum = Each([&](int k) { return sum.v[k] + d.v[k]; });
    }
  }
  Store<kFours>(output, column, columns, sum);
}

}  // namespace

void Launch(const EmbeddingForward& op, const LaunchContext& context) {
  const Blocks blocks = {{static_cast<unsigned>(op.batch * op.context)}, kThreads};
  To(op.output, [&]<class OutputType>(OutputType* output) {
    Choose(InFours(op.columns, op.token_table, op.position_table, output), [&](auto kFours) {
      LaunchKernel(EmbeddingForwardKernel<decltype(kFours)::value, OutputType>, blocks,
                   context.stream, op, output);
    });
  });
}

namespace {

void LaunchTokens(const EmbeddingBackward& op, const LaunchContext& context) {
  const std::int64_t rows = op.batch * op.context;
  auto* order = static_cast<std::int32_t*>(context.scratch);
  LaunchKernel(OrderByTokenKernel,
               Blocks{{static_cast<unsigned>(CeilDiv(rows, kOrderThreads))},
                      kOrderThreads,
                      sizeof(OrderShared)},
               context.stream, op.tokens, static_cast<std::int32_t>(rows), order);
  if (!op.accumulate) {
    Launch(Fill{.output = op.d_token_table, .count = op.vocab * op.columns}, context);
  }
  const auto column_blocks = static_cast<unsigned>(CeilDiv(op.columns, kColumns));
  From(op.d_output, [&]<class D>(const D* d_output) {
    Choose(InFours(op.columns, d_output, op.d_token_table), [&](auto kFours) {
      LaunchKernel(SumTokensKernel<decltype(kFours)::value, D>,
                   Blocks{{static_cast<unsigned>(rows), column_blocks}, kThreads}, context.stream,
                   op, d_output, order);
    });
  });
}

}  // namespace

void Launch(const EmbeddingBackward& op, const LaunchContext& context) {
  if (op.d_token_table != nullptr) LaunchTokens(op, context);
  if (op.d_position_table == nullptr) return;
  const auto column_blocks = static_cast<unsigned>(CeilDiv(op.columns, kColumns));
  From(op.d_output, [&]<class D>(const D* d_output) {
    Choose(InFours(op.columns, d_output, op.d_position_table), [&](auto kFours) {
      LaunchKernel(SumPositionsKernel<decltype(kFours)::value, D>,
                   Blocks{{static_cast<unsigned>(op.positions), column_blocks}, kThreads},
                   context.stream, op, d_output);
    });
  });
}

}  // namespace takt::backend::cuda
