// SPDX-License-Identifier: Apache-2.0
// The single-threaded pieces that CPU ops are cut into, one table per instruction set. A piece
// covers a range of the op's rows (or what is said here), and its result does not depend on how the
// ranges are cut, except for *_partial. Operands and Outputs are in f32, Outputs of forward ops in
// either type.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/backend/ops.h"

namespace takt::backend {

struct Range {
  std::int64_t begin = 0, end = 0;
};

struct Kernels {
  const char* name;

  // c[rows,columns] with `stride` floats between rows: product + bias (nullable) + addend
  // (nullable, same stride).
  struct Epilogue {
    const float* product;  // may be c
    std::int64_t product_stride;
    float* c;
    const float* bias;
    const float* addend;
    std::int64_t rows, columns, stride;
  };
  void (*epilogue)(const Epilogue&);
  // rows of `columns` floats: from distance source_stride to distance `columns`.
  void (*pack)(const float* source, std::int64_t source_stride, std::int64_t rows,
               std::int64_t columns, float* packed);

  // rounded[i] of input[i] for i in the range: to nearest, ties to even.
  void (*round_bf16)(const float* input, Bf16* rounded, Range elements);
  // The panels in the range; bf16_gemm.h says how they lie.
  void (*pack_bf16)(const PackBf16&, Range panels);

  // partial[C]: sums of the rows in the range.
  void (*bias_grad_partial)(const BiasGrad&, Range rows, float* partial);
  // partial[2C]: of the weight, then of the bias.
  void (*layer_norm_weights_partial)(const LayerNormBackwardWeights&, Range rows, float* partial);
  // output[columns] (+)= partials[0] + partials[1] + ..., which are `stride` apart.
  void (*sum_partials)(const float* partials, std::int64_t count, std::int64_t stride,
                       float* output, Range columns, bool accumulate);

  void (*layer_norm_forward)(const LayerNormForward&, Range rows);
  void (*layer_norm_backward_input)(const LayerNormBackwardInput&, Range rows);

  void (*rms_norm_forward)(const RmsNormForward&, Range rows);
  void (*rms_norm_backward_input)(const RmsNormBackwardInput&, Range rows);
  // partial[C]
  void (*rms_norm_weights_partial)(const RmsNormBackwardWeights&, Range rows, float* partial);
  void (*rotary)(const Rotary&, Range rows);

  void (*swiglu_forward)(const SwigluForward&, Range elements);
  void (*swiglu_backward)(const SwigluBackward&, Range elements);
  void (*gelu_forward)(const GeluForward&, Range elements);
  void (*gelu_backward)(const GeluBackward&, Range elements);
  void (*adamw)(const AdamwUpdate&, const AdamwTensor&, Range elements);
  void (*add)(const Add&, Range elements);
  double (*sum_of_squares)(const float* input, std::int64_t count);

  // row_losses[i]: of row i of the op, 0 if not scored.
  void (*cross_entropy)(const CrossEntropy&, Range rows, double* row_losses);

  // Each item is one (sequence, key/value head). scratch: attention_*_scratch(shape) floats,
  // 64-byte aligned.
  std::int64_t (*attention_forward_scratch)(const AttentionShape&);
  std::int64_t (*attention_backward_scratch)(const AttentionShape&);
  void (*attention_forward)(const AttentionForward&, std::int64_t item, float* scratch);
  void (*attention_backward)(const AttentionBackward&, std::int64_t item, float* scratch);

  void (*embedding_forward)(const EmbeddingForward&, Range rows);
  // Adds the gradient's `columns` to the tables, all rows in order.
  void (*embedding_backward)(const EmbeddingBackward&, Range columns);
};

// The tables that this machine can run, best first.
std::vector<const Kernels*> RunnableKernels();

// Whether this machine has instructions for products of bf16 beside those of `kernels`.
bool MultipliesBf16(const Kernels& kernels);

}  // namespace takt::backend
