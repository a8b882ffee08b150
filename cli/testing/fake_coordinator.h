// SPDX-License-Identifier: Apache-2.0
// Provides a coordinator that answers what a test tells it to, on a Unix socket of its own, and
// runs the command line against it.
#pragma once

#include <grpcpp/grpcpp.h>
#include <stdlib.h>

#include <chrono>
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

// Answers the method of a service with a handler, which gets the request and fills the response, or
// writes to the stream. Without a handler the answer is UNIMPLEMENTED.
#define TAKT_FAKE_METHOD(Method, Answer, handler)                                                 \
  std::function<grpc::Status(grpc::ServerContext&, const v1::Method##Request&, Answer&)> handler; \
  grpc::Status Method(grpc::ServerContext* context, const v1::Method##Request* request,           \
                      Answer* answer) override {                                                  \
    return handler ? handler(*context, *request, *answer)                                         \
                   : grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");                           \
  }

class FakeCoordinator final : public v1::JobService::Service, public v1::ClusterService::Service {
 public:
  TAKT_FAKE_METHOD(SubmitJob, v1::SubmitJobResponse, submit)
  TAKT_FAKE_METHOD(GetJob, v1::GetJobResponse, get)
  TAKT_FAKE_METHOD(ListJobs, v1::ListJobsResponse, list)
  TAKT_FAKE_METHOD(CancelJob, v1::CancelJobResponse, cancel)
  TAKT_FAKE_METHOD(PauseJob, v1::PauseJobResponse, pause)
  TAKT_FAKE_METHOD(ResumeJob, v1::ResumeJobResponse, resume)
  TAKT_FAKE_METHOD(DeleteJob, v1::DeleteJobResponse, remove)
  TAKT_FAKE_METHOD(ListHeldJobs, v1::ListHeldJobsResponse, list_held)
  TAKT_FAKE_METHOD(AdoptJob, v1::AdoptJobResponse, adopt)
  TAKT_FAKE_METHOD(AbandonJob, v1::AbandonJobResponse, abandon)
  TAKT_FAKE_METHOD(ListWorkers, v1::ListWorkersResponse, workers)
  TAKT_FAKE_METHOD(GetVersion, v1::GetVersionResponse, version)
  TAKT_FAKE_METHOD(GetProfile, v1::GetProfileResponse, get_profile)
  TAKT_FAKE_METHOD(DrainWorker, v1::DrainWorkerResponse, drain)
  TAKT_FAKE_METHOD(BackUpState, grpc::ServerWriter<v1::BackUpStateResponse>, back_up)
  TAKT_FAKE_METHOD(WatchJob, grpc::ServerWriter<v1::WatchJobResponse>, watch)
  TAKT_FAKE_METHOD(GetJobLogs, grpc::ServerWriter<v1::GetJobLogsResponse>, logs)
  TAKT_FAKE_METHOD(GetTrace, grpc::ServerWriter<v1::GetTraceResponse>, step_traces)

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
  std::string directory_ = "/tmp/takt-fake-XXXXXX";
  std::unique_ptr<grpc::Server> server_;
};

#undef TAKT_FAKE_METHOD

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
