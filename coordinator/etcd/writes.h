// SPDX-License-Identifier: Apache-2.0
// The writes of one commit, as operations that etcd takes: no key is written twice, no value is
// too large, and no transaction has too many operations. It is pure.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "etcd/v3/etcd.pb.h"

namespace takt::etcd {

// etcd takes requests of 1.5 MiB and transactions of 128 operations by default, one level of nested
// ones included.
struct WriteLimits {
  std::size_t value_bytes = 512 << 10;  // of one operation
  std::size_t part_bytes = 1 << 20;     // of the keys and values of one transaction
  std::size_t part_operations = 96;
};

// One caller at a time.
class Writes final {
 public:
  // prefix: goes in front of every key.
  explicit Writes(std::string prefix, WriteLimits limits = {})
      : prefix_(std::move(prefix)), limits_(limits) {}

  // The value replaces the one before. pieces: this value, or the one before, may be so large that
  // it has pieces.
  void Put(const std::string& key, std::string value, bool pieces = false);
  // Writes the value unless the key is there.
  void PutOnce(const std::string& key, std::string value);
  void Erase(const std::string& key, bool pieces = false);
  // Erases all keys in [begin, end), those that are put in the same commit among them.
  void EraseRange(const std::string& begin, const std::string& end);

  // Returns the operations, of which each part fits into one transaction.
  std::vector<std::vector<etcdserverpb::RequestOp>> Parts() const;

 private:
  struct Write {
    std::string value;
    bool erases = false, once = false;
  };

  bool IsErased(const std::string& key) const;

  const std::string prefix_;
  const WriteLimits limits_;
  std::map<std::string, Write> writes_;                      // by key, with the prefix
  std::vector<std::pair<std::string, std::string>> erased_;  // ranges, with the prefix
  std::vector<std::pair<std::string, std::string>> tails_;   // pieces that go
};

// The operations themselves; keys have their prefix.
etcdserverpb::RequestOp PutOperation(const std::string& key, const std::string& value);
etcdserverpb::RequestOp EraseOperation(const std::string& begin, const std::string& end);

}  // namespace takt::etcd
