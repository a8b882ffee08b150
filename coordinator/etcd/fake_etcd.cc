// SPDX-License-Identifier: Apache-2.0
#include "coordinator/etcd/fake_etcd.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::etcd {
namespace {

namespace pb = ::etcdserverpb;

constexpr int kMaxOperations = 128;
constexpr std::size_t kMaxRequestBytes = 3 << 19;  // 1.5 MiB
constexpr std::size_t kKeptStates = 8;

grpc::Status Refused(grpc::StatusCode code, const std::string& text) {
  return {code, "etcdserver: " + text};
}

// Returns how many operations a transaction counts for, with those of the deepest nested one.
int CountOperations(const pb::TxnRequest& txn) {
  int nested = 0;
  for (const pb::RequestOp& operation : txn.success()) {
    if (operation.has_request_txn())
      nested = std::max(nested, CountOperations(operation.request_txn()));
  }
  return std::max({txn.compare_size(), txn.success_size(), txn.failure_size()}) + nested;
}

struct Written {
  std::vector<std::string> puts;
  std::vector<std::pair<std::string, std::string>> erased;
};

void Collect(const pb::TxnRequest& txn, Written& written) {
  for (const pb::RequestOp& operation : txn.success()) {
    if (operation.has_request_put()) written.puts.push_back(operation.request_put().key());
    if (operation.has_request_txn()) Collect(operation.request_txn(), written);
    if (operation.has_request_delete_range()) {
      const pb::DeleteRangeRequest& erase = operation.request_delete_range();
      const std::string end = erase.range_end().empty() ? erase.key() + '\0' : erase.range_end();
      written.erased.emplace_back(erase.key(), end);
    }
  }
}

bool WritesAKeyTwice(const pb::TxnRequest& txn) {
  Written written;
  Collect(txn, written);
  std::sort(written.puts.begin(), written.puts.end());
  if (std::adjacent_find(written.puts.begin(), written.puts.end()) != written.puts.end())
    return true;
  return std::any_of(written.puts.begin(), written.puts.end(), [&](const std::string& key) {
    return std::any_of(written.erased.begin(), written.erased.end(),
                       [&](const auto& range) { return range.first <= key && key < range.second; });
  });
}

bool Puts(const pb::TxnRequest& txn) {
  Written written;
  Collect(txn, written);
  return !written.puts.empty();
}

}  // namespace

FakeEtcd::FakeEtcd(std::uint64_t cluster) : cluster_(cluster) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(static_cast<pb::KV::Service*>(this));
  builder.RegisterService(static_cast<pb::Lease::Service*>(this));
  server_ = builder.BuildAndStart();
  TAKT_CHECK(server_ != nullptr && port != 0);
  address_ = absl::StrCat("127.0.0.1:", port);
}

FakeEtcd::~FakeEtcd() { server_->Shutdown(std::chrono::system_clock::now()); }

void FakeEtcd::LoseAnswers(int count) {
  absl::MutexLock lock(&mutex_);
  lost_answers_ = count;
}

void FakeEtcd::RefuseTransactions(int count) {
  absl::MutexLock lock(&mutex_);
  refusals_ = count;
}

void FakeEtcd::StopAfter(int count) {
  absl::MutexLock lock(&mutex_);
  until_stop_ = count;
}

void FakeEtcd::DelayAfter(int count) {
  absl::MutexLock lock(&mutex_);
  until_delay_ = count;
}

void FakeEtcd::DeliverLate() {
  absl::MutexLock lock(&mutex_);
  for (const pb::TxnRequest& txn : late_) {
    BeginRevision();
    pb::TxnResponse response;
    Apply(txn, &response);
  }
  late_.clear();
}

void FakeEtcd::SetFull(bool full) {
  absl::MutexLock lock(&mutex_);
  full_ = full;
}

void FakeEtcd::AnswerStale(int count) {
  absl::MutexLock lock(&mutex_);
  stale_answers_ = count;
}

void FakeEtcd::ExpireLeases() {
  absl::MutexLock lock(&mutex_);
  for (const std::int64_t id : std::set<std::int64_t>(leases_)) EndLease(id);
}

void FakeEtcd::Compact() {
  absl::MutexLock lock(&mutex_);
  history_.clear();
}

int FakeEtcd::num_transactions() const {
  absl::MutexLock lock(&mutex_);
  return num_transactions_;
}

void FakeEtcd::Put(const std::string& key, const std::string& value) {
  absl::MutexLock lock(&mutex_);
  BeginRevision();
  pb::PutRequest put;
  put.set_key(key);
  put.set_value(value);
  PutLocked(put);
}

std::string FakeEtcd::Get(const std::string& key) const {
  absl::MutexLock lock(&mutex_);
  const auto found = keys_.find(key);
  return found == keys_.end() ? "" : found->second.value();
}

int FakeEtcd::CountKeys(const std::string& prefix) const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(std::count_if(keys_.begin(), keys_.end(), [&](const auto& pair) {
    return absl::StartsWith(pair.first, prefix);
  }));
}

void FakeEtcd::FillHeader(pb::ResponseHeader* header, std::int64_t revision) const {
  header->set_cluster_id(cluster_);
  header->set_revision(revision);
}

void FakeEtcd::BeginRevision() {
  history_[revision_] = keys_;
  while (history_.size() > kKeptStates) history_.erase(history_.begin());
  ++revision_;
}

grpc::Status FakeEtcd::Range(grpc::ServerContext*, const pb::RangeRequest* request,
                             pb::RangeResponse* response) {
  absl::MutexLock lock(&mutex_);
  std::int64_t revision = request->revision() > 0 ? request->revision() : revision_;
  if (request->revision() == 0 && stale_answers_ > 0) {
    --stale_answers_;
    --revision;
  }
  if (revision > revision_)
    return Refused(grpc::StatusCode::OUT_OF_RANGE, "mvcc: required revision is a future revision");
  if (revision < revision_ && !history_.contains(revision))
    return Refused(grpc::StatusCode::OUT_OF_RANGE, "mvcc: required revision has been compacted");
  const Keys& keys = revision == revision_ ? keys_ : history_.at(revision);
  const std::string end =
      request->range_end().empty() ? request->key() + '\0' : request->range_end();
  for (auto it = keys.lower_bound(request->key()); it != keys.end() && it->first < end; ++it) {
    if (request->limit() > 0 && response->kvs_size() == request->limit()) {
      response->set_more(true);
      break;
    }
    pb::KeyValue& pair = *response->add_kvs();
    pair = it->second;
    if (request->keys_only()) pair.clear_value();
  }
  FillHeader(response->mutable_header(), request->revision() > 0 ? revision_ : revision);
  return grpc::Status::OK;
}

bool FakeEtcd::IsTrue(const pb::Compare& compare) const {
  const auto found = keys_.find(compare.key());
  const pb::KeyValue value = found == keys_.end() ? pb::KeyValue() : found->second;
  switch (compare.target()) {
    case pb::Compare::VERSION:
      return value.version() == compare.version();
    case pb::Compare::CREATE:
      return value.create_revision() == compare.create_revision();
    case pb::Compare::MOD:
      return value.mod_revision() == compare.mod_revision();
    default:
      return found != keys_.end() && value.value() == compare.value();
  }
}

void FakeEtcd::PutLocked(const pb::PutRequest& put) {
  pb::KeyValue& pair = keys_[put.key()];
  if (pair.create_revision() == 0) pair.set_create_revision(revision_);
  pair.set_key(put.key());
  pair.set_value(put.value());
  pair.set_mod_revision(revision_);
  pair.set_version(pair.version() + 1);
  pair.set_lease(put.lease());
}

void FakeEtcd::ApplyOne(const pb::RequestOp& operation, pb::TxnResponse* response) {
  pb::ResponseOp& answer = *response->add_responses();
  if (operation.has_request_put()) {
    PutLocked(operation.request_put());
  } else if (operation.has_request_delete_range()) {
    const pb::DeleteRangeRequest& erase = operation.request_delete_range();
    const std::string end = erase.range_end().empty() ? erase.key() + '\0' : erase.range_end();
    keys_.erase(keys_.lower_bound(erase.key()), keys_.lower_bound(end));
  } else if (operation.has_request_txn()) {
    Apply(operation.request_txn(), answer.mutable_response_txn());
  } else {
    const auto found = keys_.find(operation.request_range().key());
    pb::RangeResponse& range = *answer.mutable_response_range();
    if (found != keys_.end()) *range.add_kvs() = found->second;
  }
}

void FakeEtcd::Apply(const pb::TxnRequest& txn, pb::TxnResponse* response) {
  bool succeeded = true;
  for (const pb::Compare& compare : txn.compare()) succeeded = succeeded && IsTrue(compare);
  response->set_succeeded(succeeded);
  for (const pb::RequestOp& operation : succeeded ? txn.success() : txn.failure())
    ApplyOne(operation, response);
}

grpc::Status FakeEtcd::Txn(grpc::ServerContext*, const pb::TxnRequest* request,
                           pb::TxnResponse* response) {
  if (CountOperations(*request) > kMaxOperations)
    return Refused(grpc::StatusCode::INVALID_ARGUMENT, "too many operations in txn request");
  if (request->ByteSizeLong() > kMaxRequestBytes)
    return Refused(grpc::StatusCode::INVALID_ARGUMENT, "request is too large");
  if (WritesAKeyTwice(*request))
    return Refused(grpc::StatusCode::INVALID_ARGUMENT, "duplicate key given in txn request");
  absl::MutexLock lock(&mutex_);
  if (refusals_ > 0 || until_stop_ == 0) {
    if (refusals_ > 0) --refusals_;
    return Refused(grpc::StatusCode::UNAVAILABLE, "request timed out");
  }
  if (until_delay_ >= 0 && until_delay_-- == 0) {
    late_.push_back(*request);
    return Refused(grpc::StatusCode::UNAVAILABLE, "request timed out");
  }
  if (full_ && Puts(*request))
    return Refused(grpc::StatusCode::RESOURCE_EXHAUSTED, "mvcc: database space exceeded");
  if (until_stop_ > 0) --until_stop_;
  BeginRevision();
  Apply(*request, response);
  if (response->succeeded()) {
    ++num_transactions_;
  } else {
    --revision_;  // nothing was written
  }
  FillHeader(response->mutable_header(), revision_);
  if (lost_answers_ == 0) return grpc::Status::OK;
  --lost_answers_;
  return Refused(grpc::StatusCode::UNAVAILABLE, "request timed out");
}

grpc::Status FakeEtcd::LeaseGrant(grpc::ServerContext*, const pb::LeaseGrantRequest* request,
                                  pb::LeaseGrantResponse* response) {
  absl::MutexLock lock(&mutex_);
  if (full_) return Refused(grpc::StatusCode::RESOURCE_EXHAUSTED, "mvcc: database space exceeded");
  leases_.insert(++last_lease_);
  response->set_id(last_lease_);
  response->set_ttl(request->ttl());
  FillHeader(response->mutable_header(), revision_);
  return grpc::Status::OK;
}

void FakeEtcd::EndLease(std::int64_t id) {
  leases_.erase(id);
  BeginRevision();
  std::erase_if(keys_, [&](const auto& pair) { return pair.second.lease() == id; });
}

grpc::Status FakeEtcd::LeaseRevoke(grpc::ServerContext*, const pb::LeaseRevokeRequest* request,
                                   pb::LeaseRevokeResponse* response) {
  absl::MutexLock lock(&mutex_);
  if (!leases_.contains(request->id()))
    return Refused(grpc::StatusCode::NOT_FOUND, "requested lease not found");
  EndLease(request->id());
  FillHeader(response->mutable_header(), revision_);
  return grpc::Status::OK;
}

grpc::Status FakeEtcd::LeaseKeepAlive(
    grpc::ServerContext*,
    grpc::ServerReaderWriter<pb::LeaseKeepAliveResponse, pb::LeaseKeepAliveRequest>* stream) {
  pb::LeaseKeepAliveRequest request;
  while (stream->Read(&request)) {
    pb::LeaseKeepAliveResponse response;
    {
      absl::MutexLock lock(&mutex_);
      FillHeader(response.mutable_header(), revision_);
      response.set_id(request.id());
      const bool renews = leases_.contains(request.id()) && until_stop_ != 0;
      response.set_ttl(renews ? 5 : 0);
    }
    if (!stream->Write(response)) break;
  }
  return grpc::Status::OK;
}

}  // namespace takt::etcd
