// SPDX-License-Identifier: Apache-2.0
// The streams that follow a job: its steps and states, and its log lines. A stream reads from the
// store what it has not sent yet, whenever the job changes and its last write is done, so a slow
// reader costs no memory. A peer that does not read at all loses its stream.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <string>

#include "coordinator/job/coordinator.h"
#include "takt/v1/job_service.pb.h"

namespace takt::coordinator_rpc {

// The reactor owns itself. coordinator: borrowed. job: an error ends the stream with it.
// stall: WritingStream.
grpc::ServerWriteReactor<v1::WatchJobResponse>* StartWatch(grpc::CallbackServerContext* context,
                                                           job::Coordinator* coordinator,
                                                           const absl::StatusOr<job::JobView>& job,
                                                           absl::Duration stall, StepId after);
grpc::ServerWriteReactor<v1::GetJobLogsResponse>* StartLogs(grpc::CallbackServerContext* context,
                                                            job::Coordinator* coordinator,
                                                            const absl::StatusOr<job::JobView>& job,
                                                            absl::Duration stall,
                                                            const v1::GetJobLogsRequest& request);

}  // namespace takt::coordinator_rpc
