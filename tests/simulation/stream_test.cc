// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/stream.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace takt::simulation {
namespace {

class StreamTest : public ::testing::Test {
 protected:
  void Send(char letter) {
    stream_->Send(End::kWorker, [this, letter] { arrived_ += letter; });
  }

  EventLoop loop_;
  Random random_{1};
  Path path_{.most_delay = absl::Seconds(1)};
  std::shared_ptr<Stream> stream_ = std::make_shared<Stream>(&loop_, &random_, &path_);
  std::string arrived_;
};

TEST_F(StreamTest, KeepsTheOrder) {
  for (char letter = 'a'; letter <= 'z'; ++letter) Send(letter);
  loop_.RunUntil(absl::Seconds(10));
  EXPECT_EQ(arrived_, "abcdefghijklmnopqrstuvwxyz");
}

TEST_F(StreamTest, HoldsBackWhatABlockedDirectionCarriesAndKeepsTheOrder) {
  Send('a');
  path_.blocked_until[static_cast<int>(End::kWorker)] = absl::Seconds(20);
  Send('b');
  loop_.RunUntil(absl::Seconds(19));
  EXPECT_EQ(arrived_, "");
  Send('c');
  loop_.RunUntil(absl::Seconds(30));
  EXPECT_EQ(arrived_, "abc");
}

TEST_F(StreamTest, LosesWhatIsUnderWayWhenItBreaks) {
  int told = 0;
  stream_->set_on_end(End::kCoordinator, [&](const absl::Status&) { ++told; });
  Send('a');
  loop_.RunUntil(absl::Seconds(2));
  Send('b');
  stream_->Break(absl::InfiniteDuration(), absl::Seconds(1));
  Send('c');
  loop_.RunUntil(absl::Seconds(10));
  EXPECT_EQ(arrived_, "a");
  EXPECT_EQ(told, 1);
  EXPECT_FALSE(stream_->IsOver(End::kWorker));
}

TEST_F(StreamTest, TellsTheEndAfterWhatWasSentBefore) {
  stream_->set_on_end(End::kCoordinator, [&](const absl::Status&) { arrived_ += '.'; });
  Send('a');
  stream_->Close(End::kWorker, absl::CancelledError("over"));
  Send('b');
  loop_.RunUntil(absl::Seconds(10));
  EXPECT_EQ(arrived_, "a.");
}

TEST(EventLoop, AnEventMayWaitWhileOthersHappen) {
  EventLoop loop;
  std::string order;
  loop.At(absl::Seconds(1), [&] {
    order += 'a';
    loop.RunUntil(absl::Seconds(3));
    order += 'd';
  });
  loop.At(absl::Seconds(1), [&] { order += 'b'; });
  loop.At(absl::Seconds(2), [&] { order += 'c'; });
  loop.At(absl::Seconds(4), [&] { order += 'e'; });
  loop.RunUntil(absl::Seconds(5));
  EXPECT_EQ(order, "abcde");
  EXPECT_EQ(loop.now(), absl::Seconds(5));
}

}  // namespace
}  // namespace takt::simulation
