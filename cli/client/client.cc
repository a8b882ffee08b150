// SPDX-License-Identifier: Apache-2.0
#include "cli/client/client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <set>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/profile/profile_serde.h"
#include "common/rpc/credentials.h"
#include "common/trace/job_trace_serde.h"
#include "proto/channel_arguments.h"
#include "proto/rpc_status.h"
#include "takt/v1/cluster_service.grpc.pb.h"
#include "takt/v1/job_service.grpc.pb.h"
#include "takt/v1/join_service.grpc.pb.h"

namespace takt::cli {
namespace {

constexpr absl::Duration kFirstBackoff = absl::Milliseconds(100);
constexpr absl::Duration kLongestBackoff = absl::Seconds(1);
// How often to look which of several connections are there.
constexpr absl::Duration kLook = absl::Milliseconds(10);
// Jobs of thousands of ranks do not fit into the 4 MiB that gRPC takes by default.
constexpr int kMostBytesOfAnAnswer = 64 << 20;
constexpr int kWorkersOfAPage = 1000;

grpc::ChannelArguments Arguments() {
  grpc::ChannelArguments arguments = ClientArguments();
  arguments.SetMaxReceiveMessageSize(kMostBytesOfAnAnswer);
  return arguments;
}

std::string RandomRequestId() {
  std::random_device random;
  std::string id;
  for (int i = 0; i < 4; ++i) absl::StrAppendFormat(&id, "%08x", random());
  return id;
}

template <class Request>
Request ChangeOfJob(const std::string& name) {
  Request request;
  request.set_request_id(RandomRequestId());
  request.set_name(name);
  return request;
}

template <class Request>
Request ChangeOfWorker(const std::string& name) {
  Request request;
  request.set_request_id(RandomRequestId());
  request.set_worker(name);
  return request;
}

template <class Response>
absl::StatusOr<v1::Job> JobOf(absl::StatusOr<Response> response) {
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_job());
}

template <class Response>
absl::StatusOr<v1::Worker> WorkerOf(absl::StatusOr<Response> response) {
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_worker());
}

std::chrono::system_clock::time_point Deadline(absl::Time time) { return absl::ToChronoTime(time); }

std::vector<rpc::Endpoint> EndpointsOf(const ClientOptions& options) {
  std::vector<rpc::Endpoint> endpoints;
  for (const absl::string_view address : absl::StrSplit(options.address, ',')) {
    endpoints.push_back({.flag = "--coordinator",
                         .address = std::string(address),
                         .tls = options.tls,
                         .insecure = options.insecure,
                         .joins = options.joins});
  }
  return endpoints;
}

}  // namespace

struct Client::Wire {
  explicit Wire(const rpc::Endpoint& endpoint)
      : channel(grpc::CreateCustomChannel(endpoint.address, rpc::ChannelCredentialsFor(endpoint),
                                          Arguments())),
        jobs(v1::JobService::NewStub(channel)),
        cluster(v1::ClusterService::NewStub(channel)),
        join(v1::JoinService::NewStub(channel)) {}

  // Overloads that pick the stub by the class of a method.
  v1::JobService::Stub& stub(v1::JobService::Stub*) const { return *jobs; }
  v1::ClusterService::Stub& stub(v1::ClusterService::Stub*) const { return *cluster; }
  v1::JoinService::Stub& stub(v1::JoinService::Stub*) const { return *join; }

  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<v1::JobService::Stub> jobs;
  const std::unique_ptr<v1::ClusterService::Stub> cluster;
  const std::unique_ptr<v1::JoinService::Stub> join;
};

Client::Client(ClientOptions options) : options_(std::move(options)) {
  for (const rpc::Endpoint& endpoint : EndpointsOf(options_))
    wires_.push_back(std::make_unique<Wire>(endpoint));
}
Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(ClientOptions options) {
  for (const rpc::Endpoint& endpoint : EndpointsOf(options))
    RETURN_IF_ERROR(rpc::CheckEndpoint(endpoint, absl::Now()));
  std::unique_ptr<Client> client(new Client(std::move(options)));
  if (client->FindCoordinator()) return client;
  const std::string tls_failure = rpc::ExplainTlsFailure(client->WhyNotConnected(), absl::Now());
  return absl::UnavailableError(absl::StrCat(
      "no coordinator answers at ", client->options_.address, "; ",
      tls_failure.empty()
          ? "start one (takt local up, takt-coordinator) or name another with --coordinator"
          : tls_failure));
}

bool Client::FindCoordinator() {
  const absl::Time deadline =
      absl::Now() + std::min(options_.connect_timeout, options_.call_timeout);
  if (wires_.size() == 1) return wire().channel->WaitForConnected(Deadline(deadline));
  std::set<std::size_t> followers;
  while (followers.size() < wires_.size() && absl::Now() < deadline) {
    for (std::size_t i = 0; i < wires_.size(); ++i) {
      if (followers.contains(i)) continue;
      // A channel gets connected only while a thread waits for it.
      if (!wires_[i]->channel->WaitForConnected(Deadline(absl::Now() + kLook))) continue;
      current_ = i;
      if (!Follows(wire())) return true;
      followers.insert(i);
    }
  }
  return !followers.empty();
}

bool Client::Follows(const Wire& wire) const {
  grpc::ClientContext context;
  context.set_deadline(Deadline(absl::Now() + options_.connect_timeout));
  v1::GetVersionResponse response;
  // After an error the call itself will say what is wrong.
  return wire.cluster->GetVersion(&context, {}, &response).ok() && response.follows();
}

absl::Status Client::Judge(absl::Status status) {
  if (absl::IsUnavailable(status)) ++current_;
  return status;
}

std::string Client::WhyNotConnected() const {
  grpc::ClientContext context;
  context.set_deadline(Deadline(absl::Now() + kFirstBackoff));
  v1::GetVersionResponse response;
  return wire().cluster->GetVersion(&context, {}, &response).error_message();
}

template <class Stub, class Request, class Response>
using UnaryMethod = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*);

namespace {
template <class Method>
struct MethodTraits;
template <class StubType, class RequestType, class ResponseType>
struct MethodTraits<UnaryMethod<StubType, RequestType, ResponseType>> {
  using Stub = StubType;
  using Response = ResponseType;
};

absl::Status NoAnswer(const char* what, const std::string& address, bool changes,
                      const absl::Status& last) {
  const std::string text = absl::StrCat(what, ": no answer from the coordinator at ", address, " (",
                                        last.message(), ")");
  if (!changes) return absl::UnavailableError(text);
  return absl::UnknownError(
      absl::StrCat(text, "; it may or may not have happened: look with takt jobs or takt workers"));
}
}  // namespace

template <class Method, class Request>
auto Client::Call(const char* what, Method method, const Request& request, bool changes) {
  using Response = typename MethodTraits<Method>::Response;
  using Result = absl::StatusOr<Response>;
  const absl::Time deadline = absl::Now() + options_.call_timeout;
  absl::Duration backoff = kFirstBackoff;
  while (true) {
    grpc::ClientContext context;
    context.set_deadline(Deadline(deadline));
    // One that is away is waited for only if there is no other.
    context.set_wait_for_ready(wires_.size() == 1);
    Response response;
    auto& stub = wire().stub(static_cast<typename MethodTraits<Method>::Stub*>(nullptr));
    const absl::Status status =
        Judge(FromGrpc((stub.*method)(&context, request, &response), context));
    if (status.ok()) return Result(std::move(response));
    if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status) &&
        !absl::IsUnknown(status)) {
      return Result(status);
    }
    if (!absl::IsUnavailable(status) || absl::Now() + backoff >= deadline) {
      return Result(NoAnswer(what, options_.address, changes, status));
    }
    absl::SleepFor(backoff);
    backoff = std::min(backoff * 2, kLongestBackoff);
  }
}

absl::StatusOr<v1::Job> Client::SubmitJob(const v1::JobSpec& spec, bool validate_only) {
  v1::SubmitJobRequest request;
  request.set_request_id(RandomRequestId());
  *request.mutable_spec() = spec;
  request.set_validate_only(validate_only);
  return JobOf(Call("submit", &v1::JobService::Stub::SubmitJob, request, !validate_only));
}

absl::StatusOr<v1::Job> Client::GetJob(const std::string& name) {
  v1::GetJobRequest request;
  request.set_name(name);
  return JobOf(Call("job", &v1::JobService::Stub::GetJob, request, false));
}

absl::StatusOr<std::vector<v1::Job>> Client::ListJobs(std::size_t most) {
  std::vector<v1::Job> jobs;
  v1::ListJobsRequest request;
  do {
    ASSIGN_OR_RETURN(v1::ListJobsResponse response,
                     Call("jobs", &v1::JobService::Stub::ListJobs, request, false));
    for (v1::Job& job : *response.mutable_jobs()) jobs.push_back(std::move(job));
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty() && jobs.size() < most);
  if (jobs.size() > most) jobs.resize(most);
  return jobs;
}

absl::StatusOr<v1::Job> Client::CancelJob(const std::string& name) {
  return JobOf(Call("cancel", &v1::JobService::Stub::CancelJob,
                    ChangeOfJob<v1::CancelJobRequest>(name), true));
}

absl::StatusOr<v1::Job> Client::PauseJob(const std::string& name) {
  return JobOf(
      Call("pause", &v1::JobService::Stub::PauseJob, ChangeOfJob<v1::PauseJobRequest>(name), true));
}

absl::StatusOr<v1::Job> Client::ResumeJob(const std::string& name) {
  return JobOf(Call("resume", &v1::JobService::Stub::ResumeJob,
                    ChangeOfJob<v1::ResumeJobRequest>(name), true));
}

absl::Status Client::DeleteJob(const std::string& name) {
  return Call("delete", &v1::JobService::Stub::DeleteJob, ChangeOfJob<v1::DeleteJobRequest>(name),
              true)
      .status();
}

absl::StatusOr<std::vector<v1::HeldJob>> Client::ListHeldJobs() {
  const absl::StatusOr<v1::ListHeldJobsResponse> response =
      Call("held jobs", &v1::JobService::Stub::ListHeldJobs, v1::ListHeldJobsRequest(), false);
  // A method without a row in the table of access is refused like one that is not there.
  if (absl::IsUnimplemented(response.status()) || absl::IsPermissionDenied(response.status()))
    return std::vector<v1::HeldJob>();
  RETURN_IF_ERROR(response.status());
  return std::vector<v1::HeldJob>(response->jobs().begin(), response->jobs().end());
}

absl::StatusOr<v1::Job> Client::AdoptJob(const std::string& name) {
  return JobOf(
      Call("adopt", &v1::JobService::Stub::AdoptJob, ChangeOfJob<v1::AdoptJobRequest>(name), true));
}

absl::Status Client::AbandonJob(const std::string& name) {
  return Call("abandon", &v1::JobService::Stub::AbandonJob,
              ChangeOfJob<v1::AbandonJobRequest>(name), true)
      .status();
}

absl::StatusOr<std::vector<v1::Worker>> Client::ListWorkers() {
  std::vector<v1::Worker> workers;
  v1::ListWorkersRequest request;
  request.set_page_size(kWorkersOfAPage);
  do {
    ASSIGN_OR_RETURN(v1::ListWorkersResponse response,
                     Call("workers", &v1::ClusterService::Stub::ListWorkers, request, false));
    for (v1::Worker& worker : *response.mutable_workers()) workers.push_back(std::move(worker));
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return workers;
}

absl::StatusOr<v1::Worker> Client::DrainWorker(const std::string& worker) {
  return WorkerOf(Call("drain", &v1::ClusterService::Stub::DrainWorker,
                       ChangeOfWorker<v1::DrainWorkerRequest>(worker), true));
}

absl::StatusOr<v1::Worker> Client::UndrainWorker(const std::string& worker) {
  return WorkerOf(Call("undrain", &v1::ClusterService::Stub::UndrainWorker,
                       ChangeOfWorker<v1::UndrainWorkerRequest>(worker), true));
}

absl::StatusOr<v1::GetVersionResponse> Client::GetVersion() {
  return Call("version", &v1::ClusterService::Stub::GetVersion, v1::GetVersionRequest(), false);
}

absl::StatusOr<profile::Profile> Client::GetProfile() {
  ASSIGN_OR_RETURN(
      const v1::GetProfileResponse response,
      Call("profile", &v1::ClusterService::Stub::GetProfile, v1::GetProfileRequest(), false));
  absl::StatusOr<profile::Profile> profile = profile::FromProto(response.profile());
  if (profile.ok()) return profile;
  return absl::FailedPreconditionError(absl::StrCat(
      "this command (", kTaktVersion, ") cannot read what was measured by the coordinator (",
      response.profile().program_version(), "): ", profile.status().message(),
      "; use a command of the coordinator's version, or takt plan --no-profile"));
}

absl::StatusOr<std::string> Client::CreateJoinToken(const std::string& worker,
                                                    absl::Duration lifetime) {
  v1::CreateTokenRequest request;
  request.set_worker(worker);
  request.set_lifetime_seconds(absl::ToDoubleSeconds(lifetime));
  ASSIGN_OR_RETURN(const v1::CreateTokenResponse response,
                   Call("token", &v1::JoinService::Stub::CreateToken, request, true));
  return response.token();
}

absl::StatusOr<std::string> Client::Join(ClientOptions options, const std::string& token,
                                         const std::string& request) {
  options.joins = true;
  options.tls.certificate.clear();
  options.tls.key.clear();
  ASSIGN_OR_RETURN(const auto client, Connect(std::move(options)));
  v1::JoinRequest join;
  join.set_token(token);
  join.set_certificate_request(request);
  ASSIGN_OR_RETURN(const v1::JoinResponse response,
                   client->Call("join", &v1::JoinService::Stub::Join, join, true));
  return response.certificate();
}

// Keeps `context` reachable for Stop() while its stream is read.
class Client::StreamStop::Registration {
 public:
  Registration(StreamStop& stop, grpc::ClientContext& context) : stop_(stop), context_(context) {
    const std::lock_guard lock(stop_.mutex_);
    stop_.streams_.insert(&context_);
    if (stop_.stopped_) context_.TryCancel();
  }
  ~Registration() {
    const std::lock_guard lock(stop_.mutex_);
    stop_.streams_.erase(&context_);
  }

 private:
  StreamStop& stop_;
  grpc::ClientContext& context_;
};

void Client::StreamStop::Stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  for (grpc::ClientContext* stream : streams_) stream->TryCancel();
}

void Client::StreamStop::Clear() {
  const std::lock_guard lock(mutex_);
  stopped_ = false;
}

bool Client::StreamStop::stopped() const {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

namespace {
// Reads `reader` to its end, or until `on_message` returns false.
template <class Message, class OnMessage>
absl::Status ReadAll(grpc::ClientContext& context, grpc::ClientReader<Message>& reader,
                     OnMessage on_message) {
  Message message;
  bool wanted = true;
  while (reader.Read(&message)) {
    if (wanted && !on_message(message)) {
      wanted = false;
      context.TryCancel();
    }
  }
  return FromGrpc(reader.Finish(), context);
}

absl::Status AddTo(trace::TraceReader& reader, const v1::GetTraceResponse& response) {
  switch (response.message_case()) {
    case v1::GetTraceResponse::kHeader:
      return reader.AddHeader(response.header());
    case v1::GetTraceResponse::kProgram:
      return reader.AddProgram(response.program());
    case v1::GetTraceResponse::kStep:
      return reader.AddStep(response.step());
    case v1::GetTraceResponse::MESSAGE_NOT_SET:
      break;  // a newer coordinator sent it
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Client::WatchJob(const std::string& name, std::int64_t after_step,
                              absl::Duration timeout, StreamStop& stop,
                              const std::function<bool(const v1::WatchJobResponse&)>& on_event) {
  v1::WatchJobRequest request;
  request.set_name(name);
  request.set_after_step(after_step);
  grpc::ClientContext context;
  context.set_deadline(Deadline(absl::Now() + timeout));
  const StreamStop::Registration registration(stop, context);
  return Judge(ReadAll(context, *wire().jobs->WatchJob(&context, request), on_event));
}

absl::Status Client::GetJobLogs(const v1::GetJobLogsRequest& request, absl::Duration timeout,
                                StreamStop& stop,
                                const std::function<bool(const v1::LogLine&)>& on_line) {
  grpc::ClientContext context;
  context.set_deadline(Deadline(absl::Now() + timeout));
  const StreamStop::Registration registration(stop, context);
  return Judge(
      ReadAll(context, *wire().jobs->GetJobLogs(&context, request),
              [&](const v1::GetJobLogsResponse& response) { return on_line(response.line()); }));
}

absl::Status Client::BackUpState(
    absl::Duration timeout, StreamStop& stop,
    const std::function<bool(const v1::BackUpStateResponse&)>& on_part) {
  grpc::ClientContext context;
  context.set_deadline(Deadline(absl::Now() + timeout));
  const StreamStop::Registration registration(stop, context);
  return Judge(ReadAll(context, *wire().cluster->BackUpState(&context, {}), on_part));
}

absl::StatusOr<trace::JobTrace> Client::GetTrace(const std::string& name, const TracedSteps& steps,
                                                 absl::Duration timeout) {
  v1::GetTraceRequest request;
  request.set_name(name);
  request.set_first_step(steps.first);
  request.set_last_step(steps.last);
  request.set_newest_steps(steps.newest);
  request.set_around_step(steps.around);
  grpc::ClientContext context;
  context.set_deadline(Deadline(absl::Now() + timeout));
  trace::TraceReader reader;
  absl::Status damage;
  const absl::Status status = Judge(ReadAll(context, *wire().jobs->GetTrace(&context, request),
                                            [&](const v1::GetTraceResponse& response) {
                                              damage = AddTo(reader, response);
                                              return damage.ok();
                                            }));
  RETURN_IF_ERROR(damage);
  RETURN_IF_ERROR(status);
  return reader.Take();
}

}  // namespace takt::cli
