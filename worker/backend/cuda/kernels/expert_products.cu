// SPDX-License-Identifier: Apache-2.0
// Products of the rows of experts. Only the device knows how many rows an expert has, so a launch
// has blocks for the largest possible number of tiles of rows. Each block finds its expert and its
// rows itself, and blocks beyond the last tile end at once.
//
// A block of threads has a tile of the result, and multiplies by the tilings of attention: in bf16
// on tensor cores, or in f32. It sums in the order of k (of rows, for gradients of matrices), so
// the bits of a row depend on that row alone, and not on how many rows an expert has.
#include <algorithm>

#include "worker/backend/cuda/kernels/device.cuh"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/cuda/kernels/scalar_tiling.cuh"
#include "worker/backend/cuda/kernels/tensor_tiling.cuh"

namespace takt::backend::cuda {
namespace {

constexpr int kSide = 64;  // rows and columns of tiles
using InF32 = ScalarTiling<kSide, float, kSide>;
using InBf16 = TensorTiling<kSide>;

// The experts of a launch, which are [first, first + count) of all, with a matrix of each. The
// parameters of a kernel may have 4 KB.
constexpr int kMostExperts = kMostExpertsOfLaunch;
static_assert(kMostExperts <= InBf16::kThreads && kMostExperts <= InF32::kThreads);
template <class Pointer>
struct ExpertList {
  Pointer matrices[kMostExperts];
  int first, count;
};

template <class T>
struct ProductShared {
  typename T::Weights left;
  typename T::Tile right;
  std::int64_t tokens[kSide];  // of rows; -1: there is no row
  std::int64_t begin;          // the first row of the block's tile
  int ends[kMostExperts];      // where the tiles of each expert end
  int expert;                  // in the list; -1: there is no tile
};

// Fills a tile with the columns [first, first + kSide) of rows of a matrix. row_of(i) returns the
// i-th row, which has `columns` columns, or null.
template <bool kAligned, class T, class Tile, class RowOf>
__device__ inline void FillTile(Tile& tile, std::int64_t first, std::int64_t columns,
                                const RowOf& row_of) {
  constexpr int kCount = kIn16Bytes<typename T::Factor>;
  constexpr int kGroupsOfRow = kSide / kCount;
#pragma unroll 4
  for (int item = static_cast<int>(threadIdx.x); item < kSide * kGroupsOfRow; item += T::kThreads) {
    const int i = item / kGroupsOfRow, j = item % kGroupsOfRow * kCount;
    const auto* row = row_of(i);
    Numbers<kCount> x = {};
    if (row != nullptr && first + j < columns) x = Load<kAligned, kCount>(row, first + j, columns);
    Store<true>(tile.rows[i], j, kSide, x);
  }
}

// Fills a tile with rows [k, k + kSide) and columns [n, n + kSide) of a matrix that is stored by
// columns.
__device__ inline void FillTransposed(InF32::Tile& tile, const ExpertMatmul& op,
                                      const float* matrix, std::int64_t k, std::int64_t n) {
#pragma unroll 4
  for (int item = static_cast<int>(threadIdx.x); item < kSide * kSide; item += InF32::kThreads) {
    const int i = item % kSide, j = item / kSide;
    const bool there = k + i < op.k && n + j < op.n;
    tile.rows[i][j] = there ? matrix[(n + j) * op.k + k + i] : 0;
  }
}

// Finds the tile of the block among those of all experts of the launch, one expert after the other.
template <class T, class List>
__device__ inline void FindTile(const ExpertRows& rows, const List& list,
                                ProductShared<T>& shared) {
  const auto e = static_cast<int>(threadIdx.x);
  const std::int32_t* offsets = rows.offsets + list.first;
  const int tiles =
      e < list.count ? static_cast<int>(CeilDiv(offsets[e + 1] - offsets[e], kSide)) : 0;
  if (e < kMostExperts) shared.ends[e] = tiles;
  if (e == 0) shared.expert = -1;
  __syncthreads();
  for (int distance = 1; distance < list.count; distance *= 2) {
    const int before = e >= distance && e < kMostExperts ? shared.ends[e - distance] : 0;
    __syncthreads();
    if (e < kMostExperts) shared.ends[e] += before;
    __syncthreads();
  }
  const auto tile = static_cast<int>(blockIdx.x);
  if (e < list.count && tile < shared.ends[e] && tile >= shared.ends[e] - tiles) {
    shared.expert = e;
    shared.begin = offsets[e] + std::int64_t{kSide} * (tile - (shared.ends[e] - tiles));
  }
  __syncthreads();
}

// Writes the tokens of the rows from `begin` on.
__device__ inline void FindTokens(const ExpertRows& rows, std::int64_t begin, std::int64_t end,
                                  std::int64_t* tokens) {
  const auto i = static_cast<int>(threadIdx.x);
  if (i < kSide) tokens[i] = begin + i < end ? rows.pairs[begin + i] / rows.chosen : -1;
}

// Fills a tile with the matrix at row k and column n.
template <bool kAligned, class T>
__device__ inline void FillMatrix(typename T::Tile& tile, const ExpertMatmul& op,
                                  const typename T::Factor* matrix, std::int64_t k,
                                  std::int64_t n) {
  if constexpr (std::is_same_v<T, InBf16>) {
    const std::int64_t stride = PackedBf16Stride(op.n);  // there are zeros behind column n
    FillTile<true, T>(tile, n, stride, [&](int i) -> const Bf16* {
      return k + i < op.k ? matrix + (k + i) * stride : nullptr;
    });
  } else if (op.b_transposed) {
    FillTransposed(tile, op, matrix, k, n);
  } else {
    FillTile<kAligned, T>(tile, n, op.n, [&](int i) -> const float* {
      return k + i < op.k ? matrix + (k + i) * op.n : nullptr;
    });
  }
}

// Block (x, y) has the x-th tile of rows and columns [64 y, 64 y + 64).
template <class T, bool kAligned, class A>
__global__ __launch_bounds__(T::kThreads) void ExpertMatmulKernel(
    ExpertMatmul op, const A* a, ExpertList<const typename T::Factor*> list) {
  auto& shared = Shared<ProductShared<T>>();
  FindTile<T>(op.rows, list, shared);
  if (shared.expert < 0) return;
  const typename T::Factor* matrix = list.matrices[shared.expert];
  const std::int64_t begin = shared.begin, end = op.rows.offsets[list.first + shared.expert + 1];
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.y) * kSide;
  FindTokens(op.rows, begin, end, shared.tokens);
  __syncthreads();
  typename T::Columns sums = {};
  for (std::int64_t k = 0; k < op.k; k += kSide) {
    FillTile<kAligned, T>(shared.left, k, op.k, [&](int i) -> const A* {
      if (shared.tokens[i] < 0) return nullptr;
      return a + (op.to_tokens ? begin + i : shared.tokens[i]) * op.k;
    });
    FillMatrix<kAligned, T>(shared.right, op, matrix, k, n);
    __syncthreads();
    T::Accumulate(shared.left, shared.right, sums);
    __syncthreads();
  }
#pragma unroll
  for (int row = 0; row < T::kRowsOfThread; ++row) {
    const int i = T::Row(row);
    const std::int64_t token = shared.tokens[i];
    if (token < 0) continue;
    float* c = op.c + (op.to_tokens ? token : begin + i) * op.n;
#pragma unroll
    for (int column = 0; column < T::kColumnsOfThread; ++column) {
      const std::int64_t j = n + T::Column(column);
      if (j < op.n) c[j] = op.to_tokens ? c[j] + sums[row][column] : sums[row][column];
    }
  }
}

// Block (x, y, z) has rows [64 x, 64 x + 64) and columns [64 y, 64 y + 64) of the result of the
// z-th expert.
template <class T, bool kAligned, class A, class B>
__global__ __launch_bounds__(T::kThreads) void ExpertMatmulTransposedKernel(
    ExpertMatmulTransposed op, const A* a, const B* b, ExpertList<float*> list) {
  const std::int64_t m = static_cast<std::int64_t>(blockIdx.x) * kSide;
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.y) * kSide;
  const std::int32_t* offsets = op.rows.offsets + list.first + blockIdx.z;
  const std::int64_t end = offsets[1];
  auto& shared = Shared<ProductShared<T>>();
  typename T::Columns sums = {};
  for (std::int64_t row = offsets[0]; row < end; row += kSide) {
    FindTokens(op.rows, row, end, shared.tokens);
    __syncthreads();
    // Returns which row of a factor belongs to the i-th row of the expert, or a negative number.
    const auto place = [&](int i, bool by_token) {
      return shared.tokens[i] < 0 || by_token ? shared.tokens[i] : row + i;
    };
    FillTile<kAligned, T>(shared.left, m, op.m, [&](int i) -> const A* {
      const std::int64_t from = place(i, op.a_by_token);
      return from < 0 ? nullptr : a + from * op.m;
    });
    FillTile<kAligned, T>(shared.right, n, op.n, [&](int i) -> const B* {
      const std::int64_t from = place(i, !op.a_by_token);
      return from < 0 ? nullptr : b + from * op.n;
    });
    __syncthreads();
    T::AccumulateTransposed(shared.left, shared.right, sums);
    __syncthreads();
  }
#pragma unroll
  for (int row = 0; row < T::kRowsOfThread; ++row) {
    const std::int64_t i = m + T::Row(row);
    if (i >= op.m) continue;
#pragma unroll
    for (int column = 0; column < T::kColumnsOfThread; ++column) {
      const std::int64_t j = n + T::Column(column);
      if (j >= op.n) continue;
      float* c = list.matrices[blockIdx.z] + i * op.n + j;
      *c = op.accumulate ? *c + sums[row][column] : sums[row][column];
    }
  }
}

// Calls launch(list) for experts [begin, end), at most kMostExperts at a time. matrix_of(e) returns
// the pointer of one.
template <class Pointer, class MatrixOf, class Launched>
void ForLists(std::int64_t begin, std::int64_t end, int most, const MatrixOf& matrix_of,
              const Launched& launch) {
  const auto last = static_cast<int>(end);
  for (auto first = static_cast<int>(begin); first < last; first += most) {
    ExpertList<Pointer> list{.matrices = {}, .first = first, .count = std::min(most, last - first)};
    for (int e = 0; e < list.count; ++e) list.matrices[e] = matrix_of(first + e);
    launch(list);
  }
}

// The rows of one expert belong to different tokens, but rows of two experts may belong to one
// token. So experts whose rows are added to tokens are launched one after the other.
template <class T, class A, class MatrixOf>
void LaunchProduct(const ExpertMatmul& op, const A* a, bool aligned, const MatrixOf& matrix_of,
                   std::int64_t first, std::int64_t end, const LaunchContext& context) {
  using List = ExpertList<const typename T::Factor*>;
  const int most = op.to_tokens ? 1 : kMostExperts;
  ForLists<const typename T::Factor*>(first, end, most, matrix_of, [&](const List& list) {
    // An expert has at most one row of each token, and one tile that is not full.
    const std::int64_t tiles =
        std::min(list.count * CeilDiv(op.rows.tokens, kSide), op.rows.count() / kSide + list.count);
    const Blocks blocks = {
        {static_cast<unsigned>(tiles), static_cast<unsigned>(CeilDiv(op.n, kSide))},
        T::kThreads,
        sizeof(ProductShared<T>)};
    Choose(aligned, [&](auto kAligned) {
      LaunchKernel(ExpertMatmulKernel<T, decltype(kAligned)::value, A>, blocks, context.stream, op,
                   a, list);
    });
  });
}

template <class T, class A, class B>
void LaunchProduct(const ExpertMatmulTransposed& op, const A* a, const B* b,
                   const LaunchContext& context) {
  constexpr int kCount = kIn16Bytes<typename T::Factor>;
  const auto matrix_of = [&op](int e) { return op.gradients[static_cast<std::size_t>(e)].c; };
  ForLists<float*>(
      0, op.rows.experts, kMostExperts, matrix_of, [&](const ExpertList<float*>& list) {
        const Blocks blocks = {
            {static_cast<unsigned>(CeilDiv(op.m, kSide)),
             static_cast<unsigned>(CeilDiv(op.n, kSide)), static_cast<unsigned>(list.count)},
            T::kThreads,
            sizeof(ProductShared<T>)};
        Choose(InGroups<kCount>(op.m, a) && InGroups<kCount>(op.n, b), [&](auto kAligned) {
          LaunchKernel(ExpertMatmulTransposedKernel<T, decltype(kAligned)::value, A, B>, blocks,
                       context.stream, op, a, b, list);
        });
      });
}

}  // namespace

void Launch(const ExpertMatmul& op, const LaunchContext& context) {
  Launch(op, 0, op.rows.experts, context);
}

void Launch(const ExpertMatmul& op, std::int64_t first, std::int64_t end,
            const LaunchContext& context) {
  if (op.in_bf16()) {
    const auto matrix_of = [&op](int e) { return op.matrices[static_cast<std::size_t>(e)].packed; };
    From(op.a, [&]<class A>(const A* a) {
      LaunchProduct<InBf16>(op, a, InGroups<kIn16Bytes<Bf16>>(op.k, a), matrix_of, first, end,
                            context);
    });
    return;
  }
  bool fours = InFours(op.k, op.a.f32);
  for (const ExpertMatrix& matrix : op.matrices)
    fours = fours && (op.b_transposed || InFours(op.n, matrix.b));
  const auto matrix_of = [&op](int e) { return op.matrices[static_cast<std::size_t>(e)].b; };
  LaunchProduct<InF32>(op, op.a.f32, fours, matrix_of, first, end, context);
}

void Launch(const ExpertMatmulTransposed& op, const LaunchContext& context) {
  if (!op.in_bf16) {
    LaunchProduct<InF32>(op, op.a.f32, op.b.f32, context);
    return;
  }
  From(op.a, [&]<class A>(const A* a) {
    From(op.b, [&]<class B>(const B* b) { LaunchProduct<InBf16>(op, a, b, context); });
  });
}

}  // namespace takt::backend::cuda
