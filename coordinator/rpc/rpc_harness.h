// SPDX-License-Identifier: Apache-2.0
// For tests: a coordinator with its server on a Unix socket and its state on disk. The test plays
// the workers over real streams. Every wait ends with what it waits for or with the call's
// deadline. Nothing sleeps.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/version.h"
#include "coordinator/job/coordinator.h"
#include "coordinator/rpc/server.h"
#include "coordinator/store/store.h"
#include "gtest/gtest.h"
#include "takt/v1/attachment_service.grpc.pb.h"
#include "takt/v1/cluster_service.grpc.pb.h"
#include "takt/v1/job_service.grpc.pb.h"
#include "takt/v1/rendezvous_service.grpc.pb.h"

namespace takt::coordinator_rpc {

// A context whose call ends by itself if a test hangs.
std::unique_ptr<grpc::ClientContext> NewContext();

// One worker's two streams. One thread.
class RpcWorker final {
 public:
  RpcWorker(std::shared_ptr<grpc::Channel> channel, std::string name,
            std::string incarnation = "a");
  ~RpcWorker();

  // Sends the hello and, if the coordinator accepts it, reads the welcome. Otherwise the stream's
  // end.
  grpc::Status Attach(int protocol_version = kProtocolVersion,
                      const v1::RunningJob* running = nullptr);
  // Returns the next command. Fails the test if the stream ends.
  v1::AttachResponse Read();
  v1::Assignment ReadPrepare();
  void Say(v1::JobUpdate::Phase phase, const std::string& error = "", bool invalid_input = false,
           const std::string& waiting_for = "");
  // Opens the bulk stream at the first use.
  void Report(std::int64_t step, double loss = 1);
  void WriteLog(const std::string& text);
  // Reads acknowledgements until this one.
  void AwaitAcknowledged(std::int64_t sequence);
  // Cuts both streams, as when the process dies.
  void Die();

  // These come from the last ReadPrepare, or are set by the test.
  std::string job;
  std::int64_t generation = 0;
  int rank = 0;

 private:
  void OpenBulk();

  const std::string name_, incarnation_;
  const std::unique_ptr<v1::AttachmentService::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_, bulk_context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AttachRequest, v1::AttachResponse>> stream_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::StreamBulkRequest, v1::StreamBulkResponse>> bulk_;
};

// Plays the relay of a host, with one control stream for all of its workers. It is used by one
// thread. The test chooses the number of each worker's stream.
class RpcHost final {
 public:
  // Begins the stream and reads the coordinator's answer.
  explicit RpcHost(const std::shared_ptr<grpc::Channel>& channel);
  ~RpcHost() { Die(); }

  static v1::AttachRequest HelloOf(const std::string& worker,
                                   int protocol_version = kProtocolVersion);
  // Sends the messages in one frame, each to the stream of its number.
  void Say(const std::map<std::int64_t, v1::AttachRequest>& messages);
  void End(std::int64_t stream);
  // Returns the next message to the stream of a worker. Fails the test if the stream ends.
  v1::AttachResponse Read(std::int64_t stream);
  // Returns whether a frame that was read already has the next message to that stream.
  bool Has(std::int64_t stream) const;
  // Returns how the stream of a worker ends.
  v1::StreamEnd ReadEnd(std::int64_t stream);
  // Returns how the stream of the host ends.
  grpc::Status Finish();
  // Cuts the stream, as when the relay dies.
  void Die();

 private:
  v1::StreamPart ReadPart(std::int64_t stream);

  const std::unique_ptr<v1::AttachmentService::Stub> stub_;
  const std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::HostFrame, v1::HostFrame>> stream_;
  std::map<std::int64_t, std::deque<v1::StreamPart>> parts_;  // by stream: not read by the test yet
};

class RpcTest : public ::testing::Test {
 protected:
  RpcTest();
  ~RpcTest() override;

  // Ends the coordinator, which leaves its state as a crash would, and starts one on the same
  // state.
  void Restart();
  void StopServer();

  std::unique_ptr<RpcWorker> Attach(const std::string& name);
  // Returns an emulated job.
  static v1::JobSpec Spec(const std::string& name, int pipeline, std::int64_t steps = 2);
  absl::StatusOr<v1::Job> Submit(const v1::JobSpec& spec, const std::string& request_id = "");
  v1::Job Get(const std::string& name);
  // Returns what a watch shows until it ends.
  struct Watched {
    std::vector<v1::Job> jobs;
    std::vector<v1::StepReport> steps;
    std::vector<v1::StepSplit> splits;
    grpc::Status status;
  };
  Watched Watch(const std::string& name, std::int64_t after = 0);
  // Reads until the job is in `state`.
  void AwaitState(const std::string& name, v1::JobState state);
  // Attaches the workers w0.., submits the job and admits all. Returns the workers by rank.
  std::vector<std::unique_ptr<RpcWorker>> RunJob(const std::string& name, int pipeline,
                                                 std::int64_t steps = 2);

  job::CoordinatorOptions options_;  // of the next Restart
  Backups::OpenBackup open_backup_;  // of the next Restart
  std::string dir_;
  std::unique_ptr<store::Store> store_;
  std::unique_ptr<job::Coordinator> coordinator_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::ClusterService::Stub> cluster_;
  std::unique_ptr<v1::RendezvousService::Stub> rendezvous_;
};

}  // namespace takt::coordinator_rpc
