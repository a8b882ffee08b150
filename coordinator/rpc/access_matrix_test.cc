// SPDX-License-Identifier: Apache-2.0
// Calls every RPC in every role, and compares what the server does with the table of common/access.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <future>
#include <map>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "common/access/method_table.h"
#include "common/base/log.h"
#include "common/certificates/authority.h"
#include "common/certificates/test_authority.h"
#include "common/rpc/credentials.h"
#include "coordinator/rpc/rpc_harness.h"
#include "grpc/health/v1/health.pb.h"
#include "proto/host_frame.h"
#include "proto/rpc_status.h"
#include "takt/v1/join_service.grpc.pb.h"

namespace takt::coordinator_rpc {
namespace {

using access::MethodRule;
using access::Role;
using access::Subject;
using certificates::TestAuthority;
using certificates::TlsFiles;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

const bool kTls13 = (rpc::RequireTls13(), true);

enum class Outcome { kAdmitted, kRefused, kNoConnection };

// Makes one call of any kind: it sends one message, and reads one or the end.
class AnyCall final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  AnyCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
          const std::string& message)
      : stub_(channel), context_(NewContext()) {
    context_->set_wait_for_ready(false);
    const grpc::Slice slice(message);
    said_ = grpc::ByteBuffer(&slice, 1);
    stub_.PrepareBidiStreamingCall(context_.get(), method, {}, this);
    StartRead(&heard_);
    StartWriteLast(&said_, {});
    StartCall();
  }

  grpc::Status Result() { return result_.get_future().get(); }

  void OnReadDone(bool ok) override {
    answered_ = ok;
    if (ok) context_->TryCancel();
  }
  void OnDone(const grpc::Status& status) override {
    result_.set_value(answered_ ? grpc::Status::OK : status);
  }

 private:
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  grpc::ByteBuffer said_, heard_;
  bool answered_ = false;
  std::promise<grpc::Status> result_;
};

Outcome OutcomeOf(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNAUTHENTICATED:
      return Outcome::kRefused;
    case grpc::StatusCode::UNAVAILABLE:
      return Outcome::kNoConnection;
    default:
      return Outcome::kAdmitted;
  }
}

class AccessTest : public RpcTest {
 protected:
  AccessTest() {
    StopServer();
    Restart();  // a coordinator that runs, with a server of TLS instead of its own
    server_ = Server::Start({.listen = "127.0.0.1:0",
                             .tls = authority_.Issue(Role::kCoordinator, "c1"),
                             .rate = {.per_second = 1000, .burst = 1000}},
                            coordinator_.get())
                  .value();
  }

  std::shared_ptr<grpc::Channel> Dial(const TlsFiles& files, bool insecure = false) const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
    return grpc::CreateCustomChannel(
        server_->address(),
        rpc::ChannelCredentialsFor(
            {.address = server_->address(), .tls = files, .insecure = insecure}),
        arguments);
  }
  std::shared_ptr<grpc::Channel> Dial(Role role, const std::string& name) const {
    return Dial(authority_.Issue(role, name));
  }

  void Use(const std::shared_ptr<grpc::Channel>& channel) {
    jobs_ = v1::JobService::NewStub(channel);
    cluster_ = v1::ClusterService::NewStub(channel);
  }

  // n-1 runs alice's job "held".
  void RunHeldJob(const std::shared_ptr<grpc::Channel>& n1,
                  const std::shared_ptr<grpc::Channel>& alice) {
    worker_ = std::make_unique<RpcWorker>(n1, "n-1");
    ASSERT_TRUE(worker_->Attach().ok());
    Use(alice);
    ASSERT_TRUE(Submit(Spec("held", 1)).ok());
    worker_->ReadPrepare();
    worker_->Say(v1::JobUpdate::PHASE_ADMITTED);
    ASSERT_TRUE(worker_->Read().has_start());
  }

  const TestAuthority authority_;
  std::unique_ptr<RpcWorker> worker_;
};

// Returns a good request of each method: about `job`, of worker n-1, or of the job that n-1 runs.
// It returns nullopt if none is written down.
std::optional<std::string> RequestFor(absl::string_view method, const std::string& job,
                                      std::int64_t held_generation) {
  const auto named = [&]<class Request>(Request request) {
    request.set_name(job);
    return request.SerializeAsString();
  };
  const auto on_worker = []<class Request>(Request request) {
    request.set_worker("n-1");
    return request.SerializeAsString();
  };
  const auto in_scope = [&]<class Request>(Request request) {
    request.mutable_scope()->set_job("held");
    request.mutable_scope()->set_generation(held_generation);
    return request.SerializeAsString();
  };
  const auto as_part = [](const auto& message) {
    return FrameOf(1, message.SerializeAsString()).SerializeAsString();
  };
  v1::AttachRequest attach;
  attach.mutable_hello()->set_worker("n-1");
  attach.mutable_hello()->set_incarnation("other");
  attach.mutable_hello()->set_protocol_version(kProtocolVersion);
  v1::StreamBulkRequest bulk;
  bulk.mutable_hello()->set_worker("n-1");
  bulk.mutable_hello()->set_incarnation("other");
  v1::WaitKeysRequest wait;
  wait.set_timeout_seconds(0.001);
  wait.add_keys("k");
  const std::map<absl::string_view, std::string> requests = {
      {"/takt.v1.AttachmentService/Attach", attach.SerializeAsString()},
      {"/takt.v1.AttachmentService/AttachHost", as_part(attach)},
      {"/takt.v1.AttachmentService/StreamBulk", bulk.SerializeAsString()},
      {"/takt.v1.AttachmentService/StreamHostBulk", as_part(bulk)},
      {"/takt.v1.ClusterService/BackUpState", ""},
      {"/takt.v1.ClusterService/DrainWorker", on_worker(v1::DrainWorkerRequest())},
      {"/takt.v1.ClusterService/GetProfile", ""},
      {"/takt.v1.ClusterService/GetVersion", ""},
      {"/takt.v1.ClusterService/ListWorkers", ""},
      {"/takt.v1.ClusterService/UndrainWorker", on_worker(v1::UndrainWorkerRequest())},
      {"/takt.v1.JobService/AbandonJob", named(v1::AbandonJobRequest())},
      {"/takt.v1.JobService/AdoptJob", named(v1::AdoptJobRequest())},
      {"/takt.v1.JobService/CancelJob", named(v1::CancelJobRequest())},
      {"/takt.v1.JobService/DeleteJob", named(v1::DeleteJobRequest())},
      {"/takt.v1.JobService/GetJob", named(v1::GetJobRequest())},
      {"/takt.v1.JobService/GetJobLogs", named(v1::GetJobLogsRequest())},
      {"/takt.v1.JobService/GetTrace", named(v1::GetTraceRequest())},
      {"/takt.v1.JobService/ListHeldJobs", ""},
      {"/takt.v1.JobService/ListJobs", ""},
      {"/takt.v1.JobService/PauseJob", named(v1::PauseJobRequest())},
      {"/takt.v1.JobService/ResumeJob", named(v1::ResumeJobRequest())},
      {"/takt.v1.JobService/SubmitJob", ""},
      {"/takt.v1.JobService/WatchJob", named(v1::WatchJobRequest())},
      {"/takt.v1.JoinService/CreateToken", on_worker(v1::CreateTokenRequest())},
      {"/takt.v1.JoinService/Join", ""},
      {"/takt.v1.RendezvousService/ClearKeys", in_scope(v1::ClearKeysRequest())},
      {"/takt.v1.RendezvousService/SetKey", in_scope(v1::SetKeyRequest())},
      {"/takt.v1.RendezvousService/WaitKeys", in_scope(wait)},
      {"/grpc.health.v1.Health/Check", ""},
      {"/grpc.health.v1.Health/Watch", ""},
      {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", ""},
  };
  const auto it = requests.find(method);
  return it != requests.end() ? std::optional(it->second) : std::nullopt;
}

struct Caller {
  std::string name;
  std::shared_ptr<grpc::Channel> channel;
  Role role;
  bool connects = true;
  bool other = false;  // neither the job's owner nor the worker that the request is about
};

Outcome Expected(const MethodRule& rule, const Caller& caller) {
  if (!caller.connects) return Outcome::kNoConnection;
  if (!rule.who.Has(caller.role)) return Outcome::kRefused;
  const bool of_somebody = rule.subject == Subject::kJob || rule.subject == Subject::kWorker ||
                           rule.subject == Subject::kGang;
  return caller.other && of_somebody ? Outcome::kRefused : Outcome::kAdmitted;
}

TEST_F(AccessTest, EveryCallOfEveryCallerGivesWhatTheTableSays) {
  ASSERT_TRUE(kTls13);
  const TestAuthority strangers;
  TlsFiles stranger = strangers.Issue(Role::kAdmin, "root");
  stranger.authority = authority_.authority();
  const TlsFiles expired =
      authority_.Issue(Role::kAdmin, "late", {.from = absl::Now() - absl::Hours(3)});
  const auto n1 = Dial(Role::kWorker, "n-1");
  const auto alice = Dial(Role::kUser, "alice");
  // Callers that are refused come first, because they change nothing.
  const std::vector<Caller> callers = {
      {"no certificate", Dial(TlsFiles{}, /*insecure=*/true), Role::kNobody, /*connects=*/false},
      {"other authority", Dial(stranger), Role::kAdmin, /*connects=*/false},
      {"expired", Dial(expired), Role::kAdmin, /*connects=*/false},
      {"another worker", Dial(Role::kWorker, "n-2"), Role::kWorker, true, /*other=*/true},
      {"another host", Dial(Role::kHost, "m"), Role::kHost, true, /*other=*/true},
      {"another user", Dial(Role::kUser, "bob"), Role::kUser, true, /*other=*/true},
      {"worker", n1, Role::kWorker},
      {"host", Dial(Role::kHost, "n"), Role::kHost},
      {"admin", Dial(Role::kAdmin, "root"), Role::kAdmin},
      {"user", alice, Role::kUser},
  };
  RunHeldJob(n1, alice);

  for (const MethodRule& rule : access::MethodTable()) {
    // This job is alice's, for this method alone. It waits for workers that do not come.
    const std::string job = absl::StrCat("j", &rule - access::MethodTable().data());
    ASSERT_TRUE(Submit(Spec(job, 8)).ok());
    const auto request = RequestFor(rule.method, job, worker_->generation);
    ASSERT_TRUE(request.has_value()) << "no request of " << rule.method << " in this test";
    for (const Caller& caller : callers) {
      const grpc::Status status =
          AnyCall(caller.channel, std::string(rule.method), *request).Result();
      EXPECT_EQ(OutcomeOf(status), Expected(rule, caller))
          << rule.method << " by " << caller.name << ": " << status.error_code() << " "
          << status.error_message();
    }
  }
}

TEST_F(AccessTest, ATokenIsGoodForOneCertificate) {
  server_.reset();
  server_ = Server::Start({.listen = "127.0.0.1:0",
                           .tls = authority_.Issue(Role::kCoordinator, "c2"),
                           .join_authority = authority_.ca()},
                          coordinator_.get())
                .value();
  const auto admin = Dial(Role::kAdmin, "root");
  v1::CreateTokenRequest for_n7;
  for_n7.set_worker("n7");
  v1::CreateTokenResponse token;
  ASSERT_TRUE(
      v1::JoinService::NewStub(admin)->CreateToken(NewContext().get(), for_n7, &token).ok());

  const rpc::Endpoint stranger = {
      .address = server_->address(), .tls = {.authority = authority_.authority()}, .joins = true};
  const auto channel = grpc::CreateChannel(stranger.address, rpc::ChannelCredentialsFor(stranger));
  const certificates::Request request = certificates::MakeRequest().value();
  v1::JoinRequest join;
  join.set_token(token.token());
  join.set_certificate_request(request.text);
  v1::JoinResponse joined;
  const auto stub = v1::JoinService::NewStub(channel);
  v1::JoinRequest wrong = join;
  wrong.set_certificate_request("not a request");
  EXPECT_EQ(stub->Join(NewContext().get(), wrong, &joined).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT)
      << "and the token is still good";
  const grpc::Status status = stub->Join(NewContext().get(), join, &joined);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(stub->Join(NewContext().get(), join, &joined).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);

  const auto files =
      certificates::WriteIssued(authority_.path() + "/n7", request.key, joined.certificate());
  ASSERT_TRUE(files.ok()) << files.status();
  RpcWorker worker(Dial({files->certificate, files->key, authority_.authority()}), "n7");
  EXPECT_TRUE(worker.Attach().ok());

  // A stranger may do nothing else.
  for (const MethodRule& rule : access::MethodTable()) {
    if (rule.who.Has(Role::kNobody)) continue;
    EXPECT_EQ(AnyCall(channel, std::string(rule.method), "").Result().error_code(),
              grpc::StatusCode::UNAUTHENTICATED)
        << rule.method;
  }
}

TEST_F(AccessTest, StrangersThatJoinTooOftenKeepOutNobodyElse) {
  server_.reset();
  server_ = Server::Start({.listen = "127.0.0.1:0",
                           .tls = authority_.Issue(Role::kCoordinator, "c2"),
                           .rate = {.per_second = 0.001, .burst = 2},
                           .join_authority = authority_.ca()},
                          coordinator_.get())
                .value();
  const rpc::Endpoint stranger = {
      .address = server_->address(), .tls = {.authority = authority_.authority()}, .joins = true};
  const auto join = [](const std::shared_ptr<grpc::Channel>& channel) {
    v1::JoinResponse joined;
    return v1::JoinService::NewStub(channel)->Join(NewContext().get(), {}, &joined).error_code();
  };
  const auto channel = grpc::CreateChannel(stranger.address, rpc::ChannelCredentialsFor(stranger));
  EXPECT_EQ(join(channel), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(join(channel), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(join(channel), grpc::StatusCode::RESOURCE_EXHAUSTED);
  // These callers have the same address, but show who they are.
  EXPECT_EQ(join(Dial(Role::kUser, "alice")), grpc::StatusCode::PERMISSION_DENIED);
  // Calls that a stranger may not make at all are counted apart.
  EXPECT_EQ(AnyCall(channel, "/takt.v1.JobService/ListJobs", "").Result().error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(AccessTest, AHostSpeaksForItsOwnWorkersAlone) {
  RpcHost host(Dial(Role::kHost, "n"));
  host.Say({{1, RpcHost::HelloOf("n-1")}, {2, RpcHost::HelloOf("m-1")}});
  EXPECT_TRUE(host.Read(1).has_welcome());
  const v1::StreamEnd end = host.ReadEnd(2);
  EXPECT_EQ(end.code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(end.message(), AllOf(HasSubstr("host/n"), HasSubstr("worker m-1")));
}

TEST_F(AccessTest, AMethodThatIsNotThereIsRefused) {
  const auto status =
      AnyCall(Dial(Role::kAdmin, "root"), "/takt.v1.JobService/Nothing", "").Result();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(AccessTest, UsersAreShownTheirOwnJobsAlone) {
  const auto count = [&](const std::shared_ptr<grpc::Channel>& channel) {
    v1::ListJobsResponse response;
    EXPECT_TRUE(v1::JobService::NewStub(channel)->ListJobs(NewContext().get(), {}, &response).ok());
    return response.jobs_size();
  };
  const auto alice = Dial(Role::kUser, "alice"), bob = Dial(Role::kUser, "bob");
  Use(alice);
  EXPECT_EQ(Submit(Spec("a", 8))->owner(), "user/alice");
  EXPECT_EQ(count(alice), 1);
  EXPECT_EQ(count(bob), 0);
  EXPECT_EQ(count(Dial(Role::kAdmin, "root")), 1);
}

TEST_F(AccessTest, ARefusalSaysWhyAndWhatToDo) {
  Use(Dial(Role::kUser, "alice"));
  ASSERT_TRUE(Submit(Spec("a", 8)).ok());
  Use(Dial(Role::kUser, "bob"));
  v1::CancelJobRequest request;
  request.set_name("a");
  v1::CancelJobResponse response;
  const auto context = NewContext();
  const absl::Status status =
      FromGrpc(jobs_->CancelJob(context.get(), request, &response), *context);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  ASSERT_EQ(FieldErrorsOf(status).size(), 1u);
  EXPECT_EQ(FieldErrorsOf(status)[0].value, "user/bob");
  EXPECT_THAT(FieldErrorsOf(status)[0].rule, HasSubstr("does not own job a"));
}

TEST_F(AccessTest, AnIdentityThatAsksTooOftenIsToldSo) {
  server_.reset();
  server_ = Server::Start({.listen = "127.0.0.1:0",
                           .tls = authority_.Issue(Role::kCoordinator, "c2"),
                           .rate = {.per_second = 0.001, .burst = 2}},
                          coordinator_.get())
                .value();
  const auto code = [](const std::shared_ptr<grpc::Channel>& channel) {
    v1::GetVersionResponse response;
    return v1::ClusterService::NewStub(channel)
        ->GetVersion(NewContext().get(), {}, &response)
        .error_code();
  };
  const auto alice = Dial(Role::kUser, "alice");
  EXPECT_EQ(code(alice), grpc::StatusCode::OK);
  EXPECT_EQ(code(alice), grpc::StatusCode::OK);
  EXPECT_EQ(code(alice), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(code(Dial(Role::kUser, "bob")), grpc::StatusCode::OK);
}

// Keeps the lines of the audit log while it exists.
class AuditLines final {
 public:
  AuditLines() {
    SetLogSink([this](LogLevel, std::string_view line) {
      const std::lock_guard lock(mutex_);
      if (line.starts_with("audit ")) lines_.emplace_back(line);
    });
  }
  ~AuditLines() { SetLogSink(nullptr); }
  std::vector<std::string> Take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(lines_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

TEST_F(AccessTest, WhoChangesSomethingLeavesALine) {
  AuditLines audit;
  Use(Dial(Role::kUser, "alice"));
  ASSERT_TRUE(Submit(Spec("a", 8), "r1").ok());
  EXPECT_THAT(audit.Take(), Contains(AllOf(HasSubstr("audit"), HasSubstr("who=user/alice"),
                                           HasSubstr("what=/takt.v1.JobService/SubmitJob"),
                                           HasSubstr("subject=job/a"), HasSubstr("outcome=OK"))));
  Get("a");
  EXPECT_THAT(audit.Take(), ::testing::IsEmpty()) << "reading is no audit_entry";
  Use(Dial(Role::kUser, "bob"));
  v1::DeleteJobRequest request;
  request.set_name("a");
  v1::DeleteJobResponse response;
  EXPECT_FALSE(jobs_->DeleteJob(NewContext().get(), request, &response).ok());
  EXPECT_THAT(audit.Take(), Contains(AllOf(HasSubstr("who=user/bob"), HasSubstr("DeleteJob"),
                                           HasSubstr("outcome=PERMISSION_DENIED"))));
  v1::DrainWorkerRequest drain;
  v1::DrainWorkerResponse drained;
  EXPECT_FALSE(cluster_->DrainWorker(NewContext().get(), drain, &drained).ok());
  EXPECT_THAT(audit.Take(), Contains(AllOf(HasSubstr("who=user/bob"), HasSubstr("DrainWorker"),
                                           HasSubstr("outcome=PERMISSION_DENIED"))));
}

TEST_F(AccessTest, WhoTakesABackupLeavesALine) {
  AuditLines audit;
  Use(Dial(Role::kAdmin, "root"));
  const auto context = NewContext();
  const auto reader = cluster_->BackUpState(context.get(), {});
  v1::BackUpStateResponse part;
  EXPECT_FALSE(reader->Read(&part));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(audit.Take(), Contains(AllOf(HasSubstr("who=admin/root"), HasSubstr("BackUpState"),
                                           HasSubstr("outcome=FAILED_PRECONDITION"))));
}

TEST_F(AccessTest, WhoAsksTooOftenDoesNotFillTheLog) {
  server_.reset();
  server_ = Server::Start({.listen = "127.0.0.1:0",
                           .tls = authority_.Issue(Role::kCoordinator, "c2"),
                           .rate = {.per_second = 0.001, .burst = 2}},
                          coordinator_.get())
                .value();
  AuditLines audit;
  Use(Dial(Role::kUser, "bob"));
  for (int i = 0; i < 5; ++i) {
    v1::DrainWorkerRequest drain;
    drain.set_worker("w0");
    v1::DrainWorkerResponse drained;
    EXPECT_EQ(cluster_->DrainWorker(NewContext().get(), drain, &drained).error_code(),
              i < 2 ? grpc::StatusCode::PERMISSION_DENIED : grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  EXPECT_EQ(audit.Take().size(), 2u);
}

TEST_F(AccessTest, TheAnswerToARequestIsWhoAskedsAlone) {
  Use(Dial(Role::kUser, "alice"));
  ASSERT_TRUE(Submit(Spec("a", 8), "r1").ok());
  EXPECT_TRUE(Submit(Spec("a", 8), "r1").ok()) << "asked again";
  Use(Dial(Role::kUser, "bob"));
  EXPECT_TRUE(absl::IsAlreadyExists(Submit(Spec("a", 8), "r1").status()));
  EXPECT_EQ(Submit(Spec("b", 8), "r1")->owner(), "user/bob");
}

TEST_F(AccessTest, ServingNeedsACoordinatorsCertificate) {
  const absl::Status status =
      CheckListen({.listen = "127.0.0.1:0", .tls = authority_.Issue(Role::kWorker, "n1")});
  EXPECT_THAT(status.ToString(), HasSubstr("worker/n1"));
  EXPECT_THAT(status.ToString(), HasSubstr("certs issue DIR coordinator"));
}

}  // namespace
}  // namespace takt::coordinator_rpc
