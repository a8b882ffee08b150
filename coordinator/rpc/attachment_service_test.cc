// SPDX-License-Identifier: Apache-2.0
// Tests workers against a coordinator, over real streams.
#include "coordinator/rpc/rpc_harness.h"
#include "gmock/gmock.h"

namespace takt::coordinator_rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::vector<std::int64_t> StepsOf(const std::vector<v1::StepReport>& reports) {
  std::vector<std::int64_t> steps;
  for (const v1::StepReport& report : reports) steps.push_back(report.step());
  return steps;
}

TEST_F(RpcTest, RanksMeetAsTheOldestOfTheirWorkersCan) {
  for (const int oldest : {kSparseProtocolVersion - 1, kPlainSocketsProtocolVersion - 1,
                           kSharingChainsProtocolVersion - 1}) {
    SCOPED_TRACE(oldest);
    const std::string name = absl::StrCat("j", oldest);
    RpcWorker w0(channel_, absl::StrCat("new", oldest)), w1(channel_, absl::StrCat("old", oldest));
    ASSERT_TRUE(w0.Attach().ok());
    ASSERT_TRUE(w1.Attach(oldest).ok());
    ASSERT_TRUE(Submit(Spec(name, 2, 3)).ok());
    const bool sparse = oldest >= kSparseProtocolVersion;
    for (RpcWorker* const worker : {&w0, &w1}) {
      const v1::Assignment assignment = worker->ReadPrepare();
      EXPECT_EQ(assignment.binding().sparse_meeting(), sparse);
      EXPECT_THAT(assignment.binding().ranks(), SizeIs(sparse ? 0 : 2));
      EXPECT_EQ(assignment.binding().plain_sockets(), oldest >= kPlainSocketsProtocolVersion);
      EXPECT_FALSE(assignment.binding().sharing_chains());
    }
  }
}

TEST_F(RpcTest, AJobRunsToItsEndOverTheWire) {
  const auto w0 = Attach("w0");
  const auto w1 = Attach("w1");
  ASSERT_TRUE(Submit(Spec("j", 2, 3)).ok());
  const v1::Assignment assignment = w0->ReadPrepare();
  EXPECT_EQ(assignment.rank(), 0);
  EXPECT_EQ(assignment.spec().name(), "j");
  EXPECT_EQ(assignment.program().pp_rank(), 0);
  EXPECT_GT(assignment.program().body_size(), 0);
  EXPECT_THAT(assignment.stages(), SizeIs(2));
  EXPECT_TRUE(assignment.binding().sparse_meeting());
  EXPECT_TRUE(assignment.binding().plain_sockets());
  EXPECT_TRUE(assignment.binding().sharing_chains());
  EXPECT_THAT(assignment.binding().ranks(), SizeIs(0)) << "an assignment does not grow with ranks";
  EXPECT_EQ(assignment.binding().secret().size(), 32u);
  EXPECT_EQ(assignment.binding().device(), v1::DEVICE_KIND_CPU);
  EXPECT_GT(assignment.predicted_step_seconds(), 0);
  EXPECT_EQ(w1->ReadPrepare().program().pp_rank(), 1);
  w0->Say(v1::JobUpdate::PHASE_ADMITTED);
  w1->Say(v1::JobUpdate::PHASE_ADMITTED);
  EXPECT_TRUE(w0->Read().has_start());
  EXPECT_TRUE(w1->Read().has_start());
  for (int step = 1; step <= 3; ++step) {
    w0->Report(step, 1.0 / step);
    w1->Report(step);
  }
  w0->AwaitAcknowledged(3);
  w1->AwaitAcknowledged(3);
  w0->Say(v1::JobUpdate::PHASE_FINISHED);
  w1->Say(v1::JobUpdate::PHASE_FINISHED);
  EXPECT_TRUE(w0->Read().has_acknowledge());
  EXPECT_TRUE(w1->Read().has_acknowledge());

  const Watched watched = Watch("j");
  EXPECT_TRUE(watched.status.ok());
  EXPECT_THAT(StepsOf(watched.steps), ElementsAre(1, 2, 3));
  EXPECT_EQ(watched.steps[2].loss(), 1.0 / 3);
  EXPECT_EQ(watched.steps[2].tokens_per_second(), 64);
  EXPECT_EQ(watched.steps[2].schedule(), "1f1b");
  EXPECT_THAT(watched.steps[2].bubble_by_pp_rank(), ElementsAre(0.5, 0.5));
  EXPECT_EQ(watched.jobs.back().state(), v1::JOB_STATE_SUCCEEDED);
}

TEST_F(RpcTest, ADyingWorkerFailsTheJobAndFreesTheOther) {
  auto workers = RunJob("j", 2, 100);
  workers[1]->Die();
  const v1::AttachResponse abort = workers[0]->Read();
  ASSERT_TRUE(abort.has_abort());
  EXPECT_THAT(abort.abort().reason(), HasSubstr("worker w1 (rank 1) lost"));
  workers[0]->Say(v1::JobUpdate::PHASE_ABORTED, "", false, "RECV 1B0 from pp rank 1");
  EXPECT_TRUE(workers[0]->Read().has_acknowledge());
  const v1::Job job = Get("j");
  EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
  EXPECT_FALSE(job.invalid_input());
  EXPECT_THAT(job.reason(), HasSubstr("rank 0 (w0) was waiting for RECV 1B0 from pp rank 1"));
  EXPECT_THAT(job.fault(), SizeIs(2));
  // The survivor takes the next job.
  ASSERT_TRUE(Submit(Spec("k", 1)).ok());
  EXPECT_EQ(workers[0]->ReadPrepare().job(), "k");
}

TEST_F(RpcTest, ARefusedJobEndsAsInvalidInput) {
  const auto worker = Attach("w0");
  ASSERT_TRUE(Submit(Spec("j", 1)).ok());
  worker->ReadPrepare();
  worker->Say(v1::JobUpdate::PHASE_REFUSED, "data.train[0].path is /x: no such file",
              /*invalid_input=*/true);
  EXPECT_TRUE(worker->Read().has_acknowledge());
  const v1::Job job = Get("j");
  EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
  EXPECT_TRUE(job.invalid_input());
  EXPECT_THAT(job.reason(), HasSubstr("no such file"));
}

TEST_F(RpcTest, ARestartedCoordinatorPicksTheJobUpAndCommitsEachStepOnce) {
  {
    auto workers = RunJob("j", 2, 4);
    for (const auto& worker : workers) worker->Report(1, 0.5);
    for (const auto& worker : workers) worker->AwaitAcknowledged(1);
    Restart();
  }
  std::vector<std::unique_ptr<RpcWorker>> workers;
  for (int rank = 0; rank < 2; ++rank) {
    workers.push_back(std::make_unique<RpcWorker>(channel_, rank == 0 ? "w0" : "w1"));
    v1::RunningJob running;
    running.set_job("j");
    running.set_generation(1);
    running.set_rank(rank);
    ASSERT_TRUE(workers[rank]->Attach(kProtocolVersion, &running).ok());
    workers[rank]->job = "j";
    workers[rank]->generation = 1;
    workers[rank]->rank = rank;
  }
  // The first step comes again, as if its acknowledgement had been lost.
  for (int step = 1; step <= 4; ++step) {
    for (const auto& worker : workers) worker->Report(step, 0.5);
  }
  for (const auto& worker : workers) worker->AwaitAcknowledged(4);
  for (const auto& worker : workers) worker->Say(v1::JobUpdate::PHASE_FINISHED);
  for (const auto& worker : workers) EXPECT_TRUE(worker->Read().has_acknowledge());
  const Watched watched = Watch("j");
  EXPECT_THAT(StepsOf(watched.steps), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(watched.jobs.back().state(), v1::JOB_STATE_SUCCEEDED);
}

TEST_F(RpcTest, StoppingTheCoordinatorEndsNoJob) {
  const auto workers = RunJob("j", 1, 100);
  Restart();
  EXPECT_EQ(Get("j").state(), v1::JOB_STATE_RUNNING);
}

TEST_F(RpcTest, AWorkerOfAnotherProtocolIsRefusedWithBothVersions) {
  for (const int version : {kOldestProtocolVersion - 1, kProtocolVersion + 1}) {
    RpcWorker worker(channel_, "w0");
    const grpc::Status status = worker.Attach(version);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(status.error_message(),
                HasSubstr(absl::StrCat("worker w0 speaks protocol version ", version,
                                       ", this coordinator speaks version ", kProtocolVersion)));
  }
}

TEST_F(RpcTest, ASecondIncarnationOfALivingNameIsRefused) {
  const auto first = Attach("w0");
  RpcWorker second(channel_, "w0", "b");
  EXPECT_EQ(second.Attach().error_code(), grpc::StatusCode::ABORTED);
}

TEST_F(RpcTest, AStreamThatDoesNotBeginWithAHelloIsRefused) {
  const auto stub = v1::AttachmentService::NewStub(channel_);
  const auto context = NewContext();
  const auto stream = stub->Attach(context.get());
  v1::AttachRequest request;
  request.mutable_heartbeat();
  ASSERT_TRUE(stream->Write(request));
  v1::AttachResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(RpcTest, ABulkStreamOfAWorkerThatIsNotAttachedIsRefused) {
  const auto stub = v1::AttachmentService::NewStub(channel_);
  const auto context = NewContext();
  const auto stream = stub->StreamBulk(context.get());
  v1::StreamBulkRequest request;
  request.mutable_hello()->set_worker("ghost");
  request.mutable_hello()->set_incarnation("a");
  ASSERT_TRUE(stream->Write(request));
  v1::StreamBulkResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(RpcTest, WorkersAreListedWithWhatTheyAreHeldFor) {
  const auto workers = RunJob("j", 2);
  v1::ListWorkersResponse response;
  ASSERT_TRUE(cluster_->ListWorkers(NewContext().get(), {}, &response).ok());
  ASSERT_THAT(response.workers(), SizeIs(2));
  EXPECT_EQ(response.workers(1).name(), "w1");
  EXPECT_EQ(response.workers(1).state(), v1::WORKER_STATE_BUSY);
  EXPECT_EQ(response.workers(1).job(), "j");
  EXPECT_EQ(response.workers(1).rank(), 1);
}

TEST_F(RpcTest, WorkersAreListedWithTheGpuThatTheyTellOf) {
  const auto stub = v1::AttachmentService::NewStub(channel_);
  const auto context = NewContext();
  const auto stream = stub->Attach(context.get());
  v1::AttachRequest request;
  v1::Hello& hello = *request.mutable_hello();
  hello.set_worker("gpu");
  hello.set_incarnation("a");
  hello.set_protocol_version(kProtocolVersion);
  v1::Device& device = *hello.mutable_device();
  device.set_kind(v1::DEVICE_KIND_CUDA);
  device.set_index(1);
  device.set_name("NVIDIA H200");
  device.set_uuid("GPU-1");
  device.set_memory_bytes(150'000'000'000);
  device.set_compute_capability("9.0");
  device.set_driver_version("13.0");
  device.set_pci_bus_id("0000:17:00.0");
  device.set_numa_node(0);
  device.set_matmul_flops_per_second(5e14);
  device.set_bf16_matmul_flops_per_second(9e14);
  device.set_shared(true);
  hello.set_has_nccl(true);
  hello.set_processor("AMD EPYC 9B14");
  hello.set_threads(3);
  ASSERT_TRUE(stream->Write(request));
  v1::AttachResponse welcome;
  ASSERT_TRUE(stream->Read(&welcome));

  v1::ListWorkersResponse response;
  ASSERT_TRUE(cluster_->ListWorkers(NewContext().get(), {}, &response).ok());
  ASSERT_THAT(response.workers(), SizeIs(1));
  EXPECT_EQ(response.workers(0).device().SerializeAsString(), device.SerializeAsString());
  EXPECT_TRUE(response.workers(0).has_nccl());
  EXPECT_EQ(response.workers(0).processor(), "AMD EPYC 9B14");
  EXPECT_EQ(response.workers(0).threads(), 3);
  context->TryCancel();
}

TEST_F(RpcTest, RendezvousBelongsToTheLiveGeneration) {
  const auto workers = RunJob("j", 1);
  v1::SetKeyRequest set;
  set.mutable_scope()->set_job("j");
  set.mutable_scope()->set_generation(1);
  set.set_key("k");
  set.set_value("v");
  v1::SetKeyResponse set_response;
  ASSERT_TRUE(rendezvous_->SetKey(NewContext().get(), set, &set_response).ok());
  set.mutable_scope()->set_generation(2);
  EXPECT_EQ(rendezvous_->SetKey(NewContext().get(), set, &set_response).error_code(),
            grpc::StatusCode::ABORTED);
  set.mutable_scope()->set_job("nobody");
  EXPECT_EQ(rendezvous_->SetKey(NewContext().get(), set, &set_response).error_code(),
            grpc::StatusCode::NOT_FOUND);

  v1::WaitKeysRequest wait;
  wait.mutable_scope()->set_job("j");
  wait.mutable_scope()->set_generation(1);
  wait.add_keys("k");
  v1::WaitKeysResponse values;
  ASSERT_TRUE(rendezvous_->WaitKeys(NewContext().get(), wait, &values).ok());
  EXPECT_THAT(values.values(), ElementsAre("v"));
  wait.add_keys("missing");
  wait.set_timeout_seconds(0.05);
  EXPECT_EQ(rendezvous_->WaitKeys(NewContext().get(), wait, &values).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
}

}  // namespace
}  // namespace takt::coordinator_rpc
