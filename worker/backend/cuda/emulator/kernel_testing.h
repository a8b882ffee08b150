// SPDX-License-Identifier: Apache-2.0
// Runs emulated kernels in several orders of threads and blocks and at several alignments, and
// compares them with each other and with the CPU backend.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>

#include "worker/backend/cpu/op_testing.h"
#include "worker/backend/cuda/emulator/emulated_backend.h"

namespace takt::backend::cuda {

using emulator::ThreadOrder;
using testing::Floats;

// Tensors at a distance of some floats from a boundary of 64 bytes. The bytes behind each are
// checked.
class Tensors {
 public:
  explicit Tensors(std::size_t offset) : offset_(offset) {}

  float* Put(const Floats& values) {
    constexpr std::size_t kSpare = 32;
    auto& memory = memory_.emplace_back(values.size() + kSpare, kGuard);
    auto* aligned =
        reinterpret_cast<float*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64);
    std::copy(values.begin(), values.end(), aligned + offset_);
    ends_.push_back(aligned + offset_ + values.size());
    return aligned + offset_;
  }
  float* Random(std::int64_t count, float scale = 1) {
    return Put(testing::Random(count, ++seed_, scale));
  }
  float* Unset(std::int64_t count) { return Put(testing::Unset(count)); }
  Bf16* UnsetBf16(std::int64_t count) { return reinterpret_cast<Bf16*>(Unset((count + 1) / 2)); }
  Bf16* RandomBf16(std::int64_t count) {
    Bf16* const data = UnsetBf16(count);
    const testing::Bf16s values = testing::NearestOf(testing::Random(count, ++seed_));
    std::copy(values.begin(), values.end(), data);
    return data;
  }
  const std::int32_t* Tokens(std::int64_t count, std::int64_t vocab) {
    tokens_.push_back(testing::RandomTokens(count, vocab, ++seed_));
    return tokens_.back().data();
  }
  bool BoundsHeld() const {
    return std::all_of(ends_.begin(), ends_.end(), [](const float* end) { return *end == kGuard; });
  }

 private:
  static constexpr float kGuard = 12345;
  const std::size_t offset_;
  unsigned seed_ = 0;
  std::vector<Floats> memory_;
  std::vector<const float*> ends_;
  std::vector<std::vector<std::int32_t>> tokens_;
};

// The outputs of an op.
class Result {
 public:
  void Add(const float* data, std::int64_t count) {
    values.insert(values.end(), data, data + count);
  }
  void Add(const Bf16* data, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(data[i].bits) << 16));
    }
  }
  void Add(const Operand& tensor, std::int64_t count) {
    tensor.bf16 != nullptr ? Add(tensor.bf16, count) : Add(tensor.f32, count);
  }
  void Add(double value) { values.push_back(static_cast<float>(value)); }
  Floats values;
};

// Runs ops on tensors that it makes, and returns their outputs.
using Case = std::function<Result(Backend&, Tensors&)>;

inline void RunOp(Backend& backend, const Op& op) { ASSERT_EQ(backend.Run(op).message(), ""); }

inline Result RunCase(const Case& run, Backend& backend, std::size_t offset = 0) {
  Tensors tensors(offset);
  Result result = run(backend, tensors);
  EXPECT_TRUE(tensors.BoundsHeld()) << "written beyond a tensor";
  return result;
}

inline bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// tolerance: of an element, relative to 1 + its size; negative: not compared with the CPU.
inline void Check(const std::string& what, double tolerance, const Case& run) {
  const auto emulated = [&](ThreadOrder order, std::size_t offset) {
    return RunCase(run, *CreateEmulatedBackend(order), offset).values;
  };
  const Floats result = emulated(ThreadOrder::kForward, 0);
  EXPECT_TRUE(SameBits(result, emulated(ThreadOrder::kBackward, 0))) << what << ", backward";
  EXPECT_TRUE(SameBits(result, emulated(ThreadOrder::kShuffled, 1))) << what << ", not aligned";
  if (tolerance < 0) return;
  const Floats expected = RunCase(run, *testing::CreateOrDie({.threads = 1})).values;
  testing::ExpectNear(
      result, testing::ToDoubles(expected),
      [&](std::size_t i) { return tolerance * (1 + std::abs(expected[i])); }, what);
}

struct Sizes {
  std::int64_t rows, columns;
};
// The sizes are around groups of 4, warps, teams of a warp and of a block, and runs of 16 rows.
inline constexpr Sizes kSizes[] = {{1, 1}, {3, 12}, {5, 131}, {2, 1028}, {70, 37}, {130, 8}};
inline constexpr double kExact = 1e-30;
inline constexpr double kFew = 32 * testing::kEpsilon;

inline std::string Name(const char* op, Sizes s) {
  return std::string(op) + " " + std::to_string(s.rows) + "x" + std::to_string(s.columns);
}

// Runs an op with an Output once in f32, where the results may differ by `tolerance`, and once in
// bf16.
template <class F>
void CheckBothOutputs(const std::string& what, const F& run, double tolerance = kFew) {
  Check(what, tolerance, [&](Backend& backend, Tensors& t) { return run(backend, t, false); });
  // Where a sum ends near the middle of two neighbours in bf16, the CPU may round it to the other
  // one.
  Check(what + " bf16", 0x1p-7,
        [&](Backend& backend, Tensors& t) { return run(backend, t, true); });
}

}  // namespace takt::backend::cuda
