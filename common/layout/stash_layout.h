// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/model/recompute.h"
#include "common/model/stash.h"

namespace takt::layout {

// Says where the tensors of one layer's stash lie. A tensor is *kept* from F to W, or it is
// *recomputed* before I and lies in memory of its own from there to W. F writes a recomputed tensor
// only on its way to the next one.
class StashLayout {
 public:
  StashLayout(std::span<const model::StashTensor> tensors, model::Recompute recompute);

  struct Place {
    bool kept = true;
    std::int64_t offset = 0;  // in the memory of the kept tensors, or of the recomputed ones
    std::int64_t room = 0;    // bytes from there to the next tensor
    bool bf16 = false;
  };
  // tensor: its index in the layer's list.
  const Place& operator[](std::size_t tensor) const { return places_[tensor]; }
  std::size_t size() const { return places_.size(); }

  model::Recompute recompute() const { return recompute_; }
  std::int64_t kept_bytes() const { return kept_bytes_; }
  std::int64_t recomputed_bytes() const { return recomputed_bytes_; }

 private:
  model::Recompute recompute_;
  std::vector<Place> places_;
  std::int64_t kept_bytes_ = 0, recomputed_bytes_ = 0;
};

}  // namespace takt::layout
