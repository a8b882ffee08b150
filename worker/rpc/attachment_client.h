// SPDX-License-Identifier: Apache-2.0
// The worker's two streams to the coordinator (takt.v1.AttachmentService). The client turns
// commands into calls of the agent and sends what the agent reports. It decides nothing.
//
// The streams have a connection each. On a slow link, reports and log lines fill the buffers of
// their own connection, and heartbeats pass beside them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/control/attachment.h"
#include "takt/v1/attachment_service.grpc.pb.h"
#include "worker/rpc/control_outbox.h"
#include "worker/rpc/coordinator_channels.h"
#include "worker/rpc/reconnecting_stream.h"
#include "worker/rpc/relay_watch.h"
#include "worker/rpc/trouble.h"
#include "worker/session/agent.h"
#include "worker/session/command_fence.h"

namespace takt::worker_rpc {

struct AttachmentOptions {
  CoordinatorChannels* channels = nullptr;  // borrowed for the client's life
  // The worker describes itself with it. The client fills in the versions, and what is running.
  control::Hello hello;
  std::function<void()> on_attached;  // called at every attachment; may be empty
  // Returns OK if the relay of the host would take this worker. It may block for seconds. The
  // client calls it about this often while the worker is attached without the relay. A worker for
  // which the relay's certificate may not speak never goes back: it would be refused each time.
  std::function<absl::Status()> ask_relay;
  absl::Duration ask_relay_every = absl::Seconds(30);
  // Called for every command of a coordinator that is refused, the welcome among them; may be
  // empty.
  std::function<void(control::RefusalCause)> on_refused;
  // A coordinator that has another version, or does not let this worker in, is asked again only
  // after this time. What it refuses may change: it is upgraded, a certificate is renewed, or a GPU
  // is no longer another worker's.
  absl::Duration refused_backoff = absl::Seconds(10);
};

// Thread-safe. It connects, again and again, until it is destroyed. Training goes on while the
// coordinator is away.
class AttachmentClient final : public session::CoordinatorLink {
 public:
  // agent: borrowed for the client's life.
  AttachmentClient(AttachmentOptions options, session::Agent& agent);
  // Waits up to a second for the last messages to be sent.
  ~AttachmentClient() override;

  void Send(const control::JobUpdate& update) override;
  void Send(const control::CheckpointCommitted& answer) override;
  void Send(const control::RankDescription& description) override;
  bool SendLeaving(const std::string& reason) override;
  void SendHeartbeat() override { outbox_.HeartbeatNow(); }

  // Returns OK while attached, and otherwise why not.
  absl::Status attachment() const;

 private:
  using ControlStream = ReconnectingStream<v1::AttachRequest, v1::AttachResponse>;
  using BulkStream = ReconnectingStream<v1::StreamBulkRequest, v1::StreamBulkResponse>;

  ControlStream::Hooks ControlHooks();
  BulkStream::Hooks BulkHooks();
  control::Hello Hello();
  control::Heartbeat Heartbeat() const;
  // Adds the rank and the worker's name to a status of the agent.
  control::RankStatus Signed(control::RankStatus status, Rank rank) const;
  void OnWelcome(const control::Welcome& welcome, std::int64_t epoch);
  void OnCommand(std::int64_t epoch, control::Command command);
  void OnAdopt(const control::Adopt& adopt);
  void Obey(control::Command command);
  void WatchRelay();
  void CountRefused(control::RefusalCause cause) const;
  absl::Duration OnControlEnd(const absl::Status& end);
  void SetAttachment(absl::Status status);

  const AttachmentOptions options_;
  session::Agent& agent_;
  // Of the coordinator that was dialled last; each is used by the thread of its stream.
  std::unique_ptr<v1::AttachmentService::Stub> control_stub_, bulk_stub_;
  ControlOutbox outbox_;
  // Only the control stream's thread uses these two.
  Trouble trouble_;
  session::CommandFence fence_;
  std::atomic<bool> obeys_ = true;                            // the coordinator of the last welcome
  std::atomic<bool> relay_refuses_ = false;                   // it may not speak for this worker
  std::atomic<const grpc::Channel*> bulk_channel_ = nullptr;  // that the bulk stream took last
  mutable absl::Mutex mutex_;
  absl::Status attachment_ ABSL_GUARDED_BY(mutex_) =
      absl::UnavailableError("not attached: no answer from the coordinator yet");
  // They are last, and stopped in this order, because their threads use everything above.
  std::unique_ptr<BulkStream> bulk_;
  std::unique_ptr<ControlStream> control_;
  std::unique_ptr<RelayWatch> relay_watch_;  // last: it uses the streams. Null without a relay
};

}  // namespace takt::worker_rpc
