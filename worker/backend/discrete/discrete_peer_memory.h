// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "worker/backend/discrete/device_memory.h"
#include "worker/backend/peer_memory.h"

namespace takt::backend {

// Shows the region of a simulated device to devices of this process and of others. Thread-safe.
class DiscretePeerMemory final : public PeerMemory {
 public:
  // memory: of the device, with a region. copies: counts Copy; may be null. Both are borrowed.
  DiscretePeerMemory(DeviceMemory& memory, std::atomic<std::int64_t>* copies)
      : memory_(memory), copies_(copies) {}

  absl::StatusOr<std::vector<SharedRegion>> Share() override;
  absl::StatusOr<const std::byte*> Open(const std::string& handle) override {
    return memory_.OpenRegion(handle);
  }
  void Close(const std::byte* base) override { memory_.CloseRegion(base); }
  absl::Status Copy(const std::byte* from, std::span<std::byte> to, Stream& stream) override;

 private:
  DeviceMemory& memory_;
  std::atomic<std::int64_t>* const copies_;
};

}  // namespace takt::backend
