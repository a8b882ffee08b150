// SPDX-License-Identifier: Apache-2.0
// The stream of takt.v1.JobService.GetTrace.
#pragma once

#include <grpcpp/support/server_callback.h>

#include "coordinator/job/board.h"
#include "coordinator/traces/trace_keeper.h"
#include "takt/v1/job_service.pb.h"

namespace takt::coordinator_rpc {

// The reactor owns itself. traces: may be null.
grpc::ServerWriteReactor<v1::GetTraceResponse>* StartTrace(grpc::CallbackServerContext* context,
                                                           const job::Board& board,
                                                           const traces::TraceKeeper* traces,
                                                           const v1::GetTraceRequest& request);

}  // namespace takt::coordinator_rpc
