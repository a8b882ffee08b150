// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/engine/pair_turns.h"

namespace takt::train {

// The compute lane's backend, for one of the two halves of a pair. It takes the turn for each op
// and each copy. Its memory is the host's. Thread: that of the half.
class TurnBackend final : public backend::Backend {
 public:
  // Both are borrowed.
  TurnBackend(backend::Backend& backend, engine::PairTurns& turns, engine::PairHalf half)
      : backend_(backend), turns_(turns), half_(half) {}

  absl::Status Run(const backend::Op& op) override {
    const engine::PairTurn turn(&turns_, half_);
    return backend_.Run(op);
  }
  absl::Status Prepare(const backend::Op& op) override {
    const engine::PairTurn turn(&turns_, half_);
    return backend_.Prepare(op);
  }
  absl::StatusOr<backend::Buffer> Allocate(std::size_t bytes, MemoryKind kind) override {
    return backend_.Allocate(bytes, kind);
  }
  absl::StatusOr<backend::Buffer> AllocateHost(std::size_t bytes) override {
    return backend_.AllocateHost(bytes);
  }
  absl::Status CopyFromHost(std::span<const std::byte> source, std::byte* destination) override {
    const engine::PairTurn turn(&turns_, half_);
    return backend_.CopyFromHost(source, destination);
  }
  absl::Status CopyToHost(const std::byte* source, std::span<std::byte> destination) override {
    const engine::PairTurn turn(&turns_, half_);
    return backend_.CopyToHost(source, destination);
  }
  // It takes no turn: in host memory all work is done when a call returns, and a meeting, which
  // begins with this call, must not wait for the other half.
  absl::Status Synchronize() override { return backend_.Synchronize(); }
  backend::Stream* stream() override { return backend_.stream(); }
  bool memory_is_host() const override { return backend_.memory_is_host(); }
  std::string description() const override { return backend_.description(); }

 private:
  backend::Backend& backend_;
  engine::PairTurns& turns_;
  const engine::PairHalf half_;
};

}  // namespace takt::train
