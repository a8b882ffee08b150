// SPDX-License-Identifier: Apache-2.0
// Reads keys of one cluster from etcd.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/etcd/etcd_client.h"

namespace takt::etcd {

struct Entry {
  std::string key, value;  // the key without the prefix; the value with all its pieces
  std::int64_t create_revision = 0;
};

struct Listing {
  std::vector<Entry> entries;  // by key
  std::int64_t revision = 0;   // the state that was read

  // Returns null if the key is not there.
  const Entry* Find(absl::string_view key) const;
};

struct ListOptions {
  std::int64_t revision = 0;  // 0: the newest state
  std::string from;           // the first key; empty: all of the folder
  std::int64_t limit = 0;     // of values in one piece each; 0: none
  bool keys_only = false;
};

// Thread-safe.
class Reader final {
 public:
  // client: borrowed. prefix: of the cluster, e.g. "takt/".
  Reader(EtcdClient* client, std::string prefix) : client_(client), prefix_(std::move(prefix)) {}

  // Lists the keys that begin with `folder`, which ends with a slash. Errors: as EtcdClient.
  absl::StatusOr<Listing> List(const std::string& folder, const ListOptions& options) const;
  absl::StatusOr<Listing> List(const std::string& folder) const { return List(folder, {}); }
  // Lists one key, or nothing.
  absl::StatusOr<Listing> Get(const std::string& key, std::int64_t revision = 0) const;

  // No later answer is older than this state. etcd 3.4 does not keep that by itself
  // (etcd#20418).
  void Saw(std::int64_t revision);

  const std::string& prefix() const { return prefix_; }
  EtcdClient& client() const { return *client_; }

 private:
  absl::StatusOr<Listing> ListFrom(std::string from, const std::string& end,
                                   const ListOptions& options) const;
  // Repeats a range until its answer is no older than what this process has seen.
  absl::StatusOr<etcdserverpb::RangeResponse> Range(
      const etcdserverpb::RangeRequest& request) const;

  EtcdClient* const client_;
  const std::string prefix_;
  std::atomic<std::int64_t> seen_ = 0;
};

}  // namespace takt::etcd
