// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/swarm_connection.h"

#include <grpcpp/create_channel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "proto/host_frame.h"

namespace takt::testing {
namespace {

// The relay gathers messages for the same times (worker/rpc/uplink.cc).
constexpr absl::Duration kShortGather = absl::Milliseconds(2), kGather = absl::Milliseconds(10);

std::string ReadWhole(const std::string& path) {
  std::ifstream file(path);
  TAKT_CHECK(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

std::shared_ptr<grpc::Channel> ChannelTo(
    const std::string& coordinator, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  return grpc::CreateCustomChannel(coordinator, credentials, arguments);
}

class OwnConnection final : public SwarmConnection {
 public:
  OwnConnection(std::shared_ptr<grpc::Channel> channel,
                const std::shared_ptr<grpc::Channel>& bulk_channel)
      : channel_(std::move(channel)),
        stub_(v1::AttachmentService::NewStub(channel_)),
        bulk_stub_(v1::AttachmentService::NewStub(bulk_channel)) {}

  std::shared_ptr<grpc::Channel> channel() const override { return channel_; }
  std::unique_ptr<ControlPort> OpenControl(OnCommand on_command) override {
    return std::make_unique<SwarmStream<v1::AttachRequest, v1::AttachResponse>>(
        [this](auto* context, auto* reactor) { stub_->async()->Attach(context, reactor); },
        std::move(on_command));
  }
  std::unique_ptr<BulkPort> OpenBulk(OnAcknowledged on_acknowledged) override {
    return std::make_unique<SwarmStream<v1::StreamBulkRequest, v1::StreamBulkResponse>>(
        [this](auto* context, auto* reactor) { bulk_stub_->async()->StreamBulk(context, reactor); },
        std::move(on_acknowledged));
  }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::AttachmentService::Stub> stub_, bulk_stub_;
};

// One of the two streams of a host.
class Lane {
 public:
  using Stream = SwarmStream<v1::HostFrame, v1::HostFrame>;
  using OnMessage = std::function<void(const std::string&)>;

  explicit Lane(Stream::Open open)
      : stream_(std::move(open), [this](const v1::HostFrame& frame) { OnFrame(frame); }) {}

  void Begin() { stream_.Begin(v1::HostFrame()); }

  // Returns the number of the stream of a worker.
  std::int64_t Add(OnMessage on_message) {
    absl::MutexLock lock(&mutex_);
    workers_[++last_].on_message = std::move(on_message);
    return last_;
  }
  void Push(std::int64_t stream, std::string message) {
    absl::MutexLock lock(&mutex_);
    if (frames_.empty()) next_ = std::max(next_, SteadyNow() + kShortGather);
    v1::HostFrame frame = FrameOf(stream, std::move(message));
    if (frames_.empty() || !JoinFrames(frames_.back(), frame)) frames_.push_back(std::move(frame));
    waits_ = true;
  }
  void Flush() {
    if (!waits_) return;  // as most of them: there are thousands
    absl::MutexLock lock(&mutex_);
    if (SteadyNow() < next_) return;
    next_ = SteadyNow() + kGather;
    for (v1::HostFrame& frame : frames_) stream_.Push(std::move(frame));
    frames_.clear();
    waits_ = false;
  }
  void Cut() { stream_.Cut(); }
  bool IsDone(std::int64_t stream) const {
    if (stream_.done()) return true;
    absl::MutexLock lock(&mutex_);
    return workers_.at(stream).ended;
  }

 private:
  struct Worker {
    OnMessage on_message;
    bool ended = false;
  };

  void OnFrame(const v1::HostFrame& frame) {
    for (const v1::StreamPart& part : frame.parts()) {
      const OnMessage* on_message = nullptr;
      {
        absl::MutexLock lock(&mutex_);
        Worker& worker = workers_.at(part.stream());
        worker.ended = worker.ended || part.has_end();
        on_message = &worker.on_message;  // stays valid: no worker is removed
      }
      if (!part.has_end()) (*on_message)(part.message());
    }
  }

  Stream stream_;
  mutable absl::Mutex mutex_;
  std::int64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::int64_t, Worker> workers_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::HostFrame> frames_ ABSL_GUARDED_BY(mutex_);
  absl::Duration next_ ABSL_GUARDED_BY(mutex_);  // steady
  std::atomic<bool> waits_ = false;              // there are frames
};

// A worker's stream within one of a host.
template <class Request>
class HostPort final : public SwarmPort<Request> {
 public:
  HostPort(Lane* lane, std::int64_t stream) : lane_(*lane), stream_(stream) {}
  void Begin(const Request& hello) override { Push(hello); }
  void Push(Request request) override { lane_.Push(stream_, request.SerializeAsString()); }
  void Cut() override { lane_.Cut(); }
  bool done() const override { return lane_.IsDone(stream_); }

 private:
  Lane& lane_;
  const std::int64_t stream_;
};

class GrpcHost final : public SwarmHost, public std::enable_shared_from_this<GrpcHost> {
 public:
  explicit GrpcHost(std::shared_ptr<grpc::Channel> channel)
      : channel_(std::move(channel)),
        stub_(v1::AttachmentService::NewStub(channel_)),
        control_(
            [this](auto* context, auto* reactor) { stub_->async()->AttachHost(context, reactor); }),
        bulk_([this](auto* context, auto* reactor) {
          stub_->async()->StreamHostBulk(context, reactor);
        }) {
    control_.Begin();
    bulk_.Begin();
  }
  ~GrpcHost() override { GrpcHost::Cut(); }

  std::unique_ptr<SwarmConnection> Join() override;
  void Flush() override {
    control_.Flush();
    bulk_.Flush();
  }
  void Cut() override {
    control_.Cut();
    bulk_.Cut();
  }

  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  Lane& control() { return control_; }
  Lane& bulk() { return bulk_; }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::AttachmentService::Stub> stub_;
  Lane control_, bulk_;
};

class PartOfHost final : public SwarmConnection {
 public:
  explicit PartOfHost(std::shared_ptr<GrpcHost> host) : host_(std::move(host)) {}

  std::shared_ptr<grpc::Channel> channel() const override { return host_->channel(); }
  std::unique_ptr<ControlPort> OpenControl(OnCommand on_command) override {
    return Open<v1::AttachRequest, v1::AttachResponse>(host_->control(), std::move(on_command));
  }
  std::unique_ptr<BulkPort> OpenBulk(OnAcknowledged on_acknowledged) override {
    return Open<v1::StreamBulkRequest, v1::StreamBulkResponse>(host_->bulk(),
                                                               std::move(on_acknowledged));
  }

 private:
  template <class Request, class Response>
  static std::unique_ptr<SwarmPort<Request>> Open(Lane& lane,
                                                  std::function<void(const Response&)> on_message) {
    const std::int64_t stream =
        lane.Add([on_message = std::move(on_message)](const std::string& message) {
          Response response;
          TAKT_CHECK(response.ParseFromString(message));
          on_message(response);
        });
    return std::make_unique<HostPort<Request>>(&lane, stream);
  }

  const std::shared_ptr<GrpcHost> host_;
};

std::unique_ptr<SwarmConnection> GrpcHost::Join() {
  return std::make_unique<PartOfHost>(shared_from_this());
}

}  // namespace

Certifier::Certifier(std::string authority) : authority_(std::move(authority)) {
  if (authority_.empty()) return;
  roots_ = ReadWhole(authority_ + "/ca.pem");
  absl::StatusOr<certificates::Request> request = certificates::MakeRequest();
  TAKT_CHECK(request.ok());
  request_ = *std::move(request);
}

std::shared_ptr<grpc::ChannelCredentials> Certifier::CredentialsOf(access::Role role,
                                                                   const std::string& name) const {
  if (authority_.empty()) return grpc::InsecureChannelCredentials();
  const absl::StatusOr<std::string> certificate = certificates::CertifyRequest(
      authority_, request_.text,
      {.identity = {.role = role, .name = name}, .validity = absl::Hours(24), .now = absl::Now()});
  TAKT_CHECK(certificate.ok());
  return grpc::SslCredentials(
      {.pem_root_certs = roots_, .pem_private_key = request_.key, .pem_cert_chain = *certificate});
}

std::unique_ptr<SwarmConnection> DialAlone(
    const std::string& coordinator, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  return std::make_unique<OwnConnection>(ChannelTo(coordinator, credentials),
                                         ChannelTo(coordinator, credentials));
}

std::shared_ptr<SwarmHost> SwarmHost::Dial(
    const std::string& coordinator, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  return std::make_shared<GrpcHost>(ChannelTo(coordinator, credentials));
}

}  // namespace takt::testing
