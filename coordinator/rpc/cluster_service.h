// SPDX-License-Identifier: Apache-2.0
// Serves takt.v1.ClusterService and takt.v1.RendezvousService.
#pragma once

#include <utility>

#include "coordinator/job/coordinator.h"
#include "coordinator/rpc/backup_stream.h"
#include "coordinator/rpc/guard.h"
#include "takt/v1/cluster_service.grpc.pb.h"
#include "takt/v1/rendezvous_service.grpc.pb.h"

namespace takt::coordinator_rpc {

class ClusterService final : public v1::ClusterService::CallbackService {
 public:
  // coordinator, guard: borrowed. open_backup: Backups.
  ClusterService(job::Coordinator* coordinator, Guard* guard, Backups::OpenBackup open_backup)
      : coordinator_(coordinator), guard_(guard), backups_(std::move(open_backup)) {}

  grpc::ServerUnaryReactor* ListWorkers(grpc::CallbackServerContext* context,
                                        const v1::ListWorkersRequest* request,
                                        v1::ListWorkersResponse* response) override;
  grpc::ServerUnaryReactor* DrainWorker(grpc::CallbackServerContext* context,
                                        const v1::DrainWorkerRequest* request,
                                        v1::DrainWorkerResponse* response) override;
  grpc::ServerUnaryReactor* UndrainWorker(grpc::CallbackServerContext* context,
                                          const v1::UndrainWorkerRequest* request,
                                          v1::UndrainWorkerResponse* response) override;
  grpc::ServerUnaryReactor* GetVersion(grpc::CallbackServerContext* context,
                                       const v1::GetVersionRequest* request,
                                       v1::GetVersionResponse* response) override;
  grpc::ServerUnaryReactor* GetProfile(grpc::CallbackServerContext* context,
                                       const v1::GetProfileRequest* request,
                                       v1::GetProfileResponse* response) override;
  grpc::ServerWriteReactor<v1::BackUpStateResponse>* BackUpState(
      grpc::CallbackServerContext* context, const v1::BackUpStateRequest* request) override;

 private:
  job::Coordinator* const coordinator_;
  Guard* const guard_;
  Backups backups_;
};

class RendezvousService final : public v1::RendezvousService::CallbackService {
 public:
  // Both are borrowed.
  RendezvousService(job::Coordinator* coordinator, Guard* guard)
      : coordinator_(coordinator), guard_(guard) {}

  grpc::ServerUnaryReactor* SetKey(grpc::CallbackServerContext* context,
                                   const v1::SetKeyRequest* request,
                                   v1::SetKeyResponse* response) override;
  grpc::ServerUnaryReactor* WaitKeys(grpc::CallbackServerContext* context,
                                     const v1::WaitKeysRequest* request,
                                     v1::WaitKeysResponse* response) override;
  grpc::ServerUnaryReactor* ClearKeys(grpc::CallbackServerContext* context,
                                      const v1::ClearKeysRequest* request,
                                      v1::ClearKeysResponse* response) override;

 private:
  // Returns OK if the caller holds a rank of that job.
  absl::Status MayMeet(const access::Identity& who, const v1::RendezvousScope& scope) const;
  AuditEntry AuditEntryOn(const grpc::CallbackServerContext& context, absl::string_view method,
                          const v1::RendezvousScope& scope) const;

  job::Coordinator* const coordinator_;
  Guard* const guard_;
};

}  // namespace takt::coordinator_rpc
