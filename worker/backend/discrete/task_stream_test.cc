// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/discrete/task_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace takt::backend {
namespace {

using ::testing::HasSubstr;

absl::Status Nothing() { return absl::OkStatus(); }

// Fills the queue of `stream`, whose first task lasts until `end`.
void Fill(TaskStream& stream, std::size_t capacity, absl::Notification& end) {
  stream.Push([&end] {
    end.WaitForNotification();
    return absl::OkStatus();
  });
  for (std::size_t i = 1; i < capacity; ++i) stream.Push(Nothing);
}

TEST(BoundedQueue, AThreadThatFindsAQueueFullKeepsOthersFromEveryStream) {
  constexpr std::size_t kCapacity = 4;
  absl::Notification end, pushed;
  BoundedQueue queue(kCapacity, absl::InfiniteDuration());
  TaskStream full(TaskStreamOptions{.queue = &queue});
  TaskStream empty(TaskStreamOptions{.queue = &queue});
  Fill(full, kCapacity, end);
  std::thread blocked([&] { full.Push(Nothing); });
  queue.AwaitBlocked();
  std::thread other([&] {
    empty.Push(Nothing);
    pushed.Notify();
  });
  EXPECT_FALSE(pushed.WaitForNotificationWithTimeout(absl::Milliseconds(20)));
  end.Notify();
  blocked.join();
  other.join();
  EXPECT_TRUE(full.Drain().ok());
  EXPECT_TRUE(empty.Drain().ok());
}

TEST(BoundedQueue, AStreamWhoseQueueStaysFullFails) {
  constexpr std::size_t kCapacity = 4;
  absl::Notification end;
  BoundedQueue queue(kCapacity, absl::Milliseconds(1));
  TaskStream full(TaskStreamOptions{.queue = &queue});
  Fill(full, kCapacity, end);
  full.Push(Nothing);
  end.Notify();
  EXPECT_THAT(std::string(full.Drain().message()), HasSubstr("stayed full"));
}

TEST(BoundedQueue, AWindowNeverFindsTheQueueFull) {
  constexpr int kCapacity = 64;
  BoundedQueue queue(kCapacity, absl::ZeroDuration());
  for (const bool lazy : {false, true}) {
    // The rest of the queue is for the window's own events.
    TaskStream stream(
        TaskStreamOptions{.lazy = lazy, .queue = &queue, .most_launches = kCapacity / 4});
    for (int i = 0; i < 1000; ++i) {
      ASSERT_TRUE(stream.MakeRoom(1).ok());
      stream.Push(Nothing);
    }
    EXPECT_TRUE(stream.Drain().ok());
  }
}

}  // namespace
}  // namespace takt::backend
