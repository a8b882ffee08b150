// SPDX-License-Identifier: Apache-2.0
#include "worker/rpc/fake_coordinator.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/status.h"

namespace takt::worker_rpc {

FakeCoordinator::FakeCoordinator() {
  std::string name = (std::filesystem::temp_directory_path() / "takt-XXXXXX").string();
  TAKT_CHECK(mkdtemp(name.data()) != nullptr);
  directory_ = name;
  Start();
}

FakeCoordinator::~FakeCoordinator() {
  Stop();
  std::filesystem::remove_all(directory_);
}

void FakeCoordinator::Start() {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address(), grpc::InsecureServerCredentials());
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  TAKT_CHECK(server_ != nullptr);
}

void FakeCoordinator::Stop() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());  // cancels open streams
  server_->Wait();
  server_.reset();
}

void FakeCoordinator::AnswerHello(grpc::Status status) {
  absl::MutexLock lock(&mutex_);
  hello_answer_ = std::move(status);
}

void FakeCoordinator::Say(v1::AttachResponse response) {
  absl::MutexLock lock(&mutex_);
  const auto up = [this]()
                      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return control_stream_ != nullptr; };
  TAKT_CHECK(mutex_.AwaitWithTimeout(absl::Condition(&up), kPatience));
  response.set_epoch(epoch_);
  control_stream_->Write(response);
}

void FakeCoordinator::AcknowledgeReports(std::int64_t sequence) {
  absl::MutexLock lock(&mutex_);
  TAKT_CHECK(bulk_stream_ != nullptr);
  v1::StreamBulkResponse response;
  response.set_job("kjv");
  response.set_generation(1);
  response.set_acknowledged_sequence(sequence);
  bulk_stream_->Write(response);
}

v1::AttachRequest FakeCoordinator::AwaitControl(
    const std::function<bool(const v1::AttachRequest&)>& wanted) {
  absl::MutexLock lock(&mutex_);
  v1::AttachRequest found;
  const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto place = std::ranges::find_if(control_, wanted);
    if (place == control_.end()) return false;
    found = *place;
    return true;
  };
  mutex_.AwaitWithTimeout(absl::Condition(&there), kPatience);
  return found;
}

v1::JobUpdate FakeCoordinator::AwaitUpdate(v1::JobUpdate::Phase phase) {
  return AwaitControl([&](const v1::AttachRequest& request) {
           return request.has_update() && request.update().phase() == phase;
         })
      .update();
}

std::vector<v1::StreamBulkRequest> FakeCoordinator::AwaitBulk(std::size_t count) {
  absl::MutexLock lock(&mutex_);
  const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return bulk_.size() >= count; };
  mutex_.AwaitWithTimeout(absl::Condition(&there), kPatience);
  return bulk_;
}

std::string FakeCoordinator::AwaitBulkPeer() {
  absl::MutexLock lock(&mutex_);
  const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !bulk_peer_.empty(); };
  mutex_.AwaitWithTimeout(absl::Condition(&there), kPatience);
  return bulk_peer_;
}

std::string FakeCoordinator::ControlPeer() {
  absl::MutexLock lock(&mutex_);
  return control_peer_;
}

void FakeCoordinator::Clear() {
  absl::MutexLock lock(&mutex_);
  control_.clear();
  bulk_.clear();
}

grpc::Status FakeCoordinator::Attach(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<v1::AttachResponse, v1::AttachRequest>* stream) {
  v1::AttachRequest request;
  while (stream->Read(&request)) {
    absl::MutexLock lock(&mutex_);
    control_.push_back(request);
    if (!request.has_hello()) continue;
    if (!hello_answer_.ok()) return hello_answer_;
    v1::AttachResponse response;
    response.mutable_welcome()->set_heartbeat_seconds(heartbeat_seconds_);
    response.mutable_welcome()->set_cluster_id(cluster_id_);
    response.set_epoch(epoch_);
    stream->Write(response);
    control_stream_ = stream;
    control_peer_ = context->peer();
  }
  absl::MutexLock lock(&mutex_);
  if (control_stream_ == stream) control_stream_ = nullptr;
  return grpc::Status::OK;
}

grpc::Status FakeCoordinator::StreamBulk(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<v1::StreamBulkResponse, v1::StreamBulkRequest>* stream) {
  {
    absl::MutexLock lock(&mutex_);
    bulk_stream_ = stream;
    bulk_peer_ = context->peer();
  }
  v1::StreamBulkRequest request;
  while (stream->Read(&request)) {
    absl::MutexLock lock(&mutex_);
    bulk_.push_back(request);
  }
  absl::MutexLock lock(&mutex_);
  if (bulk_stream_ == stream) bulk_stream_ = nullptr;
  return grpc::Status::OK;
}

}  // namespace takt::worker_rpc
