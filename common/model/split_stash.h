// SPDX-License-Identifier: Apache-2.0
// Lists the tensors that the passes of a layer leave one another where tensor parallelism splits
// it. Letters: N rows of tokens of a microbatch, n of them on this rank, L leaves here, C hidden. A
// leaf has Q and K channels of query and key, E of the MLP, H query heads, G key/value heads; D is
// the size of a head. The arrow points to what I leaves there for W. *: in the precision of
// activations, **: in that of products (model.h); all else is in f32.
#pragma once

#include <cstdint>

namespace takt::model {

// Layer::stash of an embedding.
struct SplitEmbeddingStash {
  enum Tensor : std::uint8_t {
    kOutputGrad,  // [N,C] the gradient of the output of all ranks, which I gathers
  };
};

// Layer::scratch of an embedding.
struct SplitEmbeddingScratch {
  enum Tensor : std::uint8_t {
    kRows,  // [N,C] rows of this rank's words; the rows of all ranks are summed
  };
};

// Layer::stash of a block, of any family.
struct SplitBlockStash {
  enum Tensor : std::uint8_t {
    kNorm1,       // [N,C] the first norm's output, which F gathers; **
    kNorm1Stats,  // by leaf of rows, as the norm leaves them
    kNorm1Part,   // [L,2,C] or [L,C]: gradients of its weights, of this microbatch
    kMiddle,      // [n,C] between attention and MLP -> its gradient
    kMiddleGrad,  // [N,C] the gradient of kMiddle, which I gathers
    kNorm2,       // as of the first
    kNorm2Stats,
    kNorm2Part,
    kOutputGrad,  // [N,C] the gradient of the output, which I gathers
    // The first tensor of the first leaf. Each leaf has those of its family, below.
    kLeaves,
  };
};

struct SplitGpt2Leaf {
  enum Tensor : std::uint8_t {
    kQkv,        // [N,3Q] -> its gradient; *
    kAttention,  // [N,Q] heads side by side; *
    kLogsumexp,  // [B,H,T]
    kInner,      // [N,E] before gelu -> its gradient; *
    kActivated,  // [N,E] after gelu; **
    kNumTensors,
  };
};

struct SplitLlamaLeaf {
  enum Tensor : std::uint8_t {
    kQ,          // [N,Q] rotated -> its gradient; *
    kK,          // [N,K] rotated -> its gradient; *
    kV,          // [N,K] -> its gradient; *
    kAttention,  // [N,Q] *
    kLogsumexp,  // [B,H,T]
    kGate,       // [N,E] -> its gradient; *
    kUp,         // [N,E] -> its gradient; *
    kProduct,    // [N,E] silu(gate) * up; **
    kNumTensors,
    // Only a kQwen3Block has the tensors below. Its kQ and kK are normalised before they are
    // rotated, and I leaves nothing there.
    kRawQ = kNumTensors,  // [N,Q] before the norm -> its gradient
    kQNormStats,          // [N,H] rstd
    kQNormPart,           // [D] gradient of the weight, of this microbatch
    kRawK,                // [N,K] before the norm -> its gradient
    kKNormStats,          // [N,G] rstd
    kKNormPart,           // [D]
    kNumTensorsOfQwen3,
  };
};

// Layer::scratch of a block, of any family.
struct SplitBlockScratch {
  enum Tensor : std::uint8_t {
    kDInner,      // [N,E] * gradient of the MLP's inner width. The next three reuse its memory.
    kDQ,          // [N,Q] * gradient of q; of GPT-2, [N,3Q] of q, k and v
    kDK,          // [N,K] * gradient of k; GPT-2 has none
    kDV,          // [N,K] * gradient of v; GPT-2 has none
    kDAttention,  // [N,Q] * gradient of attention's output
    // The first of TreeSum::MostBuffers(L) tensors [N,C], which add up to sums over leaves. F uses
    // them too.
    kSums,
  };
};

// Layer::stash of a head is HeadStash with the blocks of words of this rank alone. Its norm's
// output is of all rows, and the norm's other tensors are as those of a block.

// Layer::scratch of a head. P: the partial sums of other ranks (PartialSumsOf).
struct SplitHeadScratch {
  enum Tensor : std::uint8_t {
    kReceived,  // [P,n,C] partial sums of the gradient of the norm's output
    kSums,      // the first of the tensors [N,C] in which this rank adds its own
  };
};

}  // namespace takt::model
