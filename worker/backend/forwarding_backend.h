// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/backend.h"

namespace takt::backend {

// Passes each call on to another backend, but for recordings, which it does not have. A backend
// that changes a few calls of another one derives from it.
class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(Backend& inner) : inner_(inner) {}  // borrowed

  absl::Status Run(const Op& op) override { return inner_.Run(op); }
  absl::Status Prepare(const Op& op) override { return inner_.Prepare(op); }
  absl::StatusOr<Buffer> Allocate(std::size_t bytes, MemoryKind kind) override {
    return inner_.Allocate(bytes, kind);
  }
  absl::StatusOr<Buffer> AllocateInOrder(std::size_t bytes, MemoryKind kind) override {
    return inner_.AllocateInOrder(bytes, kind);
  }
  absl::StatusOr<Buffer> AllocateHost(std::size_t bytes) override {
    return inner_.AllocateHost(bytes);
  }
  absl::Status CopyFromHost(std::span<const std::byte> source, std::byte* destination) override {
    return inner_.CopyFromHost(source, destination);
  }
  absl::Status CopyToHost(const std::byte* source, std::span<std::byte> destination) override {
    return inner_.CopyToHost(source, destination);
  }
  absl::Status Synchronize() override { return inner_.Synchronize(); }
  Stream* stream() override { return inner_.stream(); }
  bool memory_is_host() const override { return inner_.memory_is_host(); }
  std::string description() const override { return inner_.description(); }

 private:
  Backend& inner_;
};

}  // namespace takt::backend
