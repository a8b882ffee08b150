// SPDX-License-Identifier: Apache-2.0
// Streams that carry those of all workers of a host (takt.v1.AttachmentService.AttachHost). Each
// worker has a conversation (conversations.h), as on a connection of its own.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstdint>

#include "coordinator/job/coordinator.h"
#include "coordinator/rpc/guard.h"
#include "coordinator/traces/trace_keeper.h"
#include "takt/v1/attachment_service.pb.h"

namespace takt::coordinator_rpc {

using HostReactor = grpc::ServerBidiReactor<v1::HostFrame, v1::HostFrame>;

// All pointers are borrowed for as long as the server runs. traces: may be null. audit_entry: names
// the caller and the method; each worker's stream writes one with the worker as its subject.
struct HostStreamOptions {
  job::Coordinator* coordinator = nullptr;
  traces::TraceKeeper* traces = nullptr;
  std::atomic<std::int64_t>* last_session = nullptr;  // each control stream takes the next one
  AuditEntry audit_entry;
};

// Each returns what the handler returns. It deletes itself when the call is done.
HostReactor* StartHostControl(grpc::CallbackServerContext* context,
                              const HostStreamOptions& options);
HostReactor* StartHostBulk(grpc::CallbackServerContext* context, const HostStreamOptions& options);

}  // namespace takt::coordinator_rpc
