// SPDX-License-Identifier: Apache-2.0
// Serves takt.v1.JobService.
#pragma once

#include <atomic>

#include "coordinator/job/coordinator.h"
#include "coordinator/rpc/guard.h"
#include "coordinator/traces/trace_keeper.h"
#include "takt/v1/job_service.grpc.pb.h"

namespace takt::coordinator_rpc {

class JobService final : public v1::JobService::CallbackService {
 public:
  // All are borrowed. traces: null if no traces are kept. stall: as in WritingStream, for streams
  // that follow a job.
  JobService(job::Coordinator* coordinator, const traces::TraceKeeper* traces, Guard* guard,
             absl::Duration stall)
      : coordinator_(coordinator), traces_(traces), guard_(guard), stall_(stall) {}

  grpc::ServerUnaryReactor* SubmitJob(grpc::CallbackServerContext* context,
                                      const v1::SubmitJobRequest* request,
                                      v1::SubmitJobResponse* response) override;
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const v1::GetJobRequest* request,
                                   v1::GetJobResponse* response) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchJobResponse>* WatchJob(
      grpc::CallbackServerContext* context, const v1::WatchJobRequest* request) override;
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context,
                                      const v1::CancelJobRequest* request,
                                      v1::CancelJobResponse* response) override;
  grpc::ServerUnaryReactor* PauseJob(grpc::CallbackServerContext* context,
                                     const v1::PauseJobRequest* request,
                                     v1::PauseJobResponse* response) override;
  grpc::ServerUnaryReactor* ResumeJob(grpc::CallbackServerContext* context,
                                      const v1::ResumeJobRequest* request,
                                      v1::ResumeJobResponse* response) override;
  grpc::ServerUnaryReactor* ListHeldJobs(grpc::CallbackServerContext* context,
                                         const v1::ListHeldJobsRequest* request,
                                         v1::ListHeldJobsResponse* response) override;
  grpc::ServerUnaryReactor* AdoptJob(grpc::CallbackServerContext* context,
                                     const v1::AdoptJobRequest* request,
                                     v1::AdoptJobResponse* response) override;
  grpc::ServerUnaryReactor* AbandonJob(grpc::CallbackServerContext* context,
                                       const v1::AbandonJobRequest* request,
                                       v1::AbandonJobResponse* response) override;
  grpc::ServerUnaryReactor* DeleteJob(grpc::CallbackServerContext* context,
                                      const v1::DeleteJobRequest* request,
                                      v1::DeleteJobResponse* response) override;
  grpc::ServerWriteReactor<v1::GetJobLogsResponse>* GetJobLogs(
      grpc::CallbackServerContext* context, const v1::GetJobLogsRequest* request) override;
  grpc::ServerWriteReactor<v1::GetTraceResponse>* GetTrace(
      grpc::CallbackServerContext* context, const v1::GetTraceRequest* request) override;

 private:
  AuditEntry AuditEntryOn(const grpc::CallbackServerContext& context, absl::string_view method,
                          const std::string& job) const;
  // Returns the job if the caller may use it. Errors: kNotFound, kPermissionDenied.
  absl::StatusOr<job::JobView> Find(const grpc::CallbackServerContext& context,
                                    const std::string& name) const;

  job::Coordinator* const coordinator_;
  const traces::TraceKeeper* const traces_;
  Guard* const guard_;
  const absl::Duration stall_;
};

}  // namespace takt::coordinator_rpc
