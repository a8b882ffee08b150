// SPDX-License-Identifier: Apache-2.0
#include "cli/ui/followers.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace takt::cli {

Followers::Lease::Lease(Followers& followers, std::string view)
    : followers_(followers), view_(std::move(view)) {}
Followers::Lease::~Lease() { followers_.Release(view_); }

Followers::Followers(Follow follow, FollowersOptions options)
    : follow_(std::move(follow)), options_(options) {}

Followers::~Followers() { Sweep(absl::InfiniteFuture()); }

absl::StatusOr<std::unique_ptr<Followers::Lease>> Followers::Acquire(const std::string& view,
                                                                     absl::Time now) {
  const absl::MutexLock lock(&mutex_);
  const auto found = followed_.find(view);
  if (found == followed_.end() && followed_.size() >= options_.most) {
    return absl::ResourceExhaustedError(
        absl::StrCat(options_.most, " jobs and pictures are shown at a time; close some pages"));
  }
  Followed& followed = followed_[view];
  ++followed.viewers;
  followed.idle_since = now;
  if (found == followed_.end()) {
    followed.thread = std::jthread([this, view](const std::stop_token& stop) {
      pthread_setname_np(pthread_self(), "takt-ui-view");
      follow_(view, stop);
    });
  }
  return std::make_unique<Lease>(*this, view);
}

void Followers::Release(const std::string& view) {
  const absl::MutexLock lock(&mutex_);
  --followed_[view].viewers;
}

void Followers::Sweep(absl::Time now) {
  // Threads end under the lock, so that a view is never followed twice at a time.
  const absl::MutexLock lock(&mutex_);
  for (auto it = followed_.begin(); it != followed_.end();) {
    Followed& followed = it->second;
    if (followed.viewers > 0) followed.idle_since = std::max(followed.idle_since, now);
    if (followed.viewers > 0 || now - followed.idle_since < options_.linger) {
      ++it;
      continue;
    }
    followed.thread.request_stop();
    followed.thread.join();
    it = followed_.erase(it);
  }
}

}  // namespace takt::cli
