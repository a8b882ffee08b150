// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/count_ops.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <variant>

#include "worker/backend/cuda/cudnn_shape.h"
#include "worker/backend/cuda/emulator/emulator.h"
#include "worker/backend/cuda/gemm.h"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/cuda/product.h"

namespace takt::bench {
namespace {

using namespace backend;        // NOLINT(google-build-using-namespace): the ops
using namespace backend::cuda;  // NOLINT(google-build-using-namespace): their kernels

constexpr char kCapability[] = "9.0";
constexpr double kF32 = 4, kBf16 = 2;

alignas(256) std::byte scratch[256];  // its address alone is used

double SizeOf(const Operand& tensor) { return tensor.bf16 != nullptr ? kBf16 : kF32; }

template <class O>
double LaunchesOf(const O& op) {
  std::int64_t count = 0;
  emulator::CountGrids(&count);
  Launch(op, {.scratch = scratch});
  emulator::CountGrids(nullptr);
  return static_cast<double>(count);
}

double AttentionFlops(const AttentionShape& s) {
  const std::int64_t window = s.window > 0 ? std::min(s.window, s.context) : s.context;
  const std::int64_t pairs = window * (window + 1) / 2 + (s.context - window) * window;
  return 4.0 * static_cast<double>(s.batch * pairs) * static_cast<double>(s.heads * s.head_size);
}

// Bytes of an op of ours: what it must read and write once.
struct Bytes {
  double operator()(const BiasGrad& o) const {
    return Elements(o.rows, o.columns) * SizeOf(o.d_output);
  }
  double operator()(const LayerNormForward& o) const {
    return Elements(o.rows, o.columns) * (SizeOf(o.input) + SizeOf(o.output));
  }
  double operator()(const RmsNormForward& o) const {
    return Elements(o.rows, o.columns) * (SizeOf(o.input) + SizeOf(o.output));
  }
  double operator()(const LayerNormBackwardInput& o) const { return NormInput(o); }
  double operator()(const RmsNormBackwardInput& o) const { return NormInput(o); }
  double operator()(const LayerNormBackwardWeights& o) const { return NormWeights(o); }
  double operator()(const RmsNormBackwardWeights& o) const { return NormWeights(o); }
  double operator()(const Rotary& o) const {
    return Elements(o.batch * o.context, o.heads * o.head_size) * 2 * SizeOf(o.x);
  }
  double operator()(const SwigluForward& o) const {
    return Elements(o.rows, o.columns) * (2 * SizeOf(o.gate) + SizeOf(o.output));
  }
  double operator()(const SwigluBackward& o) const {
    return Elements(o.rows, o.columns) * 5 * SizeOf(o.gate);
  }
  double operator()(const GeluForward& o) const {
    return Elements(o.count, 1) * (SizeOf(o.input) + SizeOf(o.output));
  }
  double operator()(const GeluBackward& o) const {
    return Elements(o.count, 1) * 3 * SizeOf(o.input);
  }
  double operator()(const EmbeddingForward& o) const {
    return Elements(o.batch * o.context, o.columns) * (kF32 + SizeOf(o.output));
  }
  double operator()(const EmbeddingBackward& o) const {
    const double tables =
        (o.d_token_table != nullptr ? 1 : 0) + (o.d_position_table != nullptr ? 1 : 0);
    return Elements(o.batch * o.context, o.columns) * tables * SizeOf(o.d_output) +
           Elements(o.d_token_table != nullptr ? o.vocab : 0, o.columns) * kF32;
  }
  double operator()(const SoftmaxBlock& o) const {
    return Elements(o.rows, o.columns) * SizeOf(o.logits);
  }
  double operator()(const CrossEntropyGradient& o) const {
    return Elements(o.rows, o.columns) * 2 * SizeOf(o.logits);
  }
  double operator()(const PackBf16& o) const { return Elements(o.k, o.n) * (kF32 + kBf16); }
  double operator()(const SumOfSquares& o) const { return Elements(o.count, 1) * kF32; }
  double operator()(const Fill& o) const { return Elements(o.count, 1) * kF32; }
  double operator()(const Copy& o) const {
    return Elements(o.count, 1) * (SizeOf(o.input) + SizeOf(o.output));
  }
  double operator()(const Add& o) const { return Elements(o.count, 1) * 3 * kF32; }
  double operator()(const FeedBackError& o) const { return Elements(o.count, 1) * 5 * kF32; }
  // A parameter, its gradient and its moments are read, and all but the gradient are written. The
  // parameter may be written rounded as well.
  double operator()(const UpdateOp auto& o) const {
    double bytes = 0;
    for (const UpdatedTensor& t : o.tensors) {
      const int moments = (t.m != nullptr ? 1 : 0) + (t.v != nullptr ? 1 : 0);
      const double rounded = t.rounded != nullptr ? kBf16 : 0;
      bytes += Elements(t.count, 1) * ((3 + 2 * moments) * kF32 + rounded);
    }
    return bytes;
  }
  double operator()(const auto& /*small*/) const { return 0; }

 private:
  static double Elements(std::int64_t rows, std::int64_t columns) {
    return static_cast<double>(rows) * static_cast<double>(columns);
  }
  static double NormInput(const auto& o) {
    const bool has_residual =
        o.residual_gradient.f32 != nullptr || o.residual_gradient.bf16 != nullptr;
    const double of_stream = (has_residual ? 3 : 2) * SizeOf(o.d_input);
    const double rounded = o.rounded != nullptr ? kBf16 : 0;
    return Elements(o.rows, o.columns) * (SizeOf(o.d_output) + of_stream + rounded);
  }
  static double NormWeights(const auto& o) {
    return Elements(o.rows, o.columns) * (SizeOf(o.d_output) + SizeOf(o.x));
  }
};

// Returns where a product reads an operand, and counts the kernel that rounds it first.
RoundedOperand Placed(const Operand& operand, std::int64_t rows, std::int64_t columns,
                      std::int64_t stride, OpCount& count) {
  RoundedOperand place = WhereRounded(operand, columns, stride);
  if (place.data != nullptr) return place;
  place.data = reinterpret_cast<const Bf16*>(scratch);
  count.launches += 1;
  count.elementwise_bytes += static_cast<double>(rows * columns) * (SizeOf(operand) + kBf16);
  return place;
}

void CountProduct(const Product& product, OpCount& count) {
  const ProductShape& s = product.shape;
  const Gemm gemm = GemmOf(s, GemmVariants(s, kCapability).front());
  count.launches += 1;
  const bool makes_vector = gemm.has_vector() && PointersOf(product, gemm).vector == nullptr;
  if (makes_vector && gemm.epilogue != GemmEpilogue::kBGradA) count.launches += 1;  // rounds a bias
  const Remainder left = RemainderOf(product, gemm);
  const double output = static_cast<double>(s.m * s.n) * (s.bf16_c ? kBf16 : kF32);
  const auto finish = [&](bool is_left, double bytes) {
    if (!is_left) return;
    count.launches += 1;
    count.elementwise_bytes += bytes;
  };
  finish(left.bias, 2 * output);
  finish(left.gelu, 2 * output);
  finish(left.gelu_grad, 3 * output);
  finish(left.add_sums && !product.sums_may_wait, 0);  // else with those of a later product
  if (!left.column_sums) return;
  const BiasGrad sums{.d_output = product.summed,
                      .d_bias = product.column_sums,
                      .rows = s.k,
                      .columns = s.n,
                      .accumulate = s.addend == Addend::kOutput};
  count.launches += LaunchesOf(sums);
  count.elementwise_bytes += Bytes()(sums);
}

struct Counter {
  OpCount operator()(const Matmul& o) const {
    OpCount count = FlopsOf(o);
    CountProduct(ProductOf(o, /*tf32=*/false), count);
    return count;
  }
  OpCount operator()(const MatmulBf16& o) const {
    OpCount count = FlopsOf(o);
    const RoundedOperand a = Placed(o.a, o.m, o.k, o.a_stride, count);
    CountProduct(ProductOf(o, a), count);
    return count;
  }
  OpCount operator()(const MatmulTransposedBf16& o) const {
    OpCount count = FlopsOf(o);
    const RoundedOperand a = Placed(o.a, o.k, o.m, o.a_stride, count);
    const RoundedOperand b = Placed(o.b, o.k, o.n, o.b_stride, count);
    for (const Product& product : CutToVectors(ProductOf(o, a, b))) CountProduct(product, count);
    return count;
  }
  OpCount operator()(const AttentionForward& o) const {
    return {.launches = FitsCudnn(o) ? kLaunchesOfAttention : LaunchesOf(o),
            .attention_flops = AttentionFlops(o.shape)};
  }
  OpCount operator()(const AttentionBackward& o) const {
    const std::int64_t at_a_time = SequencesAtATime(o.shape);
    const std::int64_t parts = (o.shape.batch + at_a_time - 1) / at_a_time;
    return {.launches = FitsCudnn(o) ? static_cast<double>(parts * kLaunchesOfAttentionGradient)
                                     : LaunchesOf(o),
            .attention_gradient_flops = 2 * AttentionFlops(o.shape)};
  }
  OpCount operator()(const auto& o) const {
    return {.launches = LaunchesOf(o), .elementwise_bytes = Bytes()(o)};
  }
  // MuonUpdate is many launches and products (kernels/muon.h). No job whose ops are counted has it.
  OpCount operator()(const MuonUpdate& /*op*/) const { return {}; }

 private:
  static OpCount FlopsOf(const ProductOp auto& o) {
    return {.product_flops = 2.0 * static_cast<double>(o.m) * static_cast<double>(o.n) *
                             static_cast<double>(o.k)};
  }
};

}  // namespace

OpCount& OpCount::operator+=(const OpCount& other) {
  launches += other.launches;
  elementwise_bytes += other.elementwise_bytes;
  product_flops += other.product_flops;
  attention_flops += other.attention_flops;
  attention_gradient_flops += other.attention_gradient_flops;
  return *this;
}

OpCount OpCount::operator*(double factor) const {
  return {.launches = launches * factor,
          .elementwise_bytes = elementwise_bytes * factor,
          .product_flops = product_flops * factor,
          .attention_flops = attention_flops * factor,
          .attention_gradient_flops = attention_gradient_flops * factor};
}

OpCount CountOp(const Op& op) { return std::visit(Counter(), op); }

bool IsWeightGrad(const Op& op) {
  return std::visit(
      []<class O>([[maybe_unused]] const O& o) {
        if constexpr (std::is_same_v<O, Matmul>) return o.a_transposed;
        return std::is_same_v<O, MatmulTransposedBf16> || std::is_same_v<O, BiasGrad> ||
               std::is_same_v<O, LayerNormBackwardWeights> ||
               std::is_same_v<O, RmsNormBackwardWeights> || std::is_same_v<O, EmbeddingBackward>;
      },
      op);
}

}  // namespace takt::bench
