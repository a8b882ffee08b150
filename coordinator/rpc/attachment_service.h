// SPDX-License-Identifier: Apache-2.0
// takt.v1.AttachmentService: workers' streams turned into the cluster's events.
#pragma once

#include <atomic>

#include "coordinator/job/coordinator.h"
#include "coordinator/rpc/convert.h"
#include "coordinator/rpc/guard.h"
#include "coordinator/traces/trace_keeper.h"
#include "takt/v1/attachment_service.grpc.pb.h"

namespace takt::coordinator_rpc {

class AttachmentService final : public v1::AttachmentService::CallbackService {
 public:
  // Borrowed. traces: null: none are kept, and nobody is asked for his clock.
  AttachmentService(job::Coordinator* coordinator, traces::TraceKeeper* traces, Guard* guard,
                    Timing timing)
      : coordinator_(coordinator), traces_(traces), guard_(guard), timing_(timing) {}

  grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachResponse>* Attach(
      grpc::CallbackServerContext* context) override;
  grpc::ServerBidiReactor<v1::StreamBulkRequest, v1::StreamBulkResponse>* StreamBulk(
      grpc::CallbackServerContext* context) override;

 private:
  job::Coordinator* const coordinator_;
  traces::TraceKeeper* const traces_;
  Guard* const guard_;
  const Timing timing_;
  std::atomic<std::int64_t> last_session_{0};
};

}  // namespace takt::coordinator_rpc
