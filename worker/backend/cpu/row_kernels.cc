// SPDX-License-Identifier: Apache-2.0
// Kernels that reduce along rows or columns: norms, bias gradients, and softmax with cross-entropy.
// A row's tail that fills no vector is padded with zeros (or with -FLT_MAX under a maximum).
#include "worker/backend/cpu/isa_kernels.h"
#include "worker/backend/cpu/vec.h"

namespace takt::backend::TAKT_ISA {
namespace {

struct RowMoments {
  float mean, rstd;
};

RowMoments Moments(const float* x, std::int64_t columns, float epsilon) {
  Vec sum = {};
  for (std::int64_t i = 0; i < columns; i += kWidth) sum += LoadN(x + i, columns - i);
  const float mean = Sum(sum) / static_cast<float>(columns);
  Vec squares = {};
  for (std::int64_t i = 0; i < columns; i += kWidth) {
    Vec d = LoadN(x + i, columns - i) - mean;
    if (columns - i < kWidth) d = KeepFirst(d, columns - i);
    squares += d * d;
  }
  const float variance = Sum(squares) / static_cast<float>(columns);
  return {mean, 1.0F / __builtin_sqrtf(variance + epsilon)};
}

constexpr float kLowest = -3.402823466e+38F;

float RowMax(const float* x, std::int64_t columns) {
  Vec max[4] = {Splat(kLowest), Splat(kLowest), Splat(kLowest), Splat(kLowest)};
  std::int64_t i = 0;
  for (; i + 4 * kWidth <= columns; i += 4 * kWidth) {
    for (int j = 0; j < 4; ++j) max[j] = Max(Load(x + i + j * kWidth), max[j]);
  }
  for (; i < columns; i += kWidth) {
    const Vec v = columns - i < kWidth ? LoadPart(x + i, columns - i, kLowest) : Load(x + i);
    max[0] = Max(v, max[0]);
  }
  return MaxElement(Max(Max(max[0], max[1]), Max(max[2], max[3])));
}

// Returns the sum of e^(x - max). It is in double over chunks whose floats add up without much
// rounding.
double SumOfExp(const float* x, std::int64_t columns, float max) {
  constexpr std::int64_t kChunk = 64 * kWidth;
  double total = 0;
  for (std::int64_t begin = 0; begin < columns; begin += kChunk) {
    const std::int64_t end = Min(columns, begin + kChunk);
    Vec sum = {};
    for (std::int64_t i = begin; i < end; i += kWidth) {
      Vec e = Exp(LoadN(x + i, end - i) - max);
      if (end - i < kWidth) e = KeepFirst(e, end - i);
      sum += e;
    }
    total += static_cast<double>(Sum(sum));
  }
  return total;
}

// Returns the sum of x, added likewise.
double SumOfRow(const float* x, std::int64_t columns) {
  constexpr std::int64_t kChunk = 64 * kWidth;
  double total = 0;
  for (std::int64_t begin = 0; begin < columns; begin += kChunk) {
    const std::int64_t end = Min(columns, begin + kChunk);
    Vec sum = {};
    for (std::int64_t i = begin; i < end; i += kWidth) sum += LoadN(x + i, end - i);
    total += static_cast<double>(Sum(sum));
  }
  return total;
}

}  // namespace

void LayerNormForwardRows(const LayerNormForward& op, Range rows) {
  const std::int64_t columns = op.columns;
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const float* x = op.input.f32 + r * columns;
    const RowMoments row = Moments(x, columns, op.epsilon);
    op.mean[r] = row.mean;
    op.rstd[r] = row.rstd;
    To(op.output, [&](auto* output) {
      for (std::int64_t i = 0; i < columns; i += kWidth) {
        const std::int64_t n = columns - i;
        StoreN(output + r * columns + i,
               (LoadN(x + i, n) - row.mean) * row.rstd * LoadN(op.weight + i, n) +
                   LoadN(op.bias + i, n),
               n);
      }
    });
  }
}

void RmsNormForwardRows(const RmsNormForward& op, Range rows) {
  const std::int64_t columns = op.columns;
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const float* x = op.input.f32 + r * columns;
    Vec squares = {};
    for (std::int64_t i = 0; i < columns; i += kWidth) {
      const Vec v = LoadN(x + i, columns - i);
      squares += v * v;
    }
    const float rstd =
        1.0F / __builtin_sqrtf(Sum(squares) / static_cast<float>(columns) + op.epsilon);
    op.rstd[r] = rstd;
    To(op.output, [&](auto* output) {
      for (std::int64_t i = 0; i < columns; i += kWidth) {
        const std::int64_t n = columns - i;
        StoreN(output + r * columns + i, LoadN(x + i, n) * rstd * LoadN(op.weight + i, n), n);
      }
    });
  }
}

// With h = (x - mean) rstd and g = d_output * weight, d_x is rstd (g - mean(g) - h mean(g h)).
// RmsNorm is not centred: without both means, h = x rstd and d_x = rstd (g - h mean(g h)).
template <bool kCentred, class Op>
void NormBackwardInputRows(const Op& op, Range rows) {
  const std::int64_t columns = op.columns;
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const float* x = op.x.f32 + r * columns;
    const float* d_output = op.d_output.f32 + r * columns;
    const float rstd = op.rstd[r];
    float mean = 0;
    if constexpr (kCentred) mean = op.mean[r];
    Vec g_sum = {}, gh_sum = {};
    for (std::int64_t i = 0; i < columns; i += kWidth) {
      const std::int64_t n = columns - i;
      const Vec g = LoadN(d_output + i, n) * LoadN(op.weight + i, n);  // zero in the padding
      if constexpr (kCentred) g_sum += g;
      gh_sum += g * ((LoadN(x + i, n) - mean) * rstd);
    }
    const float g_mean = kCentred ? Sum(g_sum) / static_cast<float>(columns) : 0;
    const float gh_mean = Sum(gh_sum) / static_cast<float>(columns);
    const float* residual =
        op.residual_gradient.f32 != nullptr ? op.residual_gradient.f32 + r * columns : nullptr;
    float* d_input = op.d_input.f32 + r * columns;
    for (std::int64_t i = 0; i < columns; i += kWidth) {
      const std::int64_t n = columns - i;
      const Vec h = (LoadN(x + i, n) - mean) * rstd;
      Vec d = rstd * (LoadN(d_output + i, n) * LoadN(op.weight + i, n) - g_mean - h * gh_mean);
      if (residual != nullptr) d += LoadN(residual + i, n);
      StoreN(d_input + i, d, n);
    }
  }
}

void LayerNormBackwardInputRows(const LayerNormBackwardInput& op, Range rows) {
  NormBackwardInputRows</*kCentred=*/true>(op, rows);
}

void RmsNormBackwardInputRows(const RmsNormBackwardInput& op, Range rows) {
  NormBackwardInputRows</*kCentred=*/false>(op, rows);
}

void RmsNormWeightsPartial(const RmsNormBackwardWeights& op, Range rows, float* partial) {
  const std::int64_t columns = op.columns;
  __builtin_memset(partial, 0, static_cast<std::size_t>(columns) * sizeof(float));
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const float* x = op.x.f32 + r * columns;
    const float* d_output = op.d_output.f32 + r * columns;
    const float rstd = op.rstd[r];
    for (std::int64_t i = 0; i < columns; i += kWidth) {
      const std::int64_t n = columns - i;
      const Vec dh = LoadN(d_output + i, n) * (LoadN(x + i, n) * rstd);
      StoreN(partial + i, LoadN(partial + i, n) + dh, n);
    }
  }
}

void BiasGradPartial(const BiasGrad& op, Range rows, float* partial) {
  const std::int64_t columns = op.columns;
  __builtin_memset(partial, 0, static_cast<std::size_t>(columns) * sizeof(float));
  std::int64_t r = rows.begin;
  for (; r + 4 <= rows.end; r += 4) {
    const float* d = op.d_output.f32 + r * columns;
    for (std::int64_t i = 0; i < columns; i += kWidth) {
      const std::int64_t n = columns - i;
      const Vec low = LoadN(d + i, n) + LoadN(d + columns + i, n);
      const Vec high = LoadN(d + 2 * columns + i, n) + LoadN(d + 3 * columns + i, n);
      StoreN(partial + i, LoadN(partial + i, n) + (low + high), n);
    }
  }
  for (; r < rows.end; ++r) {
    const float* d = op.d_output.f32 + r * columns;
    for (std::int64_t i = 0; i < columns; i += kWidth) {
      StoreN(partial + i, LoadN(partial + i, columns - i) + LoadN(d + i, columns - i), columns - i);
    }
  }
}

void LayerNormWeightsPartial(const LayerNormBackwardWeights& op, Range rows, float* partial) {
  const std::int64_t columns = op.columns;
  float* d_weight = partial;
  float* d_bias = partial + columns;
  __builtin_memset(partial, 0, static_cast<std::size_t>(2 * columns) * sizeof(float));
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const float* x = op.x.f32 + r * columns;
    const float* d_output = op.d_output.f32 + r * columns;
    const float mean = op.mean[r], rstd = op.rstd[r];
    for (std::int64_t i = 0; i < columns; i += kWidth) {
      const std::int64_t n = columns - i;
      const Vec d = LoadN(d_output + i, n);
      const Vec h = (LoadN(x + i, n) - mean) * rstd;
      StoreN(d_weight + i, LoadN(d_weight + i, n) + d * h, n);
      StoreN(d_bias + i, LoadN(d_bias + i, n) + d, n);
    }
  }
}

void SumPartials(const float* partials, std::int64_t count, std::int64_t stride, float* output,
                 Range columns, bool accumulate) {
  for (std::int64_t i = columns.begin; i < columns.end; i += kWidth) {
    const std::int64_t n = columns.end - i;
    Vec sum = {};
    for (std::int64_t p = 0; p < count; ++p) sum += LoadN(partials + p * stride + i, n);
    if (accumulate) sum += LoadN(output + i, n);
    StoreN(output + i, sum, n);
  }
}

void SoftmaxBlockRows(const SoftmaxBlock& op, Range rows) {
  const std::int64_t columns = op.columns;
  const std::int64_t stride = op.stride == 0 ? columns : op.stride;
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const float* logits = op.logits.f32 + r * stride;
    SoftmaxPart& part = op.parts[r];
    part.sum = 0;
    part.max = part.target_logit = 0;
    if (op.targets[r] == kIgnoredTarget) continue;
    part.max = RowMax(logits, columns);
    part.sum = SumOfExp(logits, columns, part.max);
    const std::int64_t target = op.targets[r] - op.first;
    const bool here = target >= 0 && target < columns;
    double logit =
        here ? static_cast<double>(op.shares.target) * static_cast<double>(logits[target]) : 0;
    if (op.shares.each != 0)
      logit += static_cast<double>(op.shares.each) * SumOfRow(logits, columns);
    part.target_logit = static_cast<float>(logit);
  }
}

void CrossEntropyRows(const CrossEntropy& op, Range rows, double* row_losses) {
  const std::int64_t stride = op.parts_stride == 0 ? op.rows : op.parts_stride;
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const SoftmaxPart* parts = op.parts + r;
    SoftmaxRow& softmax = op.softmax[r];
    row_losses[r] = softmax.factor = 0;
    softmax.max = softmax.scale = 0;
    if (op.targets[r] == kIgnoredTarget) continue;
    float max = parts->max;
    for (std::int64_t b = 1; b < op.blocks; ++b) {
      const float of_block = parts[b * stride].max;
      max = of_block > max ? of_block : max;
    }
    double sum = 0, target_logit = 0;
    for (std::int64_t b = 0; b < op.blocks; ++b) {
      const SoftmaxPart& part = parts[b * stride];
      sum += part.sum * __builtin_exp(static_cast<double>(part.max) - static_cast<double>(max));
      target_logit += static_cast<double>(part.target_logit);
    }
    const double z = __builtin_log(sum) + static_cast<double>(max);
    row_losses[r] = z - target_logit;
    softmax.factor = static_cast<double>(op.scale) / sum;
    if (op.z_loss != 0) {
      row_losses[r] += op.z_loss * z * z;
      softmax.factor *= 1 + 2 * op.z_loss * z;
    }
    softmax.max = max;
    softmax.scale = op.scale;
  }
}

void CrossEntropyGradientRows(const CrossEntropyGradient& op, Range rows) {
  const std::int64_t columns = op.columns;
  const std::int64_t stride = op.stride == 0 ? columns : op.stride;
  const auto clear = [](float* begin, const float* end) {
    __builtin_memset(begin, 0, static_cast<std::size_t>(end - begin) * sizeof(float));
  };
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    float* logits = op.logits.f32 + r * stride;
    const SoftmaxRow& softmax = op.softmax[r];
    if (op.targets[r] == kIgnoredTarget) {
      clear(logits, logits + stride);
      continue;
    }
    const float max = op.parts[r].max;
    const auto factor =
        static_cast<float>(softmax.factor * __builtin_exp(static_cast<double>(max) -
                                                          static_cast<double>(softmax.max)));
    const float each = softmax.scale * op.shares.each;
    for (std::int64_t i = 0; i < columns; i += kWidth) {
      const std::int64_t n = columns - i;
      StoreN(logits + i, Exp(LoadN(logits + i, n) - max) * factor - each, n);
    }
    const std::int64_t target = op.targets[r] - op.first;
    if (target >= 0 && target < columns) logits[target] -= softmax.scale * op.shares.target;
    clear(logits + columns, logits + stride);
  }
}

}  // namespace takt::backend::TAKT_ISA
