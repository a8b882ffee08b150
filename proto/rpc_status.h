// SPDX-License-Identifier: Apache-2.0
// How an absl::Status crosses gRPC: code and message as they are, the payload takt.v1.ErrorDetail
// in the trailing metadata "takt-error-detail-bin". For rpc/ folders and cli/ (target
// takt_rpc_status).
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace takt {

inline constexpr char kErrorDetailTrailer[] = "takt-error-detail-bin";

// gRPC's own limit of 8 KiB is less than a rejected schedule with its grid: clients set
// GRPC_ARG_MAX_METADATA_SIZE to this.
inline constexpr int kMaxMetadataBytes = 64 << 10;

// For a server's return: puts the payload into the trailers of `context`. Texts too long for them
// are cut.
grpc::Status ToGrpc(const absl::Status& status, grpc::ServerContextBase& context);

// For a client, after the call has ended: FieldErrorsOf(result) gives what the server's status
// carried.
absl::Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context);

}  // namespace takt
