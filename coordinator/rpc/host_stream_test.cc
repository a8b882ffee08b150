// SPDX-License-Identifier: Apache-2.0
// Tests the workers of a host, whose streams share one connection, against a coordinator.
#include "coordinator/rpc/rpc_harness.h"
#include "gmock/gmock.h"
#include "proto/host_frame.h"

namespace takt::coordinator_rpc {
namespace {

using ::testing::HasSubstr;

class HostStreamTest : public RpcTest {
 protected:
  // Attaches the workers w0 and w1, on the streams 1 and 2.
  static void AttachBoth(RpcHost& host) {
    host.Say({{1, RpcHost::HelloOf("w0")}, {2, RpcHost::HelloOf("w1")}});
    EXPECT_TRUE(host.Read(1).has_welcome());
    EXPECT_TRUE(host.Read(2).has_welcome());
  }
  // Returns what the worker of a rank of job j answers.
  static v1::AttachRequest UpdateOf(int rank, v1::JobUpdate::Phase phase) {
    v1::AttachRequest request;
    v1::JobUpdate& update = *request.mutable_update();
    update.set_job("j");
    update.set_generation(1);
    update.set_rank(rank);
    update.set_phase(phase);
    return request;
  }
  // Both workers take their ranks of job j and train.
  void Train(RpcHost& host, std::int64_t steps) {
    ASSERT_TRUE(Submit(Spec("j", 2, steps)).ok());
    EXPECT_EQ(host.Read(1).prepare().assignment().rank(), 0);
    EXPECT_EQ(host.Read(2).prepare().assignment().rank(), 1);
    host.Say({{1, UpdateOf(0, v1::JobUpdate::PHASE_ADMITTED)},
              {2, UpdateOf(1, v1::JobUpdate::PHASE_ADMITTED)}});
    EXPECT_TRUE(host.Read(1).has_start());
    EXPECT_TRUE(host.Has(2)) << "what a round tells the workers of a host comes in one frame";
    EXPECT_TRUE(host.Read(2).has_start());
  }
  static v1::StreamPart BulkPart(std::int64_t stream, const v1::StreamBulkRequest& request) {
    return FrameOf(stream, request.SerializeAsString()).parts(0);
  }
  static v1::StreamPart BulkHelloOf(std::int64_t stream, const std::string& worker) {
    v1::StreamBulkRequest request;
    request.mutable_hello()->set_worker(worker);
    request.mutable_hello()->set_incarnation("a");
    return BulkPart(stream, request);
  }
  static v1::StreamPart ReportOf(std::int64_t stream, int rank, std::int64_t step) {
    v1::StreamBulkRequest request;
    v1::RankStepReport& report = *request.mutable_step();
    report.set_job("j");
    report.set_generation(1);
    report.set_rank(rank);
    report.set_sequence(step);
    report.set_step(step);
    report.set_loss(1.0 / static_cast<double>(step));
    report.set_tokens(32);
    report.set_step_seconds(0.5);
    report.set_busy_seconds(0.25);
    return BulkPart(stream, request);
  }
};

using BulkWriter = grpc::ClientReaderWriter<v1::HostFrame, v1::HostFrame>;

// Reads acknowledgements until those of both streams are at `sequence`.
void AwaitAcknowledged(BulkWriter& bulk, std::int64_t sequence) {
  std::map<std::int64_t, std::int64_t> acknowledged = {{1, 0}, {2, 0}};
  v1::HostFrame frame;
  while (acknowledged[1] < sequence || acknowledged[2] < sequence) {
    ASSERT_TRUE(bulk.Read(&frame)) << "the host's bulk stream ended";
    for (const v1::StreamPart& part : frame.parts()) {
      v1::StreamBulkResponse response;
      ASSERT_TRUE(response.ParseFromString(part.message()));
      EXPECT_EQ(response.job(), "j");
      acknowledged[part.stream()] = response.acknowledged_sequence();
    }
  }
}

TEST_F(HostStreamTest, AJobRunsToItsEndOnOneConnection) {
  RpcHost host(channel_);
  AttachBoth(host);
  Train(host, 3);
  const auto stub = v1::AttachmentService::NewStub(channel_);
  const auto context = NewContext();
  const auto bulk = stub->StreamHostBulk(context.get());
  v1::HostFrame frame;
  *frame.add_parts() = BulkHelloOf(1, "w0");
  *frame.add_parts() = BulkHelloOf(2, "w1");
  for (int step = 1; step <= 3; ++step) {
    *frame.add_parts() = ReportOf(1, 0, step);
    *frame.add_parts() = ReportOf(2, 1, step);
  }
  ASSERT_TRUE(bulk->Write(frame)) << "two hellos and six reports in one frame";
  AwaitAcknowledged(*bulk, 3);
  host.Say({{1, UpdateOf(0, v1::JobUpdate::PHASE_FINISHED)},
            {2, UpdateOf(1, v1::JobUpdate::PHASE_FINISHED)}});
  EXPECT_TRUE(host.Read(1).has_acknowledge());
  EXPECT_TRUE(host.Read(2).has_acknowledge());
  EXPECT_EQ(Get("j").state(), v1::JOB_STATE_SUCCEEDED);
  context->TryCancel();
  bulk->Finish().ok();
}

TEST_F(HostStreamTest, ARefusedWorkerDisturbsNoOtherOne) {
  RpcHost host(channel_);
  host.Say({{1, RpcHost::HelloOf("w0", kProtocolVersion + 1)}, {2, RpcHost::HelloOf("w1")}});
  EXPECT_TRUE(host.Read(2).has_welcome());
  const v1::StreamEnd end = host.ReadEnd(1);
  EXPECT_EQ(end.code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(end.message(), HasSubstr("worker w0 speaks protocol version"));
  v1::AttachRequest heartbeat;
  heartbeat.mutable_heartbeat();
  host.Say({{3, heartbeat}});
  EXPECT_EQ(host.ReadEnd(3).code(), grpc::StatusCode::INVALID_ARGUMENT)
      << "a stream begins with a Hello";
  // What comes after the end is ignored. The number of a stream is over when the relay says so.
  host.Say({{3, RpcHost::HelloOf("w0")}, {4, RpcHost::HelloOf("w0")}});
  EXPECT_TRUE(host.Read(4).has_welcome());
  host.End(3);
  host.End(4);
  host.Say({{5, RpcHost::HelloOf("w0")}});
  EXPECT_TRUE(host.Read(5).has_welcome());
}

TEST_F(HostStreamTest, WorkersOfARelayThatDiesComeBackOnConnectionsOfTheirOwn) {
  RpcHost host(channel_);
  AttachBoth(host);
  Train(host, 100);
  host.Die();
  std::vector<std::unique_ptr<RpcWorker>> workers;
  for (int rank = 0; rank < 2; ++rank) {
    workers.push_back(std::make_unique<RpcWorker>(channel_, rank == 0 ? "w0" : "w1"));
    v1::RunningJob running;
    running.set_job("j");
    running.set_generation(1);
    running.set_rank(rank);
    ASSERT_TRUE(workers.back()->Attach(kProtocolVersion, &running).ok());
  }
  EXPECT_EQ(Get("j").state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Get("j").generation(), 1);
}

TEST_F(HostStreamTest, AWorkerWhoseStreamEndsIsLostAndTheOthersAreTold) {
  RpcHost host(channel_);
  AttachBoth(host);
  Train(host, 100);
  host.End(2);
  const v1::AttachResponse abort = host.Read(1);
  ASSERT_TRUE(abort.has_abort()) << abort.ShortDebugString();
  EXPECT_THAT(abort.abort().reason(), HasSubstr("worker w1 (rank 1) lost"));
}

TEST_F(HostStreamTest, ABulkStreamOfAWorkerThatIsNotAttachedIsRefused) {
  const auto stub = v1::AttachmentService::NewStub(channel_);
  const auto context = NewContext();
  const auto bulk = stub->StreamHostBulk(context.get());
  v1::HostFrame frame;
  *frame.add_parts() = BulkHelloOf(1, "ghost");
  ASSERT_TRUE(bulk->Write(frame));
  v1::HostFrame answer;
  do {
    ASSERT_TRUE(bulk->Read(&answer));
  } while (answer.parts_size() == 0);
  EXPECT_EQ(answer.parts(0).stream(), 1);
  EXPECT_EQ(answer.parts(0).end().code(), grpc::StatusCode::FAILED_PRECONDITION);
  context->TryCancel();
  bulk->Finish().ok();
}

TEST_F(HostStreamTest, APartThatIsNoMessageEndsTheStreamOfTheHost) {
  RpcHost host(channel_);
  AttachBoth(host);
  const auto stub = v1::AttachmentService::NewStub(channel_);
  const auto context = NewContext();
  const auto control = stub->AttachHost(context.get());
  ASSERT_TRUE(control->Write(FrameOf(1, "not a message")));
  v1::HostFrame answer;
  while (control->Read(&answer)) {
  }
  EXPECT_EQ(control->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(HostStreamTest, AHostHasABoundedNumberOfStreams) {
  RpcHost host(channel_);
  std::map<std::int64_t, v1::AttachRequest> hellos;
  for (int stream = 0; stream <= static_cast<int>(kMaxHostStreams); ++stream)
    hellos[stream] = RpcHost::HelloOf("w0", kProtocolVersion + 1);
  host.Say(hellos);
  EXPECT_EQ(host.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

}  // namespace
}  // namespace takt::coordinator_rpc
