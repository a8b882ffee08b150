// SPDX-License-Identifier: Apache-2.0
// Writes changes to etcd, each whole or not at all, and only while this process leads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/etcd/election.h"
#include "coordinator/etcd/reader.h"
#include "coordinator/etcd/writes.h"

namespace takt::etcd {

// One caller at a time.
//
// A change that fits into one transaction is decided and carried out by it. A larger one is first
// written under `redo/`, in parts. Then one transaction decides it, by raising the number of
// commits. Then each part is carried out by one transaction, which removes it from `redo/`.
class FencedLog final {
 public:
  // Both are borrowed.
  FencedLog(Reader* reader, const Leadership* leadership)
      : reader_(reader), leadership_(leadership) {}

  // Carries out what was decided before this process led, and drops what was not. Call it first.
  absl::Status FinishRedo();

  // Writes all of it. Errors: as store::Store::Commit.
  absl::Status Commit(const Writes& writes);

  // The number of the next commit. No other commit ever has it.
  std::int64_t next() const { return commits_ + 1; }

 private:
  using Operations = std::vector<etcdserverpb::RequestOp>;

  absl::Status CommitInParts(const std::vector<Operations>& parts);
  // Raises the number of commits together with `operations`.
  absl::Status Decide(Operations operations);
  // Carries out operations that may be carried out twice.
  absl::Status Carry(const Operations& operations);
  // Sends until the outcome is known. decides: it raises the number of commits.
  absl::Status Send(const etcdserverpb::TxnRequest& txn, bool decides);
  // Says what the other branch of a transaction has found. OK: an earlier attempt took effect.
  absl::Status Judge(const etcdserverpb::TxnResponse& response, bool decides);
  // Carries the operations out while this process leads and no newer change is decided.
  etcdserverpb::TxnRequest Fenced(Operations operations) const;
  std::string RedoKey(std::int64_t commit, std::size_t part) const;

  Reader* const reader_;
  const Leadership* const leadership_;
  std::int64_t commits_ = 0;
  bool has_redo_ = false;  // parts may be left of a change that was not decided
};

}  // namespace takt::etcd
