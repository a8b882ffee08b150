// SPDX-License-Identifier: Apache-2.0
#include "coordinator/etcd/writes.h"

#include <algorithm>

#include "coordinator/etcd/keys.h"

namespace takt::etcd {

using etcdserverpb::RequestOp;

RequestOp PutOperation(const std::string& key, const std::string& value) {
  RequestOp operation;
  operation.mutable_request_put()->set_key(key);
  operation.mutable_request_put()->set_value(value);
  return operation;
}

RequestOp EraseOperation(const std::string& begin, const std::string& end) {
  RequestOp operation;
  operation.mutable_request_delete_range()->set_key(begin);
  operation.mutable_request_delete_range()->set_range_end(end);
  return operation;
}

void Writes::Put(const std::string& key, std::string value, bool pieces) {
  const std::string whole_key = prefix_ + key;
  std::size_t at = std::min(value.size(), limits_.value_bytes);
  int piece = 0;
  for (; at < value.size(); at += limits_.value_bytes) {
    writes_[PieceKey(whole_key, piece++)] = {.value = value.substr(at, limits_.value_bytes)};
  }
  if (pieces) tails_.emplace_back(PieceKey(whole_key, piece), EndOfPieces(whole_key));
  value.resize(std::min(value.size(), limits_.value_bytes));
  writes_[whole_key] = {.value = std::move(value)};
}

void Writes::PutOnce(const std::string& key, std::string value) {
  // The first one of this commit stays, too.
  writes_.try_emplace(prefix_ + key, Write{.value = std::move(value), .once = true});
}

void Writes::Erase(const std::string& key, bool pieces) {
  writes_[prefix_ + key] = {.erases = true};
  if (pieces) tails_.emplace_back(PieceKey(prefix_ + key, 0), EndOfPieces(prefix_ + key));
}

void Writes::EraseRange(const std::string& begin, const std::string& end) {
  erased_.emplace_back(prefix_ + begin, prefix_ + end);
}

bool Writes::IsErased(const std::string& key) const {
  return std::any_of(erased_.begin(), erased_.end(),
                     [&](const auto& range) { return range.first <= key && key < range.second; });
}

std::vector<std::vector<RequestOp>> Writes::Parts() const {
  std::vector<std::vector<RequestOp>> parts;
  std::size_t bytes = 0;
  const auto add = [&](RequestOp operation, std::size_t size) {
    const bool fits = !parts.empty() && parts.back().size() < limits_.part_operations &&
                      bytes + size <= limits_.part_bytes;
    if (!fits) {
      parts.emplace_back();
      bytes = 0;
    }
    parts.back().push_back(std::move(operation));
    bytes += size;
  };
  for (const auto& [begin, end] : erased_) add(EraseOperation(begin, end), begin.size() * 2);
  for (const auto& [begin, end] : tails_) add(EraseOperation(begin, end), begin.size() * 2);
  for (const auto& [key, write] : writes_) {
    if (IsErased(key)) continue;
    RequestOp operation;
    if (write.erases) {
      operation.mutable_request_delete_range()->set_key(key);
    } else if (write.once) {
      etcdserverpb::TxnRequest& nested = *operation.mutable_request_txn();
      etcdserverpb::Compare& absent = *nested.add_compare();
      absent.set_target(etcdserverpb::Compare::VERSION);
      absent.set_key(key);
      absent.set_version(0);
      *nested.add_success() = PutOperation(key, write.value);
    } else {
      operation = PutOperation(key, write.value);
    }
    add(std::move(operation), key.size() + write.value.size());
  }
  return parts;
}

}  // namespace takt::etcd
