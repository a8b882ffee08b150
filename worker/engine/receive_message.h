// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "worker/engine/bound_instruction.h"
#include "worker/transport/transport.h"

namespace takt::engine {

// RECV: one slot, one channel, and a tag in which only the step changes.
class ReceiveMessage final : public BoundInstruction {
 public:
  // channel, data: borrowed.
  ReceiveMessage(transport::RecvChannel& channel, const transport::MessageTag& tag,
                 std::span<std::byte> data)
      : BoundInstruction(channel.stream()), channel_(channel), tag_(tag), data_(data) {}

  absl::Status Run(StepId step) override {
    tag_.step = step.value();
    return channel_.Recv(tag_, data_);
  }

 private:
  transport::RecvChannel& channel_;
  transport::MessageTag tag_;
  const std::span<std::byte> data_;
};

}  // namespace takt::engine
