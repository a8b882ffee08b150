// SPDX-License-Identifier: Apache-2.0
// Reproduces the deadlock of a device whose queue is full: the compute thread waits inside the
// driver behind a receive, and the send that the peer answers cannot be launched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "worker/backend/discrete/task_stream.h"
#include "worker/engine/engine_testing.h"

namespace takt::engine {
namespace {

using backend::BoundedQueue;
using backend::TaskStream;
using backend::TaskStreamOptions;
using program::Instruction;
using program::Program;
using ::testing::HasSubstr;

constexpr std::size_t kCapacity = 64;
constexpr int kMostLaunches = 16, kLaunchesOfB = 300;

// A neighbour whose message arrives once ours was sent.
class Mirror final : public transport::Transport {
 public:
  // ready: Send launches nothing before it returns, as if its thread had slept until then.
  Mirror(TaskStream& sends, TaskStream& receives, std::function<void()> ready)
      : sends_(sends), receives_(receives), ready_(std::move(ready)) {}

  absl::StatusOr<std::unique_ptr<transport::SendChannel>> OpenSend(Rank, const std::string&,
                                                                   std::size_t) override {
    return std::make_unique<Sender>(*this);
  }
  absl::StatusOr<std::unique_ptr<transport::RecvChannel>> OpenRecv(Rank, const std::string&,
                                                                   std::size_t) override {
    return std::make_unique<Receiver>(*this);
  }
  void Abort() override { SetSent(); }

 private:
  // An abort may come first: if the lanes stop before the send, nothing is sent.
  void SetSent() {
    const absl::MutexLock lock(&mutex_);
    sent_ = true;
  }
  void AwaitSent() {
    const absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&sent_));
  }

  class Sender final : public transport::SendChannel {
   public:
    explicit Sender(Mirror& mirror) : mirror_(mirror) {}
    absl::Status Send(const transport::MessageTag&, std::span<const std::byte>) override {
      mirror_.ready_();
      mirror_.sends_.Push([&mirror = mirror_] {
        mirror.SetSent();
        return absl::OkStatus();
      });
      return absl::OkStatus();
    }
    backend::Stream* stream() override { return &mirror_.sends_; }

   private:
    Mirror& mirror_;
  };
  class Receiver final : public transport::RecvChannel {
   public:
    explicit Receiver(Mirror& mirror) : mirror_(mirror) {}
    absl::Status Recv(const transport::MessageTag&, std::span<std::byte>) override {
      mirror_.receives_.Push([&mirror = mirror_] {
        mirror.AwaitSent();
        return absl::OkStatus();
      });
      return absl::OkStatus();
    }
    backend::Stream* stream() override { return &mirror_.receives_; }

   private:
    Mirror& mirror_;
  };

  TaskStream& sends_;
  TaskStream& receives_;
  const std::function<void()> ready_;
  absl::Mutex mutex_;
  bool sent_ = false;
};

// F is one launch; B is as long as that of many blocks.
class LongCompute final : public Compute {
 public:
  explicit LongCompute(TaskStream& stream) : stream_(stream) {}

  Bound Bind(const Instruction& instruction) override {
    const int launches = instruction.op == program::Op::kForward ? 1 : kLaunchesOfB;
    return MakeBound(&stream_, [this, launches](StepId) -> absl::Status {
      for (int i = 1; i <= launches; ++i) {
        if (absl::Status room = stream_.MakeRoom(1); !room.ok()) return room;
        stream_.Push([] { return absl::OkStatus(); });
        if (launches > 1 && i == kMostLaunches / 2) far_ahead.Notify();
      }
      return absl::OkStatus();
    });
  }
  std::span<std::byte> SlotBytes(SlotId slot) override {
    return std::as_writable_bytes(std::span(&slots_[slot.value()], 1));
  }

  absl::Notification far_ahead;  // B has launched as much as a bound allows

 private:
  TaskStream& stream_;
  std::uint64_t slots_[2] = {};
};

// F, its message to the next rank, the answer, and the B that needs the answer.
Program OneRound() {
  Program program{.pp_size = 2};
  program.slots.resize(2);
  program.lanes = {{.kind = program::LaneKind::kCompute},
                   {.kind = program::LaneKind::kSend, .peer = PpRank(1)},
                   {.kind = program::LaneKind::kRecv, .peer = PpRank(1)}};
  const auto add = [&](program::Op op, int lane, std::vector<SlotId> reads,
                       std::vector<SlotId> writes) {
    program.body.push_back({.op = op,
                            .lane = LaneId(lane),
                            .stage = StageId(0),
                            .microbatch = MicrobatchId(0),
                            .reads = std::move(reads),
                            .writes = std::move(writes)});
  };
  add(program::Op::kForward, 0, {}, {SlotId(0)});
  add(program::Op::kSend, 1, {SlotId(0)}, {});
  add(program::Op::kRecv, 2, {}, {SlotId(1)});
  add(program::Op::kBackward, 0, {SlotId(1)}, {});
  return program;
}

// The send's thread sleeps until the compute thread is as far ahead as it gets.
absl::Status RunOneRound(bool is_bounded, absl::Duration patience) {
  const Program program = OneRound();
  BoundedQueue queue(kCapacity, patience);
  const auto options = [&](int most) {
    return TaskStreamOptions{.queue = &queue, .most_launches = is_bounded ? most : 0};
  };
  TaskStream receives(options(2)), sends(options(2)), computes(options(kMostLaunches));
  LongCompute compute(computes);
  Mirror link(sends, receives,
              [&] { is_bounded ? compute.far_ahead.WaitForNotification() : queue.AwaitBlocked(); });
  const std::unique_ptr<Engine> engine =
      MakeEngine(program, compute,
                 {.transport = &link, .rank_of = [](PpRank pp) { return Rank(pp.value()); }});
  return engine->Run(StepId(1), StepId(1), nullptr);
}

TEST(RunAhead, WithoutABoundASendWaitsBehindTheQueueThatWaitsForItsAnswer) {
  const absl::Status status = RunOneRound(/*is_bounded=*/false, absl::Milliseconds(100));
  EXPECT_THAT(std::string(status.message()), HasSubstr("stayed full")) << status;
}

TEST(RunAhead, WithABoundALongInstructionLeavesRoomForOtherLanes) {
  const absl::Status status = RunOneRound(/*is_bounded=*/true, absl::InfiniteDuration());
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace takt::engine
