// SPDX-License-Identifier: Apache-2.0
// Carries an absl::Status across gRPC. Code and message stay as they are, and the payload
// takt.v1.ErrorDetail is in the trailing metadata "takt-error-detail-bin". It is for rpc/ folders
// and cli/ (target takt_rpc_status).
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace takt {

inline constexpr char kErrorDetailTrailer[] = "takt-error-detail-bin";

// A rejected schedule with its grid is longer than gRPC's own limit of 8 KiB. Clients set
// GRPC_ARG_MAX_METADATA_SIZE to this.
inline constexpr int kMaxMetadataBytes = 64 << 10;

// Returns the status that a server answers with, and puts the payload into the trailers of
// `context`. Texts that are too long for them are cut.
grpc::Status ToGrpc(const absl::Status& status, grpc::ServerContextBase& context);

// Returns the status of a call that has ended, for a client. FieldErrorsOf(result) gives what the
// server's status carried.
absl::Status FromGrpc(const grpc::Status& status, const grpc::ClientContext& context);

}  // namespace takt
