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

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/net/door.h"
#include "common/net/socket.h"
#include "coordinator/rpc/attachment_service.h"
#include "coordinator/rpc/cluster_service.h"
#include "coordinator/rpc/job_service.h"
#include "proto/channel_arguments.h"
#include "proto/rpc_status.h"

namespace takt::coordinator_rpc {
namespace {

constexpr char kUnix[] = "unix:";
constexpr std::size_t kMaxSocketPath = 107;  // sun_path less its final zero
constexpr int kMaxReceiveBytes = 8 << 20;
constexpr int kMaxStreamsPerConnection = 1024;
constexpr std::size_t kMemoryQuotaBytes = 256u << 20;
constexpr int kHandshakeMillis = 10'000;
constexpr int kIdleMillis = 300'000;
constexpr std::chrono::milliseconds kShutdownGrace(300);

class GrpcServer final : public Server {
 public:
  GrpcServer(const ServerOptions& options, job::Coordinator* coordinator)
      : attachment_(coordinator, options.traces,
                    {.heartbeat = options.heartbeat, .lease = options.lease}),
        cluster_(coordinator),
        jobs_(coordinator, options.traces),
        rendezvous_(coordinator) {}

  ~GrpcServer() override {
    door_.reset();
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
  }

  absl::Status Listen(const std::string& listen) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMaxReceiveBytes);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
    AllowKeepalive(builder);
    // Who has said nothing sensible by then, in TLS or HTTP/2, is hung up on.
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMillis);
    // So is who asks nothing for long; clients dial again when they have something to ask.
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMillis);
    builder.SetResourceQuota(grpc::ResourceQuota("coordinator").Resize(kMemoryQuotaBytes));
    builder.RegisterService(&attachment_);
    builder.RegisterService(&cluster_);
    builder.RegisterService(&jobs_);
    builder.RegisterService(&rendezvous_);
    const auto credentials = grpc::InsecureServerCredentials();
    return absl::StartsWith(listen, kUnix) ? ServeSocketFile(builder, listen, credentials)
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

  // Connections are accepted by a door: gRPC's own listener never accepts again after it was once
  // without a descriptor, which whoever reaches the port can bring about.
  absl::Status ServeTcp(grpc::ServerBuilder& builder, const std::string& listen,
                        const Credentials& credentials) {
    absl::StatusOr<net::Socket> listener = net::ListenOn(listen);
    if (!listener.ok()) return CannotListen(listener.status().message());
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return CannotListen(listen);
    door_.emplace(*std::move(listener),
                  net::DoorOptions{.name = "takt-control", .welcome = [this](net::Socket socket) {
                                     HandOver(std::move(socket));
                                     return std::unique_ptr<net::Guest>();
                                   }});
    address_ = door_->address();
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

  AttachmentService attachment_;
  ClusterService cluster_;
  JobService jobs_;
  RendezvousService rendezvous_;
  std::string address_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;  // after the services, which it uses
  std::optional<net::Door> door_;         // last: its thread uses the acceptor
};

}  // namespace

absl::Status CheckListen(const ServerOptions& options) {
  if (absl::StartsWith(options.listen, kUnix)) {
    const std::size_t length = options.listen.size() - (sizeof(kUnix) - 1);
    if (length > 0 && length <= kMaxSocketPath) return absl::OkStatus();
    return InvalidField({.field = "--listen",
                         .value = options.listen,
                         .rule = absl::StrCat("the path of a Unix socket has 1 to ", kMaxSocketPath,
                                              " bytes, not ", length),
                         .fix = "give a shorter path, e.g. under /run or /tmp"});
  }
  if (options.listen.rfind(':') == std::string::npos) {
    return InvalidField({.field = "--listen",
                         .value = options.listen,
                         .rule = "must be unix:PATH or HOST:PORT",
                         .fix = "e.g. unix:/run/takt/coordinator.sock or 0.0.0.0:7070"});
  }
  if (options.insecure) return absl::OkStatus();
  return InvalidField(
      {.field = "--listen",
       .value = options.listen,
       .rule = "TCP without certificates lets anyone who reaches the port run jobs and read their "
               "secrets",
       .fix = "listen on unix:PATH, or add --insecure if everyone on that network may do this"});
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      job::Coordinator* coordinator) {
  RETURN_IF_ERROR(CheckListen(options));
  auto server = std::make_unique<GrpcServer>(options, coordinator);
  RETURN_IF_ERROR(server->Listen(options.listen));
  return server;
}

}  // namespace takt::coordinator_rpc
