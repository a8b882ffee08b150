// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/health.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/ext/health_check_service_server_builder_option.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <sys/un.h>

#include <chrono>
#include <cstdio>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace takt::health {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr std::size_t kMaxSocketPath = sizeof(sockaddr_un::sun_path) - 1;
constexpr int kMaxMessageBytes = 4096;
constexpr std::chrono::seconds kAskTimeout(10);
constexpr char kReasonTrailer[] = "takt-health-reason";

// The answer shares this, for it may come when the asker is gone.
struct Question {
  absl::Mutex mutex;
  bool open ABSL_GUARDED_BY(mutex) = false;
};

// Returns whether this caller is the one to ask.
bool Open(Question& question) {
  absl::MutexLock lock(&question.mutex);
  return !std::exchange(question.open, true);
}

void Close(Question& question) {
  absl::MutexLock lock(&question.mutex);
  question.open = false;
}

class GrpcServer final : public Server, public Health::Service {
 public:
  explicit GrpcServer(std::map<std::string, health::Check> checks) : checks_(std::move(checks)) {}
  ~GrpcServer() override {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  }

  absl::Status Listen(const std::string& socket) {
    grpc::ServerBuilder builder;
    // Without this, a default health service of the process would take the place of this one.
    builder.SetOption(std::make_unique<grpc::HealthCheckServiceServerBuilderOption>(nullptr));
    builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.RegisterService(this);
    int bound = 0;
    builder.AddListeningPort("unix:" + socket, grpc::InsecureServerCredentials(), &bound);
    server_ = builder.BuildAndStart();
    if (server_ != nullptr && bound != 0) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("cannot answer on --health-socket ", socket,
                     "; name a file in a directory that this user may write"));
  }

  grpc::Status Check(grpc::ServerContext* context, const HealthCheckRequest* request,
                     HealthCheckResponse* response) override {
    const auto check = checks_.find(request->service());
    if (check == checks_.end())
      return {grpc::StatusCode::NOT_FOUND, "no such service: " + request->service()};
    const absl::Status health = check->second();
    response->set_status(health.ok() ? HealthCheckResponse::SERVING
                                     : HealthCheckResponse::NOT_SERVING);
    if (!health.ok()) context->AddTrailingMetadata(kReasonTrailer, std::string(health.message()));
    return grpc::Status::OK;
  }

 private:
  const std::map<std::string, health::Check> checks_;
  std::unique_ptr<grpc::Server> server_;  // comes last, as it uses the checks
};

std::string Reason(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto reason = trailers.find(kReasonTrailer);
  if (reason == trailers.end()) return "it gives no reason";
  return {reason->second.data(), reason->second.size()};
}

}  // namespace

Check Answers(std::function<void(std::function<void()>)> ask, absl::Duration patience) {
  const auto question = std::make_shared<Question>();
  return [ask = std::move(ask), patience, question] {
    if (Open(*question)) ask([question] { Close(*question); });
    const absl::MutexLock lock(&question->mutex);
    const auto answered = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(question->mutex) {
      return !question->open;
    };
    if (question->mutex.AwaitWithTimeout(absl::Condition(&answered), patience))
      return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat(
        "the thread that decides does not answer within ", absl::FormatDuration(patience)));
  };
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const std::string& socket,
                                                      std::map<std::string, Check> checks) {
  if (socket.size() > kMaxSocketPath) {
    return InvalidField({.field = "--health-socket",
                         .value = socket,
                         .rule = absl::StrCat("the path of a Unix socket has at most ",
                                              kMaxSocketPath, " bytes, not ", socket.size()),
                         .fix = "give a shorter path, e.g. under /run"});
  }
  auto server = std::make_unique<GrpcServer>(std::move(checks));
  RETURN_IF_ERROR(server->Listen(socket));
  return server;
}

absl::Status Ask(const std::string& socket, const std::string& service) {
  if (socket.empty()) {
    return InvalidField({.field = "--health-socket",
                         .rule = "names no socket, so nobody can be asked",
                         .fix = "set health_socket in the settings that the daemon runs with"});
  }
  const auto stub =
      Health::NewStub(grpc::CreateChannel("unix:" + socket, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kAskTimeout);
  HealthCheckRequest request;
  request.set_service(service);
  HealthCheckResponse response;
  const grpc::Status status = stub->Check(&context, request, &response);
  if (!status.ok()) {
    return {static_cast<absl::StatusCode>(status.error_code()),
            absl::StrCat("nothing answers on ", socket, ": ", status.error_message())};
  }
  if (response.status() == HealthCheckResponse::SERVING) return absl::OkStatus();
  return absl::FailedPreconditionError(Reason(context));
}

int Report(const std::string& program, const std::string& socket, const std::string& service) {
  const absl::Status health = Ask(socket, service);
  if (health.ok()) {
    std::printf("%s\n", service.c_str());
    return 0;
  }
  std::fprintf(stderr, "%s: not %s: %s\n", program.c_str(), service.c_str(),
               std::string(health.message()).c_str());
  return 1;
}

}  // namespace takt::health
