// SPDX-License-Identifier: Apache-2.0
// Tests the backward of norms that sums over rows on its way: in every order of threads, against
// the CPU, and against the kernels that sum one thing each.
#include "worker/backend/cuda/emulator/kernel_testing.h"

namespace takt::backend::cuda {
namespace {

// Rows of one run and of several; columns of a kernel of its own (over 128), with one and with two
// groups a thread, and of several kernels.
constexpr Sizes kSummed[] = {{20, 37}, {5, 131}, {37, 132}, {3, 1028}, {1, 8196}};
constexpr double kOfSums = 8 * kFew;

// What is in bf16 of an op: what comes from the norm's output, and what belongs to the residual
// stream.
struct InBf16 {
  bool d_output = false, stream = false;
};
constexpr InBf16 kTypes[] = {{}, {.d_output = true}, {true, true}};

// A LayerNormBackwardInput with all its sums, and their outputs.
struct Layer {
  LayerNormBackwardInput op;
  std::int64_t rows, columns;

  Layer(Tensors& t, Sizes s, InBf16 bf16, bool accumulate) : rows(s.rows), columns(s.columns) {
    const std::int64_t count = rows * columns;
    const auto random = [&](bool in_bf16) {
      return in_bf16 ? Output(t.RandomBf16(count)) : Output(t.Random(count));
    };
    op.d_output = random(bf16.d_output);
    op.x = random(bf16.stream), op.weight = t.Random(columns);
    op.mean = t.Random(rows), op.rstd = t.Random(rows);
    op.d_input = random(bf16.stream);
    op.residual_gradient = op.d_input;
    if (!bf16.stream) op.rounded = t.UnsetBf16(count);
    const auto sum = [&] { return accumulate ? t.Random(columns) : t.Unset(columns); };
    op.sums.d_weight = sum(), op.sums.d_bias = sum();
    op.sums.of_residual_gradient = sum(), op.sums.of_d_input = sum();
    op.sums.accumulate = accumulate;
    op.rows = rows, op.columns = columns;
  }

  Result Outputs() const {
    Result result;
    result.Add(op.d_input, rows * columns);
    for (const float* sum :
         {op.sums.d_weight, op.sums.d_bias, op.sums.of_residual_gradient, op.sums.of_d_input}) {
      result.Add(sum, columns);
    }
    return result;
  }
};

// rounded: of the values, where these are in f32.
void ExpectRounded(const Bf16* rounded, const Output& values, std::int64_t count) {
  for (std::int64_t i = 0; rounded != nullptr && i < count; ++i)
    ASSERT_EQ(rounded[i].bits, testing::Nearest(values.f32[i]).bits) << "element " << i;
}

TEST(NormSums, OfALayerNorm) {
  for (const Sizes s : kSummed) {
    for (const InBf16 bf16 : kTypes) {
      // Where a number ends near the middle of two neighbours in bf16, the CPU may round it to the
      // other one.
      const double tolerance = bf16.stream ? 0x1p-7 : kOfSums;
      for (const bool accumulate : {false, true}) {
        Check(Name("layer norm", s), tolerance, [&](Backend& backend, Tensors& t) {
          const Layer layer(t, s, bf16, accumulate);
          RunOp(backend, layer.op);
          ExpectRounded(layer.op.rounded, layer.op.d_input, s.rows * s.columns);
          return layer.Outputs();
        });
      }
    }
  }
}

TEST(NormSums, OfAnRmsNorm) {
  for (const Sizes s : kSummed) {
    const std::int64_t count = s.rows * s.columns;
    for (const bool accumulate : {false, true}) {
      Check(Name("rms norm", s), kOfSums, [&](Backend& backend, Tensors& t) {
        RmsNormBackwardInput op = {.d_output = t.Random(count),
                                   .x = t.Random(count),
                                   .weight = t.Random(s.columns),
                                   .rstd = t.Random(s.rows),
                                   .d_input = t.Unset(count),
                                   .rounded = t.UnsetBf16(count)};
        op.sums.d_weight = accumulate ? t.Random(s.columns) : t.Unset(s.columns);
        op.sums.accumulate = accumulate;
        op.rows = s.rows, op.columns = s.columns;
        RunOp(backend, op);
        ExpectRounded(op.rounded, op.d_input, count);
        Result result;
        result.Add(op.d_input, count);
        result.Add(op.sums.d_weight, s.columns);
        return result;
      });
    }
  }
}

// A schedule decides whether W follows its I, which then sums, or whether W sums later.
void ExpectTheBitsOfSumsApart(InBf16 bf16) {
  for (const Sizes s : kSummed) {
    SCOPED_TRACE(Name("sums", s));
    const std::int64_t count = s.rows * s.columns;
    const auto backend = CreateEmulatedBackend(ThreadOrder::kForward);
    Tensors tensors(0);
    const Layer together(tensors, s, bf16, /*accumulate=*/false);
    Tensors copies(0);
    const Layer apart(copies, s, bf16, /*accumulate=*/false);
    const LayerNormBackwardInput& op = apart.op;
    const auto sum = [&](const Operand& terms, float* into) {
      RunOp(*backend,
            BiasGrad{.d_output = terms, .d_bias = into, .rows = s.rows, .columns = s.columns});
    };
    RunOp(*backend, together.op);
    sum(op.residual_gradient, op.sums.of_residual_gradient);
    LayerNormBackwardInput only_weights = op;
    only_weights.sums.of_residual_gradient = only_weights.sums.of_d_input = nullptr;
    only_weights.rounded = nullptr;
    RunOp(*backend, only_weights);
    sum(op.d_input, op.sums.of_d_input);
    EXPECT_TRUE(SameBits(together.Outputs().values, apart.Outputs().values));
    ExpectRounded(together.op.rounded, op.d_input, count);
  }
}

TEST(NormSums, HaveTheBitsOfSumsApart) {
  for (const InBf16 bf16 : kTypes) ExpectTheBitsOfSumsApart(bf16);
}

TEST(NormSums, AreRefusedWithoutEachOther) {
  const auto backend = CreateEmulatedBackend(ThreadOrder::kForward);
  Tensors tensors(0);
  LayerNormBackwardInput op = Layer(tensors, {3, 8}, {}, false).op;
  op.sums.d_bias = nullptr;
  EXPECT_NE(backend->Run(op).message(), "");
  op = Layer(tensors, {3, 8}, {}, false).op;
  op.sums.of_d_input = nullptr;
  EXPECT_NE(backend->Run(op).message(), "");
  op = Layer(tensors, {3, 8}, {}, false).op;
  op.residual_gradient = nullptr;
  EXPECT_NE(backend->Run(op).message(), "");
}

}  // namespace
}  // namespace takt::backend::cuda
