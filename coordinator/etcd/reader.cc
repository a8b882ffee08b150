// SPDX-License-Identifier: Apache-2.0
#include "coordinator/etcd/reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "coordinator/etcd/keys.h"

namespace takt::etcd {
namespace {

constexpr std::int64_t kPage = 256;  // keys
constexpr int kStaleAnswers = 20;
constexpr absl::Duration kStaleWait = absl::Milliseconds(50);

}  // namespace

const Entry* Listing::Find(absl::string_view key) const {
  const auto found =
      std::find_if(entries.begin(), entries.end(), [&](const Entry& it) { return it.key == key; });
  return found == entries.end() ? nullptr : &*found;
}

void Reader::Saw(std::int64_t revision) {
  std::int64_t seen = seen_;
  while (seen < revision && !seen_.compare_exchange_weak(seen, revision)) {
  }
}

absl::StatusOr<etcdserverpb::RangeResponse> Reader::Range(
    const etcdserverpb::RangeRequest& request) const {
  for (int attempt = 0; attempt < kStaleAnswers; ++attempt) {
    ASSIGN_OR_RETURN(etcdserverpb::RangeResponse response, client_->Range(request));
    if (request.revision() > 0 || response.header().revision() >= seen_) return response;
    absl::SleepFor(kStaleWait);  // the member catches up
  }
  return absl::UnavailableError(
      "etcd answers with a state that is older than the last change of this coordinator");
}

absl::StatusOr<Listing> Reader::ListFrom(std::string from, const std::string& end,
                                         const ListOptions& options) const {
  Listing listing{.revision = options.revision};
  etcdserverpb::RangeRequest request;
  request.set_range_end(end);
  request.set_keys_only(options.keys_only);
  while (true) {
    const std::int64_t left = options.limit - static_cast<std::int64_t>(listing.entries.size());
    request.set_key(from);
    request.set_limit(options.limit > 0 ? std::min(left, kPage) : kPage);
    request.set_revision(listing.revision);
    ASSIGN_OR_RETURN(etcdserverpb::RangeResponse response, Range(request));
    if (listing.revision == 0) listing.revision = response.header().revision();
    for (etcdserverpb::KeyValue& pair : *response.mutable_kvs()) {
      from = pair.key() + '\0';
      if (pair.key().find('\0') != std::string::npos && !listing.entries.empty()) {
        listing.entries.back().value += pair.value();
        continue;
      }
      listing.entries.push_back({.key = pair.key().substr(prefix_.size()),
                                 .value = std::move(*pair.mutable_value()),
                                 .create_revision = pair.create_revision()});
    }
    const bool full =
        options.limit > 0 && static_cast<std::int64_t>(listing.entries.size()) >= options.limit;
    if (!response.more() || full || response.kvs().empty()) return listing;
  }
}

absl::StatusOr<Listing> Reader::List(const std::string& folder, const ListOptions& options) const {
  return ListFrom(prefix_ + (options.from.empty() ? folder : options.from), prefix_ + EndOf(folder),
                  options);
}

absl::StatusOr<Listing> Reader::Get(const std::string& key, std::int64_t revision) const {
  return ListFrom(prefix_ + key, EndOfPieces(prefix_ + key), {.revision = revision});
}

}  // namespace takt::etcd
