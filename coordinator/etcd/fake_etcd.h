// SPDX-License-Identifier: Apache-2.0
// For tests: one member of etcd in this process, on a port of its own. It keeps what is written,
// enforces etcd's limits, and fails as the test says. Leases expire only when the test says so.
#pragma once

#include <grpcpp/server.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "etcd/v3/etcd.grpc.pb.h"

namespace takt::etcd {

class FakeEtcd final : public etcdserverpb::KV::Service, public etcdserverpb::Lease::Service {
 public:
  explicit FakeEtcd(std::uint64_t cluster = 7);
  ~FakeEtcd() override;

  const std::string& address() const { return address_; }

  // The next transactions fail with UNAVAILABLE: each takes effect, and its answer is lost.
  void LoseAnswers(int count);
  // The next transactions fail with UNAVAILABLE without an effect.
  void RefuseTransactions(int count);
  // Transactions after the next `count` fail like that, and leases are not renewed, until this is
  // called again; -1: none do.
  void StopAfter(int count);
  // The transaction after the next `count` fails like that, and takes effect in DeliverLate if it
  // still may.
  void DelayAfter(int count);
  void DeliverLate();
  // The quota is used up: what puts keys, or grants leases, is refused.
  void SetFull(bool full);
  // The next reads answer with the state before the last change.
  void AnswerStale(int count);
  // All leases end, and their keys are removed.
  void ExpireLeases();
  // All states but the newest are forgotten.
  void Compact();
  // Returns how many transactions have taken effect since the start.
  int num_transactions() const;

  // Writes a key as another client would.
  void Put(const std::string& key, const std::string& value);
  // Returns the value; empty: there is no such key.
  std::string Get(const std::string& key) const;
  int CountKeys(const std::string& prefix) const;

  grpc::Status Range(grpc::ServerContext* context, const etcdserverpb::RangeRequest* request,
                     etcdserverpb::RangeResponse* response) override;
  grpc::Status Txn(grpc::ServerContext* context, const etcdserverpb::TxnRequest* request,
                   etcdserverpb::TxnResponse* response) override;
  grpc::Status LeaseGrant(grpc::ServerContext* context,
                          const etcdserverpb::LeaseGrantRequest* request,
                          etcdserverpb::LeaseGrantResponse* response) override;
  grpc::Status LeaseRevoke(grpc::ServerContext* context,
                           const etcdserverpb::LeaseRevokeRequest* request,
                           etcdserverpb::LeaseRevokeResponse* response) override;
  grpc::Status LeaseKeepAlive(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<etcdserverpb::LeaseKeepAliveResponse,
                               etcdserverpb::LeaseKeepAliveRequest>* stream) override;

 private:
  using Keys = std::map<std::string, etcdserverpb::KeyValue>;

  void FillHeader(etcdserverpb::ResponseHeader* header, std::int64_t revision) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsTrue(const etcdserverpb::Compare& compare) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Apply(const etcdserverpb::TxnRequest& txn, etcdserverpb::TxnResponse* response)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ApplyOne(const etcdserverpb::RequestOp& operation, etcdserverpb::TxnResponse* response)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PutLocked(const etcdserverpb::PutRequest& put) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndLease(std::int64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The next write has a revision of its own.
  void BeginRevision() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::uint64_t cluster_;
  mutable absl::Mutex mutex_;
  Keys keys_ ABSL_GUARDED_BY(mutex_);
  std::map<std::int64_t, Keys> history_ ABSL_GUARDED_BY(mutex_);  // by revision; a few
  std::int64_t revision_ ABSL_GUARDED_BY(mutex_) = 1;
  std::set<std::int64_t> leases_ ABSL_GUARDED_BY(mutex_);
  std::int64_t last_lease_ ABSL_GUARDED_BY(mutex_) = 0;
  int lost_answers_ ABSL_GUARDED_BY(mutex_) = 0;
  int refusals_ ABSL_GUARDED_BY(mutex_) = 0;
  int until_stop_ ABSL_GUARDED_BY(mutex_) = -1;
  int until_delay_ ABSL_GUARDED_BY(mutex_) = -1;
  std::vector<etcdserverpb::TxnRequest> late_ ABSL_GUARDED_BY(mutex_);
  int stale_answers_ ABSL_GUARDED_BY(mutex_) = 0;
  int num_transactions_ ABSL_GUARDED_BY(mutex_) = 0;
  bool full_ ABSL_GUARDED_BY(mutex_) = false;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace takt::etcd
