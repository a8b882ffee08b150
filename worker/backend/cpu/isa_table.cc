// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cpu/isa_kernels.h"

namespace takt::backend::TAKT_ISA {

#define TAKT_STRING_INNER(x) #x
#define TAKT_STRING(x) TAKT_STRING_INNER(x)

extern const Kernels kTable;
const Kernels kTable = {
    .name = TAKT_STRING(TAKT_ISA),
    .epilogue = Epilogue,
    .pack = Pack,
    .round_bf16 = RoundBf16,
    .pack_bf16 = PackBf16Panels,
    .bias_grad_partial = BiasGradPartial,
    .layer_norm_weights_partial = LayerNormWeightsPartial,
    .sum_partials = SumPartials,
    .layer_norm_forward = LayerNormForwardRows,
    .layer_norm_backward_input = LayerNormBackwardInputRows,
    .rms_norm_forward = RmsNormForwardRows,
    .rms_norm_backward_input = RmsNormBackwardInputRows,
    .rms_norm_weights_partial = RmsNormWeightsPartial,
    .rotary = RotaryRows,
    .swiglu_forward = SwigluForwardRange,
    .swiglu_backward = SwigluBackwardRange,
    .gelu_forward = GeluForwardRange,
    .gelu_backward = GeluBackwardRange,
    .adamw = AdamwRange,
    .add = AddRange,
    .sum_of_squares = SumOfSquaresBlock,
    .cross_entropy = CrossEntropyRows,
    .attention_forward_scratch = AttentionForwardScratch,
    .attention_backward_scratch = AttentionBackwardScratch,
    .attention_forward = AttentionForwardItem,
    .attention_backward = AttentionBackwardItem,
    .embedding_forward = EmbeddingForwardRows,
    .embedding_backward = EmbeddingBackwardColumns,
};

}  // namespace takt::backend::TAKT_ISA
