// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/launch_window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace takt::backend {
namespace {

// Does what was given before an event when a thread looks for that event, and nothing before.
class CountingStream final : public Stream {
 public:
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override {
    ++events;
    return std::make_unique<PointEvent>(*this);
  }
  absl::Status Record(Event& event) override {
    static_cast<PointEvent&>(event).point = given;
    return absl::OkStatus();
  }
  absl::Status Await(Event& /*event*/) override { return absl::OkStatus(); }
  absl::Status MakeRoom(std::int64_t /*launches*/) override { return absl::OkStatus(); }
  void EndWaits() override {}
  void* native() override { return this; }

  int given = 0, done = 0, events = 0;
  bool hangs = false;

 private:
  class PointEvent final : public Event {
   public:
    explicit PointEvent(CountingStream& stream) : stream_(stream) {}
    absl::Status Wait() override { return absl::OkStatus(); }
    absl::StatusOr<bool> Reached() override {
      if (!stream_.hangs) stream_.done = std::max(stream_.done, point);
      return stream_.done >= point;
    }
    absl::StatusOr<std::int64_t> Nanos() override { return 0; }
    int point = 0;

   private:
    CountingStream& stream_;
  };
};

TEST(LaunchWindow, KeepsWhatIsOutstandingBelowItsBound) {
  for (const int most : {1, 7, 64, 384}) {
    CountingStream stream;
    LaunchWindow window(stream, most);
    int farthest = 0;
    for (int i = 0; i < 5000; ++i) {
      ASSERT_TRUE(window.Admit(1).ok());
      ++stream.given;
      ASSERT_LE(stream.given - stream.done, most);
      farthest = std::max(farthest, stream.given - stream.done);
    }
    EXPECT_GE(farthest, most * 3 / 4) << "the host waits more than it must";
    EXPECT_LE(stream.events, 16) << "events are used again";
  }
}

TEST(LaunchWindow, AdmitsMoreThanItsBoundAtOnceWhenNothingIsOutstanding) {
  CountingStream stream;
  LaunchWindow window(stream, 10);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(window.Admit(25).ok());
    EXPECT_EQ(stream.done, stream.given);
    stream.given += 25;
  }
}

TEST(LaunchWindow, AnEndOfWaitsEndsTheWaitOfAStreamThatHangs) {
  CountingStream stream;
  stream.hangs = true;
  LaunchWindow window(stream, 8);
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(window.Admit(1).ok());
    ++stream.given;
  }
  window.EndWaits();
  EXPECT_EQ(window.Admit(1).code(), absl::StatusCode::kCancelled);
}

TEST(LaunchWindow, TheStreamsOfADeviceTogetherStayWithinItsBound) {
  EXPECT_EQ(
      MostLaunches(StreamKind::kCompute) + kMostOtherStreams * MostLaunches(StreamKind::kTransfer),
      kMostLaunchesOfDevice);
  EXPECT_EQ(MostLaunches(StreamKind::kReduce), MostLaunches(StreamKind::kTransfer));
}

}  // namespace
}  // namespace takt::backend
