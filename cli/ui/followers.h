// SPDX-License-Identifier: Apache-2.0
// Runs one thread for each view that somebody looks at, and ends it some time after the last one
// has looked away.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace takt::cli {

struct FollowersOptions {
  std::size_t most = 24;                      // views at a time
  absl::Duration linger = absl::Seconds(20);  // how long a view is followed without viewers
};

// Thread-safe.
class Followers final {
 public:
  // Follows `view` until `stop` is requested. It runs on a thread of its own.
  using Follow = std::function<void(const std::string& view, const std::stop_token& stop)>;

  explicit Followers(Follow follow, FollowersOptions options = {});
  // Ends all threads. No lease may be alive.
  ~Followers();
  Followers(const Followers&) = delete;
  Followers& operator=(const Followers&) = delete;

  // While a lease lives, its view is followed. Must not outlive the Followers.
  class Lease final {
   public:
    Lease(Followers& followers, std::string view);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

   private:
    Followers& followers_;
    const std::string view_;
  };

  // Waits while an earlier thread of the same view ends, so that none is followed twice at a time.
  // kResourceExhausted: too many views are followed.
  absl::StatusOr<std::unique_ptr<Lease>> Acquire(const std::string& view, absl::Time now);

  // Ends the threads of views that nobody has looked at for long enough, and waits for their ends.
  // Meanwhile only those who acquire one of these views wait.
  void Sweep(absl::Time now);

 private:
  struct Followed {
    int viewers = 0;
    absl::Time idle_since;
    bool is_ending = false;  // Sweep has the thread and waits for its end
    std::jthread thread;
  };

  void Release(const std::string& view);
  // Takes the threads of idle views, which Sweep ends. The views stay until then.
  std::map<std::string, std::jthread> TakeIdle(absl::Time now);

  const Follow follow_;
  const FollowersOptions options_;
  absl::Mutex mutex_;
  std::map<std::string, Followed> followed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace takt::cli
