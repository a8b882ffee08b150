// SPDX-License-Identifier: Apache-2.0
// Helps the tests of ops: random tensors, references in double, finite differences, and comparison
// with a tolerance.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "worker/backend/backend.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace takt::backend::testing {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

inline constexpr double kEpsilon = 0x1p-24;  // half a unit in the last place of a float near 1
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline Floats Random(std::int64_t count, unsigned seed, float scale = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, scale);
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

inline std::vector<std::int32_t> RandomTokens(std::int64_t count, std::int64_t vocab,
                                              unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (std::int32_t& token : tokens)
    token = static_cast<std::int32_t>(generator() % static_cast<unsigned>(vocab));
  return tokens;
}

// Returns the starts of documents that have `length` tokens, one, and 2 * length + 1 in turn. Each
// sequence begins with another one of these. Without a length there are none.
inline std::vector<std::int32_t> DocumentStarts(std::int64_t batch, std::int64_t context,
                                                std::int64_t length) {
  std::vector<std::int32_t> starts;
  if (length == 0) return starts;
  const std::int64_t lengths[] = {length, 1, 2 * length + 1};
  for (std::int64_t b = 0; b < batch; ++b) {
    std::int64_t start = 0, document = b;
    for (std::int64_t t = 0; t < context; ++t) {
      if (t - start == lengths[document % 3]) {
        start = t;
        ++document;
      }
      starts.push_back(static_cast<std::int32_t>(start));
    }
  }
  return starts;
}

// Returns null if there are no documents, as ops want it.
inline const std::int32_t* DataOrNull(const std::vector<std::int32_t>& starts) {
  return starts.empty() ? nullptr : starts.data();
}

// Returns NaNs, which show an element that an op forgot.
inline Floats Unset(std::int64_t count) { return Floats(static_cast<std::size_t>(count), kNan); }

inline Doubles ToDoubles(const Floats& values) { return {values.begin(), values.end()}; }

using Bf16s = std::vector<Bf16>;

inline constexpr double kUnit = 0x1p-8;  // half a unit in the last place of a bf16 near 1

inline double ToDouble(Bf16 x) { return ToFloat(x); }

// Returns the nearer of the two neighbours; of equally near ones, the one with an even last bit.
inline Bf16 Nearest(float x) {
  const Bf16 toward_zero{static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16)};
  const Bf16 away{static_cast<std::uint16_t>(toward_zero.bits + 1)};
  const double below = std::abs(x - ToDouble(toward_zero)), above = std::abs(ToDouble(away) - x);
  if (below == above) return toward_zero.bits % 2 == 0 ? toward_zero : away;
  return below < above ? toward_zero : away;
}

inline Bf16s NearestOf(const Floats& values) {
  Bf16s rounded;
  for (const float value : values) rounded.push_back(Nearest(value));
  return rounded;
}

inline Floats Widened(const Bf16s& values) {
  Floats wide;
  for (const Bf16 value : values) wide.push_back(ToFloat(value));
  return wide;
}

inline std::unique_ptr<Backend> CreateOrDie(const CpuOptions& options) {
  return CreateCpuBackend(options).value();
}

// Expects every element within `allowed(i)` of the expected one. A failure names the worst one, as
// a share of what is allowed.
inline void ExpectNear(const Floats& actual, const Doubles& expected,
                       const std::function<double(std::size_t)>& allowed, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double worst = 0;
  std::size_t where = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double share = std::abs(static_cast<double>(actual[i]) - expected[i]) / allowed(i);
    if (!(share <= worst)) {  // also for NaN
      worst = share;
      where = i;
    }
    if (std::isnan(share)) break;
  }
  EXPECT_LE(worst, 1) << what << ": element " << where << " is " << actual[where] << ", expected "
                      << expected[where] << ", off by " << worst << " times what is allowed";
}

// Returns the tolerance of a sum of `length` products in floats, each of size up to `magnitude`.
inline double SumTolerance(std::int64_t length, double magnitude) {
  return kEpsilon * magnitude * (8 + 4 * std::sqrt(static_cast<double>(length)));
}

inline void ExpectNear(const Floats& actual, const Doubles& expected, double allowed,
                       const std::string& what) {
  ExpectNear(
      actual, expected, [allowed](std::size_t) { return allowed; }, what);
}

// Returns d/dx of sum(weights * f(x)) by central differences, at every `stride`-th element of x;
// NaN elsewhere.
inline Doubles FiniteDifferences(const std::function<Doubles(const Doubles&)>& f, Doubles x,
                                 const Floats& weights, std::size_t stride = 1) {
  constexpr double kStep = 1e-4;
  const auto objective = [&] {
    const Doubles y = f(x);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += static_cast<double>(weights[i]) * y[i];
    return sum;
  };
  Doubles gradient(x.size(), std::numeric_limits<double>::quiet_NaN());
  for (std::size_t i = 0; i < x.size(); i += stride) {
    const double at = x[i];
    // With five points the error is of the fourth order in the step.
    const auto value = [&](double offset) {
      x[i] = at + offset;
      return objective();
    };
    gradient[i] = (8 * (value(kStep) - value(-kStep)) - (value(2 * kStep) - value(-2 * kStep))) /
                  (12 * kStep);
    x[i] = at;
  }
  return gradient;
}

// Compares the elements of `actual` where `expected` is a number.
inline void ExpectNearWhereKnown(const Floats& actual, const Doubles& expected, double allowed,
                                 const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  Floats known_actual;
  Doubles known_expected;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(expected[i])) continue;
    known_actual.push_back(actual[i]);
    known_expected.push_back(expected[i]);
  }
  ExpectNear(known_actual, known_expected, allowed, what);
  for (const float value : actual) ASSERT_FALSE(std::isnan(value)) << what;
}

// A cross-entropy over blocks of columns, each of which has its rows `stride` apart.
template <class T>
class BlockedCrossEntropy {
 public:
  struct Block {
    T* logits = nullptr;
    std::int64_t columns = 0, stride = 0;
  };
  // All but the last block have as many columns as the first. targets, backend: borrowed.
  BlockedCrossEntropy(Backend& backend, std::vector<Block> blocks,
                      const std::vector<std::int32_t>& targets)
      : backend_(backend),
        blocks_(std::move(blocks)),
        targets_(targets),
        parts_(blocks_.size() * targets.size()),
        softmax_(targets.size()) {}

  // Returns the sum of the losses. The logits stay as they are.
  double Loss(float scale, const TargetShares& shares = {}, double z_loss = 0) {
    shares_ = shares;
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      Run(SoftmaxBlock{.logits = blocks_[b].logits,
                       .targets = targets_.data(),
                       .parts = PartsOf(b),
                       .rows = rows(),
                       .columns = blocks_[b].columns,
                       .stride = blocks_[b].stride,
                       .first = First(b),
                       .shares = shares_});
    }
    double loss = -1;
    Run(CrossEntropy{.parts = parts_.data(),
                     .targets = targets_.data(),
                     .softmax = softmax_.data(),
                     .loss_sum = &loss,
                     .rows = rows(),
                     .blocks = static_cast<std::int64_t>(blocks_.size()),
                     .scale = scale,
                     .z_loss = z_loss});
    return loss;
  }

  // Call it after Loss: it overwrites the logits by their gradients.
  void Gradient() {
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      Run(CrossEntropyGradient{.logits = blocks_[b].logits,
                               .targets = targets_.data(),
                               .parts = PartsOf(b),
                               .softmax = softmax_.data(),
                               .rows = rows(),
                               .columns = blocks_[b].columns,
                               .stride = blocks_[b].stride,
                               .first = First(b),
                               .shares = shares_});
    }
  }

  // Returns the softmax of the rows, computed from so many of them at a time. Call it after Loss.
  std::vector<SoftmaxRow> SoftmaxBySlices(std::int64_t slice, float scale) {
    std::vector<SoftmaxRow> softmax(targets_.size());
    for (std::int64_t first = 0; first < rows(); first += slice) {
      Run(CrossEntropy{.parts = parts_.data() + first,
                       .targets = targets_.data() + first,
                       .softmax = softmax.data() + first,
                       .rows = std::min(slice, rows() - first),
                       .blocks = static_cast<std::int64_t>(blocks_.size()),
                       .scale = scale,
                       .parts_stride = rows()});
    }
    return softmax;
  }

  const std::vector<SoftmaxPart>& parts() const { return parts_; }
  const std::vector<SoftmaxRow>& softmax() const { return softmax_; }

 private:
  std::int64_t rows() const { return static_cast<std::int64_t>(targets_.size()); }
  std::int64_t First(std::size_t b) const {
    return static_cast<std::int64_t>(b) * blocks_[0].columns;
  }
  SoftmaxPart* PartsOf(std::size_t b) { return parts_.data() + b * targets_.size(); }
  void Run(const Op& op) { ASSERT_EQ(backend_.Run(op).message(), ""); }

  Backend& backend_;
  const std::vector<Block> blocks_;
  const std::vector<std::int32_t>& targets_;
  TargetShares shares_;  // of the last Loss
  std::vector<SoftmaxPart> parts_;
  std::vector<SoftmaxRow> softmax_;
};

// Name and make the backends that a test program tests. It links one definition of these
// (tested_backends.cc).
std::vector<std::string> TestedBackends();
// Null: this machine has none, and the tests skip.
std::unique_ptr<Backend> CreateTestedBackend(const std::string& name);

// Runs ops on every backend that the program tests. All of them have memory that is the host's.
class OpTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (backend_ == nullptr) GTEST_SKIP() << "no " << GetParam() << " here";
  }
  void Run(const Op& op) { ASSERT_EQ(backend_->Run(op).message(), ""); }
  std::unique_ptr<Backend> backend_ = CreateTestedBackend(GetParam());
};

}  // namespace takt::backend::testing
