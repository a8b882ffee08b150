// SPDX-License-Identifier: Apache-2.0
#include "common/search/pool.h"

#include <algorithm>
#include <utility>

namespace takt::search {

void Pool::Add(Order order) {
  if (order.makespan == kNever || order.makespan >= bar()) return;
  for (const Order& other : orders_) {
    if (other.makespan == order.makespan && other.rows == order.rows) return;
  }
  const auto after =
      std::upper_bound(orders_.begin(), orders_.end(), order,
                       [](const Order& a, const Order& b) { return a.makespan < b.makespan; });
  orders_.insert(after, std::move(order));
  if (orders_.size() > size_) orders_.pop_back();
}

}  // namespace takt::search
