// SPDX-License-Identifier: Apache-2.0
// Lets the ranks of one generation find each other. Each (job, generation) has a small key-value
// space, which ends with it. takt.v1.RendezvousService has the contract.
#pragma once

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

struct RendezvousLimits {
  std::size_t key_bytes = 1024;
  std::size_t value_bytes = 64 << 10;
  std::size_t keys = 4096;   // per scope
  std::size_t waits = 4096;  // per scope
};

// Thread-safe. A callback runs on the thread whose call completes it, never under the lock.
class Rendezvous final {
 public:
  using Values = std::vector<std::string>;
  using Callback = std::function<void(absl::StatusOr<Values>)>;

  explicit Rendezvous(RendezvousLimits limits = {}) : limits_(limits) {}
  // Calls Stop.
  ~Rendezvous() { Stop(); }

  // Makes (job, generation) current. The values of an older generation are dropped, and its waits
  // end with kAborted.
  void Open(const std::string& job, Generation generation);
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
  struct Waiting {
    std::vector<std::string> keys;
    absl::Duration deadline;
    Callback callback;
  };
  struct Scope {
    Generation generation;
    std::map<std::string, std::string> values;
    std::list<Waiting> waits;
  };

  absl::StatusOr<Scope*> FindLocked(const std::string& job, Generation generation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RendezvousLimits limits_;
  absl::Mutex mutex_;
  std::map<std::string, Scope> scopes_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace takt::job
