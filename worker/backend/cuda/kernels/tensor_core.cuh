// SPDX-License-Identifier: Apache-2.0
// Multiplies 16 x 8 x 16 in bf16 on tensor cores (sm_80 and later), and loads the operands. A warp
// executes both together. The emulator follows the layouts that PTX documents: section 9.7.14 of
// PTX ISA 8.7 to 9.0, "Matrix Fragments for mma.m16n8k16 with floating point type" and "Warp-level
// matrix load instruction: ldmatrix". With g = lane / 4 and t = lane % 4:
//   left      a0..a7, two a register, the lower half first: row g for a0 a1 a4 a5, else g + 8;
//             column (k) 2 t + i % 2 for a0..a3, 8 more for a4..a7
//   right     b0..b3, two a register: row (k) 2 t + i % 2 for b0 b1, 8 more for b2 b3; column g
//   sums      c0..c3: row g for c0 c1, g + 8 for c2 c3; column 2 t + i % 2
//   ldmatrix  .x4: lanes 8 m to 8 m + 7 give the rows of matrix m, which is register m: elements
//             2 t and 2 t + 1 of row g; .trans: of column g
#pragma once

#include "worker/backend/cuda/kernels/device.cuh"

namespace takt::backend::cuda {

// A lane's share of 16 x 16 elements of the left operand, or of 16 x 16 of the right one (two of
// its 8-column tiles: registers 0 and 1, then 2 and 3). Each register has two neighbours in k.
struct Fragments {
  std::uint32_t r[4];
};

#ifndef __CUDACC__
// The operands of all lanes, for as long as this object lives.
class OperandsOfWarp {
 public:
  struct Operands {
    Fragments left, right;
  };
  explicit OperandsOfWarp(const Operands& own)
      : all_(emulator::ExchangeAll(reinterpret_cast<std::uintptr_t>(&own))) {}
  OperandsOfWarp(const OperandsOfWarp&) = delete;
  OperandsOfWarp& operator=(const OperandsOfWarp&) = delete;
  ~OperandsOfWarp() { __syncwarp(); }
  float Left(unsigned lane, int index, unsigned half) const {
    return Half(Of(lane).left.r[index], half);
  }
  float Right(unsigned lane, int index, unsigned half) const {
    return Half(Of(lane).right.r[index], half);
  }

 private:
  static float Half(std::uint32_t pair, unsigned half) {
    return Widened(Bf16{static_cast<std::uint16_t>(pair >> (16 * half))});
  }
  const Operands& Of(unsigned lane) const { return *reinterpret_cast<const Operands*>(all_[lane]); }

  const std::array<std::uint64_t, emulator::kWarp> all_;
};
#endif

// Loads four matrices of 8 x 8: lane l gives the address (16-byte aligned, shared memory) of row l
// % 8 of matrix l / 8. Register m gets row l / 4 of matrix m, columns 2 (l % 4) and the next; with
// kTransposed, of its transpose.
template <bool kTransposed>
__device__ inline Fragments LoadMatrices(const Bf16* row) {
  Fragments f;
#ifdef __CUDACC__
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(f.r[0]), "=r"(f.r[1]), "=r"(f.r[2]), "=r"(f.r[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(f.r[0]), "=r"(f.r[1]), "=r"(f.r[2]), "=r"(f.r[3])
                 : "r"(address)
                 : "memory");
  }
#else
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) emulator::Die("ldmatrix is not aligned");
  const auto rows = emulator::ExchangeAll(reinterpret_cast<std::uintptr_t>(row));
  const unsigned lane = threadIdx.x % kWarpSize, group = lane / 4, pair = lane % 4 * 2;
  for (unsigned m = 0; m < 4; ++m) {
    const auto element = [&](unsigned i, unsigned j) -> std::uint32_t {
      return reinterpret_cast<const Bf16*>(rows[m * 8 + i])[j].bits;
    };
    f.r[m] = kTransposed ? element(pair, group) | element(pair + 1, group) << 16
                         : element(group, pair) | element(group, pair + 1) << 16;
  }
  __syncwarp();  // no lane writes before the others have read
#endif
  return f;
}

// Adds left * right to two 16 x 8 tiles of sums. Lane l has rows l / 4 (upper) and l / 4 + 8
// (lower) of a tile, columns 2 (l % 4) and the next. Its elements of the two tiles follow each
// other.
__device__ inline void MultiplyAdd(float* upper, float* lower, const Fragments& left,
                                   const Fragments& right) {
#ifdef __CUDACC__
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, "
        "{%0,%1,%2,%3};\n"
        : "+f"(upper[tile * 2]), "+f"(upper[tile * 2 + 1]), "+f"(lower[tile * 2]),
          "+f"(lower[tile * 2 + 1])
        : "r"(left.r[0]), "r"(left.r[1]), "r"(left.r[2]), "r"(left.r[3]), "r"(right.r[tile * 2]),
          "r"(right.r[tile * 2 + 1]));
  }
#else
  const OperandsOfWarp::Operands own = {left, right};
  const OperandsOfWarp warp(own);
  const unsigned lane = threadIdx.x % kWarpSize, group = lane / 4;
  for (int tile = 0; tile < 2; ++tile) {
    for (unsigned e = 0; e < 2; ++e) {
      const unsigned column = lane % 4 * 2 + e;
      for (unsigned k = 0; k < 16; ++k) {
        const unsigned quarter = k % 8 / 2;
        const int high = k >= 8 ? 1 : 0;
        const float factor = warp.Right(column * 4 + quarter, tile * 2 + high, k % 2);
        upper[tile * 2 + static_cast<int>(e)] +=
            warp.Left(group * 4 + quarter, high * 2, k % 2) * factor;
        lower[tile * 2 + static_cast<int>(e)] +=
            warp.Left(group * 4 + quarter, high * 2 + 1, k % 2) * factor;
      }
    }
  }
#endif
}

}  // namespace takt::backend::cuda
