// SPDX-License-Identifier: Apache-2.0
// Serves takt.v1.ClusterService.BackUpState: makes a copy of the state on a thread of its own, and
// streams it.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/file_descriptor.h"
#include "coordinator/rpc/guard.h"
#include "takt/v1/cluster_service.pb.h"

namespace takt::coordinator_rpc {

// Makes one copy at a time. Thread-safe. Its end waits for the copy that is being made.
class Backups final {
 public:
  // Returns a copy of the state, open for reading at its first byte.
  using OpenBackup = std::function<absl::StatusOr<FileDescriptor>()>;

  // open: null if this coordinator has no state file.
  explicit Backups(OpenBackup open) : open_(std::move(open)) {}
  ~Backups();
  Backups(const Backups&) = delete;

  // Starts a call. The reactor owns itself.
  grpc::ServerWriteReactor<v1::BackUpStateResponse>* Start(grpc::CallbackServerContext* context,
                                                           AuditEntry audit_entry);

 private:
  using Done = std::function<void(absl::StatusOr<FileDescriptor>)>;

  // Calls `done` once: on the backup's thread, or at once if no copy can be made now.
  void OpenAsync(Done done);

  const OpenBackup open_;
  absl::Mutex mutex_;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);  // of the newest copy
};

}  // namespace takt::coordinator_rpc
