// SPDX-License-Identifier: Apache-2.0
// Tests users against a coordinator, over the wire.
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <future>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/config/job_spec_serde.h"
#include "common/config/testing/jobs.h"
#include "coordinator/rpc/rpc_harness.h"
#include "gmock/gmock.h"
#include "proto/rpc_status.h"

namespace takt::coordinator_rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(RpcTest, AWrongSpecIsRefusedWithItsFields) {
  v1::JobSpec spec = Spec("j", 2);
  spec.mutable_batch()->set_global(-1);
  const absl::Status status = Submit(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const std::vector<FieldError> errors = FieldErrorsOf(status);
  ASSERT_THAT(errors, ::testing::Not(IsEmpty()));
  EXPECT_EQ(errors[0].field, "batch.global");
  EXPECT_EQ(errors[0].value, "-1");
}

TEST_F(RpcTest, ASpecThatCannotBePlannedIsRefusedAtOnce) {
  const absl::Status status = Submit(Spec("j", 64)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(FieldErrorsOf(status), ::testing::Not(IsEmpty()));
}

TEST_F(RpcTest, MicrobatchesThatAreUpdatesMustBeNamed) {
  config::JobSpec job = config::SmallGpt2Job();
  job.microbatch_auto = true;
  job.parallelism.schedule = "pipedream";
  v1::JobSpec spec = config::ToProto(job);
  v1::CorpusSpec* const train = spec.mutable_data()->add_train();
  train->set_path("a.txt");
  train->set_format(v1::DATA_FORMAT_BYTES);
  EXPECT_THAT(std::string(Submit(spec).status().message()),
              HasSubstr("batch.microbatch is auto: must be a number under pipedream"));
}

TEST_F(RpcTest, AnExperimentNeedsATrackingServer) {
  v1::JobSpec spec = Spec("j", 2);
  spec.mutable_logging()->set_mlflow("gpt");
  const absl::Status status = Submit(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_THAT(FieldErrorsOf(status), SizeIs(1));
  EXPECT_EQ(FieldErrorsOf(status)[0].field, "logging.mlflow");
}

TEST_F(RpcTest, ValidateOnlyStoresNothing) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = Spec("j", 2);
  request.set_validate_only(true);
  v1::SubmitJobResponse response;
  ASSERT_TRUE(jobs_->SubmitJob(NewContext().get(), request, &response).ok());
  EXPECT_EQ(response.job().schedule(), "1f1b");
  EXPECT_EQ(response.job().stages_size(), 2);
  EXPECT_GT(response.job().predicted_step_seconds(), 0);
  v1::GetJobRequest get;
  get.set_name("j");
  v1::GetJobResponse got;
  EXPECT_EQ(jobs_->GetJob(NewContext().get(), get, &got).error_code(), grpc::StatusCode::NOT_FOUND);
  ASSERT_TRUE(Submit(Spec("j", 2)).ok());
  EXPECT_EQ(jobs_->SubmitJob(NewContext().get(), request, &response).error_code(),
            grpc::StatusCode::ALREADY_EXISTS);
}

TEST_F(RpcTest, ASubmitSentAgainAnswersTheSameAndSubmitsOnce) {
  const auto first = Submit(Spec("j", 2), "r1");
  const auto again = Submit(Spec("j", 2), "r1");
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(first->id(), again->id());
  EXPECT_EQ(Submit(Spec("j", 2), "r2").status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(RpcTest, JobsAreListedNewestFirstByPages) {
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(Submit(Spec(name, 1)).ok());
  v1::ListJobsRequest request;
  request.set_page_size(2);
  v1::ListJobsResponse page;
  ASSERT_TRUE(jobs_->ListJobs(NewContext().get(), request, &page).ok());
  ASSERT_THAT(page.jobs(), SizeIs(2));
  EXPECT_EQ(page.jobs(0).name(), "c");
  EXPECT_EQ(page.jobs(1).name(), "b");
  request.set_page_token(page.next_page_token());
  page.Clear();
  ASSERT_TRUE(jobs_->ListJobs(NewContext().get(), request, &page).ok());
  ASSERT_THAT(page.jobs(), SizeIs(1));
  EXPECT_EQ(page.jobs(0).name(), "a");
  EXPECT_THAT(page.next_page_token(), IsEmpty());
  request.set_page_token("nonsense");
  EXPECT_EQ(jobs_->ListJobs(NewContext().get(), request, &page).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(RpcTest, AWatchShowsEveryStateAndEveryStepOnceInOrder) {
  ASSERT_TRUE(Submit(Spec("j", 1, 600)).ok());
  auto watch = std::async(std::launch::async, [this] { return Watch("j"); });
  const auto worker = Attach("w0");
  worker->ReadPrepare();
  worker->Say(v1::JobUpdate::PHASE_ADMITTED);
  EXPECT_TRUE(worker->Read().has_start());
  for (int step = 1; step <= 600; ++step) worker->Report(step);
  worker->AwaitAcknowledged(600);
  worker->Say(v1::JobUpdate::PHASE_FINISHED);
  EXPECT_TRUE(worker->Read().has_acknowledge());

  const Watched watched = watch.get();
  EXPECT_TRUE(watched.status.ok());
  ASSERT_THAT(watched.steps, SizeIs(600));
  for (int i = 0; i < 600; ++i) ASSERT_EQ(watched.steps[i].step(), i + 1);
  std::vector<v1::JobState> states;
  for (const v1::Job& job : watched.jobs) {
    if (states.empty() || states.back() != job.state()) states.push_back(job.state());
  }
  // The watch may have begun when the job was on its way already.
  const std::vector<v1::JobState> all = {v1::JOB_STATE_QUEUED, v1::JOB_STATE_PLANNING,
                                         v1::JOB_STATE_STARTING, v1::JOB_STATE_RUNNING,
                                         v1::JOB_STATE_SUCCEEDED};
  ASSERT_LE(states.size(), all.size());
  EXPECT_EQ(states, std::vector<v1::JobState>(all.end() - states.size(), all.end()));
  EXPECT_THAT(Watch("j", 598).steps, SizeIs(2));
}

TEST_F(RpcTest, AWatchShowsWhereTheTimeOfTheNewestExplainedStepWent) {
  const auto workers = RunJob("j", 1);
  AwaitState("j", v1::JOB_STATE_RUNNING);
  job::Board& board = coordinator_->board();
  job::StepSplit split{.generation = Generation(1), .step = StepId(7), .step_seconds = 0.5};
  split.parts[static_cast<int>(explain::Part::kCompute)] = 0.5;
  board.ShowSplit("j", split);
  split.generation = Generation(9);  // not the job's
  board.ShowSplit("j", split);
  board.ShowSplit("nobody", split);
  workers[0]->Say(v1::JobUpdate::PHASE_FAILED, "boom");
  EXPECT_TRUE(workers[0]->Read().has_acknowledge());
  const Watched watched = Watch("j");
  ASSERT_THAT(watched.splits, SizeIs(1));
  EXPECT_EQ(watched.splits[0].step(), 7);
  EXPECT_EQ(watched.splits[0].compute(), 0.5);
  EXPECT_EQ(watched.splits[0].step_seconds(), 0.5);
}

TEST_F(RpcTest, WatchingNobodyIsNotFound) {
  EXPECT_EQ(Watch("nobody").status.error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(RpcTest, AnEndedJobIsDeletedAndARunningOneIsNot) {
  const auto workers = RunJob("j", 1);
  v1::DeleteJobRequest erase;
  erase.set_name("j");
  v1::DeleteJobResponse erased;
  EXPECT_EQ(jobs_->DeleteJob(NewContext().get(), erase, &erased).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  v1::CancelJobRequest cancel;
  cancel.set_name("j");
  v1::CancelJobResponse cancelled;
  ASSERT_TRUE(jobs_->CancelJob(NewContext().get(), cancel, &cancelled).ok());
  EXPECT_TRUE(workers[0]->Read().has_abort());
  workers[0]->Say(v1::JobUpdate::PHASE_ABORTED);
  EXPECT_TRUE(workers[0]->Read().has_acknowledge());
  EXPECT_EQ(Get("j").state(), v1::JOB_STATE_CANCELLED);
  ASSERT_TRUE(jobs_->DeleteJob(NewContext().get(), erase, &erased).ok());
  EXPECT_EQ(Watch("j").status.error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(RpcTest, LogsAreFollowedUntilTheJobEndsAndKeptAfterwards) {
  const auto workers = RunJob("j", 1);
  auto follow = std::async(std::launch::async, [this] {
    const auto context = NewContext();
    v1::GetJobLogsRequest request;
    request.set_name("j");
    request.set_follow(true);
    const auto reader = jobs_->GetJobLogs(context.get(), request);
    std::vector<std::string> texts;
    v1::GetJobLogsResponse response;
    while (reader->Read(&response))
      texts.push_back(response.line().worker() + ": " + response.line().text());
    EXPECT_TRUE(reader->Finish().ok());
    return texts;
  });
  workers[0]->WriteLog("one");
  workers[0]->WriteLog("two");
  workers[0]->Report(1);
  workers[0]->AwaitAcknowledged(1);
  workers[0]->Say(v1::JobUpdate::PHASE_FAILED, "boom");
  EXPECT_TRUE(workers[0]->Read().has_acknowledge());
  EXPECT_THAT(follow.get(), ElementsAre("w0: one", "w0: two"));
  // The rank's lines are there after its worker has let go. Lines of other ranks are not asked for.
  const auto count_lines = [this](int rank) {
    const auto context = NewContext();
    v1::GetJobLogsRequest request;
    request.set_name("j");
    request.add_ranks(rank);
    const auto reader = jobs_->GetJobLogs(context.get(), request);
    int lines = 0;
    for (v1::GetJobLogsResponse response; reader->Read(&response);) ++lines;
    return lines;
  };
  EXPECT_EQ(count_lines(0), 2);
  EXPECT_EQ(count_lines(1), 0);
}

TEST_F(RpcTest, StoppingIsQuickAndEndsEveryCall) {
  const auto workers = RunJob("j", 1);
  v1::WatchJobRequest of_j;
  of_j.set_name("j");
  v1::WatchJobResponse seen;
  const auto watch_context = NewContext();
  const auto watch = jobs_->WatchJob(watch_context.get(), of_j);
  ASSERT_TRUE(watch->Read(&seen));
  auto wait = std::async(std::launch::async, [this] {
    v1::WaitKeysRequest request;
    request.mutable_scope()->set_job("j");
    request.mutable_scope()->set_generation(1);
    request.add_keys("never");
    v1::WaitKeysResponse response;
    const auto context = NewContext();
    context->set_wait_for_ready(false);
    return rendezvous_->WaitKeys(context.get(), request, &response).error_code();
  });
  AwaitState("j", v1::JOB_STATE_RUNNING);
  const absl::Time start = absl::Now();
  StopServer();
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));  // the calls would wait longer
  EXPECT_NE(wait.get(), grpc::StatusCode::OK);
  while (watch->Read(&seen)) {
  }
  EXPECT_FALSE(watch->Finish().ok());
}

// Calls a unary method by name with the request's bytes, and returns the response's bytes.
std::string CallByName(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                       const std::string& request) {
  grpc::GenericStub stub(channel);
  const auto context = NewContext();
  const grpc::Slice slice(request);
  const grpc::ByteBuffer buffer(&slice, 1);
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareUnaryCall(context.get(), method, buffer, &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  EXPECT_TRUE(status.ok()) << status.error_message();
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (response.Dump(&slices).ok()) {
    for (const grpc::Slice& part : slices)
      bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
  }
  return bytes;
}

TEST_F(RpcTest, HealthIsServed) {
  // HealthCheckResponse{status: SERVING}
  EXPECT_EQ(CallByName(channel_, "/grpc.health.v1.Health/Check", ""), std::string("\x08\x01"));
}

TEST_F(RpcTest, TheVersionIsTold) {
  v1::GetVersionResponse response;
  ASSERT_TRUE(cluster_->GetVersion(NewContext().get(), {}, &response).ok());
  EXPECT_EQ(response.protocol_version(), kProtocolVersion);
  EXPECT_THAT(response.program_version(), ::testing::Not(IsEmpty()));
}

TEST_F(RpcTest, WhoFollowsAJobAndDoesNotReadIsCut) {
  server_.reset();
  server_ =
      Server::Start({.listen = absl::StrCat("unix:", dir_, "/t"), .stall = absl::Milliseconds(100)},
                    coordinator_.get())
          .value();
  grpc::ChannelArguments arguments;  // of a client that holds little of what it has not read
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 64 << 10);
  channel_ =
      grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), arguments);
  jobs_ = v1::JobService::NewStub(channel_);
  const auto workers = RunJob("j", 1, /*steps=*/1000);
  // This is more than the connection holds.
  for (int i = 0; i < 1000; ++i) workers[0]->WriteLog(std::string(2000, 'x'));
  workers[0]->Report(1);
  workers[0]->AwaitAcknowledged(1);

  absl::Notification cut;
  SetLogSink([&](LogLevel, std::string_view line) {
    if (line.find("does not read") != std::string_view::npos && !cut.HasBeenNotified())
      cut.Notify();
  });
  v1::GetJobLogsRequest request;
  request.set_name("j");
  const auto context = NewContext();
  const auto reader = jobs_->GetJobLogs(context.get(), request);
  EXPECT_TRUE(cut.WaitForNotificationWithTimeout(absl::Seconds(60)));
  SetLogSink(nullptr);
  v1::GetJobLogsResponse line;
  int lines = 0;
  while (reader->Read(&line)) ++lines;
  EXPECT_LT(lines, 1000);
  EXPECT_FALSE(reader->Finish().ok());
}

TEST(CheckListen, TcpNeedsInsecure) {
  const absl::Status status = CheckListen({.listen = "127.0.0.1:0"});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.ToString(), HasSubstr("--insecure"));
  EXPECT_TRUE(CheckListen({.listen = "127.0.0.1:0", .insecure = true}).ok());
}

TEST(CheckListen, SocketPathsHaveALimitThatIsNamed) {
  EXPECT_TRUE(CheckListen({.listen = "unix:" + std::string(107, 'x')}).ok());
  EXPECT_THAT(CheckListen({.listen = "unix:" + std::string(108, 'x')}).ToString(),
              HasSubstr("107 bytes, not 108"));
  EXPECT_FALSE(CheckListen({.listen = "unix:"}).ok());
  EXPECT_FALSE(CheckListen({.listen = "nonsense", .insecure = true}).ok());
}

TEST_F(RpcTest, AnAddressInUseIsNamed) {
  const auto first = Server::Start({.listen = "127.0.0.1:0", .insecure = true}, coordinator_.get());
  ASSERT_TRUE(first.ok());
  EXPECT_THAT((*first)->address(), ::testing::MatchesRegex("127.0.0.1:[1-9][0-9]*"));
  const auto second =
      Server::Start({.listen = (*first)->address(), .insecure = true}, coordinator_.get());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(second.status().ToString(), HasSubstr((*first)->address()));
}

}  // namespace
}  // namespace takt::coordinator_rpc
