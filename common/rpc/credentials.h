// SPDX-License-Identifier: Apache-2.0
// gRPC's credentials of an endpoint, and the identity of a peer that has connected through them.
#pragma once

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "common/access/identity.h"
#include "common/rpc/endpoint.h"

namespace takt::rpc {

// The files are read again when they change, which is checked every second. Connections that exist
// go on, and new ones use the new files. Endpoints must have passed CheckEndpoint.
std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsFor(const Endpoint& endpoint);
// strangers: a client that shows no certificate may connect too, as kNobody.
std::shared_ptr<grpc::ServerCredentials> ServerCredentialsFor(const Endpoint& endpoint,
                                                              bool strangers = false);

// Returns the identity of a peer of a TLS server. It is kNobody if the peer showed no certificate,
// or one without exactly one identity of `domain`.
access::Identity PeerOf(const grpc::AuthContext& context, const std::string& domain);

}  // namespace takt::rpc
