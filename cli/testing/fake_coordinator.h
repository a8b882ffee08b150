// SPDX-License-Identifier: Apache-2.0
// Provides a coordinator that answers what a test tells it to, on a Unix socket of its own, and
// runs the command line against it.
#pragma once

#include <grpcpp/grpcpp.h>
#include <stdlib.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "cli/app.h"
#include "gtest/gtest.h"
#include "takt/v1/cluster_service.grpc.pb.h"
#include "takt/v1/job_service.grpc.pb.h"

namespace takt::cli {

// Each handler gets the request and fills the response. Without a handler the answer is
// UNIMPLEMENTED.
class FakeCoordinator final : public v1::JobService::Service, public v1::ClusterService::Service {
 public:
  template <class Request, class Response>
  using Handler = std::function<grpc::Status(grpc::ServerContext&, const Request&, Response&)>;
  template <class Request, class Response>
  using StreamHandler = std::function<grpc::Status(grpc::ServerContext&, const Request&,
                                                   grpc::ServerWriter<Response>&)>;

  Handler<v1::SubmitJobRequest, v1::SubmitJobResponse> submit;
  Handler<v1::GetJobRequest, v1::GetJobResponse> get;
  Handler<v1::ListJobsRequest, v1::ListJobsResponse> list;
  Handler<v1::CancelJobRequest, v1::CancelJobResponse> cancel;
  Handler<v1::PauseJobRequest, v1::PauseJobResponse> pause;
  Handler<v1::ResumeJobRequest, v1::ResumeJobResponse> resume;
  Handler<v1::DeleteJobRequest, v1::DeleteJobResponse> remove;
  Handler<v1::ListWorkersRequest, v1::ListWorkersResponse> workers;
  Handler<v1::DrainWorkerRequest, v1::DrainWorkerResponse> drain;
  StreamHandler<v1::WatchJobRequest, v1::WatchJobResponse> watch;
  StreamHandler<v1::GetJobLogsRequest, v1::GetJobLogsResponse> logs;
  StreamHandler<v1::GetTraceRequest, v1::GetTraceResponse> step_traces;

  FakeCoordinator() {
    if (mkdtemp(directory_.data()) == nullptr) abort();
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address(), grpc::InsecureServerCredentials());
    builder.RegisterService(static_cast<v1::JobService::Service*>(this));
    builder.RegisterService(static_cast<v1::ClusterService::Service*>(this));
    server_ = builder.BuildAndStart();
  }
  ~FakeCoordinator() override {
    server_->Shutdown(std::chrono::system_clock::now());
    std::filesystem::remove_all(directory_);
  }

  std::string address() const { return "unix:" + directory_ + "/s"; }

 private:
  template <class H, class Request, class Response>
  static grpc::Status Answer(const H& handler, grpc::ServerContext* context, const Request* request,
                             Response* response) {
    return handler ? handler(*context, *request, *response)
                   : grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
  }
  grpc::Status SubmitJob(grpc::ServerContext* c, const v1::SubmitJobRequest* q,
                         v1::SubmitJobResponse* r) override {
    return Answer(submit, c, q, r);
  }
  grpc::Status GetJob(grpc::ServerContext* c, const v1::GetJobRequest* q,
                      v1::GetJobResponse* r) override {
    return Answer(get, c, q, r);
  }
  grpc::Status ListJobs(grpc::ServerContext* c, const v1::ListJobsRequest* q,
                        v1::ListJobsResponse* r) override {
    return Answer(list, c, q, r);
  }
  grpc::Status CancelJob(grpc::ServerContext* c, const v1::CancelJobRequest* q,
                         v1::CancelJobResponse* r) override {
    return Answer(cancel, c, q, r);
  }
  grpc::Status PauseJob(grpc::ServerContext* c, const v1::PauseJobRequest* q,
                        v1::PauseJobResponse* r) override {
    return Answer(pause, c, q, r);
  }
  grpc::Status ResumeJob(grpc::ServerContext* c, const v1::ResumeJobRequest* q,
                         v1::ResumeJobResponse* r) override {
    return Answer(resume, c, q, r);
  }
  grpc::Status DeleteJob(grpc::ServerContext* c, const v1::DeleteJobRequest* q,
                         v1::DeleteJobResponse* r) override {
    return Answer(remove, c, q, r);
  }
  grpc::Status ListWorkers(grpc::ServerContext* c, const v1::ListWorkersRequest* q,
                           v1::ListWorkersResponse* r) override {
    return Answer(workers, c, q, r);
  }
  grpc::Status DrainWorker(grpc::ServerContext* c, const v1::DrainWorkerRequest* q,
                           v1::DrainWorkerResponse* r) override {
    return Answer(drain, c, q, r);
  }
  grpc::Status WatchJob(grpc::ServerContext* c, const v1::WatchJobRequest* q,
                        grpc::ServerWriter<v1::WatchJobResponse>* w) override {
    return watch ? watch(*c, *q, *w) : grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
  }
  grpc::Status GetJobLogs(grpc::ServerContext* c, const v1::GetJobLogsRequest* q,
                          grpc::ServerWriter<v1::GetJobLogsResponse>* w) override {
    return logs ? logs(*c, *q, *w) : grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
  }
  grpc::Status GetTrace(grpc::ServerContext* c, const v1::GetTraceRequest* q,
                        grpc::ServerWriter<v1::GetTraceResponse>* w) override {
    return step_traces ? step_traces(*c, *q, *w)
                       : grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
  }

  std::string directory_ = "/tmp/takt-fake-XXXXXX";
  std::unique_ptr<grpc::Server> server_;
};

struct Outcome {
  ExitCode code;
  std::string out, err;
};

// Runs one command line, as if a user typed it.
inline Outcome RunTakt(std::vector<std::string> arguments) {
  std::ostringstream out, err;
  Context context{.terminal = {.out = out, .err = err},
                  .environment = [](const char*) { return std::optional<std::string>(); },
                  .program_directory = "/nonexistent"};
  const ExitCode code = RunApp(arguments, context);
  return {code, out.str(), err.str()};
}

inline Outcome RunTakt(const FakeCoordinator& coordinator, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"--coordinator", coordinator.address()});
  return RunTakt(std::move(arguments));
}

}  // namespace takt::cli
