// SPDX-License-Identifier: Apache-2.0
// Serves takt.v1.JoinService, which gives workers their first certificates.
#pragma once

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/certificates/join_tokens.h"
#include "coordinator/rpc/guard.h"
#include "takt/v1/join_service.grpc.pb.h"

namespace takt::coordinator_rpc {

class JoinService final : public v1::JoinService::CallbackService {
 public:
  // authority: directory of the authority that signs; empty: no worker can join. guard: borrowed.
  JoinService(std::string authority, Guard* guard)
      : authority_(std::move(authority)), guard_(guard) {}

  grpc::ServerUnaryReactor* CreateToken(grpc::CallbackServerContext* context,
                                        const v1::CreateTokenRequest* request,
                                        v1::CreateTokenResponse* response) override;
  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context,
                                 const v1::JoinRequest* request,
                                 v1::JoinResponse* response) override;

 private:
  absl::Status CheckAuthority() const;
  absl::StatusOr<std::string> NewToken(const v1::CreateTokenRequest& request);
  absl::StatusOr<std::string> FindWorker(const std::string& token);
  // A token is used up only when its certificate is issued.
  absl::StatusOr<std::string> Certify(const std::string& worker, const v1::JoinRequest& request);

  const std::string authority_;
  Guard* const guard_;
  absl::Mutex mutex_;
  certificates::JoinTokens tokens_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace takt::coordinator_rpc
