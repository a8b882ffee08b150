// SPDX-License-Identifier: Apache-2.0
// A coordinator for tests of the relay. It serves one relay on a Unix socket in a directory of its
// own, and on a TCP port, keeps what comes, and sends what the test tells it to send. It can be
// stopped and started again on the same socket, but on another port.
#pragma once

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "proto/host_frame.h"
#include "takt/v1/attachment_service.grpc.pb.h"
#include "takt/v1/rendezvous_service.grpc.pb.h"

namespace takt::worker_rpc {

// A rendezvous of generation 3 that keeps one value, whatever its key.
class FakeKeys final : public v1::RendezvousService::Service {
 public:
  grpc::Status SetKey(grpc::ServerContext*, const v1::SetKeyRequest* request,
                      v1::SetKeyResponse*) override {
    if (request->scope().generation() != 3)
      return grpc::Status(grpc::StatusCode::ABORTED, "generation 3 is current");
    absl::MutexLock lock(&mutex_);
    value_ = request->value();
    return grpc::Status::OK;
  }
  grpc::Status WaitKeys(grpc::ServerContext*, const v1::WaitKeysRequest*,
                        v1::WaitKeysResponse* response) override {
    absl::MutexLock lock(&mutex_);
    response->add_values(value_);
    return grpc::Status::OK;
  }

 private:
  absl::Mutex mutex_;
  std::string value_ ABSL_GUARDED_BY(mutex_);
};

class FakeHosts final : public v1::AttachmentService::Service {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(60);
  using Stream = grpc::ServerReaderWriter<v1::HostFrame, v1::HostFrame>;

  FakeHosts() {
    std::string name = (std::filesystem::temp_directory_path() / "takt-XXXXXX").string();
    TAKT_CHECK(mkdtemp(name.data()) != nullptr);
    directory_ = name;
  }
  ~FakeHosts() override {
    Stop();
    std::filesystem::remove_all(directory_);
  }

  const std::string& directory() const { return directory_; }
  std::string address() const { return absl::StrCat("unix:", directory_, "/coordinator"); }
  std::string tcp_address() const { return absl::StrCat("127.0.0.1:", port_); }

  void Start() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address(), grpc::InsecureServerCredentials());
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    builder.RegisterService(&keys_);
    server_ = builder.BuildAndStart();
    TAKT_CHECK(server_ != nullptr);
  }
  // Acts as if the process died: streams break.
  void Stop() {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    server_.reset();
  }

  // Sets how the next streams end at once; OK: they do not.
  void Refuse(grpc::Status refusal) {
    absl::MutexLock lock(&mutex_);
    refusal_ = std::move(refusal);
  }
  // Sends a frame on the control stream that is up.
  void Say(const v1::HostFrame& frame) {
    absl::MutexLock lock(&mutex_);
    const auto up = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return control_ != nullptr; };
    TAKT_CHECK(mutex_.AwaitWithTimeout(absl::Condition(&up), kPatience));
    control_->Write(frame);
  }

  // Waits for the hello of a worker on the control stream, forgets it, and returns the number of
  // the worker's stream; 0: none came.
  std::int64_t AwaitHello(const std::string& worker) {
    return Await([&](const v1::StreamPart& part) {
             v1::AttachRequest request;
             return request.ParseFromString(part.message()) && request.hello().worker() == worker;
           })
        .stream();
  }
  std::int64_t AwaitBulkHello(const std::string& worker) {
    return Await([&](const v1::StreamPart& part) {
             v1::StreamBulkRequest request;
             return request.ParseFromString(part.message()) && request.hello().worker() == worker;
           })
        .stream();
  }
  // Waits for the end of a worker's stream. Returns whether it came.
  bool AwaitEnd(std::int64_t stream) {
    return Await([&](const v1::StreamPart& part) {
             return part.has_end() && part.stream() == stream;
           }).stream() == stream;
  }
  // The other ends of the connections of both streams.
  std::string ControlPeer() {
    absl::MutexLock lock(&mutex_);
    return control_peer_;
  }
  std::string BulkPeer() {
    absl::MutexLock lock(&mutex_);
    return bulk_peer_;
  }

  grpc::Status AttachHost(grpc::ServerContext* context, Stream* stream) override {
    {
      absl::MutexLock lock(&mutex_);
      if (!refusal_.ok()) return refusal_;
      control_peer_ = context->peer();
      control_ = stream;
    }
    Serve(stream);
    absl::MutexLock lock(&mutex_);
    if (control_ == stream) control_ = nullptr;
    return grpc::Status::OK;
  }
  grpc::Status StreamHostBulk(grpc::ServerContext* context, Stream* stream) override {
    {
      absl::MutexLock lock(&mutex_);
      bulk_peer_ = context->peer();
    }
    Serve(stream);
    return grpc::Status::OK;
  }

 private:
  void Serve(Stream* stream) {
    v1::HostFrame frame;
    while (stream->Read(&frame)) {
      absl::MutexLock lock(&mutex_);
      if (frame.parts_size() == 0) stream->Write(v1::HostFrame());
      for (const v1::StreamPart& part : frame.parts()) parts_.push_back(part);
    }
  }

  template <class Wanted>
  v1::StreamPart Await(const Wanted& wanted) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return std::any_of(parts_.begin(), parts_.end(), wanted);
    };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&there), kPatience)) return {};
    const auto place = std::find_if(parts_.begin(), parts_.end(), wanted);
    v1::StreamPart found = *place;
    parts_.erase(place);
    return found;
  }

  std::string directory_;
  FakeKeys keys_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;

  absl::Mutex mutex_;
  grpc::Status refusal_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::StreamPart> parts_ ABSL_GUARDED_BY(mutex_);
  Stream* control_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::string control_peer_ ABSL_GUARDED_BY(mutex_), bulk_peer_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace takt::worker_rpc
