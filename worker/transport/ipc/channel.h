// SPDX-License-Identifier: Apache-2.0
// The two ends of a channel whose receiver copies from the memory of the sender's device.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "worker/backend/memory_backend.h"
#include "worker/backend/peer_memory.h"
#include "worker/transport/ipc/memory_lease.h"
#include "worker/transport/transport.h"

namespace takt::transport::ipc {

// Where a message lies in the memory of the sender's device.
struct Place {
  std::uint64_t region = 0;  // counted as the sender announced them
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

struct SenderOptions {
  std::unique_ptr<SendChannel> places;  // of the host
  std::unique_ptr<RecvChannel> taken;   // of the host; empty messages
  std::unique_ptr<Lender> lender;
  std::vector<backend::SharedRegion> regions;  // what was announced
  std::string name;                            // "F to rank 1"
  std::size_t max_bytes = 0;
  absl::Duration close_timeout;
  std::function<void(const std::string& reason)> on_stuck;  // may be empty
};

class IpcSender final : public SendChannel {
 public:
  explicit IpcSender(SenderOptions options) : options_(std::move(options)) {}
  // Blocks: until the receiver has closed the memory, or options.close_timeout.
  ~IpcSender() override;

  // Blocks: until the receiver's device has copied the message.
  absl::Status Send(const MessageTag& tag, std::span<const std::byte> data) override;

  SendChannel& places() { return *options_.places; }
  RecvChannel& taken() { return *options_.taken; }
  Lender& lender() { return *options_.lender; }

 private:
  const SenderOptions options_;
};

// The memory of a sender's device, opened. Its end closes it, and then returns the lease.
class OpenedMemory final {
 public:
  // peers: of the receiver's device; borrowed.
  OpenedMemory(backend::PeerMemory& peers, std::unique_ptr<Borrower> lease)
      : peers_(peers), lease_(std::move(lease)) {}
  ~OpenedMemory() { Close(); }
  OpenedMemory(const OpenedMemory&) = delete;
  OpenedMemory& operator=(const OpenedMemory&) = delete;

  // Adds a region.  Errors: those of PeerMemory::Open.
  absl::Status Open(const std::string& handle, std::size_t bytes);
  // Gives `stream` a copy of what lies at `place`.  Errors: kInternal (it lies in no region), those
  // of PeerMemory::Copy.
  absl::Status Copy(const Place& place, std::byte* to, backend::Stream& stream) const;
  // Precondition: no copy is under way. Idempotent.
  void Close();

  Borrower& lease() { return *lease_; }

 private:
  struct Region {
    const std::byte* base = nullptr;
    std::size_t bytes = 0;
  };
  backend::PeerMemory& peers_;
  const std::unique_ptr<Borrower> lease_;
  std::vector<Region> regions_;
};

struct ReceiverOptions {
  std::unique_ptr<RecvChannel> places;
  std::unique_ptr<SendChannel> taken;
  std::unique_ptr<backend::MemoryBackend> backend;
  std::unique_ptr<OpenedMemory> memory;
  std::string name;                            // "F from rank 0"
  const std::atomic<bool>* aborted = nullptr;  // borrowed for the channel's life
};

// Errors: those of the backend.
absl::StatusOr<std::unique_ptr<RecvChannel>> CreateIpcReceiver(ReceiverOptions options);

}  // namespace takt::transport::ipc
