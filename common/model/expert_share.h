// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace takt::model {

// The place of a rank among the neighbouring replicas that share the experts of each block
// (docs/adr/0013-experts-over-ranks.md).
struct ExpertShare {
  int size = 1;   // the ranks that share them
  int index = 0;  // of this rank among them

  constexpr bool shares() const { return size > 1; }
  bool operator==(const ExpertShare&) const = default;
};

}  // namespace takt::model
