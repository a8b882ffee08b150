// SPDX-License-Identifier: Apache-2.0
#include "coordinator/etcd/election.h"

#include <openssl/rand.h>
#include <pthread.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "coordinator/etcd/keys.h"
#include "coordinator/etcd/writes.h"

namespace takt::etcd {
namespace {

namespace pb = ::etcdserverpb;

constexpr char kSchema[] = "1";
constexpr int kClusterIdBytes = 16;
// After this share of the lease without a renewal, the leader ends itself: etcd counts from a later
// moment, and clocks drift.
constexpr double kOwnShare = 0.7;
constexpr double kRenewShare = 0.3;
constexpr double kRenewTimeoutShare = 0.2;
constexpr absl::Duration kRetryRenewal = absl::Milliseconds(200);

std::string RandomClusterId() {
  std::string bytes(kClusterIdBytes, '\0');
  TAKT_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), kClusterIdBytes) == 1);
  return absl::BytesToHexString(bytes);
}

// What the keys of `meta/` say before an election.
struct Meta {
  std::string leader, commits;
  std::optional<std::int64_t> epoch;  // nullopt: the state is empty
};

absl::StatusOr<Meta> ReadMeta(const Reader& reader) {
  ASSIGN_OR_RETURN(const Listing listing, reader.List(kMeta));
  Meta meta;
  if (const Entry* leader = listing.Find(kLeaderKey)) meta.leader = leader->value;
  if (const Entry* commits = listing.Find(kCommitKey)) meta.commits = commits->value;
  if (const Entry* schema = listing.Find(kSchemaKey);
      schema != nullptr && schema->value != kSchema) {
    return absl::FailedPreconditionError(
        absl::StrCat("the state in etcd has schema ", schema->value, ", and this program knows ",
                     kSchema, "; start a coordinator that is as new as the one that wrote it"));
  }
  if (const Entry* epoch = listing.Find(kEpochKey)) {
    std::int64_t number = 0;
    if (!absl::SimpleAtoi(epoch->value, &number)) {
      return absl::DataLossError(absl::StrCat("etcd's key ", reader.prefix(), kEpochKey, " has \"",
                                              epoch->value, "\", not a number"));
    }
    meta.epoch = number;
  }
  return meta;
}

pb::Compare IsAbsent(const std::string& key) {
  pb::Compare compare;
  compare.set_target(pb::Compare::CREATE);
  compare.set_key(key);
  compare.set_create_revision(0);
  return compare;
}

pb::TxnRequest ElectionOf(const std::string& prefix, const Meta& meta, const std::string& address,
                          std::int64_t lease) {
  pb::TxnRequest txn;
  *txn.add_compare() = IsAbsent(prefix + kLeaderKey);
  if (meta.epoch) {
    pb::Compare& same = *txn.add_compare();
    same.set_target(pb::Compare::VALUE);
    same.set_key(prefix + kEpochKey);
    same.set_value(absl::StrCat(*meta.epoch));
  } else {
    *txn.add_compare() = IsAbsent(prefix + kEpochKey);
    *txn.add_success() = PutOperation(prefix + kSchemaKey, kSchema);
    *txn.add_success() = PutOperation(prefix + kClusterKey, RandomClusterId());
    *txn.add_success() = PutOperation(prefix + kCommitKey, "0");
  }
  *txn.add_success() = PutOperation(prefix + kEpochKey, absl::StrCat(meta.epoch.value_or(0) + 1));
  pb::RequestOp leader = PutOperation(prefix + kLeaderKey, address);
  leader.mutable_request_put()->set_lease(lease);
  *txn.add_success() = std::move(leader);
  return txn;
}

}  // namespace

Leadership::Leadership(EtcdClient* client, const Options& options)
    : client_(client), options_(options), renewed_(options.granted), thread_([this] { Renew(); }) {}

Leadership::~Leadership() {
  {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
  }
  end_.SignalAll();
  thread_.join();
  const absl::Status status = client_->RevokeLease(options_.lease_id);
  if (!status.ok()) {
    Log(LogLevel::kInfo, "the lease was not given up; it expires by itself",
        {{"error", std::string(status.message())}});
  }
}

absl::Duration Leadership::Left() const {
  absl::MutexLock lock(&mutex_);
  if (!loss_.ok()) return absl::ZeroDuration();
  return std::max(absl::ZeroDuration(), renewed_ + options_.lease * kOwnShare - SteadyNow());
}

bool Leadership::Holds() const { return Left() > absl::ZeroDuration(); }

absl::Status Leadership::Check() const {
  absl::MutexLock lock(&mutex_);
  if (!loss_.ok() || SteadyNow() - renewed_ < options_.lease * kOwnShare) return loss_;
  return absl::UnavailableError("this coordinator leads no more: it renewed its lease too late");
}

void Leadership::Renew() {
  pthread_setname_np(pthread_self(), "takt-lease");
  absl::Duration wait = options_.lease * kRenewShare;
  absl::Status status;
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (end_.AwaitFor(mutex_, absl::Condition(&ended_), wait)) return;
    }
    const absl::Duration sent = SteadyNow();
    status = client_->KeepLease(options_.lease_id, options_.lease * kRenewTimeoutShare);
    absl::MutexLock lock(&mutex_);
    // A renewal that comes too late does not count, because Holds has said no already.
    if (absl::IsNotFound(status) || SteadyNow() - renewed_ >= options_.lease * kOwnShare) break;
    if (status.ok()) renewed_ = sent;
    wait = status.ok() ? options_.lease * kRenewShare : kRetryRenewal;
  }
  absl::MutexLock lock(&mutex_);
  loss_ = absl::UnavailableError(
      absl::StrCat("this coordinator leads no more: its lease was not renewed for ",
                   absl::FormatDuration(options_.lease * kOwnShare), " (", status.message(), ")"));
}

absl::StatusOr<Standing> TryToLead(const Reader& reader, const ElectionOptions& options) {
  ASSIGN_OR_RETURN(Meta meta, ReadMeta(reader));
  Standing standing{
      .leader = meta.leader, .epoch = meta.epoch.value_or(0), .commits = meta.commits};
  if (!meta.leader.empty()) return standing;
  const absl::Duration granted = SteadyNow();
  ASSIGN_OR_RETURN(const std::int64_t lease, reader.client().GrantLease(options.lease));
  const absl::StatusOr<pb::TxnResponse> response =
      reader.client().Txn(ElectionOf(reader.prefix(), meta, options.address, lease));
  if (!response.ok() || !response->succeeded()) {
    // If the answer was lost, this process may have won; then its leadership goes with the lease.
    reader.client().RevokeLease(lease).IgnoreError();
    RETURN_IF_ERROR(response.status());
    return standing;  // the next attempt sees the winner
  }
  standing.leader = options.address;
  standing.epoch = meta.epoch.value_or(0) + 1;
  standing.leadership = std::make_unique<Leadership>(
      &reader.client(), Leadership::Options{.lease_id = lease,
                                            .revision = response->header().revision(),
                                            .epoch = standing.epoch,
                                            .lease = options.lease,
                                            .granted = granted});
  return standing;
}

}  // namespace takt::etcd
