// SPDX-License-Identifier: Apache-2.0
#include "cli/ui/followers.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
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
  const auto is_free = [this, &view]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto it = followed_.find(view);
    return it == followed_.end() || !it->second.is_ending;
  };
  mutex_.Await(absl::Condition(&is_free));
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
  std::map<std::string, std::jthread> idle = TakeIdle(now);
  for (auto& [view, thread] : idle) thread.request_stop();
  for (auto& [view, thread] : idle) {
    thread.join();
    const absl::MutexLock lock(&mutex_);
    followed_.erase(view);
  }
}

std::map<std::string, std::jthread> Followers::TakeIdle(absl::Time now) {
  std::map<std::string, std::jthread> idle;
  const absl::MutexLock lock(&mutex_);
  for (auto& [view, followed] : followed_) {
    if (followed.viewers > 0) followed.idle_since = std::max(followed.idle_since, now);
    if (followed.is_ending || followed.viewers > 0) continue;
    if (now - followed.idle_since < options_.linger) continue;
    followed.is_ending = true;
    idle.emplace(view, std::move(followed.thread));
  }
  return idle;
}

}  // namespace takt::cli
