// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rpc/cluster_service.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "common/access/decide.h"
#include "common/base/version.h"
#include "common/profile/profile_serde.h"
#include "coordinator/rpc/convert.h"
#include "coordinator/rpc/unary_call.h"

namespace takt::coordinator_rpc {
namespace {

constexpr double kDefaultWaitSeconds = 30;
constexpr double kMaxWaitSeconds = 120;
constexpr int kMaxPageSize = 1000;

template <class Request, class Response>
grpc::ServerUnaryReactor* SetDrained(job::Coordinator* coordinator, AuditEntry audit_entry,
                                     grpc::CallbackServerContext* context, const Request* request,
                                     Response* response, bool drained) {
  auto call = std::make_shared<UnaryCall>(context, std::move(audit_entry));
  grpc::ServerUnaryReactor* const reactor = call->reactor();
  coordinator->Post(
      [request, response, drained, call = std::move(call)](job::Cluster& cluster, Moment now) {
        cluster.SetDrained(
            request->request_id(), request->worker(), drained,
            [response, call](absl::StatusOr<membership::Worker> worker) {
              if (worker.ok()) *response->mutable_worker() = ToProto(*worker);
              call->Finish(worker.status());
            },
            now);
      });
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* ClusterService::ListWorkers(grpc::CallbackServerContext* context,
                                                      const v1::ListWorkersRequest* request,
                                                      v1::ListWorkersResponse* response) {
  auto call = std::make_shared<UnaryCall>(
      context, guard_->AuditEntryOf(*context, MethodOf<v1::ClusterService>("ListWorkers"), ""));
  grpc::ServerUnaryReactor* const reactor = call->reactor();
  coordinator_->Post([request, response, call = std::move(call)](job::Cluster& cluster, Moment) {
    const auto& workers = cluster.workers();
    const int asked = request->page_size();
    const int limit = asked > 0 ? std::min(asked, kMaxPageSize) : std::numeric_limits<int>::max();
    // The token is the name of the last worker of the page before, which may be gone by now.
    for (auto it = workers.upper_bound(request->page_token()); it != workers.end(); ++it) {
      if (response->workers_size() == limit) {
        response->set_next_page_token(response->workers(limit - 1).name());
        break;
      }
      v1::Worker& shown = *response->add_workers();
      shown = ToProto(it->second);
      shown.set_held(cluster.IsHeld(it->first));
    }
    call->Finish(absl::OkStatus());
  });
  return reactor;
}

grpc::ServerUnaryReactor* ClusterService::DrainWorker(grpc::CallbackServerContext* context,
                                                      const v1::DrainWorkerRequest* request,
                                                      v1::DrainWorkerResponse* response) {
  return SetDrained(coordinator_,
                    guard_->AuditEntryOf(*context, MethodOf<v1::ClusterService>("DrainWorker"),
                                         "worker/" + request->worker()),
                    context, request, response, true);
}

grpc::ServerUnaryReactor* ClusterService::UndrainWorker(grpc::CallbackServerContext* context,
                                                        const v1::UndrainWorkerRequest* request,
                                                        v1::UndrainWorkerResponse* response) {
  return SetDrained(coordinator_,
                    guard_->AuditEntryOf(*context, MethodOf<v1::ClusterService>("UndrainWorker"),
                                         "worker/" + request->worker()),
                    context, request, response, false);
}

grpc::ServerUnaryReactor* ClusterService::GetVersion(grpc::CallbackServerContext* context,
                                                     const v1::GetVersionRequest*,
                                                     v1::GetVersionResponse* response) {
  response->set_program_version(kTaktVersion);
  response->set_build(kTaktBuild);
  response->set_protocol_version(kProtocolVersion);
  response->set_follows(guard_->follows());
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* ClusterService::GetProfile(grpc::CallbackServerContext* context,
                                                     const v1::GetProfileRequest*,
                                                     v1::GetProfileResponse* response) {
  *response->mutable_profile() = profile::ToProto(*coordinator_->ReadProfile());
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<v1::BackUpStateResponse>* ClusterService::BackUpState(
    grpc::CallbackServerContext* context, const v1::BackUpStateRequest*) {
  return backups_.Start(
      context, guard_->AuditEntryOf(*context, MethodOf<v1::ClusterService>("BackUpState"), ""));
}

absl::Status RendezvousService::MayMeet(const access::Identity& who,
                                        const v1::RendezvousScope& scope) const {
  const job::Board& board = coordinator_->board();
  const bool holds_rank = who.role == access::Role::kHost
                              ? board.HoldsNumberedRank(scope.job(), who.name + "-")
                              : board.HoldsRank(scope.job(), who.name);
  return access::MayMeet(who, scope.job(), holds_rank);
}

AuditEntry RendezvousService::AuditEntryOn(const grpc::CallbackServerContext& context,
                                           absl::string_view method,
                                           const v1::RendezvousScope& scope) const {
  return guard_->AuditEntryOf(context, MethodOf<v1::RendezvousService>(method),
                              "job/" + scope.job());
}

grpc::ServerUnaryReactor* RendezvousService::SetKey(grpc::CallbackServerContext* context,
                                                    const v1::SetKeyRequest* request,
                                                    v1::SetKeyResponse*) {
  const v1::RendezvousScope& scope = request->scope();
  UnaryCall call(context, AuditEntryOn(*context, "SetKey", scope));
  grpc::ServerUnaryReactor* const reactor = call.reactor();
  absl::Status status = MayMeet(call.who(), scope);
  if (status.ok()) {
    status = coordinator_->rendezvous().Set(scope.job(), Generation(scope.generation()),
                                            request->key(), request->value());
  }
  call.Finish(status);
  return reactor;
}

grpc::ServerUnaryReactor* RendezvousService::WaitKeys(grpc::CallbackServerContext* context,
                                                      const v1::WaitKeysRequest* request,
                                                      v1::WaitKeysResponse* response) {
  const v1::RendezvousScope& scope = request->scope();
  auto call = std::make_shared<UnaryCall>(context, AuditEntryOn(*context, "WaitKeys", scope));
  grpc::ServerUnaryReactor* const reactor = call->reactor();
  if (const absl::Status status = MayMeet(call->who(), scope); !status.ok()) {
    call->Finish(status);
    return reactor;
  }
  const double asked = request->timeout_seconds();
  const double seconds = asked > 0 ? std::min(asked, kMaxWaitSeconds) : kDefaultWaitSeconds;
  coordinator_->rendezvous().Wait(
      scope.job(), Generation(scope.generation()), {request->keys().begin(), request->keys().end()},
      coordinator_->now().steady + absl::Seconds(seconds),
      [response, call = std::move(call)](absl::StatusOr<job::Rendezvous::Values> values) {
        if (values.ok()) {
          for (std::string& value : *values) response->add_values(std::move(value));
        }
        call->Finish(values.status());
      });
  return reactor;
}

grpc::ServerUnaryReactor* RendezvousService::ClearKeys(grpc::CallbackServerContext* context,
                                                       const v1::ClearKeysRequest* request,
                                                       v1::ClearKeysResponse*) {
  const v1::RendezvousScope& scope = request->scope();
  UnaryCall call(context, AuditEntryOn(*context, "ClearKeys", scope));
  grpc::ServerUnaryReactor* const reactor = call.reactor();
  absl::Status status = MayMeet(call.who(), scope);
  if (status.ok())
    status = coordinator_->rendezvous().Clear(scope.job(), Generation(scope.generation()));
  call.Finish(status);
  return reactor;
}

}  // namespace takt::coordinator_rpc
