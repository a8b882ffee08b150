// SPDX-License-Identifier: Apache-2.0
// Kernels whose output elements depend on the same element of the inputs, and those of the
// embedding.
#include "worker/backend/cpu/isa_kernels.h"
#include "worker/backend/cpu/vec.h"

namespace takt::backend::TAKT_ISA {
namespace {

// Calls f(i, n) for vectors of n elements that cover the range. Only the last n may be below
// kWidth.
template <class F>
inline void ForVectors(Range range, const F& f) {
  std::int64_t i = range.begin;
  for (; i + kWidth <= range.end; i += kWidth) f(i, std::int64_t{kWidth});
  if (i < range.end) f(i, range.end - i);
}

// With u = sqrt(2/pi) (x + 0.044715 x^3), 0.5 (1 + tanh u) is 1 / (1 + e^-2u). Nothing cancels in
// that form.
constexpr float kGeluLinear = -2.0F * 0.7978845608028654F;
constexpr float kGeluCubic = kGeluLinear * 0.044715F;

inline Vec ExpOfMinus2U(Vec x) { return Exp(x * (kGeluLinear + kGeluCubic * x * x)); }

// Gives a parameter that does not move the bits that it had.
void KeepPrevious(const UpdatedTensor& tensor, const float* previous, Range elements) {
  if (previous == tensor.parameter) return;
  __builtin_memcpy(tensor.parameter + elements.begin, previous + elements.begin,
                   sizeof(float) * static_cast<std::size_t>(elements.end - elements.begin));
}

// Calls f(offset, dense offset, elements) for the runs of elements that these rows have: each row,
// or all of them where they are dense.
template <class Swiglu, class F>
void ForRuns(const Swiglu& op, Range rows, const F& f) {
  if (op.stride == 0) {
    f(0, 0, Range{rows.begin * op.columns, rows.end * op.columns});
    return;
  }
  for (std::int64_t row = rows.begin; row < rows.end; ++row)
    f(row * op.stride, row * op.columns, Range{0, op.columns});
}

// Returns the position of a row in its document.
std::int64_t PositionOf(std::int64_t row, std::int64_t context, const std::int32_t* starts) {
  return row % context - (starts != nullptr ? starts[row] : 0);
}

}  // namespace

void Epilogue(const MatmulEpilogue& op) {
  for (std::int64_t r = 0; r < op.rows; ++r) {
    const float* product = op.product + r * op.product_stride;
    float* c = op.c + r * op.stride;
    const float* addend = op.addend != nullptr ? op.addend + r * op.stride : nullptr;
    ForVectors({0, op.columns}, [&](std::int64_t i, std::int64_t n) {
      Vec v = LoadN(product + i, n);
      if (op.bias != nullptr) v += LoadN(op.bias + i, n);
      if (addend != nullptr) v += LoadN(addend + i, n);
      StoreN(c + i, v, n);
    });
  }
}

void Pack(const float* source, std::int64_t source_stride, std::int64_t rows, std::int64_t columns,
          float* packed, std::int64_t packed_stride) {
  for (std::int64_t r = 0; r < rows; ++r) {
    __builtin_memcpy(packed + r * packed_stride, source + r * source_stride,
                     static_cast<std::size_t>(columns) * sizeof(float));
  }
}

void RotaryRows(const Rotary& op, Range rows) {
  const std::int64_t half = op.head_size / 2;
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const float* cosines = op.table + PositionOf(r, op.context, op.starts) * op.head_size;
    const float* sines = cosines + half;
    for (std::int64_t h = 0; h < op.heads; ++h) {
      float* low = op.x.f32 + r * op.stride + h * op.head_size;
      float* high = low + half;
      ForVectors({0, half}, [&](std::int64_t i, std::int64_t n) {
        const Vec a = LoadN(low + i, n), b = LoadN(high + i, n);
        const Vec cosine = LoadN(cosines + i, n);
        const Vec sine = op.inverse ? -LoadN(sines + i, n) : LoadN(sines + i, n);
        StoreN(low + i, a * cosine - b * sine, n);
        StoreN(high + i, b * cosine + a * sine, n);
      });
    }
  }
}

void SwigluForwardRows(const SwigluForward& op, Range rows) {
  To(op.output, [&](auto* output) {
    ForRuns(op, rows, [&](std::int64_t row, std::int64_t dense, Range elements) {
      const float *gate = op.gate.f32 + row, *up = op.up.f32 + row;
      ForVectors(elements, [&](std::int64_t i, std::int64_t n) {
        const Vec x = LoadN(gate + i, n);
        StoreN(output + dense + i, x / (1.0F + Exp(-x)) * LoadN(up + i, n), n);
      });
    });
  });
}

void SwigluBackwardRows(const SwigluBackward& op, Range rows) {
  ForRuns(op, rows, [&](std::int64_t row, std::int64_t dense, Range elements) {
    const float *gate = op.gate.f32 + row, *ups = op.up.f32 + row;
    const float* d_output = op.d_output.f32 + dense;
    float *d_gate = op.d_gate.f32 + row, *d_up = op.d_up.f32 + row;
    ForVectors(elements, [&](std::int64_t i, std::int64_t n) {
      const Vec x = LoadN(gate + i, n), up = LoadN(ups + i, n), d = LoadN(d_output + i, n);
      const Vec sigmoid = 1.0F / (1.0F + Exp(-x));
      StoreN(d_gate + i, d * up * (sigmoid * (1.0F + x * (1.0F - sigmoid))), n);
      StoreN(d_up + i, d * (x * sigmoid), n);
    });
  });
}

void GeluForwardRange(const GeluForward& op, Range elements) {
  To(op.output, [&](auto* output) {
    ForVectors(elements, [&](std::int64_t i, std::int64_t n) {
      const Vec x = LoadN(op.input.f32 + i, n);
      StoreN(output + i, x / (1.0F + ExpOfMinus2U(x)), n);
    });
  });
}

void GeluBackwardRange(const GeluBackward& op, Range elements) {
  ForVectors(elements, [&](std::int64_t i, std::int64_t n) {
    const Vec x = LoadN(op.input.f32 + i, n);
    const Vec e = ExpOfMinus2U(x);
    const Vec gate = 1.0F / (1.0F + e);
    // Beyond +-13 either e * gate or 1 - gate vanishes, and x^3 must not grow faster than that
    // shrinks.
    const Vec near = Clamp(x, -13.0F, 13.0F);
    const Vec slope = -kGeluLinear - 3.0F * kGeluCubic * near * near;  // d(2u)/dx
    StoreN(op.d_input.f32 + i,
           LoadN(op.d_output.f32 + i, n) * gate * (1.0F + near * (e * gate) * slope), n);
  });
}

void AdamwRange(const AdamwUpdate& op, const UpdatedTensor& tensor, Range elements) {
  const double correction1 = 1 - __builtin_pow(op.beta1, static_cast<double>(op.step));
  const double correction2 = 1 - __builtin_pow(op.beta2, static_cast<double>(op.step));
  const auto beta1 = static_cast<float>(op.beta1), rest1 = static_cast<float>(1 - op.beta1);
  const auto beta2 = static_cast<float>(op.beta2), rest2 = static_cast<float>(1 - op.beta2);
  const double learning_rate = op.learning_rate * tensor.learning_rate_scale;
  const auto rate = static_cast<float>(learning_rate / correction1);
  const auto v_scale = static_cast<float>(1 / correction2);
  const auto epsilon = static_cast<float>(op.epsilon);
  const auto scale = static_cast<float>(op.gradient_scale);
  // p (1 - lr wd) - update is computed as p - (lr wd p + update), because rounding 1 - lr wd to a
  // float would change the decay.
  const auto decay = static_cast<float>(learning_rate * tensor.weight_decay);
  const float* previous = tensor.previous != nullptr ? tensor.previous : tensor.parameter;
  // If not, every bit stays: the sign of a zero, and numbers so small that arithmetic makes them
  // zero.
  const bool moves = learning_rate != 0;
  ForVectors(elements, [&](std::int64_t i, std::int64_t n) {
    const Vec g = LoadN(tensor.gradient + i, n) * scale;
    const Vec m = LoadN(tensor.m + i, n) * beta1 + g * rest1;
    const Vec v = LoadN(tensor.v + i, n) * beta2 + g * g * rest2;
    if (!op.foresees) {
      StoreN(tensor.m + i, m, n);
      StoreN(tensor.v + i, v, n);
    }
    if (!moves) return;
    const Vec p = LoadN(previous + i, n);
    StoreN(tensor.parameter + i, p - (p * decay + rate * m / (Sqrt(v * v_scale) + epsilon)), n);
  });
  if (!moves) KeepPrevious(tensor, previous, elements);
}

void LionRange(const LionUpdate& op, const UpdatedTensor& tensor, Range elements) {
  const double learning_rate = op.learning_rate * tensor.learning_rate_scale;
  const auto beta1 = static_cast<float>(op.beta1), rest1 = static_cast<float>(1 - op.beta1);
  const auto beta2 = static_cast<float>(op.beta2), rest2 = static_cast<float>(1 - op.beta2);
  const auto rate = static_cast<float>(learning_rate);
  const auto scale = static_cast<float>(op.gradient_scale);
  const auto decay = static_cast<float>(learning_rate * tensor.weight_decay);
  const float* previous = tensor.previous != nullptr ? tensor.previous : tensor.parameter;
  const bool moves = learning_rate != 0;
  ForVectors(elements, [&](std::int64_t i, std::int64_t n) {
    const Vec g = LoadN(tensor.gradient + i, n) * scale;
    const Vec m = LoadN(tensor.m + i, n);
    const Vec c = m * beta1 + g * rest1;
    if (!op.foresees) StoreN(tensor.m + i, m * beta2 + g * rest2, n);
    if (!moves) return;
    const Vec p = LoadN(previous + i, n);
    // A zero and a NaN stay what they are.
    const Vec sign = c > 0.0F ? Splat(1.0F) : (c < 0.0F ? Splat(-1.0F) : c);
    StoreN(tensor.parameter + i, p - (p * decay + rate * sign), n);
  });
  if (!moves) KeepPrevious(tensor, previous, elements);
}

void SgdRange(const SgdUpdate& op, const UpdatedTensor& tensor, Range elements) {
  const double learning_rate = op.learning_rate * tensor.learning_rate_scale;
  const auto rate = static_cast<float>(learning_rate);
  const auto momentum = static_cast<float>(op.momentum);
  const auto scale = static_cast<float>(op.gradient_scale);
  const auto decay = static_cast<float>(tensor.weight_decay);
  const float* previous = tensor.previous != nullptr ? tensor.previous : tensor.parameter;
  const bool has_momentum = op.momentum != 0;
  const bool moves = learning_rate != 0;
  ForVectors(elements, [&](std::int64_t i, std::int64_t n) {
    const Vec p = LoadN(previous + i, n);
    const Vec d = LoadN(tensor.gradient + i, n) * scale + p * decay;
    Vec update = d;
    if (has_momentum) {
      const Vec m = LoadN(tensor.m + i, n) * momentum + d;
      if (!op.foresees) StoreN(tensor.m + i, m, n);
      update = op.nesterov ? d + m * momentum : m;
    }
    if (moves) StoreN(tensor.parameter + i, p - rate * update, n);
  });
  if (!moves) KeepPrevious(tensor, previous, elements);
}

void FeedBackErrorRange(const FeedBackError& op, Range elements) {
  ForVectors(elements, [&](std::int64_t i, std::int64_t n) {
    const Vec p = LoadN(op.parameter + i, n), update = p - LoadN(op.previous + i, n);
    StoreN(op.parameter + i, p + op.coefficient * (update - LoadN(op.last_update + i, n)), n);
    StoreN(op.last_update + i, update, n);
  });
}

void AddRange(const Add& op, Range elements) {
  ForVectors(elements, [&](std::int64_t i, std::int64_t n) {
    StoreN(op.output + i, LoadN(op.a + i, n) + LoadN(op.b + i, n), n);
  });
}

double SumOfSquaresBlock(const float* input, std::int64_t count) {
  // Halves, because GCC converts a vector that is wider than a register element by element.
  typedef float HalfVec __attribute__((vector_size(2 * kWidth)));
  typedef double DoubleVec __attribute__((vector_size(4 * kWidth)));
  DoubleVec sums[2] = {};
  ForVectors({0, count}, [&](std::int64_t i, std::int64_t n) {
    const Vec x = LoadN(input + i, n);
    HalfVec halves[2];
    __builtin_memcpy(halves, &x, sizeof x);
    for (int half = 0; half < 2; ++half) {
      const DoubleVec y = __builtin_convertvector(halves[half], DoubleVec);
      sums[half] += y * y;
    }
  });
  double sum = 0;
  for (const DoubleVec& half : sums) {
    for (int i = 0; i < kWidth / 2; ++i) sum += half[i];
  }
  return sum;
}

void EmbeddingForwardRows(const EmbeddingForward& op, Range rows) {
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    const std::int64_t word = op.tokens != nullptr ? op.tokens[r] - op.first_word : r;
    if (op.num_words > 0 && (word < 0 || word >= op.num_words)) {
      ForVectors({0, op.columns}, [&](std::int64_t i, std::int64_t n) {
        StoreN(op.output.f32 + r * op.columns + i, Splat(-0.0F), n);
      });
      continue;
    }
    const float* token = op.token_table + word * op.columns;
    const float* position =
        op.position_table != nullptr
            ? op.position_table + PositionOf(r, op.context, op.starts) * op.columns
            : nullptr;
    ForVectors({0, op.columns}, [&](std::int64_t i, std::int64_t n) {
      Vec v = LoadN(token + i, n);
      if (position != nullptr) v += LoadN(position + i, n);
      StoreN(op.output.f32 + r * op.columns + i, v, n);
    });
  }
}

void EmbeddingBackwardColumns(const EmbeddingBackward& op, Range columns) {
  for (std::int64_t r = 0; r < op.batch * op.context; ++r) {
    const float* d_output = op.d_output.f32 + r * op.columns;
    const std::int64_t word = op.d_token_table != nullptr ? op.tokens[r] - op.first_word : -1;
    float* token = word >= 0 && word < op.vocab ? op.d_token_table + word * op.columns : nullptr;
    float* position = op.d_position_table != nullptr
                          ? op.d_position_table + PositionOf(r, op.context, op.starts) * op.columns
                          : nullptr;
    ForVectors(columns, [&](std::int64_t i, std::int64_t n) {
      const Vec d = LoadN(d_output + i, n);
      if (token != nullptr) StoreN(token + i, LoadN(token + i, n) + d, n);
      if (position != nullptr) StoreN(position + i, LoadN(position + i, n) + d, n);
    });
  }
}

}  // namespace takt::backend::TAKT_ISA
