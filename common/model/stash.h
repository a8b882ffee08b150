// SPDX-License-Identifier: Apache-2.0
// The tensors that the passes of a layer leave one another, as each family lists them.
// common/layout says where they lie.
#pragma once

#include <cstdint>
#include <string_view>

namespace takt::model {

// The pass that makes a tensor first. I may write a gradient over it, for W.
enum class Origin : std::uint8_t {
  kProduct,    // F, by a product of matrices or attention: it is expensive to compute again
  kRowwise,    // F, by a norm or an activation: it is cheap to compute again
  kInputGrad,  // I, for W
};

// Layer::stash of a head, of any family. N rows of tokens, C hidden, K blocks of words
// (vocabulary.h). The arrow points to what I leaves there for W. *: in the precision of activations
// (model.h).
struct HeadStash {
  enum Tensor : std::uint8_t {
    kNorm,          // [N,C] the norm's output; *
    kNormStats,     // [2,N] mean, rstd; or [N] rstd
    kNormPart,      // [2,C] or [C]: gradients of its weights, of this microbatch
    kSoftmaxParts,  // [K,N] numbers of kSoftmaxBytes: what each block adds to a row's softmax
    kSoftmax,       // [N], the same of whole rows
    // The first of K tensors, one a block: [N,words], rows LogitsStride apart -> their gradient; *
    kLogits,
  };
  static constexpr std::int64_t kSoftmaxBytes = 16;
};

// Layer::scratch of a head, of any family.
struct HeadScratch {
  enum Tensor : std::uint8_t {
    // The first of TreeSum::MostBuffers(K) tensors, which add up to it: [N,C] gradient of the
    // norm's output; * if there is one block, else in f32. Where the head goes slice by slice
    // (head_slices.h), all but the first have the rows of a slice, and these follow:
    // HeadStash::kSoftmaxParts, kSoftmax, and the logits of a slice by block.
    kDNorm,
  };
};

struct StashTensor {
  std::string_view name;  // a constant, for people
  Origin origin = Origin::kProduct;
  std::int64_t bytes = 0;
  bool bf16 = false;  // else f32
};

// A tensor that I needs while it runs.
struct ScratchTensor {
  // Says where the tensor begins. Tensors that are never needed at once share memory.
  enum class Start : std::uint8_t {
    kNextLine,      // on the first cache line behind all tensors before it
    kWithLine,      // where the last tensor began that began on a line of its own
    kBehindTensor,  // right behind the tensor before it, as rows of one matrix would
  };
  std::string_view name;  // a constant, for people
  std::int64_t bytes = 0;
  Start start = Start::kNextLine;
};

}  // namespace takt::model
