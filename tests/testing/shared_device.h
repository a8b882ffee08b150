// SPDX-License-Identifier: Apache-2.0
// Messages and sums of device memory between ranks that are threads of one process and share a
// device. Addresses pass over the in-process transport, and bytes pass from memory to memory.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/transport/device_transport.h"

namespace takt::testing {

// Outlives what it makes. Thread-safe.
class SharedDevice {
 public:
  explicit SharedDevice(backend::BackendFactory& backends);  // borrowed, of a device
  ~SharedDevice();

  // Makes channels for memory of the device. A send is a rendezvous: it returns when the receiver
  // has given the copy to its stream. The message may be overwritten when SendChannel::stream is
  // past it. Messages are whole floats. The first rank of a group does its sums. host: an
  // InprocHub's transport of `rank`; borrowed.
  std::unique_ptr<transport::DeviceTransport> Connect(transport::Transport& host, Rank rank);

 private:
  class SharedTransport;
  // What one end of a channel, or one rank of a group, waits on, and the newest point of it that
  // others wait for.
  struct End {
    std::unique_ptr<backend::MemoryBackend> backend;
    std::unique_ptr<backend::Event> event;
  };

  // The key names the channel and the side, or the group and the rank. Ends do not move.
  absl::StatusOr<End*> MakeEnd(const std::string& key, backend::StreamKind kind);
  End& FindEnd(const std::string& key);

  backend::BackendFactory& backends_;
  std::mutex mutex_;
  std::map<std::string, End> ends_;  // guarded by mutex_
};

}  // namespace takt::testing
