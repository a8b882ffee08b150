// SPDX-License-Identifier: Apache-2.0
// Names ranks in reasons, for people. A job may have thousands of ranks, and its reasons are
// stored, logged and shown: they name the first few ranks and count the others.
#pragma once

#include <cstddef>
#include <string>

#include "common/control/assignment.h"

namespace takt::job {

inline constexpr std::size_t kMostNamedRanks = 4;

// Returns "rank 3 (w3)".
std::string NameOf(const control::BoundRank& bound);

// Makes "rank 0 (w0), rank 1 (w1), rank 2 (w2), rank 3 (w3) and 60 others" of ranks.
class RankNames final {
 public:
  void Add(const control::BoundRank& bound);
  bool empty() const { return count_ == 0; }
  std::string ToString() const;

 private:
  std::string first_;  // of kMostNamedRanks
  std::size_t count_ = 0;
};

}  // namespace takt::job
