// SPDX-License-Identifier: Apache-2.0
// A coordinator for tests. It serves one worker at a time on a Unix socket in a directory of its
// own, and on a TCP port, keeps all messages that come, and sends what the test tells it to send.
// It can be stopped and started again on the same socket, but on another port.
#pragma once

#include <grpcpp/server.h>

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "takt/v1/attachment_service.grpc.pb.h"

namespace takt::worker_rpc {

class FakeCoordinator final : public v1::AttachmentService::Service {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(60);

  FakeCoordinator();
  ~FakeCoordinator() override;

  std::string address() const { return "unix:" + directory_ + "/socket"; }
  std::string tcp_address() const { return "127.0.0.1:" + std::to_string(port_); }
  void Start();
  // Acts as if the process died: streams break.
  void Stop();

  // Sets the answer to the next hellos; OK welcomes the worker.
  void AnswerHello(grpc::Status status);
  void SetHeartbeatSeconds(double seconds) { heartbeat_seconds_ = seconds; }
  // Sets what is part of the next welcomes; the epoch is part of all commands. Call this while it
  // is stopped, or before a worker dials.
  void SetLife(std::string cluster_id, std::int64_t epoch) {
    cluster_id_ = std::move(cluster_id);
    epoch_ = epoch;
  }
  // Sends `response` on the control stream that is up.
  void Say(v1::AttachResponse response);
  void AcknowledgeReports(std::int64_t sequence);

  // Waits until a message for which `wanted` is true has come, and returns the first such message.
  v1::AttachRequest AwaitControl(const std::function<bool(const v1::AttachRequest&)>& wanted);
  v1::JobUpdate AwaitUpdate(v1::JobUpdate::Phase phase);
  std::vector<v1::StreamBulkRequest> AwaitBulk(std::size_t count);
  // Waits for a bulk stream, and returns the other end of its connection.
  std::string AwaitBulkPeer();
  // Returns the other end of the connection of the last control stream.
  std::string ControlPeer();
  // Forgets the messages that came.
  void Clear();

  grpc::Status Attach(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::AttachResponse, v1::AttachRequest>* stream) override;
  grpc::Status StreamBulk(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::StreamBulkResponse, v1::StreamBulkRequest>* stream) override;

 private:
  std::string directory_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  double heartbeat_seconds_ = 3600;
  std::string cluster_id_;
  std::int64_t epoch_ = 0;

  absl::Mutex mutex_;
  grpc::Status hello_answer_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::AttachRequest> control_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::StreamBulkRequest> bulk_ ABSL_GUARDED_BY(mutex_);
  std::string control_peer_ ABSL_GUARDED_BY(mutex_), bulk_peer_ ABSL_GUARDED_BY(mutex_);
  grpc::ServerReaderWriter<v1::AttachResponse, v1::AttachRequest>* control_stream_
      ABSL_GUARDED_BY(mutex_) = nullptr;
  grpc::ServerReaderWriter<v1::StreamBulkResponse, v1::StreamBulkRequest>* bulk_stream_
      ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace takt::worker_rpc
