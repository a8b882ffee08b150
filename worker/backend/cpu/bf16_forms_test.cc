// SPDX-License-Identifier: Apache-2.0
// Ops on bf16 tensors must give what the f32 ops give on the same numbers, rounded. Tensors are
// aligned and not.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "worker/backend/cpu/op_testing.h"

namespace takt::backend::testing {
namespace {

// A tensor in both types. The bf16 one is aligned to 64 bytes, or to nothing.
class Twin {
 public:
  Twin(const Floats& values, bool aligned) : size_(values.size()) {
    memory_.resize(size_ + 64, Bf16{0x7fc0});
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    data_ = memory_.data() + (64 - address % 64) / sizeof(Bf16) + (aligned ? 0 : 1);
    const Bf16s rounded = NearestOf(values);
    std::copy(rounded.begin(), rounded.end(), data_);
    f32_ = Widened(rounded);
  }
  Twin(Twin&&) = default;  // the memory stays where it is

  Bf16* bf16() { return data_; }
  float* f32() { return f32_.data(); }
  // Returns what lies there now.
  Bf16s bf16s() const { return {data_, data_ + size_}; }
  const Floats& floats() const { return f32_; }
  bool FrameHeld() const { return data_[-1].bits == 0x7fc0 && data_[size_].bits == 0x7fc0; }

 private:
  std::size_t size_;
  std::vector<Bf16> memory_;
  Bf16* data_;
  Floats f32_;
};

// Both tensors have been written by their op.
void ExpectRounded(const Twin& twin, const std::string& what) {
  EXPECT_TRUE(twin.FrameHeld()) << what << ": written beside the tensor";
  const Floats& expected = twin.floats();
  // Compilers may contract the two forms of a kernel differently.
  ExpectNear(
      Widened(twin.bf16s()), ToDoubles(expected),
      [&](std::size_t i) {
        return kUnit * std::abs(expected[i]) + 16 * kEpsilon * (1 + std::abs(expected[i]));
      },
      what);
}

class Bf16FormsTest : public OpTest {
 protected:
  // Makes twins of random numbers; makes twins of NaN.
  Twin Some(std::int64_t count) { return {Random(count, ++seed_), aligned_}; }
  Twin None(std::int64_t count) const { return {Unset(count), aligned_}; }

  // Runs test() for tensors that are aligned and for others.
  template <class F>
  void ForAlignments(const F& test) {
    for (const bool aligned : {true, false}) {
      aligned_ = aligned;
      seed_ = 0;
      test();
    }
  }

 private:
  bool aligned_ = true;
  unsigned seed_ = 0;
};

// These counts have groups of 8, vectors of 16, and a rest.
constexpr std::int64_t kCounts[] = {1, 8, 37, 1024, 4099};

TEST_P(Bf16FormsTest, Activations) {
  ForAlignments([&] {
    for (const std::int64_t count : kCounts) {
      Twin x = Some(count), y = None(count), d = Some(count), up = Some(count);
      Run(GeluForward{.input = x.bf16(), .output = y.bf16(), .count = count});
      Run(GeluForward{.input = x.f32(), .output = y.f32(), .count = count});
      ExpectRounded(y, "gelu");
      Run(GeluBackward{
          .input = x.bf16(), .d_output = d.bf16(), .d_input = y.bf16(), .count = count});
      Run(GeluBackward{.input = x.f32(), .d_output = d.f32(), .d_input = y.f32(), .count = count});
      ExpectRounded(y, "gelu gradient");
      Run(SwigluForward{.gate = x.bf16(), .up = up.bf16(), .output = y.bf16(), .columns = count});
      Run(SwigluForward{.gate = x.f32(), .up = up.f32(), .output = y.f32(), .columns = count});
      ExpectRounded(y, "swiglu");
      Run(Copy{.input = x.bf16(), .output = y.bf16(), .count = count});
      Run(Copy{.input = x.f32(), .output = y.f32(), .count = count});
      ExpectRounded(y, "copy");
      Twin z = None(count);
      Run(GeluForward{.input = x.f32(), .output = z.f32(), .count = count});
      Run(Copy{.input = z.f32(), .output = z.bf16(), .count = count});
      ExpectRounded(z, "copy that rounds");
      // Runs in place.
      Run(SwigluBackward{.gate = x.bf16(),
                         .up = up.bf16(),
                         .d_output = d.bf16(),
                         .d_gate = x.bf16(),
                         .d_up = up.bf16(),
                         .columns = count});
      Run(SwigluBackward{.gate = x.f32(),
                         .up = up.f32(),
                         .d_output = d.f32(),
                         .d_gate = x.f32(),
                         .d_up = up.f32(),
                         .columns = count});
      ExpectRounded(x, "gradient of the gate");
      ExpectRounded(up, "gradient of up");
      Run(GeluForward{.input = d.bf16(), .output = d.bf16(), .count = count});
      Run(GeluForward{.input = d.f32(), .output = d.f32(), .count = count});
      ExpectRounded(d, "gelu in place");
    }
  });
}

TEST_P(Bf16FormsTest, Rotary) {
  ForAlignments([&] {
    for (const std::int64_t head_size : {2, 6, 16, 48}) {
      const std::int64_t batch = 2, context = 3, heads = 2, stride = 3 * heads * head_size;
      Twin x = Some(batch * context * stride);
      const Floats table = Random(context * head_size, 99);
      struct Rotary op = {.x = x.bf16(),
                          .table = table.data(),
                          .batch = batch,
                          .context = context,
                          .heads = heads,
                          .head_size = head_size,
                          .stride = stride};
      Run(op);
      op.x = x.f32();
      Run(op);
      ExpectRounded(x, "head size " + std::to_string(head_size));
    }
  });
}

// These ops write sums in f32, of up to 1032 numbers, most below 8.
TEST_P(Bf16FormsTest, GradientsOfNormsAndBiases) {
  ForAlignments([&] {
    for (const auto& size : {std::pair{3, 12}, std::pair{70, 37}, std::pair{5, 1032}}) {
      const std::int64_t rows = size.first, columns = size.second;
      Twin d = Some(rows * columns);
      const Floats x = Random(rows * columns, 90), weight = Random(columns, 91),
                   mean = Random(rows, 92), rstd(static_cast<std::size_t>(rows), 0.5F),
                   residual = Random(rows * columns, 93);
      const auto both = [&](const auto& run, std::int64_t count, const std::string& what) {
        Floats of_bf16 = Unset(count), of_f32 = of_bf16;
        run(d.bf16(), of_bf16.data());
        run(d.f32(), of_f32.data());
        ExpectNear(of_bf16, ToDoubles(of_f32), SumTolerance(std::max(rows, columns), 8), what);
      };
      both(
          [&](const Operand& d_output, float* out) {
            Run(BiasGrad{.d_output = d_output, .d_bias = out, .rows = rows, .columns = columns});
          },
          columns, "bias");
      both(
          [&](const Operand& d_output, float* out) {
            Run(LayerNormBackwardInput{.d_output = d_output,
                                       .x = x.data(),
                                       .weight = weight.data(),
                                       .mean = mean.data(),
                                       .rstd = rstd.data(),
                                       .residual_gradient = residual.data(),
                                       .d_input = out,
                                       .rows = rows,
                                       .columns = columns});
          },
          rows * columns, "layer norm, input");
      both(
          [&](const Operand& d_output, float* out) {
            Run(RmsNormBackwardInput{.d_output = d_output,
                                     .x = x.data(),
                                     .weight = weight.data(),
                                     .rstd = rstd.data(),
                                     .d_input = out,
                                     .rows = rows,
                                     .columns = columns});
          },
          rows * columns, "rms norm, input");
      both(
          [&](const Operand& d_output, float* out) {
            Run(LayerNormBackwardWeights{.d_output = d_output,
                                         .x = x.data(),
                                         .mean = mean.data(),
                                         .rstd = rstd.data(),
                                         .d_weight = out,
                                         .d_bias = out + columns,
                                         .rows = rows,
                                         .columns = columns});
          },
          2 * columns, "layer norm, weights");
      both(
          [&](const Operand& d_output, float* out) {
            Run(RmsNormBackwardWeights{.d_output = d_output,
                                       .x = x.data(),
                                       .rstd = rstd.data(),
                                       .d_weight = out,
                                       .rows = rows,
                                       .columns = columns});
          },
          columns, "rms norm, weights");
    }
  });
}

// Returns the sums over rows of what is stored.
Doubles ColumnSums(const Floats& stored, std::int64_t columns) {
  Doubles sums(static_cast<std::size_t>(columns));
  for (std::size_t i = 0; i < stored.size(); ++i) sums[i % sums.size()] += stored[i];
  return sums;
}

// What belongs to the residual stream is in bf16, and what comes out of norms and their gradients,
// too.
TEST_P(Bf16FormsTest, NormsOfAStream) {
  ForAlignments([&] {
    for (const auto& size : {std::pair{3, 12}, std::pair{70, 37}, std::pair{5, 1032}}) {
      const std::int64_t rows = size.first, columns = size.second, count = rows * columns;
      Twin x = Some(count), y = None(count), d = Some(count), residual = Some(count),
           d_input = None(count);
      const Floats weight = Random(columns, 91), bias = Random(columns, 92);
      Floats mean = Unset(rows), rstd = Unset(rows), sums = Unset(4 * columns);
      // The f32 forms come first, because some of the others overwrite what they read.
      LayerNormForward forward{.input = x.f32(),
                               .weight = weight.data(),
                               .bias = bias.data(),
                               .output = y.f32(),
                               .mean = mean.data(),
                               .rstd = rstd.data(),
                               .rows = rows,
                               .columns = columns};
      Run(forward);
      forward.input = x.bf16(), forward.output = y.bf16();
      Run(forward);
      ExpectRounded(y, "layer norm");
      LayerNormBackwardInput backward{.d_output = d.f32(),
                                      .x = x.f32(),
                                      .weight = weight.data(),
                                      .mean = mean.data(),
                                      .rstd = rstd.data(),
                                      .residual_gradient = residual.f32(),
                                      .d_input = d_input.f32(),
                                      .rows = rows,
                                      .columns = columns};
      Run(backward);
      backward.d_output = d.bf16(), backward.x = x.bf16();
      backward.residual_gradient = residual.bf16(), backward.d_input = d_input.bf16();
      Run(backward);
      ExpectRounded(d_input, "layer norm, input");

      const Floats of_residual = Widened(residual.bf16s());
      float* const of_op = sums.data();
      backward.d_input = residual.bf16();  // in place
      backward.sums = {.d_weight = of_op,
                       .d_bias = of_op + columns,
                       .of_residual_gradient = of_op + 2 * columns,
                       .of_d_input = of_op + 3 * columns};
      Run(backward);
      ExpectNear(
          Widened(residual.bf16s()), ToDoubles(Widened(d_input.bf16s())),
          [&](std::size_t i) { return 2 * kUnit * (1 + std::abs(d_input.floats()[i])); },
          "in place, with sums");
      const auto sum = [&](int i) {
        return Floats(of_op + i * columns, of_op + (i + 1) * columns);
      };
      const double allowed = SumTolerance(rows, 8);
      ExpectNear(sum(1), ColumnSums(d.floats(), columns), allowed, "bias");
      ExpectNear(sum(2), ColumnSums(of_residual, columns), allowed, "residual gradient");
      ExpectNear(sum(3), ColumnSums(Widened(residual.bf16s()), columns), allowed, "d_input");
      Floats d_weight = Unset(columns), d_bias = Unset(columns);
      Run(LayerNormBackwardWeights{.d_output = d.f32(),
                                   .x = x.bf16(),
                                   .mean = mean.data(),
                                   .rstd = rstd.data(),
                                   .d_weight = d_weight.data(),
                                   .d_bias = d_bias.data(),
                                   .rows = rows,
                                   .columns = columns});
      ExpectNear(sum(0), ToDoubles(d_weight), SumTolerance(std::max(rows, columns), 8), "weight");

      Run(RmsNormForward{.input = x.f32(),
                         .weight = weight.data(),
                         .output = y.f32(),
                         .rstd = rstd.data(),
                         .rows = rows,
                         .columns = columns});
      Run(RmsNormForward{.input = x.bf16(),
                         .weight = weight.data(),
                         .output = y.bf16(),
                         .rstd = rstd.data(),
                         .rows = rows,
                         .columns = columns});
      ExpectRounded(y, "rms norm");
      RmsNormBackwardInput of_rms{.d_output = d.f32(),
                                  .x = x.f32(),
                                  .weight = weight.data(),
                                  .rstd = rstd.data(),
                                  .d_input = x.f32(),
                                  .rows = rows,
                                  .columns = columns};
      Run(of_rms);
      of_rms.x = x.bf16(), of_rms.d_input = x.bf16();
      of_rms.sums.d_weight = of_op;
      Run(of_rms);
      ExpectRounded(x, "rms norm, input");
      EXPECT_TRUE(residual.FrameHeld() && d.FrameHeld());
    }
  });
}

TEST_P(Bf16FormsTest, CrossEntropy) {
  ForAlignments([&] {
    const std::int64_t rows = 5;
    for (const auto& size :
         {std::pair{131, 192}, std::pair{64, 0}, std::pair{37, 37}, std::pair{4500, 4504}}) {
      const std::int64_t vocab = size.first, stride = size.second;
      const std::int64_t width = stride == 0 ? vocab : stride;
      Twin logits = Some(rows * width);
      for (std::int64_t i = 0; i < rows * width; ++i) {
        if (i % width >= vocab) logits.bf16()[i] = Bf16{0x7fc0}, logits.f32()[i] = kNan;
      }
      std::vector<std::int32_t> targets = RandomTokens(rows, vocab, 1);
      targets[2] = kIgnoredTarget;
      const Bf16s before = logits.bf16s();
      BlockedCrossEntropy<Bf16> rounded(*backend_, {{logits.bf16(), vocab, stride}}, targets);
      BlockedCrossEntropy<float> in_f32(*backend_, {{logits.f32(), vocab, stride}}, targets);
      const float scale = 0.25F;
      const double loss = rounded.Loss(scale), loss_in_f32 = in_f32.Loss(scale);
      const Bf16s after = logits.bf16s();
      EXPECT_EQ(std::memcmp(before.data(), after.data(), before.size() * sizeof(Bf16)), 0);
      rounded.Gradient();
      in_f32.Gradient();
      // These are sums of `vocab` numbers up to 1, in another order.
      EXPECT_NEAR(loss, loss_in_f32, rows * SumTolerance(vocab, 1)) << vocab;
      const Floats& expected = logits.floats();
      ExpectNear(
          Widened(logits.bf16s()), ToDoubles(expected),
          [&](std::size_t i) {
            return kUnit * std::abs(expected[i]) + scale * SumTolerance(vocab, 1) + 1e-30;
          },
          "gradient of " + std::to_string(vocab));
      EXPECT_TRUE(logits.FrameHeld());
    }
  });
}

struct HeadsCase {
  std::int64_t batch, context, heads, kv_heads, head_size, window = 0;
};

// Probabilities and gradients of scores may be rounded too, where they are multiplied: each element
// is a sum of numbers that are off by kUnit of themselves, and is rounded once more.
TEST_P(Bf16FormsTest, Attention) {
  for (const HeadsCase& c :
       {HeadsCase{1, 1, 1, 1, 8}, HeadsCase{1, 66, 2, 1, 12}, HeadsCase{2, 20, 2, 2, 100},
        HeadsCase{1, 18, 1, 1, 136}, HeadsCase{1, 140, 2, 1, 16, 9}}) {
    const std::int64_t rows = c.batch * c.context, q = c.heads * c.head_size,
                       kv = c.kv_heads * c.head_size, stride = q + 2 * kv;
    const AttentionShape shape = {.batch = c.batch,
                                  .context = c.context,
                                  .heads = c.heads,
                                  .kv_heads = c.kv_heads,
                                  .head_size = c.head_size,
                                  .q_stride = stride,
                                  .kv_stride = stride,
                                  .out_stride = q,
                                  .window = c.window};
    std::vector<Bf16s> left;  // aligned and not
    ForAlignments([&] {
      Twin qkv = Some(rows * stride), output = None(rows * q), d_output = Some(rows * q),
           d_qkv = None(rows * stride);
      Floats logsumexp = Unset(rows * c.heads), logsumexp_in_f32 = logsumexp;
      const auto run = [&](auto* x, auto* y, auto* d_y, auto* d_x, float* sums) {
        Run(AttentionForward{
            .shape = shape, .q = x, .k = x + q, .v = x + q + kv, .output = y, .logsumexp = sums});
        Run(AttentionBackward{.shape = shape,
                              .q = x,
                              .k = x + q,
                              .v = x + q + kv,
                              .output = y,
                              .logsumexp = sums,
                              .d_output = d_y,
                              .d_q = d_x,
                              .d_k = d_x + q,
                              .d_v = d_x + q + kv});
      };
      run(qkv.bf16(), output.bf16(), d_output.bf16(), d_qkv.bf16(), logsumexp.data());
      run(qkv.f32(), output.f32(), d_output.f32(), d_qkv.f32(), logsumexp_in_f32.data());
      // Scores are up to 4 sqrt(D) and are sums in another order.
      ExpectNear(logsumexp, ToDoubles(logsumexp_in_f32),
                 SumTolerance(c.head_size, 16 * std::sqrt(static_cast<double>(c.head_size))),
                 "logsumexp");
      // The weights of one sum add up to 1, with values up to 5. Gradients of scores are up to 10
      // sqrt(D), times 5 / sqrt(D) of a key or query.
      const auto near = [&](const Twin& twin, double magnitude, const char* what) {
        EXPECT_TRUE(twin.FrameHeld()) << what;
        const Floats& expected = twin.floats();
        ExpectNear(
            Widened(twin.bf16s()), ToDoubles(expected),
            [&](std::size_t i) { return kUnit * (magnitude + std::abs(expected[i])); },
            std::string(what) + " of head size " + std::to_string(c.head_size));
      };
      near(output, 5, "output");
      near(d_qkv, 25, "gradients");
      left.push_back(output.bf16s());
      left.push_back(d_qkv.bf16s());
    });
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(std::memcmp(left[i].data(), left[i + 2].data(), left[i].size() * sizeof(Bf16)), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Bf16FormsTest, ::testing::ValuesIn(TestedBackends()));

}  // namespace
}  // namespace takt::backend::testing
