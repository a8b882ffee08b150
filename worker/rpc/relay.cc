// SPDX-License-Identifier: Apache-2.0
#include "worker/rpc/relay.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/rpc/endpoint.h"
#include "proto/channel_arguments.h"
#include "proto/rpc_status.h"
#include "proto/writing_stream.h"
#include "takt/v1/attachment_service.grpc.pb.h"
#include "takt/v1/rendezvous_service.grpc.pb.h"
#include "worker/rpc/trouble.h"
#include "worker/rpc/uplink.h"

namespace takt::worker_rpc {
namespace {

// The coordinator takes messages of 8 MiB, and a frame may hold more than one of the workers'
// messages.
constexpr int kMaxReceiveBytes = 7 << 20;
// At most this many messages wait for a worker that reads slowly, and each of them at most this
// long.
constexpr std::size_t kMaxMessages = 4096;
constexpr absl::Duration kStall = absl::Minutes(1);

// A stream of one worker.
template <class Request, class Response>
class WorkerStream final
    : public WritingStream<grpc::ServerBidiReactor<Request, Response>, Response>,
      public Downlink,
      public std::enable_shared_from_this<WorkerStream<Request, Response>> {
  using Base = WritingStream<grpc::ServerBidiReactor<Request, Response>, Response>;

 public:
  // uplink: outlives it.
  WorkerStream(grpc::CallbackServerContext* context, Uplink* uplink)
      : Base(context, kMaxMessages, kStall), uplink_(uplink), stream_(uplink->NewStream()) {}
  ~WorkerStream() override { uplink_->Remove(stream_); }

  void Begin() {
    this->KeepUntilDone(this->shared_from_this());
    uplink_->Add(stream_, this->shared_from_this());
  }

  // A stream that is finished reads no more.
  void Resume() override { static_cast<void>(this->ReadOn(&request_)); }
  void Deliver(const std::string& message) override {
    Response response;
    if (response.ParseFromString(message)) {
      this->Push(std::move(response));
    } else {
      this->Cut(absl::InternalError("what the coordinator sent is not a message"));
    }
  }
  void End(const absl::Status& status) override { this->FinishAfterWrites(status); }

  void OnReadDone(bool ok) override {
    if (!ok) return this->FinishAfterWrites(absl::OkStatus());
    if (uplink_->Push(stream_, request_.SerializeAsString())) Resume();
  }
  void OnCancel() override { this->Cut(absl::CancelledError("the worker's stream ended")); }

 private:
  Uplink* const uplink_;
  const std::int64_t stream_;
  Request request_;  // used by the reading side, one callback at a time
};

template <class Request, class Response>
grpc::ServerBidiReactor<Request, Response>* Begin(grpc::CallbackServerContext* context,
                                                  Uplink* uplink) {
  auto stream = std::make_shared<WorkerStream<Request, Response>>(context, uplink);
  stream->Begin();
  return stream.get();
}

class Attachments final : public v1::AttachmentService::CallbackService {
 public:
  // Both outlive it.
  Attachments(Uplink* control, Uplink* bulk) : control_(control), bulk_(bulk) {}

  grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachResponse>* Attach(
      grpc::CallbackServerContext* context) override {
    return Begin<v1::AttachRequest, v1::AttachResponse>(context, control_);
  }
  grpc::ServerBidiReactor<v1::StreamBulkRequest, v1::StreamBulkResponse>* StreamBulk(
      grpc::CallbackServerContext* context) override {
    return Begin<v1::StreamBulkRequest, v1::StreamBulkResponse>(context, bulk_);
  }

 private:
  Uplink* const control_;
  Uplink* const bulk_;
};

// Passes each call on to the coordinator, which accepts the relay's certificate for the workers of
// its host. If the worker cancels its call, the call to the coordinator is cancelled, too.
class Rendezvous final : public v1::RendezvousService::CallbackService {
 public:
  // channels: outlives it.
  explicit Rendezvous(CoordinatorChannels* channels) : channels_(channels) {}

  grpc::ServerUnaryReactor* SetKey(grpc::CallbackServerContext* context,
                                   const v1::SetKeyRequest* request,
                                   v1::SetKeyResponse* response) override {
    return Forward(context, [&](auto& stub, grpc::ClientContext* call, Done done) {
      stub.SetKey(call, request, response, std::move(done));
    });
  }
  grpc::ServerUnaryReactor* WaitKeys(grpc::CallbackServerContext* context,
                                     const v1::WaitKeysRequest* request,
                                     v1::WaitKeysResponse* response) override {
    return Forward(context, [&](auto& stub, grpc::ClientContext* call, Done done) {
      stub.WaitKeys(call, request, response, std::move(done));
    });
  }
  grpc::ServerUnaryReactor* ClearKeys(grpc::CallbackServerContext* context,
                                      const v1::ClearKeysRequest* request,
                                      v1::ClearKeysResponse* response) override {
    return Forward(context, [&](auto& stub, grpc::ClientContext* call, Done done) {
      stub.ClearKeys(call, request, response, std::move(done));
    });
  }

 private:
  using Done = std::function<void(grpc::Status)>;

  template <class Call>
  grpc::ServerUnaryReactor* Forward(grpc::CallbackServerContext* context, const Call& call) {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    const std::shared_ptr<v1::RendezvousService::Stub> stub =
        v1::RendezvousService::NewStub(channels_->control());
    const std::shared_ptr<grpc::ClientContext> forwarded =
        grpc::ClientContext::FromCallbackServerContext(*context);
    call(*stub->async(), forwarded.get(),
         [reactor, context, stub, forwarded](const grpc::Status& status) {
           reactor->Finish(ToGrpc(FromGrpc(status, *forwarded), *context));
         });
    return reactor;
  }

  CoordinatorChannels* const channels_;
};

class GrpcRelay final : public Relay {
 public:
  explicit GrpcRelay(const RelayOptions& options)
      : channels_(options.channels),
        on_attached_(options.on_attached),
        control_(ControlOptions(options)),
        bulk_(BulkOptions(options)),
        attachments_(&control_, &bulk_),
        rendezvous_(options.channels) {}

  // The workers' streams use the uplinks, so they end first.
  ~GrpcRelay() override {
    stopping_ = true;
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
    bulk_.Stop();
    control_.Stop();
  }

  absl::Status Listen(const std::string& listen) {
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMaxReceiveBytes);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
    AllowKeepalive(builder, kRelayKeepaliveMillis);
    builder.RegisterService(&attachments_);
    builder.RegisterService(&rendezvous_);
    int bound = 0;
    builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &bound);
    server_ = builder.BuildAndStart();
    if (server_ != nullptr && bound != 0) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on ", listen, "; name a file in a directory that this user may write"));
  }

  absl::Status attachment() const override { return control_.status(); }

  Counts counts() const override {
    const Uplink::Counts control = control_.counts(), bulk = bulk_.counts();
    return {.workers = control.streams,
            .messages = control.messages + bulk.messages,
            .frames = control.frames + bulk.frames};
  }

 private:
  // Both uplinks use one channel, so they share a connection.
  UplinkOptions ControlOptions(const RelayOptions& options) {
    return {.thread_name = "takt-control",
            .open =
                [this](grpc::ClientContext* context) {
                  control_stub_ = v1::AttachmentService::NewStub(channels_->control());
                  return control_stub_->AttachHost(context);
                },
            .on_up = [this] { OnUp(); },
            .on_end = [this](const absl::Status& status) { OnEnd(status); },
            .patience = options.patience,
            .refused_backoff = options.refused_backoff};
  }
  UplinkOptions BulkOptions(const RelayOptions& options) {
    return {.thread_name = "takt-bulk",
            .open =
                [this](grpc::ClientContext* context) {
                  bulk_stub_ = v1::AttachmentService::NewStub(channels_->control());
                  return bulk_stub_->StreamHostBulk(context);
                },
            .may_open = [this] { return control_.status().ok(); },
            .patience = options.patience,
            .refused_backoff = options.refused_backoff};
  }

  void OnUp() {
    trouble_.Over();
    Log(LogLevel::kInfo, "attached", {{"coordinator", channels_->address()}});
    if (on_attached_) on_attached_();
  }

  void OnEnd(const absl::Status& status) {
    if (stopping_) return;
    const std::string dialled = channels_->address();
    channels_->Ended(status);
    if (!trouble_.IsNews(status.code(), SteadyNow())) return;
    const std::string tls = rpc::ExplainTlsFailure(std::string(status.message()), absl::Now());
    Log(LogLevel::kWarning, "no coordinator; will try again",
        {{"coordinator", dialled}, {"error", tls.empty() ? status.ToString() : tls}});
  }

  CoordinatorChannels* const channels_;
  const std::function<void()> on_attached_;
  std::atomic<bool> stopping_ = false;
  Trouble trouble_;  // used by the control stream's thread
  // Each is used by the thread of its stream.
  std::unique_ptr<v1::AttachmentService::Stub> control_stub_, bulk_stub_;
  Uplink control_;
  Uplink bulk_;  // its thread uses control_
  Attachments attachments_;
  Rendezvous rendezvous_;
  std::unique_ptr<grpc::Server> server_;  // last: it uses all of these
};

}  // namespace

absl::StatusOr<std::unique_ptr<Relay>> Relay::Start(const RelayOptions& options) {
  const rpc::Endpoint endpoint{.flag = "--listen", .address = options.listen};
  if (!endpoint.is_unix()) {
    return InvalidField({.field = "--listen",
                         .value = options.listen,
                         .rule = "is not unix:PATH: only workers of this host may use the relay",
                         .fix = "e.g. unix:/run/takt-relay/relay.sock"});
  }
  RETURN_IF_ERROR(rpc::CheckEndpoint(endpoint, absl::Now()));
  auto relay = std::make_unique<GrpcRelay>(options);
  RETURN_IF_ERROR(relay->Listen(options.listen));
  return relay;
}

}  // namespace takt::worker_rpc
