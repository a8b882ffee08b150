// SPDX-License-Identifier: Apache-2.0
// Starts the stream of takt.v1.JobService.GetTrace.
#pragma once

#include <grpcpp/support/server_callback.h>

#include "absl/status/status.h"
#include "coordinator/traces/trace_keeper.h"
#include "takt/v1/job_service.pb.h"

namespace takt::coordinator_rpc {

// The reactor owns itself. job: an error ends the stream with it. traces: may be null.
grpc::ServerWriteReactor<v1::GetTraceResponse>* StartTrace(grpc::CallbackServerContext* context,
                                                           const absl::Status& job,
                                                           const traces::TraceKeeper* traces,
                                                           const v1::GetTraceRequest& request);

}  // namespace takt::coordinator_rpc
