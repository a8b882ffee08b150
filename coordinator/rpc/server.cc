// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rpc/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/net/listener.h"
#include "common/net/socket.h"
#include "common/rpc/credentials.h"
#include "coordinator/rpc/attachment_service.h"
#include "coordinator/rpc/cluster_service.h"
#include "coordinator/rpc/guard.h"
#include "coordinator/rpc/job_service.h"
#include "coordinator/rpc/join_service.h"
#include "coordinator/timeouts/admission.h"
#include "proto/channel_arguments.h"
#include "proto/rpc_status.h"

namespace takt::coordinator_rpc {
namespace {

constexpr int kMaxReceiveBytes = 8 << 20;
constexpr int kMaxStreamsPerConnection = 1024;
// Reflection is the one service whose calls keep a thread each. Calls beyond these are refused.
constexpr int kMaxThreads = 8;
constexpr int kHandshakeMillis = 10'000;
constexpr int kIdleMillis = 300'000;
constexpr std::chrono::milliseconds kShutdownGrace(300);

rpc::Endpoint EndpointOf(const ServerOptions& options) {
  return {.flag = "--listen",
          .address = options.listen,
          .tls = options.tls,
          .insecure = options.insecure};
}

// Returns the domain of the identities that may connect, nullopt if the server asks for no
// identity.
absl::StatusOr<std::optional<std::string>> DomainOf(const ServerOptions& options) {
  const rpc::Endpoint endpoint = EndpointOf(options);
  RETURN_IF_ERROR(rpc::CheckEndpoint(endpoint, absl::Now()));
  if (!endpoint.is_tls()) return std::nullopt;
  ASSIGN_OR_RETURN(const certificates::CertificateFacts facts,
                   certificates::ReadFacts(options.tls.certificate));
  if (facts.identity.role == access::Role::kCoordinator) return facts.identity.domain;
  return InvalidField(
      {.field = "--tls-certificate",
       .value = options.tls.certificate,
       .rule = absl::StrCat("is of ", facts.identity.ToString(),
                            ", and clients look for a coordinator's"),
       .fix = "issue one with `takt certs issue DIR coordinator NAME --host HOST`"});
}

class GrpcServer final : public Server {
 public:
  GrpcServer(const ServerOptions& options, std::optional<std::string> domain,
             job::Coordinator* coordinator)
      : endpoint_(EndpointOf(options)),
        memory_bytes_(options.memory_bytes),
        guard_({.domain = std::move(domain), .rate = options.rate, .leader = options.leader}),
        attachment_(coordinator, options.traces, &guard_),
        cluster_(coordinator, &guard_, options.open_backup),
        jobs_(coordinator, options.traces, &guard_, options.stall),
        rendezvous_(coordinator, &guard_),
        strangers_(!options.join_authority.empty()),
        join_(options.join_authority, &guard_) {}

  ~GrpcServer() override {
    listener_.reset();
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
  }

  absl::Status Listen() {
    const std::string& listen = endpoint_.address;
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMaxReceiveBytes);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
    AllowKeepalive(builder);
    // A connection without a complete TLS and HTTP/2 handshake by then is closed.
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMillis);
    // A connection that is idle for long is closed too. Clients dial again when they need it.
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMillis);
    builder.SetResourceQuota(
        grpc::ResourceQuota("coordinator").Resize(memory_bytes_).SetMaxThreads(kMaxThreads));
    builder.RegisterService(&attachment_);
    builder.RegisterService(&cluster_);
    builder.RegisterService(&jobs_);
    builder.RegisterService(&rendezvous_);
    builder.RegisterService(&join_);
    const auto credentials = rpc::ServerCredentialsFor(endpoint_, strangers_);
    if (endpoint_.is_tls()) credentials->SetAuthMetadataProcessor(guard_.Processor());
    return endpoint_.is_unix() ? ServeSocketFile(builder, listen, credentials)
                               : ServeTcp(builder, listen, credentials);
  }

  const std::string& address() const override { return address_; }

 private:
  using Credentials = std::shared_ptr<grpc::ServerCredentials>;

  absl::Status ServeSocketFile(grpc::ServerBuilder& builder, const std::string& listen,
                               const Credentials& credentials) {
    int bound = 0;
    builder.AddListeningPort(listen, credentials, &bound);
    server_ = builder.BuildAndStart();
    address_ = listen;
    return server_ != nullptr && bound != 0 ? absl::OkStatus() : CannotListen(listen);
  }

  // Our own listener accepts connections. gRPC's never accepts again once it was without a
  // descriptor, which any client that reaches the port can bring about.
  absl::Status ServeTcp(grpc::ServerBuilder& builder, const std::string& listen,
                        const Credentials& credentials) {
    absl::StatusOr<net::Socket> socket = net::ListenOn(listen);
    if (!socket.ok()) return CannotListen(socket.status().message());
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return CannotListen(listen);
    listener_.emplace(*std::move(socket),
                      net::ListenerOptions{.name = "takt-control",
                                           .accepts_per_second = timeouts::kConnectionsPerSecond,
                                           .accepts_at_once = timeouts::kConnectionsAtOnce,
                                           .accept = [this](net::Socket accepted) {
                                             HandOver(std::move(accepted));
                                             return std::unique_ptr<net::Connection>();
                                           }});
    address_ = listener_->address();
    return absl::OkStatus();
  }

  void HandOver(net::Socket socket) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = socket.Release();
    acceptor_->HandleNewConnection(&connection);
  }

  static absl::Status CannotListen(absl::string_view where) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", where,
                     "; check that nothing else does and that the address is this host's"));
  }

  const rpc::Endpoint endpoint_;
  const std::size_t memory_bytes_;
  Guard guard_;
  AttachmentService attachment_;
  ClusterService cluster_;
  JobService jobs_;
  RendezvousService rendezvous_;
  const bool strangers_;  // may connect, to join
  JoinService join_;
  std::string address_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;   // after the services, which it uses
  std::optional<net::Listener> listener_;  // last: its thread uses the acceptor
};

}  // namespace

absl::Status CheckListen(const ServerOptions& options) { return DomainOf(options).status(); }

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      job::Coordinator* coordinator) {
  ASSIGN_OR_RETURN(std::optional<std::string> domain, DomainOf(options));
  auto server = std::make_unique<GrpcServer>(options, std::move(domain), coordinator);
  RETURN_IF_ERROR(server->Listen());
  return server;
}

}  // namespace takt::coordinator_rpc
