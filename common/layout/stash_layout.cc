// SPDX-License-Identifier: Apache-2.0
#include "common/layout/stash_layout.h"

#include "common/layout/regions.h"

namespace takt::layout {
namespace {

using model::Origin;
using model::Recompute;

bool IsKept(Origin origin, Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return true;
    case Recompute::kSelective:
      return origin == Origin::kProduct;
    case Recompute::kFull:
      return false;
  }
  return true;
}

}  // namespace

StashLayout::StashLayout(std::span<const model::StashTensor> tensors, Recompute recompute)
    : recompute_(recompute) {
  Regions kept, recomputed;
  places_.reserve(tensors.size());
  for (const model::StashTensor& tensor : tensors) {
    const bool keep = IsKept(tensor.origin, recompute);
    Regions& regions = keep ? kept : recomputed;
    const std::int64_t offset = regions.Add(tensor.bytes);
    places_.push_back({keep, offset, regions.size() - offset, tensor.bf16});
  }
  kept_bytes_ = kept.size();
  recomputed_bytes_ = recomputed.size();
}

}  // namespace takt::layout
