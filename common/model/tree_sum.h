// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <vector>

#include "absl/status/status.h"
#include "common/base/status.h"

namespace takt::model {

// The order in which sums over blocks 0 to n-1 are added. It is a binary tree over the numbers of
// the blocks: blocks 2i and 2i+1 are added first, then the sums of 4i to 4i+1 and 4i+2 to 4i+3, and
// so on. If n is no power of two, what is left at the end is added from the last block on. For
// example, 7 blocks give ((0+1)+(2+3)) + ((4+5)+6).
//
// Whoever has a run of neighbouring blocks adds what the tree adds within the run, and passes on
// the partial sums that are left. They are pushed again where all runs meet. So the bits of the
// result do not depend on the runs.
//
// The caller has the partial sums in a stack of buffers. This object says which to add. `add` is
// called as absl::Status add(int i), and adds buffer i+1 to buffer i.
class TreeSum {
 public:
  // The sum of `size` blocks, a power of two, from a multiple of `size` on.
  struct Part {
    int first = 0, size = 1;
    bool operator==(const Part&) const = default;
  };

  // Returns the most buffers that are in use at once while blocks 0 to n-1 are pushed one by one.
  static constexpr int MostBuffers(int n) { return std::bit_width(static_cast<unsigned>(n)); }

  // Returns the partial sums in the buffers, from buffer 0 on. They are in ascending order. The
  // next one belongs in the buffer after them.
  const std::vector<Part>& parts() const { return parts_; }
  int size() const { return static_cast<int>(parts_.size()); }

  // The caller has filled the next buffer with this part.
  template <class Add>
  absl::Status Push(const Part& part, const Add& add) {
    parts_.push_back(part);
    while (size() > 1 && AreSiblings(parts_[parts_.size() - 2], parts_.back()))
      RETURN_IF_ERROR(Join(add));
    return absl::OkStatus();
  }

  // Adds what is left once all blocks are there. The whole sum is in buffer 0.
  template <class Add>
  absl::Status Finish(const Add& add) {
    while (size() > 1) RETURN_IF_ERROR(Join(add));
    return absl::OkStatus();
  }

 private:
  static bool AreSiblings(const Part& left, const Part& right) {
    return left.size == right.size && left.first % (2 * left.size) == 0 &&
           left.first + left.size == right.first;
  }

  // Adds the last two.
  template <class Add>
  absl::Status Join(const Add& add) {
    const int right = parts_.back().size;
    parts_.pop_back();
    parts_.back().size += right;
    return add(size() - 1);
  }

  std::vector<Part> parts_;
};

// The partial sums over a run of blocks that cannot be added any further within the run.
struct PartialSums {
  std::vector<TreeSum::Part> parts;
  int most = 0;  // buffers in use at once while the run is added; the parts end in the first ones
};

// Returns those of the blocks [first, last).
inline PartialSums PartialSumsOf(int first, int last) {
  PartialSums result;
  TreeSum sum;
  for (int block = first; block < last; ++block) {
    result.most = std::max(result.most, sum.size() + 1);
    const auto add = [](int /*buffer*/) { return absl::OkStatus(); };
    TAKT_CHECK(sum.Push({.first = block, .size = 1}, add).ok());
  }
  result.parts = sum.parts();
  return result;
}

}  // namespace takt::model
