// SPDX-License-Identifier: Apache-2.0
#include "coordinator/etcd/fenced_log.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "coordinator/etcd/keys.h"
#include "coordinator/etcd/snapshot.h"

namespace takt::etcd {
namespace {

namespace pb = ::etcdserverpb;

constexpr absl::Duration kRetry = absl::Milliseconds(50);

pb::RequestOp Reads(const std::string& key) {
  pb::RequestOp operation;
  operation.mutable_request_range()->set_key(key);
  return operation;
}

// Returns the one value that operation number `index` of the response has read; null: none.
const pb::KeyValue* ValueAt(const pb::TxnResponse& response, int index) {
  if (index >= response.responses_size()) return nullptr;
  const pb::RangeResponse& range = response.responses(index).response_range();
  return range.kvs().empty() ? nullptr : &range.kvs(0);
}

}  // namespace

std::string FencedLog::RedoKey(std::int64_t commit, std::size_t part) const {
  return absl::StrCat(reader_->prefix(), kRedo, Digits(commit), "/",
                      Digits(static_cast<std::int64_t>(part)));
}

pb::TxnRequest FencedLog::Fenced(Operations operations) const {
  pb::TxnRequest txn;
  pb::Compare& leads = *txn.add_compare();
  leads.set_target(pb::Compare::CREATE);
  leads.set_key(reader_->prefix() + kLeaderKey);
  leads.set_create_revision(leadership_->revision());
  // An attempt whose answer is lost may take effect late. It must not once there is a newer change.
  pb::Compare& counted = *txn.add_compare();
  counted.set_target(pb::Compare::VALUE);
  counted.set_key(reader_->prefix() + kCommitKey);
  counted.set_value(absl::StrCat(commits_));
  for (pb::RequestOp& operation : operations) *txn.add_success() = std::move(operation);
  *txn.add_failure() = Reads(reader_->prefix() + kLeaderKey);
  *txn.add_failure() = Reads(reader_->prefix() + kCommitKey);
  return txn;
}

absl::Status FencedLog::Judge(const pb::TxnResponse& response, bool decides) {
  const pb::KeyValue* const leader = ValueAt(response, 0);
  const pb::KeyValue* const commits = ValueAt(response, 1);
  if (leader == nullptr || leader->create_revision() != leadership_->revision()) {
    return absl::UnavailableError(
        absl::StrCat("this coordinator leads no more: ",
                     leader == nullptr ? "nobody does" : absl::StrCat(leader->value(), " does"),
                     "; it must start again to follow"));
  }
  if (decides && commits != nullptr && commits->value() == absl::StrCat(next()))
    return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "etcd's key ", reader_->prefix(), kCommitKey, " has \"",
      commits == nullptr ? "" : commits->value(), "\", and this leader wrote ", commits_,
      "; etcd was restored from a snapshot, or another program writes these keys"));
}

absl::Status FencedLog::Send(const pb::TxnRequest& txn, bool decides) {
  bool unknown = false;  // an earlier attempt may have taken effect
  const absl::Duration deadline = SteadyNow() + leadership_->lease();
  while (true) {
    const absl::StatusOr<pb::TxnResponse> response = reader_->client().Txn(txn);
    if (response.ok()) {
      if (!response->succeeded()) RETURN_IF_ERROR(Judge(*response, decides));
      reader_->Saw(response->header().revision());
      return absl::OkStatus();
    }
    const absl::Status& status = response.status();
    if (!absl::IsUnavailable(status)) {
      const bool open = unknown && decides && absl::IsResourceExhausted(status);
      return open ? absl::UnavailableError(status.message()) : status;
    }
    unknown = true;
    if (!leadership_->Holds() || SteadyNow() >= deadline) {
      return absl::UnavailableError(
          absl::StrCat("nothing could be stored within the lease: ", status.message()));
    }
    absl::SleepFor(kRetry);
  }
}

absl::Status FencedLog::Decide(Operations operations) {
  operations.push_back(PutOperation(reader_->prefix() + kCommitKey, absl::StrCat(next())));
  RETURN_IF_ERROR(Send(Fenced(std::move(operations)), /*decides=*/true));
  ++commits_;
  return absl::OkStatus();
}

absl::Status FencedLog::Carry(const Operations& operations) {
  return Send(Fenced(operations), /*decides=*/false);
}

absl::Status FencedLog::Commit(const Writes& writes) {
  std::vector<Operations> parts = writes.Parts();
  if (parts.size() > 1) return CommitInParts(parts);
  Operations operations = parts.empty() ? Operations() : std::move(parts.front());
  const std::string redo = reader_->prefix() + kRedo;
  if (has_redo_) operations.push_back(EraseOperation(redo, EndOf(redo)));
  RETURN_IF_ERROR(Decide(std::move(operations)));
  has_redo_ = false;
  return absl::OkStatus();
}

absl::Status FencedLog::CommitInParts(const std::vector<Operations>& parts) {
  const std::string redo = reader_->prefix() + kRedo;
  if (has_redo_) RETURN_IF_ERROR(Carry({EraseOperation(redo, EndOf(redo))}));
  has_redo_ = true;
  const std::int64_t commit = next();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    pb::TxnRequest part;
    for (const pb::RequestOp& operation : parts[i]) *part.add_success() = operation;
    RETURN_IF_ERROR(Carry({PutOperation(RedoKey(commit, i), part.SerializeAsString())}));
  }
  RETURN_IF_ERROR(Decide({}));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Operations operations = parts[i];
    pb::RequestOp& done = operations.emplace_back();
    done.mutable_request_delete_range()->set_key(RedoKey(commit, i));
    const absl::Status status = Carry(operations);
    // The change is decided, so nothing but its end can be reported.
    if (absl::IsResourceExhausted(status)) return absl::UnavailableError(status.message());
    RETURN_IF_ERROR(status);
  }
  has_redo_ = false;
  return absl::OkStatus();
}

absl::Status FencedLog::FinishRedo() {
  reader_->Saw(leadership_->revision());
  ASSIGN_OR_RETURN(const Listing counted, reader_->Get(kCommitKey));
  if (counted.entries.empty()) {
    return absl::DataLossError(absl::StrCat("etcd has no key ", reader_->prefix(), kCommitKey,
                                            "; restore it from a snapshot"));
  }
  ASSIGN_OR_RETURN(commits_, ParseNumber(*reader_, counted.entries.front()));
  ASSIGN_OR_RETURN(const Listing redo, reader_->List(kRedo));
  for (const Entry& entry : redo.entries) {
    const std::string number = entry.key.substr(std::string(kRedo).size());
    std::int64_t commit = 0;
    pb::TxnRequest part;
    if (!absl::SimpleAtoi(number.substr(0, number.find('/')), &commit) ||
        !part.ParseFromString(entry.value)) {
      return Unreadable(*reader_, entry);
    }
    Operations operations;
    if (commit <= commits_) operations.assign(part.success().begin(), part.success().end());
    pb::RequestOp& done = operations.emplace_back();
    done.mutable_request_delete_range()->set_key(reader_->prefix() + entry.key);
    RETURN_IF_ERROR(Carry(operations));
  }
  return absl::OkStatus();
}

}  // namespace takt::etcd
