// SPDX-License-Identifier: Apache-2.0
// The connections of one rank: channels to its peers, on the host and between devices, and the
// groups with which it sums.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/model/model.h"
#include "worker/backend/backend.h"
#include "worker/session/rank_groups.h"
#include "worker/session/rank_runner.h"
#include "worker/transport/device_transport.h"
#include "worker/transport/selection/create.h"
#include "worker/transport/transport.h"

namespace takt::session {

// Where the data plane listens, as transport::TransportOptions says.
struct DataListener {
  std::string address = "127.0.0.1";
  int port = 0;
  std::string advertise;
};

struct RankConnectionsOptions {
  const control::Assignment* assignment = nullptr;  // borrowed for the connections' life
  DataListener data;
  const transport::nccl::Library* nccl = nullptr;  // as DeviceTransportOptions::nccl
  // Called when NCCL hangs and cannot be aborted. The process must end at once, because only a new
  // one is clean. May be empty.
  std::function<void(const std::string& reason)> on_stuck;
};

// Returns how long a rank waits for a message. The rank that sends it may compute for most of a
// step first, and prediction may be short of what steps take.
absl::Duration OperationTimeout(double predicted_step_seconds);

// Thread class: one caller calls Connect once, then the observers. Any thread may call Abort and
// Poisoned at any time.
class RankConnections {
 public:
  explicit RankConnections(RankConnectionsOptions options) : options_(std::move(options)) {}

  // rendezvous, backends: borrowed for the connections' life.
  // Blocks: until all ranks do the same. Errors: those of the transports; the reason of Abort.
  absl::Status Connect(const model::Model& model, transport::Rendezvous& rendezvous,
                       backend::BackendFactory& backends);
  // Ends Connect and every wait on a channel or a group.
  void Abort(const absl::Status& reason);
  // Returns an error once only a new process can connect again, and says why.
  absl::Status Poisoned() const;

  // Returns the transport of host memory.
  transport::Transport& host() const { return *host_; }
  // Returns the transport of activations and gradients. It moves device memory if the backends'
  // memory is on a device.
  transport::Transport& messages() const;
  bool waits_in_kernels() const;
  const RankGroups& groups() const { return groups_; }

 private:
  absl::Status OpenTransports(transport::Rendezvous& rendezvous, backend::BackendFactory& backends);

  const RankConnectionsOptions options_;
  mutable absl::Mutex mutex_;
  absl::Status abort_reason_ ABSL_GUARDED_BY(mutex_);
  // Set once under the mutex, for Abort. The caller of Connect reads them without it.
  std::unique_ptr<transport::Transport> host_;
  std::unique_ptr<transport::DeviceTransport> device_;  // null: host_ takes all messages
  RankGroups groups_;  // borrows from the transports, so it ends first
};

}  // namespace takt::session
