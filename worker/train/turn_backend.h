// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "worker/backend/forwarding_backend.h"
#include "worker/engine/pair_turns.h"

namespace takt::train {

// The compute lane's backend, for one of the two halves of a pair. It takes the turn for each op
// and each copy. Its memory is the host's, so all work is done when a call returns. Synchronize
// takes no turn: a meeting begins with it, and must not wait for the other half. Thread: that of
// the half.
class TurnBackend final : public backend::ForwardingBackend {
 public:
  // Both are borrowed.
  TurnBackend(backend::Backend& backend, engine::PairTurns& turns, engine::PairHalf half)
      : ForwardingBackend(backend), turns_(turns), half_(half) {}

  absl::Status Run(const backend::Op& op) override {
    const engine::PairTurn turn(&turns_, half_);
    return ForwardingBackend::Run(op);
  }
  absl::Status Prepare(const backend::Op& op) override {
    const engine::PairTurn turn(&turns_, half_);
    return ForwardingBackend::Prepare(op);
  }
  absl::Status CopyFromHost(std::span<const std::byte> source, std::byte* destination) override {
    const engine::PairTurn turn(&turns_, half_);
    return ForwardingBackend::CopyFromHost(source, destination);
  }
  absl::Status CopyToHost(const std::byte* source, std::span<std::byte> destination) override {
    const engine::PairTurn turn(&turns_, half_);
    return ForwardingBackend::CopyToHost(source, destination);
  }

 private:
  engine::PairTurns& turns_;
  const engine::PairHalf half_;
};

}  // namespace takt::train
