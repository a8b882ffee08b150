// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rpc/join_service.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/certificates/authority.h"
#include "coordinator/rpc/unary_call.h"

namespace takt::coordinator_rpc {
namespace {

constexpr double kDefaultLifetimeSeconds = 3600;
constexpr double kMaxLifetimeSeconds = 24 * 3600;
constexpr absl::Duration kCertificateLifetime = absl::Hours(24 * 90);

}  // namespace

absl::Status JoinService::CheckAuthority() const {
  if (!authority_.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this coordinator has no authority to sign with: start it with --join-authority, or issue "
      "the certificate with `takt certs issue`");
}

absl::StatusOr<std::string> JoinService::NewToken(const v1::CreateTokenRequest& request) {
  RETURN_IF_ERROR(CheckAuthority());
  if (!access::IsName(request.worker())) {
    return InvalidField({.field = "worker",
                         .value = request.worker(),
                         .rule = "must be 1 to 63 letters, digits, '.', '_' or '-'",
                         .fix = "choose another name"});
  }
  const double asked = request.lifetime_seconds();
  const double seconds = asked > 0 ? std::min(asked, kMaxLifetimeSeconds) : kDefaultLifetimeSeconds;
  absl::MutexLock lock(&mutex_);
  return tokens_.Create(request.worker(), absl::Seconds(seconds), absl::Now());
}

absl::StatusOr<std::string> JoinService::FindWorker(const std::string& token) {
  RETURN_IF_ERROR(CheckAuthority());
  absl::MutexLock lock(&mutex_);
  return tokens_.Find(token, absl::Now());
}

absl::StatusOr<std::string> JoinService::Certify(const std::string& worker,
                                                 const v1::JoinRequest& request) {
  ASSIGN_OR_RETURN(
      std::string certificate,
      certificates::CertifyRequest(authority_, request.certificate_request(),
                                   {.identity = {.role = access::Role::kWorker, .name = worker},
                                    .validity = kCertificateLifetime,
                                    .now = absl::Now()}));
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(tokens_.Redeem(request.token(), absl::Now()).status());
  return certificate;
}

grpc::ServerUnaryReactor* JoinService::CreateToken(grpc::CallbackServerContext* context,
                                                   const v1::CreateTokenRequest* request,
                                                   v1::CreateTokenResponse* response) {
  UnaryCall call(context, guard_->AuditEntryOf(*context, MethodOf<v1::JoinService>("CreateToken"),
                                               "worker/" + request->worker()));
  grpc::ServerUnaryReactor* const reactor = call.reactor();
  const absl::StatusOr<std::string> token = NewToken(*request);
  if (token.ok()) response->set_token(*token);
  call.Finish(token.status());
  return reactor;
}

grpc::ServerUnaryReactor* JoinService::Join(grpc::CallbackServerContext* context,
                                            const v1::JoinRequest* request,
                                            v1::JoinResponse* response) {
  if (absl::Status status = guard_->AdmitStranger(*context); !status.ok()) {
    // Callers that ask too often are not written to the audit log.
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(ToGrpc(status, *context));
    return reactor;
  }
  const absl::StatusOr<std::string> worker = FindWorker(request->token());
  UnaryCall call(context, guard_->AuditEntryOf(*context, MethodOf<v1::JoinService>("Join"),
                                               worker.ok() ? "worker/" + *worker : ""));
  grpc::ServerUnaryReactor* const reactor = call.reactor();
  const absl::StatusOr<std::string> certificate =
      worker.ok() ? Certify(*worker, *request) : worker.status();
  if (certificate.ok()) response->set_certificate(*certificate);
  call.Finish(certificate.status());
  return reactor;
}

}  // namespace takt::coordinator_rpc
