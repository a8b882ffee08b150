// SPDX-License-Identifier: Apache-2.0
#include "worker/session/copy_exchange.h"

#include <array>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_job.h"
#include "tests/testing/inproc_hub.h"
#include "worker/session/copy_transfer.h"

namespace takt::session {
namespace {

using worker_checkpoint::StateCopy;

constexpr Generation kGeneration(3);

class CopyExchangeTest : public ::testing::Test {
 protected:
  // Rank 0 sends to rank 1.
  CopyExchangeTest() {
    for (int rank = 0; rank < 2; ++rank) {
      transports_[rank] = hub_.Connect(
          {.rank = Rank(rank), .num_ranks = 2, .operation_timeout = absl::Seconds(30)});
    }
    std::thread other([this] {
      auto data = transports_[1]->OpenRecv(Rank(0), "copies", kCopyMessageBytes);
      auto answers = transports_[1]->OpenSend(Rank(0), "answers", kCopyAnswerBytes);
      receiver_.emplace(*std::move(data), *std::move(answers), kGeneration);
    });
    auto data = transports_[0]->OpenSend(Rank(1), "copies", kCopyMessageBytes);
    auto answers = transports_[0]->OpenRecv(Rank(1), "answers", kCopyAnswerBytes);
    sender_.emplace(*std::move(data), *std::move(answers), kGeneration);
    other.join();
    held_ = StateCopy::Create(job_.model(), job_.AllLayers()).value();
  }

  std::shared_ptr<StateCopy> CopyOf(StepId step) const {
    auto copy = StateCopy::Create(job_.model(), job_.AllLayers()).value();
    const takt::testing::ModelState state = job_.StateAt(step);
    EXPECT_TRUE(copy->Take(state.Layers(job_.AllLayers()), /*threads=*/1, nullptr).ok());
    copy->MarkWhole(step);
    return copy;
  }

  struct Ends {
    absl::Status sent, received;
  };
  Ends Exchange(StateCopy& copy, StepId step, bool last = false) {
    Ends ends;
    std::thread sends([&] { ends.sent = sender_->Send(copy, step); });
    ends.received = receiver_->Receive(*held_, step, last);
    sends.join();
    return ends;
  }

  const takt::testing::CheckpointJob job_;
  takt::testing::InprocHub hub_;
  std::array<std::unique_ptr<transport::Transport>, 2> transports_;
  // They are closed before their transports.
  std::optional<CopySender> sender_;
  std::optional<CopyReceiver> receiver_;
  std::shared_ptr<StateCopy> held_;
};

TEST_F(CopyExchangeTest, ACopyIsWholeOnBothSides) {
  const auto copy = CopyOf(StepId(7));
  const Ends ends = Exchange(*copy, StepId(7));
  EXPECT_TRUE(ends.sent.ok()) << ends.sent;
  EXPECT_TRUE(ends.received.ok()) << ends.received;
  EXPECT_EQ(held_->step(), StepId(7));
  for (const LayerId layer : job_.AllLayers()) EXPECT_EQ(held_->hash(layer), copy->hash(layer));
  EXPECT_TRUE(sender_->open());
  EXPECT_TRUE(receiver_->open());
}

TEST_F(CopyExchangeTest, ADamagedCopyIsReplacedByTheNextOne) {
  const auto copy = CopyOf(StepId(7));
  reinterpret_cast<unsigned char*>(copy->Values(LayerId(1)).data())[5] ^= 1U;
  const Ends damaged = Exchange(*copy, StepId(7));
  EXPECT_TRUE(absl::IsDataLoss(damaged.sent)) << damaged.sent;
  EXPECT_TRUE(absl::IsDataLoss(damaged.received)) << damaged.received;
  EXPECT_EQ(held_->step(), StepId(0));
  const Ends next = Exchange(*CopyOf(StepId(8)), StepId(8));
  EXPECT_TRUE(next.sent.ok()) << next.sent;
  EXPECT_EQ(held_->step(), StepId(8));
}

TEST_F(CopyExchangeTest, ASenderThatMakesNoMoreIsNotWaitedFor) {
  ASSERT_TRUE(sender_->Close(StepId(7)).ok());
  EXPECT_TRUE(absl::IsCancelled(receiver_->Receive(*held_, StepId(7), /*last=*/false)));
  EXPECT_FALSE(sender_->open());
  EXPECT_FALSE(receiver_->open());
}

TEST_F(CopyExchangeTest, AReceiverThatTakesNoMoreSaysSoWithItsLastAnswer) {
  const Ends ends = Exchange(*CopyOf(StepId(7)), StepId(7), /*last=*/true);
  EXPECT_TRUE(absl::IsCancelled(ends.sent)) << ends.sent;
  EXPECT_TRUE(ends.received.ok()) << ends.received;
  EXPECT_EQ(held_->step(), StepId(7));
  EXPECT_FALSE(sender_->open());
  EXPECT_FALSE(receiver_->open());
}

}  // namespace
}  // namespace takt::session
