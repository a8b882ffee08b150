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

  // Does not keep orders that never complete, nor one that is there already.
  void Add(Order order);
  // Shortest first. Of equal ones the one that came first is first.
  const std::vector<Order>& orders() const { return orders_; }
  double shortest() const { return orders_.empty() ? kNever : orders_.front().makespan; }
  // An order must be shorter than this to be kept.
  double bar() const { return orders_.size() < size_ ? kNever : orders_.back().makespan; }

 private:
  const std::size_t size_;
  std::vector<Order> orders_;
};

}  // namespace takt::search
