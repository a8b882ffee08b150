// SPDX-License-Identifier: Apache-2.0
// The best orders seen.
#pragma once

#include <cstddef>
#include <vector>

#include "common/search/improve.h"

namespace takt::search {

class Pool {
 public:
  explicit Pool(std::size_t size) : size_(size) {}

  // Orders that never complete, and doubles, are not kept.
  void Add(Order order);
  // Shortest first; of equals, the one that came first.
  const std::vector<Order>& orders() const { return orders_; }
  double shortest() const { return orders_.empty() ? kNever : orders_.front().makespan; }
  // What an order must be shorter than to be kept.
  double bar() const { return orders_.size() < size_ ? kNever : orders_.back().makespan; }

 private:
  const std::size_t size_;
  std::vector<Order> orders_;
};

}  // namespace takt::search
