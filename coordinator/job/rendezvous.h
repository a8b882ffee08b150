// SPDX-License-Identifier: Apache-2.0
// Lets the ranks of one generation find each other. Each (job, generation) has a small key-value
// space, which ends with it. takt.v1.RendezvousService has the contract.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/id.h"

namespace takt::job {

// A total that grows with the number of ranks of a scope.
struct PerRanks {
  std::size_t base = 0, each = 0;
  std::size_t Of(int num_ranks) const { return base + each * static_cast<std::size_t>(num_ranks); }
};

// Ranks of protocol 4 need a few keys for each neighbour. Those before it connect each group all to
// all, with up to eight keys for two ranks: `keys` leaves room for that up to 128 ranks.
struct RendezvousLimits {
  std::size_t key_bytes = 1024;
  std::size_t value_bytes = 64 << 10;
  // These are for one scope.
  PerRanks keys = {.base = 4096, .each = 256};
  PerRanks waits = {.base = 4096, .each = 16};
  PerRanks bytes = {.base = 64 << 20, .each = 64 << 10};  // of all keys with their values
};

// Thread-safe. A callback runs on the thread whose call completes it, never under the lock.
class Rendezvous final {
 public:
  using Values = std::vector<std::string>;
  using Callback = std::function<void(absl::StatusOr<Values>)>;

  explicit Rendezvous(RendezvousLimits limits = {}) : limits_(limits) {}
  // Calls Stop.
  ~Rendezvous() { Stop(); }

  // Makes (job, generation), which has `num_ranks` ranks, the current one. The values of an older
  // generation are dropped, and its waits end with kAborted.
  void Open(const std::string& job, Generation generation, int num_ranks = 1);
  void Close(const std::string& job);
  // Closes every scope. Waits and all later calls end with kUnavailable.
  void Stop();

  absl::Status Set(const std::string& job, Generation generation, const std::string& key,
                   std::string value);
  // Calls `callback` once: when every key is there, at `deadline` (steady), or when the scope is
  // closed.
  void Wait(const std::string& job, Generation generation, std::vector<std::string> keys,
            absl::Duration deadline, Callback callback);
  absl::Status Clear(const std::string& job, Generation generation);

  // Ends the waits whose deadline has come.
  void Expire(absl::Duration now);

 private:
  // A wait is queued at the first of its keys that is missing. So a new key touches no wait that is
  // queued at another key, and a wait of n keys costs n look-ups in all.
  struct Waiting {
    std::vector<std::string> keys;
    std::size_t there = 0;  // so many of them, from the first on
    absl::Duration deadline;
    Callback callback;
  };
  struct Scope {
    Generation generation;
    int num_ranks = 1;
    std::map<std::string, std::string> values;
    std::size_t bytes = 0;                            // of `values`, with their keys
    std::map<std::string, std::list<Waiting>> waits;  // by key
    std::size_t num_waits = 0;
  };

  // Returns whether every key is there. Otherwise wait.keys[wait.there] is not.
  static bool IsOver(const Scope& scope, Waiting& wait);
  static Values ValuesOf(const Scope& scope, const std::vector<std::string>& keys);
  absl::Status CheckRoomLocked(const std::string& job, const Scope& scope, const std::string& key,
                               const std::string& value) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Scope*> FindLocked(const std::string& job, Generation generation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RendezvousLimits limits_;
  absl::Mutex mutex_;
  std::map<std::string, Scope> scopes_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace takt::job
