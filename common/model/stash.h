// SPDX-License-Identifier: Apache-2.0
// What the passes of a layer leave one another of a microbatch, and where it lies. The layers of
// worker/train put their tensors where this says, the planner adds them up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/model/recompute.h"

namespace takt::model {

// Who makes a tensor first. I may write a gradient over it, for W.
enum class Origin : std::uint8_t {
  kProduct,    // F, by a product of matrices or attention: dear to make again
  kRowwise,    // F, by a norm or an activation: cheap
  kInputGrad,  // I, for W
};

// Layer::stash of a head, of any family. N rows of tokens, C hidden, V vocabulary. *: in the
// precision of activations (model.h).
struct HeadStash {
  enum Tensor : std::uint8_t {
    kNorm,       // [N,C] the norm's output; *
    kNormStats,  // [2,N] mean, rstd; or [N] rstd
    kNormPart,   // [2,C] or [C]: gradients of its weights, of this microbatch
    kLogits,     // [N,V], rows LogitsStride apart; their gradient once the loss is known; *
  };
};

struct StashTensor {
  Origin origin = Origin::kProduct;
  std::int64_t bytes = 0;
  bool bf16 = false;  // else f32
};

// The stash of one layer. A tensor is *kept* from F to W, or it is *recomputed* before I and lies
// in memory of its own from there to W; F writes such a tensor only on its way to the next one.
class StashLayout {
 public:
  StashLayout(const std::vector<StashTensor>& tensors, Recompute recompute);

  struct Place {
    bool kept = true;
    std::int64_t offset = 0;  // in bytes, in the memory of those kept, or of those recomputed
    std::int64_t room = 0;    // bytes from there to the next one
    bool bf16 = false;
  };
  // By index in the list.
  const Place& operator[](std::size_t tensor) const { return places_[tensor]; }

  Recompute recompute() const { return recompute_; }
  std::int64_t kept_bytes() const { return kept_bytes_; }
  std::int64_t recomputed_bytes() const { return recomputed_bytes_; }

 private:
  Recompute recompute_;
  std::vector<Place> places_;
  std::int64_t kept_bytes_ = 0, recomputed_bytes_ = 0;
};

}  // namespace takt::model
