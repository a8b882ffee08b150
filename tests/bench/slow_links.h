// SPDX-License-Identifier: Apache-2.0
// Links that add a delay: each message takes the given time more than over the link behind them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "worker/transport/collective.h"
#include "worker/transport/transport.h"

namespace takt::bench {

// A group whose meetings take longer by `delay`.
class SlowCollective final : public transport::Collective {
 public:
  // group: borrowed.
  SlowCollective(transport::Collective& group, absl::Duration delay)
      : group_(group), delay_(delay) {}

  int size() const override { return group_.size(); }
  int index() const override { return group_.index(); }
  absl::Status AllReduceSum(StepId step, std::span<float> data) override {
    return Later(group_.AllReduceSum(step, data));
  }
  absl::Status AllReduceSum(StepId step, std::span<double> data) override {
    return Later(group_.AllReduceSum(step, data));
  }
  absl::Status ReduceScatterSum(StepId step, Parts parts) override {
    return Later(group_.ReduceScatterSum(step, parts));
  }
  absl::Status AllReduceTerms(StepId step, std::span<float> data, const Terms& terms) override {
    return Later(group_.AllReduceTerms(step, data, terms));
  }
  absl::Status ReduceScatterTerms(StepId step, Parts parts, const Terms& terms) override {
    return Later(group_.ReduceScatterTerms(step, parts, terms));
  }
  absl::Status AllGather(StepId step, Received parts) override {
    return Later(group_.AllGather(step, parts));
  }
  absl::Status SendTo(StepId step, int root, std::span<const std::byte> mine,
                      Received parts) override {
    return Later(group_.SendTo(step, root, mine, parts));
  }
  absl::Status Pass(StepId step, Sent sent, Received received) override {
    return Later(group_.Pass(step, sent, received));
  }

 private:
  absl::Status Later(absl::Status status) const {
    absl::SleepFor(delay_);
    return status;
  }

  transport::Collective& group_;
  const absl::Duration delay_;
};

// A transport whose messages take longer by `delay`, one after the other on each channel.
class SlowTransport final : public transport::Transport {
 public:
  // transport: borrowed.
  SlowTransport(transport::Transport& transport, absl::Duration delay)
      : transport_(transport), delay_(delay) {}

  absl::StatusOr<std::unique_ptr<transport::SendChannel>> OpenSend(Rank peer,
                                                                   const std::string& name,
                                                                   std::size_t max_bytes) override {
    ASSIGN_OR_RETURN(std::unique_ptr<transport::SendChannel> channel,
                     transport_.OpenSend(peer, name, max_bytes));
    return std::make_unique<SlowSend>(std::move(channel), delay_);
  }
  absl::StatusOr<std::unique_ptr<transport::RecvChannel>> OpenRecv(Rank peer,
                                                                   const std::string& name,
                                                                   std::size_t max_bytes) override {
    return transport_.OpenRecv(peer, name, max_bytes);
  }
  void Abort() override { transport_.Abort(); }
  absl::Status status() const override { return transport_.status(); }

 private:
  class SlowSend final : public transport::SendChannel {
   public:
    SlowSend(std::unique_ptr<transport::SendChannel> channel, absl::Duration delay)
        : channel_(std::move(channel)), delay_(delay) {}
    absl::Status Send(const transport::MessageTag& tag, std::span<const std::byte> data) override {
      absl::SleepFor(delay_);
      return channel_->Send(tag, data);
    }

   private:
    const std::unique_ptr<transport::SendChannel> channel_;
    const absl::Duration delay_;
  };

  transport::Transport& transport_;
  const absl::Duration delay_;
};

}  // namespace takt::bench
