// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "worker/engine/bound_instruction.h"
#include "worker/transport/transport.h"

namespace takt::engine {

// SEND: one slot, one channel, and a tag in which only the step changes.
class SendMessage final : public BoundInstruction {
 public:
  // channel, data: borrowed.
  SendMessage(transport::SendChannel& channel, const transport::MessageTag& tag,
              std::span<const std::byte> data)
      : BoundInstruction(channel.stream()), channel_(channel), tag_(tag), data_(data) {}

  absl::Status Run(StepId step) override {
    tag_.step = step.value();
    return channel_.Send(tag_, data_);
  }

 private:
  transport::SendChannel& channel_;
  transport::MessageTag tag_;
  const std::span<const std::byte> data_;
};

}  // namespace takt::engine
