// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rpc/rpc_harness.h"

#include <grpcpp/create_channel.h>

#include <chrono>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/plan/plan.h"
#include "coordinator/store/sqlite_store.h"
#include "proto/host_frame.h"
#include "proto/rpc_status.h"
#include "tests/testing/emulated_spec.h"

namespace takt::coordinator_rpc {

std::unique_ptr<grpc::ClientContext> NewContext() {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120));
  context->set_wait_for_ready(true);
  return context;
}

RpcWorker::RpcWorker(std::shared_ptr<grpc::Channel> channel, std::string name,
                     std::string incarnation)
    : name_(std::move(name)),
      incarnation_(std::move(incarnation)),
      stub_(v1::AttachmentService::NewStub(channel)) {}

RpcWorker::~RpcWorker() { Die(); }

grpc::Status RpcWorker::Attach(int protocol_version, const v1::RunningJob* running) {
  Die();
  context_ = NewContext();
  stream_ = stub_->Attach(context_.get());
  v1::AttachRequest request;
  request.mutable_hello()->set_worker(name_);
  request.mutable_hello()->set_incarnation(incarnation_);
  request.mutable_hello()->set_protocol_version(protocol_version);
  request.mutable_hello()->set_host("host");
  request.mutable_hello()->set_cores(8);
  if (running != nullptr) *request.mutable_hello()->mutable_running() = *running;
  v1::AttachResponse response;
  if (stream_->Write(request) && stream_->Read(&response)) {
    EXPECT_TRUE(response.has_welcome());
    EXPECT_GT(response.welcome().lease_seconds(), 0);
    return grpc::Status::OK;
  }
  const grpc::Status status = stream_->Finish();
  stream_.reset();
  return status;
}

v1::AttachResponse RpcWorker::Read() {
  v1::AttachResponse response;
  EXPECT_TRUE(stream_->Read(&response)) << name_ << ": the control stream ended";
  return response;
}

v1::Assignment RpcWorker::ReadPrepare() {
  const v1::AttachResponse response = Read();
  EXPECT_TRUE(response.has_prepare()) << response.ShortDebugString();
  const v1::Assignment& assignment = response.prepare().assignment();
  job = assignment.job();
  generation = assignment.generation();
  rank = assignment.rank();
  return assignment;
}

void RpcWorker::Say(v1::JobUpdate::Phase phase, const std::string& error, bool invalid_input,
                    const std::string& waiting_for) {
  v1::AttachRequest request;
  v1::JobUpdate* update = request.mutable_update();
  update->set_job(job);
  update->set_generation(generation);
  update->set_rank(rank);
  update->set_phase(phase);
  update->set_error(error);
  update->set_invalid_input(invalid_input);
  update->mutable_status()->set_waiting_for(waiting_for);
  EXPECT_TRUE(stream_->Write(request));
}

void RpcWorker::OpenBulk() {
  if (bulk_ != nullptr) return;
  bulk_context_ = NewContext();
  bulk_ = stub_->StreamBulk(bulk_context_.get());
  v1::StreamBulkRequest hello;
  hello.mutable_hello()->set_worker(name_);
  hello.mutable_hello()->set_incarnation(incarnation_);
  EXPECT_TRUE(bulk_->Write(hello));
}

void RpcWorker::Report(std::int64_t step, double loss) {
  OpenBulk();
  v1::StreamBulkRequest request;
  v1::RankStepReport* report = request.mutable_step();
  report->set_job(job);
  report->set_generation(generation);
  report->set_rank(rank);
  report->set_sequence(step);
  report->set_step(step);
  report->set_loss(loss);
  report->set_tokens(32);
  report->set_step_seconds(0.5);
  report->set_busy_seconds(0.25);
  EXPECT_TRUE(bulk_->Write(request));
}

void RpcWorker::WriteLog(const std::string& text) {
  OpenBulk();
  v1::StreamBulkRequest request;
  request.set_job(job);
  request.mutable_log()->set_text(text);
  EXPECT_TRUE(bulk_->Write(request));
}

void RpcWorker::AwaitAcknowledged(std::int64_t sequence) {
  v1::StreamBulkResponse response;
  while (response.acknowledged_sequence() < sequence) {
    ASSERT_TRUE(bulk_->Read(&response)) << name_ << ": the bulk stream ended";
    EXPECT_EQ(response.job(), job);
    EXPECT_EQ(response.generation(), generation);
  }
}

void RpcWorker::Die() {
  if (context_ != nullptr) context_->TryCancel();
  if (bulk_context_ != nullptr) bulk_context_->TryCancel();
  if (stream_ != nullptr) stream_->Finish().ok();
  if (bulk_ != nullptr) bulk_->Finish().ok();
  stream_.reset();
  bulk_.reset();
}

RpcHost::RpcHost(const std::shared_ptr<grpc::Channel>& channel)
    : stub_(v1::AttachmentService::NewStub(channel)),
      context_(NewContext()),
      stream_(stub_->AttachHost(context_.get())) {
  v1::HostFrame answer;
  EXPECT_TRUE(stream_->Write(v1::HostFrame()));
  EXPECT_TRUE(stream_->Read(&answer));
  EXPECT_EQ(answer.parts_size(), 0);
}

v1::AttachRequest RpcHost::HelloOf(const std::string& worker, int protocol_version) {
  v1::AttachRequest request;
  v1::Hello& hello = *request.mutable_hello();
  hello.set_worker(worker);
  hello.set_incarnation("a");
  hello.set_protocol_version(protocol_version);
  hello.set_host("host");
  hello.set_cores(8);
  return request;
}

void RpcHost::Say(const std::map<std::int64_t, v1::AttachRequest>& messages) {
  v1::HostFrame frame;
  for (const auto& [stream, message] : messages) {
    v1::StreamPart& part = *frame.add_parts();
    part.set_stream(stream);
    part.set_message(message.SerializeAsString());
  }
  EXPECT_TRUE(stream_->Write(frame));
}

void RpcHost::End(std::int64_t stream) {
  EXPECT_TRUE(stream_->Write(EndFrame(stream, absl::OkStatus())));
}

v1::StreamPart RpcHost::ReadPart(std::int64_t stream) {
  std::deque<v1::StreamPart>& own = parts_[stream];
  v1::HostFrame frame;
  while (own.empty() && stream_->Read(&frame)) {
    for (const v1::StreamPart& part : frame.parts()) parts_[part.stream()].push_back(part);
  }
  EXPECT_FALSE(own.empty()) << "the host's stream ended";
  if (own.empty()) return {};
  v1::StreamPart part = own.front();
  own.pop_front();
  return part;
}

v1::AttachResponse RpcHost::Read(std::int64_t stream) {
  const v1::StreamPart part = ReadPart(stream);
  EXPECT_FALSE(part.has_end()) << part.ShortDebugString();
  v1::AttachResponse response;
  EXPECT_TRUE(response.ParseFromString(part.message()));
  return response;
}

bool RpcHost::Has(std::int64_t stream) const {
  const auto own = parts_.find(stream);
  return own != parts_.end() && !own->second.empty();
}

v1::StreamEnd RpcHost::ReadEnd(std::int64_t stream) {
  const v1::StreamPart part = ReadPart(stream);
  EXPECT_TRUE(part.has_end()) << part.ShortDebugString();
  return part.end();
}

grpc::Status RpcHost::Finish() {
  v1::HostFrame frame;
  while (stream_->Read(&frame)) {
  }
  const grpc::Status status = stream_->Finish();
  stream_.reset();
  return status;
}

void RpcHost::Die() {
  if (stream_ == nullptr) return;
  context_->TryCancel();
  stream_->Finish().ok();
  stream_.reset();
}

RpcTest::RpcTest() {
  std::string pattern = ::testing::TempDir() + "takt-rpc-XXXXXX";
  dir_ = mkdtemp(pattern.data());
  options_.make_plan = plan::MakePlan;
  Restart();
}

RpcTest::~RpcTest() {
  StopServer();
  coordinator_.reset();
  store_.reset();
  std::filesystem::remove_all(dir_);
}

void RpcTest::StopServer() {
  if (coordinator_ != nullptr) coordinator_->Stop();
  server_.reset();
}

void RpcTest::Restart() {
  StopServer();
  coordinator_.reset();
  store_.reset();
  store_ = store::OpenSqliteStore(dir_ + "/state.sqlite").value();
  options_.cluster.membership.lease = absl::Minutes(1);  // no heartbeats here
  options_.cluster.batch_interval = absl::Milliseconds(1);
  options_.cluster.random_bytes = [seed = 0](int count) mutable {
    return std::string(count, static_cast<char>(++seed));
  };
  coordinator_ = job::Coordinator::Start(options_, store_.get()).value();
  const ServerOptions options{.listen = absl::StrCat("unix:", dir_, "/s"),
                              .open_backup = open_backup_};
  server_ = Server::Start(options, coordinator_.get()).value();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  channel_ =
      grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), arguments);
  jobs_ = v1::JobService::NewStub(channel_);
  cluster_ = v1::ClusterService::NewStub(channel_);
  rendezvous_ = v1::RendezvousService::NewStub(channel_);
}

std::unique_ptr<RpcWorker> RpcTest::Attach(const std::string& name) {
  auto worker = std::make_unique<RpcWorker>(channel_, name);
  const grpc::Status status = worker->Attach();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return worker;
}

v1::JobSpec RpcTest::Spec(const std::string& name, int pipeline, std::int64_t steps) {
  v1::JobSpec spec = testing::EmulatedSpec(name, pipeline, steps);
  spec.mutable_parallelism()->set_schedule("1f1b");
  return spec;
}

absl::StatusOr<v1::Job> RpcTest::Submit(const v1::JobSpec& spec, const std::string& request_id) {
  const auto context = NewContext();
  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec;
  request.set_request_id(request_id);
  v1::SubmitJobResponse response;
  const absl::Status status =
      FromGrpc(jobs_->SubmitJob(context.get(), request, &response), *context);
  if (!status.ok()) return status;
  return response.job();
}

v1::Job RpcTest::Get(const std::string& name) {
  v1::GetJobRequest request;
  request.set_name(name);
  v1::GetJobResponse response;
  EXPECT_TRUE(jobs_->GetJob(NewContext().get(), request, &response).ok());
  return response.job();
}

RpcTest::Watched RpcTest::Watch(const std::string& name, std::int64_t after) {
  const auto context = NewContext();
  v1::WatchJobRequest request;
  request.set_name(name);
  request.set_after_step(after);
  const auto reader = jobs_->WatchJob(context.get(), request);
  Watched watched;
  v1::WatchJobResponse response;
  while (reader->Read(&response)) {
    if (response.has_job()) watched.jobs.push_back(response.job());
    if (response.has_step()) watched.steps.push_back(response.step());
    if (response.has_split()) watched.splits.push_back(response.split());
  }
  watched.status = reader->Finish();
  return watched;
}

void RpcTest::AwaitState(const std::string& name, v1::JobState state) {
  const auto context = NewContext();
  v1::WatchJobRequest request;
  request.set_name(name);
  const auto reader = jobs_->WatchJob(context.get(), request);
  v1::WatchJobResponse response;
  bool reached = false;
  while (!reached && reader->Read(&response))
    reached = response.has_job() && response.job().state() == state;
  EXPECT_TRUE(reached) << "the watch ended before " << v1::JobState_Name(state);
  context->TryCancel();
  reader->Finish().ok();
}

std::vector<std::unique_ptr<RpcWorker>> RpcTest::RunJob(const std::string& name, int pipeline,
                                                        std::int64_t steps) {
  std::vector<std::unique_ptr<RpcWorker>> workers;
  for (int i = 0; i < pipeline; ++i) workers.push_back(Attach(absl::StrCat("w", i)));
  EXPECT_TRUE(Submit(Spec(name, pipeline, steps)).ok());
  for (const auto& worker : workers) {
    worker->ReadPrepare();
    worker->Say(v1::JobUpdate::PHASE_ADMITTED);
  }
  for (const auto& worker : workers) EXPECT_TRUE(worker->Read().has_start());
  return workers;
}

}  // namespace takt::coordinator_rpc
