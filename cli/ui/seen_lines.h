// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <string_view>
#include <unordered_set>

namespace takt::cli {

// Tells new lines of a log from those that an earlier stream of the same log has sent. Counting
// does not, because the coordinator drops the oldest lines meanwhile. One caller at a time.
class SeenLines final {
 public:
  // most: lines that are remembered; at least as many as the coordinator keeps of a job.
  explicit SeenLines(std::size_t most = 20'000) : most_(most) {}

  // Returns whether the line is none of those that are remembered, and remembers it. A line has its
  // time, so that no two are equal.
  bool IsNew(std::string_view line);

 private:
  const std::size_t most_;
  std::deque<std::size_t> in_order_;  // hashes
  std::unordered_set<std::size_t> hashes_;
};

}  // namespace takt::cli
