// SPDX-License-Identifier: Apache-2.0
// Tests agent and client with a coordinator in this process, over a real socket. The rank's work is
// a fake.
#include "worker/rpc/attachment_client.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "common/base/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/rpc/control_outbox.h"
#include "worker/rpc/coordinator_channels.h"
#include "worker/rpc/fake_coordinator.h"

namespace takt::worker_rpc {
namespace {

using ::testing::HasSubstr;
using v1::JobUpdate;

// Reports a number of steps, then ends or waits until it is stopped.
class StepsRunner final : public session::RankRunner {
 public:
  StepsRunner(int steps, bool ends) : steps_(steps), ends_(ends) {}
  absl::StatusOr<control::Resumed> Prepare() override {
    return control::Resumed{
        .step = StepId(0), .notes = {"step 40: damaged"}, .kernel_plan = "12 shapes"};
  }
  absl::StatusOr<session::RunEnd> Run(const std::function<void(session::Report)>& report) override {
    for (int step = 1; step <= steps_; ++step)
      report(control::RankStepReport{.step = StepId(step), .loss = 1.0 / step});
    if (ends_) return session::RunEnd::kLastStep;
    absl::MutexLock lock(&mutex_);
    const auto free = [this] { return stopped_ || halted_; };
    mutex_.Await(absl::Condition(&free));
    if (stopped_) return absl::AbortedError("stopped");
    report(control::CheckpointReport{.step = StepId(steps_),
                                     .files = {{"config.json", 12, std::string(32, 'a')}},
                                     .write_seconds = 2});
    return session::RunEnd::kHalted;
  }
  void Halt(bool) override {
    absl::MutexLock lock(&mutex_);
    halted_ = true;
  }
  void Stop(const absl::Status&) override {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
  }
  control::RankStatus Status() const override {
    return {.last_step = StepId(steps_),
            .instruction = "1F3",
            .waiting_for = "RECV 0F3 from pp rank 0"};
  }

 private:
  const int steps_;
  const bool ends_;
  absl::Mutex mutex_;
  bool halted_ = false;
  bool stopped_ = false;
};

// The smallest valid assignment: one emulated layer on one rank.
v1::AttachResponse Prepare() {
  v1::AttachResponse response;
  v1::Assignment& assignment = *response.mutable_prepare()->mutable_assignment();
  assignment.set_job("kjv");
  assignment.set_generation(1);
  v1::JobSpec& spec = *assignment.mutable_spec();
  spec.set_name("kjv");
  spec.set_steps(3);
  spec.mutable_batch()->set_global(1);
  spec.mutable_batch()->set_microbatch(1);
  spec.mutable_model()->set_family(v1::MODEL_FAMILY_EMULATED);
  spec.mutable_model()->set_layers(1);
  spec.mutable_model()->set_forward_ms(1);
  spec.mutable_model()->set_input_grad_ms(1);
  spec.mutable_model()->set_weight_grad_ms(1);
  spec.mutable_model()->set_activation_bytes(64);
  assignment.add_stages()->set_last_layer(1);
  assignment.mutable_binding()->set_pp_size(1);
  assignment.mutable_binding()->set_dp_size(1);
  assignment.mutable_binding()->set_secret(std::string(32, 's'));
  v1::Program& program = *assignment.mutable_program();
  program.set_version(1);
  program.set_pp_size(1);
  program.set_num_stages(1);
  program.set_num_microbatches(1);
  return response;
}

template <class Message>
void Name(Message* message) {
  message->set_job("kjv");
  message->set_generation(1);
}

v1::AttachResponse Start() {
  v1::AttachResponse response;
  Name(response.mutable_start());
  return response;
}
v1::AttachResponse Abort() {
  v1::AttachResponse response;
  Name(response.mutable_abort());
  response.mutable_abort()->set_reason("worker w2 died");
  return response;
}
v1::AttachResponse Halt() {
  v1::AttachResponse response;
  Name(response.mutable_halt());
  response.mutable_halt()->set_reason("paused");
  return response;
}
v1::AttachResponse Describe() {
  v1::AttachResponse response;
  Name(response.mutable_describe());
  response.mutable_describe()->set_whole(true);
  return response;
}
v1::AttachResponse Adopt() {
  v1::AttachResponse response;
  Name(response.mutable_adopt());
  return response;
}
v1::AttachResponse Acknowledge() {
  v1::AttachResponse response;
  Name(response.mutable_acknowledge());
  return response;
}

class AttachmentClientTest : public testing::Test {
 protected:
  // Starts a worker whose rank reports `steps` and then ends or runs on.
  void StartWorker(int steps, bool ends) { StartWorker(steps, ends, coordinator_.address()); }
  void StartWorker(int steps, bool ends, const std::string& coordinator) {
    agent_ = std::make_unique<session::Agent>(session::AgentOptions{
        .runner_factory =
            [=](control::Assignment) { return std::make_unique<StepsRunner>(steps, ends); },
        .commit =
            [](const control::CommitCheckpoint& request) {
              return absl::DataLossError(request.manifest);
            }});
    const ChannelOptions dialled{.coordinator = coordinator,
                                 .insecure = !coordinator.starts_with("unix:")};
    channels_ = CoordinatorChannels::Create(dialled).value();
    client_ = std::make_unique<AttachmentClient>(
        AttachmentOptions{
            .channels = channels_.get(),
            .hello = {.worker = "w0",
                      .incarnation = "life-1",
                      .cores = 2,
                      .device = Device{.uuid = "GPU-1", .numa_node = 0, .cudnn = "9.13.0"},
                      .has_nccl = true},
            .on_refused = [this](control::RefusalCause) { ++refused_; },
            .refused_backoff = absl::Milliseconds(10)},
        *agent_);
    thread_ = std::thread([this] { exit_code_ = agent_->Run(*client_); });
  }
  void StartRank() {
    coordinator_.Say(Prepare());
    const JobUpdate admitted = coordinator_.AwaitUpdate(JobUpdate::PHASE_ADMITTED);
    ASSERT_EQ(admitted.phase(), JobUpdate::PHASE_ADMITTED);
    EXPECT_THAT(admitted.notes(), testing::ElementsAre("step 40: damaged"));
    EXPECT_EQ(admitted.kernel_plan(), "12 shapes");
    coordinator_.Say(Start());
  }
  v1::CommandsRefused AwaitRefused() {
    return coordinator_
        .AwaitControl([](const v1::AttachRequest& request) { return request.has_refused(); })
        .refused();
  }
  v1::RankDescription AwaitDescription() {
    return coordinator_
        .AwaitControl([](const v1::AttachRequest& request) { return request.has_description(); })
        .description();
  }
  // The coordinator ends, and one of another life starts in its place.
  void BeginLife(const std::string& cluster_id, std::int64_t epoch) {
    coordinator_.Stop();
    coordinator_.Clear();
    coordinator_.SetLife(cluster_id, epoch);
    coordinator_.Start();
  }
  v1::Hello AwaitHello() {
    return coordinator_
        .AwaitControl([](const v1::AttachRequest& request) { return request.has_hello(); })
        .hello();
  }
  void TearDown() override {
    if (agent_ == nullptr) return;
    agent_->Leave();
    agent_->Leave();  // does not wait for the coordinator
    thread_.join();
    client_.reset();
  }

  FakeCoordinator coordinator_;
  std::unique_ptr<session::Agent> agent_;
  std::unique_ptr<CoordinatorChannels> channels_;
  std::unique_ptr<AttachmentClient> client_;
  std::thread thread_;
  std::atomic<int> refused_ = 0;
  int exit_code_ = -1;
};

TEST(NextBeat, IsTheSameForAllWorkersOfAHost) {
  const absl::Duration second = absl::Seconds(1);
  EXPECT_EQ(NextBeat(absl::Seconds(7), second), absl::Seconds(8));
  EXPECT_EQ(NextBeat(absl::Seconds(7.3), second), absl::Seconds(8));
  EXPECT_EQ(NextBeat(absl::Seconds(7.8), second), absl::Seconds(9));
  EXPECT_EQ(NextBeat(absl::Seconds(8.001), second), absl::Seconds(9));
}

TEST_F(AttachmentClientTest, SaysHelloWithVersionsAndHoldsNothing) {
  StartWorker(0, true);
  const v1::Hello hello = AwaitHello();
  EXPECT_EQ(hello.worker(), "w0");
  EXPECT_EQ(hello.incarnation(), "life-1");
  EXPECT_EQ(hello.protocol_version(), kProtocolVersion);
  EXPECT_EQ(hello.cores(), 2);
  EXPECT_EQ(hello.device().uuid(), "GPU-1");
  EXPECT_TRUE(hello.device().has_numa_node());
  EXPECT_EQ(hello.device().cudnn(), "9.13.0");
  EXPECT_TRUE(hello.has_nccl());
  EXPECT_FALSE(hello.has_running());
}

TEST_F(AttachmentClientTest, DialsTheNextCoordinatorIfOneDoesNotAnswer) {
  StartWorker(0, true, "unix:/nonexistent/socket," + coordinator_.address());
  EXPECT_EQ(AwaitHello().worker(), "w0");
}

// One connection would let a heartbeat wait behind the reports of a slow link.
TEST_F(AttachmentClientTest, ControlAndBulkHaveAConnectionEach) {
  StartWorker(0, true, coordinator_.tcp_address());
  const std::string bulk = coordinator_.AwaitBulkPeer();
  EXPECT_THAT(bulk, HasSubstr("127.0.0.1"));
  EXPECT_NE(bulk, coordinator_.ControlPeer());
}

TEST_F(AttachmentClientTest, RunsARankToItsAcknowledgedEnd) {
  StartWorker(3, true);
  StartRank();
  const auto bulk = coordinator_.AwaitBulk(4);
  ASSERT_EQ(bulk.size(), 4u);
  EXPECT_EQ(bulk[0].hello().incarnation(), "life-1");
  for (int step = 1; step <= 3; ++step) {
    EXPECT_EQ(bulk[step].step().step(), step);
    EXPECT_EQ(bulk[step].step().sequence(), step);
    EXPECT_EQ(bulk[step].step().loss(), 1.0 / step);
  }
  coordinator_.AcknowledgeReports(3);
  EXPECT_EQ(coordinator_.AwaitUpdate(JobUpdate::PHASE_FINISHED).status().last_step(), 3);
  coordinator_.Say(Acknowledge());
}

TEST_F(AttachmentClientTest, AHaltedRankReportsItsCheckpointAndThenItsEnd) {
  StartWorker(3, false);
  StartRank();
  coordinator_.Say(Halt());
  const auto bulk = coordinator_.AwaitBulk(5);
  ASSERT_EQ(bulk.size(), 5u);
  const v1::CheckpointReport& report = bulk[4].checkpoint();
  EXPECT_EQ(report.sequence(), 4);
  EXPECT_EQ(report.step(), 3);
  ASSERT_EQ(report.files_size(), 1);
  EXPECT_EQ(report.files(0).name(), "config.json");
  EXPECT_EQ(report.files(0).bytes(), 12);
  EXPECT_EQ(report.files(0).xxh3_128(), std::string(32, 'a'));
  EXPECT_EQ(report.write_seconds(), 2);
  EXPECT_EQ(report.error(), "");
  coordinator_.AcknowledgeReports(4);
  EXPECT_EQ(coordinator_.AwaitUpdate(JobUpdate::PHASE_HALTED).status().last_step(), 3);
}

TEST_F(AttachmentClientTest, TellsThatItLeavesAndGoesWithTheCoordinator) {
  StartWorker(3, false);
  StartRank();
  coordinator_.AwaitBulk(4);
  agent_->Leave();
  coordinator_.AwaitControl([](const v1::AttachRequest& request) { return request.has_leaving(); });
  coordinator_.Stop();
  thread_.join();
  EXPECT_EQ(exit_code_, session::kExitLeft);
  thread_ = std::thread([] {});
}

TEST_F(AttachmentClientTest, ACommitIsAnsweredThoughNothingIsHeld) {
  StartWorker(0, true);
  AwaitHello();
  v1::AttachResponse response;
  Name(response.mutable_commit());
  response.mutable_commit()->set_step(7);
  response.mutable_commit()->set_manifest("a manifest");
  coordinator_.Say(response);
  const v1::CheckpointCommitted committed =
      coordinator_
          .AwaitControl([](const v1::AttachRequest& request) { return request.has_committed(); })
          .committed();
  EXPECT_EQ(committed.job(), "kjv");
  EXPECT_EQ(committed.generation(), 1);
  EXPECT_EQ(committed.step(), 7);
  EXPECT_THAT(committed.error(), HasSubstr("a manifest"));
}

TEST_F(AttachmentClientTest, HeartbeatsCarryWhatTheRankWaitsFor) {
  coordinator_.SetHeartbeatSeconds(0.01);
  StartWorker(3, false);
  StartRank();
  const auto heartbeat = coordinator_.AwaitControl([](const v1::AttachRequest& request) {
    return request.has_heartbeat() && !request.heartbeat().job().empty();
  });
  EXPECT_EQ(heartbeat.heartbeat().job(), "kjv");
  EXPECT_EQ(heartbeat.heartbeat().status().instruction(), "1F3");
  EXPECT_EQ(heartbeat.heartbeat().status().waiting_for(), "RECV 0F3 from pp rank 0");
  EXPECT_EQ(heartbeat.heartbeat().status().worker(), "w0");
}

TEST_F(AttachmentClientTest, AbortIsAnsweredWithWhatTheRankWasWaitingFor) {
  StartWorker(3, false);
  StartRank();
  coordinator_.AwaitBulk(4);
  coordinator_.Say(Abort());
  const JobUpdate aborted = coordinator_.AwaitUpdate(JobUpdate::PHASE_ABORTED);
  EXPECT_EQ(aborted.status().waiting_for(), "RECV 0F3 from pp rank 0");
  EXPECT_THAT(aborted.error(), HasSubstr("worker w2 died"));
}

TEST_F(AttachmentClientTest, AWrongAssignmentIsRefused) {
  StartWorker(0, true);
  v1::AttachResponse wrong = Prepare();
  wrong.mutable_prepare()->mutable_assignment()->mutable_program()->set_num_microbatches(7);
  coordinator_.Say(wrong);
  const JobUpdate refused = coordinator_.AwaitUpdate(JobUpdate::PHASE_REFUSED);
  EXPECT_TRUE(refused.invalid_input());
  EXPECT_THAT(refused.error(), HasSubstr("7 microbatches"));
}

TEST_F(AttachmentClientTest, AfterARestartOfTheCoordinatorReportsComeAgainAndTrainingWentOn) {
  StartWorker(3, false);
  StartRank();
  coordinator_.AwaitBulk(4);
  coordinator_.AcknowledgeReports(1);
  coordinator_.Stop();
  coordinator_.Clear();
  coordinator_.Start();
  const v1::Hello hello = AwaitHello();
  EXPECT_EQ(hello.running().job(), "kjv");
  EXPECT_EQ(hello.running().generation(), 1);
  EXPECT_EQ(hello.running().last_step(), 3);
  auto bulk = coordinator_.AwaitBulk(3);
  ASSERT_GE(bulk.size(), 3u);
  EXPECT_TRUE(bulk[0].has_hello());
  // The acknowledgement may be lost with the connection. Then the first report comes again, too.
  if (bulk[1].step().sequence() == 1) bulk = coordinator_.AwaitBulk(4);
  EXPECT_EQ(bulk.back().step().sequence(), 3);
}

TEST_F(AttachmentClientTest, AnEndIsToldAgainUntilItIsAcknowledged) {
  StartWorker(0, true);
  StartRank();
  coordinator_.AwaitUpdate(JobUpdate::PHASE_FINISHED);
  coordinator_.Stop();
  coordinator_.Clear();
  coordinator_.Start();
  EXPECT_EQ(AwaitHello().running().job(), "kjv");
  EXPECT_EQ(coordinator_.AwaitUpdate(JobUpdate::PHASE_FINISHED).phase(), JobUpdate::PHASE_FINISHED);
}

TEST_F(AttachmentClientTest, TriesAgainWhileAnotherLifeHoldsTheName) {
  coordinator_.AnswerHello(
      grpc::Status(grpc::StatusCode::ABORTED, "w0 is held by another incarnation"));
  StartWorker(0, true);
  AwaitHello();
  coordinator_.AnswerHello(grpc::Status::OK);
  StartRank();
  EXPECT_EQ(coordinator_.AwaitUpdate(JobUpdate::PHASE_FINISHED).phase(), JobUpdate::PHASE_FINISHED);
}

TEST_F(AttachmentClientTest, ACoordinatorOfAFormerLifeIsRefusedAfterAReconnectionToo) {
  coordinator_.SetLife("a", 5);
  StartWorker(3, false);
  StartRank();
  coordinator_.AwaitBulk(4);
  BeginLife("a", 4);
  const v1::CommandsRefused refused = AwaitRefused();
  EXPECT_EQ(refused.cause(), v1::CommandsRefused::CAUSE_LATER_EPOCH);
  EXPECT_THAT(refused.reason(), HasSubstr("epoch 5"));
  EXPECT_THAT(client_->attachment().ToString(), HasSubstr("refused"));
  coordinator_.Say(Abort());
  // It comes after the Abort, and is answered.
  coordinator_.Say(Describe());
  EXPECT_EQ(AwaitDescription().epoch(), 5);
  EXPECT_EQ(refused_, 2);

  BeginLife("a", 6);
  EXPECT_EQ(coordinator_.AwaitBulk(4).size(), 4u);
  EXPECT_TRUE(client_->attachment().ok());
  coordinator_.Say(Abort());
  EXPECT_EQ(coordinator_.AwaitUpdate(JobUpdate::PHASE_ABORTED).phase(), JobUpdate::PHASE_ABORTED);
}

TEST_F(AttachmentClientTest, ARankOfAnotherClusterIsDescribedAndObeysOnceItIsAdopted) {
  coordinator_.SetLife("a", 5);
  StartWorker(3, true);
  StartRank();
  coordinator_.AwaitBulk(4);
  BeginLife("b", 1);
  const v1::Hello hello = AwaitHello();
  EXPECT_EQ(hello.running().cluster_id(), "a");
  EXPECT_TRUE(hello.running().describes());
  EXPECT_EQ(AwaitRefused().cause(), v1::CommandsRefused::CAUSE_OTHER_CLUSTER);
  coordinator_.Say(Abort());
  coordinator_.Say(Describe());
  const v1::RankDescription description = AwaitDescription();
  EXPECT_EQ(description.assignment_hash().size(), 32u);
  EXPECT_EQ(description.epoch(), 5);
  EXPECT_EQ(description.acknowledged_step(), 0);
  v1::Assignment assignment;
  ASSERT_TRUE(assignment.ParseFromString(description.assignment()));
  EXPECT_EQ(assignment.spec().name(), "kjv");
  EXPECT_FALSE(assignment.has_program());
  EXPECT_EQ(assignment.binding().secret(), "");

  coordinator_.Say(Adopt());
  const auto bulk = coordinator_.AwaitBulk(4);
  ASSERT_EQ(bulk.size(), 4u) << "all reports, which nobody has acknowledged";
  EXPECT_EQ(bulk[1].step().step(), 1);
  coordinator_.AcknowledgeReports(3);
  EXPECT_EQ(coordinator_.AwaitUpdate(JobUpdate::PHASE_FINISHED).phase(), JobUpdate::PHASE_FINISHED);
  coordinator_.Say(Acknowledge());
}

// A unit that ends by itself with a code that means "wrong setting" is not started again.
TEST_F(AttachmentClientTest, AnIdleWorkerThatIsRefusedForAMomentAsksAgain) {
  for (const grpc::StatusCode refusal :
       {grpc::StatusCode::FAILED_PRECONDITION, grpc::StatusCode::PERMISSION_DENIED,
        grpc::StatusCode::UNAUTHENTICATED}) {
    coordinator_.AnswerHello(grpc::Status(refusal, "not now"));
    if (agent_ == nullptr) StartWorker(0, true);
    AwaitHello();
    coordinator_.Clear();
    AwaitHello();
    coordinator_.Clear();
  }
  coordinator_.AnswerHello(grpc::Status::OK);
  StartRank();
  EXPECT_EQ(coordinator_.AwaitUpdate(JobUpdate::PHASE_FINISHED).phase(), JobUpdate::PHASE_FINISHED);
}

}  // namespace
}  // namespace takt::worker_rpc
