// SPDX-License-Identifier: Apache-2.0
#include "cli/ui/followers.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"

namespace takt::cli {
namespace {

const absl::Time kBegin = absl::FromUnixSeconds(1000);

// Counts the views that are followed.
class Count {
 public:
  Followers::Follow AsFollow() {
    return [this](const std::string&, const std::stop_token& stop) {
      ++begun_;
      std::unique_lock lock(mutex_);
      std::condition_variable_any().wait(lock, stop, [] { return false; });
      ++ended_;
    };
  }
  int begun() const { return begun_; }
  int ended() const { return ended_; }

 private:
  std::mutex mutex_;
  std::atomic<int> begun_ = 0, ended_ = 0;
};

TEST(Followers, OneThreadServesAllViewersOfAView) {
  Count count;
  {
    Followers followers(count.AsFollow());
    const auto one = followers.Acquire("job:a", kBegin).value();
    const auto two = followers.Acquire("job:a", kBegin).value();
    const auto other = followers.Acquire("job:b", kBegin).value();
  }
  EXPECT_EQ(count.begun(), count.ended());
  EXPECT_LE(count.begun(), 2);
}

TEST(Followers, ViewsEndOnceNobodyLooksForLongEnough) {
  absl::Notification ended;
  Followers followers(
      [&](const std::string&, const std::stop_token& stop) {
        absl::Notification stopped;
        const std::stop_callback wake(stop, [&] { stopped.Notify(); });
        stopped.WaitForNotification();
        ended.Notify();
      },
      {.linger = absl::Seconds(20)});
  {
    const auto lease = followers.Acquire("job:a", kBegin).value();
    followers.Sweep(kBegin + absl::Seconds(100));
    EXPECT_FALSE(ended.HasBeenNotified());
  }
  followers.Sweep(kBegin + absl::Seconds(119));
  EXPECT_FALSE(ended.HasBeenNotified());
  followers.Sweep(kBegin + absl::Seconds(120));
  EXPECT_TRUE(ended.HasBeenNotified());
}

TEST(Followers, AThreadThatIsSlowToEndDelaysOnlyItsOwnView) {
  absl::Notification stopped, may_end;
  std::atomic<int> running = 0, most_running = 0;  // threads of the slow view
  Followers followers(
      [&](const std::string& view, const std::stop_token& stop) {
        if (view == "slow") most_running = std::max(most_running.load(), ++running);
        absl::Notification asked;
        const std::stop_callback wake(stop, [&] { asked.Notify(); });
        asked.WaitForNotification();
        if (view != "slow") return;
        if (!stopped.HasBeenNotified()) stopped.Notify();
        may_end.WaitForNotification();
        --running;
      },
      {.linger = absl::ZeroDuration()});
  followers.Acquire("slow", kBegin).value().reset();
  std::thread sweep([&] { followers.Sweep(kBegin); });
  stopped.WaitForNotification();
  absl::Notification has_other;
  std::thread other([&] {
    EXPECT_TRUE(followers.Acquire("other", kBegin).ok());
    has_other.Notify();
  });
  EXPECT_TRUE(has_other.WaitForNotificationWithTimeout(absl::Seconds(20)));
  std::thread same([&] { EXPECT_TRUE(followers.Acquire("slow", kBegin).ok()); });
  may_end.Notify();
  for (std::thread* thread : {&sweep, &other, &same}) thread->join();
  EXPECT_EQ(most_running, 1);
}

TEST(Followers, RefusesMoreViewsThanItMayFollow) {
  Count count;
  Followers followers(count.AsFollow(), {.most = 1});
  const auto lease = followers.Acquire("job:a", kBegin).value();
  EXPECT_EQ(followers.Acquire("job:b", kBegin).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(followers.Acquire("job:a", kBegin).ok());
}

}  // namespace
}  // namespace takt::cli
