// SPDX-License-Identifier: Apache-2.0
// Serves takt.v1.AttachmentService: turns workers' streams into events of the cluster.
#pragma once

#include <atomic>
#include <cstdint>

#include "coordinator/job/coordinator.h"
#include "coordinator/rpc/guard.h"
#include "coordinator/traces/trace_keeper.h"
#include "takt/v1/attachment_service.grpc.pb.h"

namespace takt::coordinator_rpc {

class AttachmentService final : public v1::AttachmentService::CallbackService {
 public:
  // All are borrowed. traces: null if no traces are kept; then no worker is asked for its clock.
  AttachmentService(job::Coordinator* coordinator, traces::TraceKeeper* traces, Guard* guard)
      : coordinator_(coordinator), traces_(traces), guard_(guard) {}

  grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachResponse>* Attach(
      grpc::CallbackServerContext* context) override;
  grpc::ServerBidiReactor<v1::StreamBulkRequest, v1::StreamBulkResponse>* StreamBulk(
      grpc::CallbackServerContext* context) override;
  grpc::ServerBidiReactor<v1::HostFrame, v1::HostFrame>* AttachHost(
      grpc::CallbackServerContext* context) override;
  grpc::ServerBidiReactor<v1::HostFrame, v1::HostFrame>* StreamHostBulk(
      grpc::CallbackServerContext* context) override;

 private:
  job::Coordinator* const coordinator_;
  traces::TraceKeeper* const traces_;
  Guard* const guard_;
  std::atomic<std::int64_t> last_session_{0};
};

}  // namespace takt::coordinator_rpc
