// SPDX-License-Identifier: Apache-2.0
#include "worker/tensorboard/event_log.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "takt/v1/tensorboard_event.pb.h"

namespace takt::tensorboard {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

constexpr std::int64_t kSeconds = 1'700'000'000;

class EventLogTest : public testing::Test {
 protected:
  EventLogTest() { EXPECT_NE(mkdtemp(directory_.data()), nullptr); }
  ~EventLogTest() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<EventLog> Open(std::int64_t first_step, std::int64_t seconds = kSeconds) {
    return EventLog::Create({.directory = directory_,
                             .name = "j.1",
                             .first_step = StepId(first_step),
                             .now = absl::FromUnixSeconds(seconds)})
        .value();
  }

  // Returns all whole records; the bytes after them are in `rest_`.
  std::vector<v1::TensorboardEvent> ReadFile(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    std::vector<v1::TensorboardEvent> events;
    std::size_t at = 0;
    while (bytes.size() - at >= 16) {
      std::uint64_t length = 0;
      std::memcpy(&length, bytes.data() + at, sizeof length);
      if (bytes.size() - at < 16 + length) break;
      EXPECT_TRUE(events.emplace_back().ParseFromString(bytes.substr(at + 12, length)));
      at += 16 + length;
    }
    rest_ = bytes.size() - at;
    return events;
  }

  // Returns the curve of one tag as TensorBoard composes it: files in the order of their names, and
  // a start makes earlier points of its step and later steps void.
  std::vector<std::pair<std::int64_t, float>> Curve(const std::string& tag) {
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(directory_))
      paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    std::vector<std::pair<std::int64_t, float>> points;
    for (const std::string& path : paths) {
      for (const v1::TensorboardEvent& event : ReadFile(path)) {
        if (event.has_session_log())
          std::erase_if(points, [&](const auto& point) { return point.first >= event.step(); });
        for (const auto& value : event.summary().value()) {
          if (value.tag() == tag) points.emplace_back(event.step(), value.simple_value());
        }
      }
    }
    return points;
  }

  static void AddLoss(EventLog& log, std::int64_t step, double loss) {
    const Scalar scalars[] = {{"train/loss", loss}};
    log.Add(StepId(step), absl::FromUnixSeconds(kSeconds + step), scalars);
  }

  std::string directory_ = "/tmp/takt-events-XXXXXX";
  std::size_t rest_ = 0;
};

TEST_F(EventLogTest, AFileBeginsWithItsVersionAndAStart) {
  const auto log = Open(5);
  const std::string path = log->path();
  EXPECT_THAT(path, HasSubstr("/events.out.tfevents.1700000000.j.1"));
  AddLoss(*Open(5), 5, 2);  // the destructor writes what is queued
  EXPECT_THAT(Curve("train/loss"), ElementsAre(Pair(5, 2)));
  const auto events = ReadFile(directory_ + "/events.out.tfevents.1700000001.j.1");
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[1].session_log().status(), v1::TensorboardSessionLog::STATUS_START);
  EXPECT_EQ(events[1].step(), 5);
  EXPECT_EQ(events[2].wall_time(), kSeconds + 5);
}

TEST_F(EventLogTest, AResumedCurveHasNoPointTwiceThoughTheNewClockIsBehind) {
  {
    const auto log = Open(1);
    for (int step = 1; step <= 5; ++step) AddLoss(*log, step, step);
  }
  {
    const auto log = Open(4, kSeconds - 1000);  // by a host whose clock is behind
    for (int step = 4; step <= 6; ++step) AddLoss(*log, step, 10 * step);
  }
  EXPECT_THAT(Curve("train/loss"), ElementsAre(Pair(1, 1), Pair(2, 2), Pair(3, 3), Pair(4, 40),
                                               Pair(5, 50), Pair(6, 60)));
}

TEST_F(EventLogTest, ADirectoryThatIsNotThereIsAnErrorThatNamesIt) {
  const auto log = EventLog::Create({.directory = directory_ + "/nowhere", .name = "j"});
  EXPECT_THAT(std::string(log.status().message()), HasSubstr("/nowhere/events.out.tfevents"));
}

// As with a full disk, the file ends after a whole record.
TEST_F(EventLogTest, WhatCannotBeWrittenLeavesNoHalfRecord) {
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1000;
  std::string path;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  {
    const auto log = Open(1);
    path = log->path();
    for (int step = 1; step <= 100; ++step) AddLoss(*log, step, step);
  }
  setrlimit(RLIMIT_FSIZE, &before);
  ReadFile(path);
  EXPECT_EQ(rest_, 0u);
  EXPECT_LE(std::filesystem::file_size(path), 1000u);
}

TEST_F(EventLogTest, WhatFindsNoRoomIsDroppedAtOnce) {
  {
    const auto log = EventLog::Create({.directory = directory_,
                                       .name = "j",
                                       .now = absl::FromUnixSeconds(kSeconds),
                                       .max_queued_bytes = 0})
                         .value();
    AddLoss(*log, 1, 1);
  }
  EXPECT_THAT(Curve("train/loss"), IsEmpty());
}

}  // namespace
}  // namespace takt::tensorboard
