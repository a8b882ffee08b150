// SPDX-License-Identifier: Apache-2.0
// What fills the kernel tables; see kernels.h for the contracts and vec.h for how these files are
// compiled.
#pragma once

#include "worker/backend/cpu/kernels.h"

namespace takt::backend::TAKT_ISA {

// elementwise_kernels.cc
void Epilogue(const Kernels::Epilogue& op);
void Pack(const float* source, std::int64_t source_stride, std::int64_t rows, std::int64_t columns,
          float* packed);
void RotaryRows(const Rotary& op, Range rows);
void SwigluForwardRange(const SwigluForward& op, Range elements);
void SwigluBackwardRange(const SwigluBackward& op, Range elements);
void GeluForwardRange(const GeluForward& op, Range elements);
void GeluBackwardRange(const GeluBackward& op, Range elements);
void AdamwRange(const AdamwUpdate& op, const AdamwTensor& tensor, Range elements);
void AddRange(const Add& op, Range elements);
double SumOfSquaresBlock(const float* input, std::int64_t count);
void EmbeddingForwardRows(const EmbeddingForward& op, Range rows);
void EmbeddingBackwardColumns(const EmbeddingBackward& op, Range columns);

// bf16_kernels.cc
void RoundBf16(const float* input, Bf16* rounded, Range elements);
void PackBf16Panels(const PackBf16& op, Range panels);

// row_kernels.cc
void BiasGradPartial(const BiasGrad& op, Range rows, float* partial);
void LayerNormWeightsPartial(const LayerNormBackwardWeights& op, Range rows, float* partial);
void SumPartials(const float* partials, std::int64_t count, std::int64_t stride, float* output,
                 Range columns, bool accumulate);
void LayerNormForwardRows(const LayerNormForward& op, Range rows);
void LayerNormBackwardInputRows(const LayerNormBackwardInput& op, Range rows);
void RmsNormForwardRows(const RmsNormForward& op, Range rows);
void RmsNormBackwardInputRows(const RmsNormBackwardInput& op, Range rows);
void RmsNormWeightsPartial(const RmsNormBackwardWeights& op, Range rows, float* partial);
void CrossEntropyRows(const CrossEntropy& op, Range rows, double* row_losses);

// attention_kernels.cc
std::int64_t AttentionForwardScratch(const AttentionShape& shape);
std::int64_t AttentionBackwardScratch(const AttentionShape& shape);
void AttentionForwardItem(const AttentionForward& op, std::int64_t item, float* scratch);
void AttentionBackwardItem(const AttentionBackward& op, std::int64_t item, float* scratch);

}  // namespace takt::backend::TAKT_ISA
