// SPDX-License-Identifier: Apache-2.0
// The streams on which the coordinator answers a worker. coordinator/rpc implements them over gRPC.
// They may gather what is sent until Flush, so that what a round tells the workers of one host is
// one message.
#pragma once

#include "absl/status/status.h"
#include "common/control/attachment.h"
#include "common/control/reports.h"

namespace takt::job {

// A worker's control stream. Thread-safe; never blocks; does nothing once the stream has ended.
class WorkerSession {
 public:
  virtual ~WorkerSession() = default;
  virtual void Send(const control::Command& command) = 0;
  virtual void Flush() {}
  // Ends the stream with `status`.
  virtual void Close(const absl::Status& status) = 0;
};

// A worker's bulk stream. Thread-safe; never blocks; does nothing once the stream has ended.
class BulkSession {
 public:
  virtual ~BulkSession() = default;
  virtual void Acknowledge(const control::ReportsAcknowledged& acknowledged) = 0;
  virtual void Flush() {}
  // Ends the stream with `status`.
  virtual void Close(const absl::Status& status) = 0;
};

}  // namespace takt::job
