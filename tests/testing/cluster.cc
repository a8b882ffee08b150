// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/cluster.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/certificates/authority.h"
#include "common/config/job_file.h"
#include "common/config/spec_files.h"
#include "common/rpc/credentials.h"
#include "common/trace/job_trace_serde.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace takt::testing {
namespace {

constexpr char kCoordinator[] = "coordinator";
constexpr absl::Duration kPoll = absl::Milliseconds(20);
constexpr absl::Duration kCallTimeout = absl::Seconds(60);
constexpr std::size_t kTailBytes = 6000;

std::string MakeDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "takt-cluster-XXXXXX").string();
  TAKT_CHECK(mkdtemp(name.data()) != nullptr);
  return name;
}

// Calls until the coordinator answers: it may be away, or go away while it is asked. Every request
// is one that may be repeated. Returns whether the answer was a success.
template <class Rpc>
bool Call(const std::string& what, const Rpc& rpc) {
  const absl::Time deadline = absl::Now() + kCallTimeout;
  grpc::Status status;
  do {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    context.set_wait_for_ready(true);
    status = rpc(&context);
  } while (status.error_code() == grpc::StatusCode::UNAVAILABLE && absl::Now() < deadline);
  if (!status.ok()) ADD_FAILURE() << what << ": " << status.error_message();
  return status.ok();
}

std::string RequestId() {
  static int calls = 0;
  return absl::StrCat("test-", ++calls);
}

}  // namespace

bool HasEnded(const v1::Job& job) {
  return job.state() == v1::JOB_STATE_SUCCEEDED || job.state() == v1::JOB_STATE_FAILED ||
         job.state() == v1::JOB_STATE_CANCELLED;
}

std::string EmulatedJob::Yaml() const {
  const bool shares = tensor > 1;
  return absl::StrCat(
      "name: ", name, "\nmodel: {family: emulated, layers: ", 2 * pipeline,
      ", forward_ms: ", milliseconds / 2, ", input_grad_ms: ", milliseconds / 2,
      ", weight_grad_ms: ", milliseconds / 2,
      ", activation_bytes: 4096, parameter_bytes: ", parameter_bytes,
      shares ? ", collective_bytes: 4096" : "", "}\nbatch: {global: ", microbatches * data,
      ", microbatch: 1}\nsteps: ", steps, "\nparallelism: {pipeline: ", pipeline, ", data: ", data,
      shares ? absl::StrCat(", tensor: ", tensor) : "", ", schedule: ", schedule, "}\n");
}

Cluster::Cluster(int num_workers, Network network) : Cluster(num_workers, network, {}) {}

Cluster::Cluster(int num_workers, std::map<std::string, WorkerPlace> places)
    : Cluster(num_workers, Network::kSocketFile, std::move(places)) {}

Cluster::Cluster(int num_workers, Network network, std::map<std::string, WorkerPlace> places)
    : network_(network),
      places_(std::move(places)),
      directory_(MakeDirectory()),
      address_(network == Network::kSocketFile ? "unix:" + directory_ + "/socket" : "") {
  std::ofstream data(directory_ + "/data.txt");
  for (int i = 0; i < (64 << 10); ++i) data.put(static_cast<char>('a' + i * i % 23));
  data.close();
  const bool tls = network_ == Network::kTls;
  TAKT_CHECK(!tls || num_workers == 0);
  if (tls) TAKT_CHECK(certificates::CreateAuthority(authority(), "lab.example", absl::Now()).ok());
  StartCoordinator();
  if (network_ != Network::kSocketFile) address_ = AwaitAddress();
  rpc::Endpoint endpoint{.address = address_, .insecure = !tls};
  if (tls) endpoint.tls = Issue(access::Role::kAdmin, "root");
  const auto channel = grpc::CreateChannel(address_, rpc::ChannelCredentialsFor(endpoint));
  jobs_ = v1::JobService::NewStub(channel);
  cluster_ = v1::ClusterService::NewStub(channel);
  std::set<std::string> names;
  for (int i = 0; i < num_workers; ++i) {
    names.insert(absl::StrCat("w", i));
    StartWorker(absl::StrCat("w", i));
  }
  AwaitIdle(names);
}

Cluster::~Cluster() {
  if (::testing::Test::HasFailure()) {
    std::cerr << Tail(kCoordinator);
    for (const auto& [name, process] : workers_) std::cerr << Tail(name);
  }
  for (auto& [name, process] : workers_) Kill(*process);
  Kill(*coordinator_);
  std::filesystem::remove_all(directory_);
}

certificates::TlsFiles Cluster::Issue(access::Role role, const std::string& name) const {
  std::vector<std::string> hosts;
  if (role == access::Role::kCoordinator) hosts = {"127.0.0.1"};
  const auto files = certificates::IssueCertificate(authority(), directory_ + "/certs",
                                                    {.identity = {.role = role, .name = name},
                                                     .hosts = std::move(hosts),
                                                     .validity = absl::Hours(24),
                                                     .now = absl::Now()});
  TAKT_CHECK(files.ok());
  return {
      .certificate = files->certificate, .key = files->key, .authority = authority() + "/ca.pem"};
}

absl::StatusOr<cli::Process> Cluster::Spawn(const std::string& name,
                                            std::vector<std::string> argv) {
  argv[0] = std::string(TAKT_BINARY_DIR) + "/" + argv[0];
  argv.insert(argv.end(), {"--settings", ""});  // not the machine's own
  if (const auto place = places_.find(name); place != places_.end()) {
    const WorkerPlace& its = place->second;
    argv.insert(argv.end(), its.arguments.begin(), its.arguments.end());
    argv.insert(argv.begin(), its.wrapper.begin(), its.wrapper.end());
  }
  return cli::Process::Spawn(
      {.name = name, .argv = std::move(argv), .log_path = directory_ + "/" + name + ".log"});
}

void Cluster::StartCoordinator(const std::string& state,
                               const std::vector<std::string>& arguments) {
  std::vector<std::string> argv = {"takt-coordinator", "--state", directory_ + "/" + state};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  if (network_ == Network::kSocketFile) {
    argv.insert(argv.end(), {"--listen", address_});
  } else {
    argv.insert(argv.end(), {"--listen", address_.empty() ? "127.0.0.1:0" : address_,
                             "--metrics-listen", "127.0.0.3:0"});
  }
  if (network_ == Network::kTcp) argv.push_back("--insecure");
  if (network_ == Network::kTls) {
    if (!coordinator_tls_) coordinator_tls_ = Issue(access::Role::kCoordinator, "c1");
    const certificates::TlsFiles& files = *coordinator_tls_;
    argv.insert(argv.end(), {"--rpc-memory", "2GB", "--tls-certificate", files.certificate,
                             "--tls-key", files.key, "--tls-authority", files.authority});
  }
  auto process = Spawn(kCoordinator, std::move(argv));
  TAKT_CHECK(process.ok());
  coordinator_.reset();
  coordinator_.emplace(*std::move(process));
}

std::string Cluster::AwaitAddress() {
  nlohmann::json state;
  const bool in_time = Poll(
      [&] {
        std::ifstream file(directory_ + "/state/coordinator.json");
        state = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
        return state.is_object();
      },
      kPatience);
  TAKT_CHECK(in_time);
  return state["listen"];
}

void Cluster::StartWorker(const std::string& name, const std::string& coordinator) {
  const bool tcp = network_ == Network::kTcp;
  const auto found = places_.find(name);
  const WorkerPlace place = found != places_.end() ? found->second : WorkerPlace();
  std::vector<std::string> argv = {"takt-worker",
                                   "--coordinator",
                                   coordinator.empty() ? address_ : coordinator,
                                   "--name",
                                   name,
                                   "--data-root",
                                   place.root,
                                   "--checkpoint-root",
                                   place.root,
                                   "--device",
                                   place.device,
                                   "--threads",
                                   "1",
                                   "--metrics-listen",
                                   tcp ? "127.0.0.3:0" : "",
                                   "--die-with-parent"};
  if (tcp) argv.insert(argv.end(), {"--data-address", "127.0.0.2", "--insecure"});
  auto process = Spawn(name, std::move(argv));
  TAKT_CHECK(process.ok());
  workers_[name].reset();
  workers_[name].emplace(*std::move(process));
}

void Cluster::Kill(cli::Process& process) {
  process.Signal(SIGKILL);
  TAKT_CHECK(process.WaitUntil(absl::Now() + kPatience));
}

std::map<std::string, std::string> Cluster::StopAll() {
  std::map<std::string, cli::Process*> all;
  for (auto& [name, process] : workers_) all[name] = &*process;
  all[kCoordinator] = &*coordinator_;
  for (auto& [name, process] : all) process->Signal(SIGTERM);
  std::map<std::string, std::string> ends;
  for (auto& [name, process] : all) {
    if (!process->WaitUntil(absl::Now() + kPatience))
      ends[name] = "does not end";
    else if (process->EndText() != "exit status 0")
      ends[name] = process->EndText();
  }
  return ends;
}

std::string Cluster::Tail(const std::string& name) const {
  std::ifstream file(directory_ + "/" + name + ".log");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.size() > kTailBytes) text = "...\n" + text.substr(text.size() - kTailBytes);
  return absl::StrCat("-- ", name, " --\n", text);
}

bool Cluster::Poll(const std::function<bool()>& done, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!done()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(kPoll);
  }
  return true;
}

void Cluster::Submit(const std::string& yaml) {
  absl::StatusOr<v1::JobSpec> spec = config::ParseJobFile(yaml, {});
  if (!spec.ok()) {
    ADD_FAILURE() << spec.status();
    return;
  }
  config::MakePathsAbsolute(*spec, directory_);
  Submit(*spec);
}

void Cluster::Submit(const v1::JobSpec& spec) {
  v1::SubmitJobRequest request;
  request.set_request_id(RequestId());
  *request.mutable_spec() = spec;
  v1::SubmitJobResponse response;
  const bool done = Call("submit " + spec.name(), [&](grpc::ClientContext* context) {
    return jobs_->SubmitJob(context, request, &response);
  });
  if (done) history_.Acknowledged(Command::kSubmit, spec.name());
}

v1::Job Cluster::Job(const std::string& name) {
  v1::GetJobRequest request;
  request.set_name(name);
  v1::GetJobResponse response;
  Call("get " + name,
       [&](grpc::ClientContext* context) { return jobs_->GetJob(context, request, &response); });
  history_.Saw(response.job());
  return response.job();
}

v1::Job Cluster::AwaitJob(const std::string& name, const std::function<bool(const v1::Job&)>& until,
                          absl::Duration timeout) {
  v1::Job job;
  const auto done = [&] {
    job = Job(name);
    return until(job);
  };
  if (!Poll(done, timeout)) {
    ADD_FAILURE() << name << " did not come there in time; it is " << v1::JobState_Name(job.state())
                  << ": " << job.reason() << "; last step " << job.last_step().step();
  }
  return job;
}

v1::Job Cluster::AwaitEnd(const std::string& name, absl::Duration timeout) {
  return AwaitJob(name, HasEnded, timeout);
}

v1::Job Cluster::AwaitStep(const std::string& name, std::int64_t step, absl::Duration timeout) {
  return AwaitJob(
      name, [&](const v1::Job& job) { return job.last_step().step() >= step || HasEnded(job); },
      timeout);
}

std::vector<v1::StepReport> Cluster::Steps(const std::string& name) {
  v1::WatchJobRequest request;
  request.set_name(name);
  std::vector<v1::StepReport> steps;
  Call("steps of " + name, [&](grpc::ClientContext* context) {
    steps.clear();
    const auto stream = jobs_->WatchJob(context, request);
    for (v1::WatchJobResponse response; stream->Read(&response);) {
      if (response.has_step()) steps.push_back(response.step());
    }
    return stream->Finish();
  });
  history_.SawSteps(name, steps);
  return steps;
}

trace::JobTrace Cluster::Trace(const std::string& name, int newest_steps) {
  v1::GetTraceRequest request;
  request.set_name(name);
  request.set_newest_steps(newest_steps);
  absl::StatusOr<trace::JobTrace> trace;
  Call("trace of " + name, [&](grpc::ClientContext* context) {
    trace::TraceReader reader;
    absl::Status damage;
    const auto stream = jobs_->GetTrace(context, request);
    for (v1::GetTraceResponse response; stream->Read(&response);) {
      if (response.has_header()) damage.Update(reader.AddHeader(response.header()));
      if (response.has_program()) damage.Update(reader.AddProgram(response.program()));
      if (response.has_step()) damage.Update(reader.AddStep(response.step()));
    }
    trace = damage.ok() ? reader.Take() : damage;
    return stream->Finish();
  });
  if (!trace.ok()) ADD_FAILURE() << "trace of " << name << ": " << trace.status();
  return trace.ok() ? *std::move(trace) : trace::JobTrace{};
}

void Cluster::Cancel(const std::string& name) {
  v1::CancelJobRequest request;
  request.set_request_id(RequestId());
  request.set_name(name);
  v1::CancelJobResponse response;
  const bool done = Call("cancel " + name, [&](grpc::ClientContext* context) {
    return jobs_->CancelJob(context, request, &response);
  });
  if (done) history_.Acknowledged(Command::kCancel, name);
}

void Cluster::Delete(const std::string& name) {
  v1::DeleteJobRequest request;
  request.set_request_id(RequestId());
  request.set_name(name);
  v1::DeleteJobResponse response;
  const bool done = Call("delete " + name, [&](grpc::ClientContext* context) {
    return jobs_->DeleteJob(context, request, &response);
  });
  if (done) history_.Acknowledged(Command::kDelete, name);
}

void Cluster::Pause(const std::string& name) {
  v1::PauseJobRequest request;
  request.set_request_id(RequestId());
  request.set_name(name);
  v1::PauseJobResponse response;
  const bool done = Call("pause " + name, [&](grpc::ClientContext* context) {
    return jobs_->PauseJob(context, request, &response);
  });
  if (done) history_.Acknowledged(Command::kPause, name);
}

void Cluster::Resume(const std::string& name) {
  v1::ResumeJobRequest request;
  request.set_request_id(RequestId());
  request.set_name(name);
  v1::ResumeJobResponse response;
  const bool done = Call("resume " + name, [&](grpc::ClientContext* context) {
    return jobs_->ResumeJob(context, request, &response);
  });
  if (done) history_.Acknowledged(Command::kResume, name);
}

v1::HeldJob Cluster::AwaitHeld(const std::string& name) {
  v1::HeldJob found;
  const auto adoptable = [&] {
    v1::ListHeldJobsResponse response;
    Call("held jobs",
         [&](grpc::ClientContext* context) { return jobs_->ListHeldJobs(context, {}, &response); });
    for (const v1::HeldJob& job : response.jobs()) {
      if (job.name() == name) found = job;
    }
    return found.name() == name && found.reason().empty();
  };
  if (!Poll(adoptable, kPatience))
    ADD_FAILURE() << name << " cannot be adopted: " << found.ShortDebugString();
  return found;
}

void Cluster::Adopt(const std::string& name) {
  v1::AdoptJobRequest request;
  request.set_request_id(RequestId());
  request.set_name(name);
  v1::AdoptJobResponse response;
  Call("adopt " + name,
       [&](grpc::ClientContext* context) { return jobs_->AdoptJob(context, request, &response); });
}

void Cluster::Abandon(const std::string& name) {
  v1::AbandonJobRequest request;
  request.set_request_id(RequestId());
  request.set_name(name);
  v1::AbandonJobResponse response;
  Call("abandon " + name, [&](grpc::ClientContext* context) {
    return jobs_->AbandonJob(context, request, &response);
  });
}

std::map<std::string, v1::Worker> Cluster::Workers() {
  v1::ListWorkersResponse response;
  Call("workers",
       [&](grpc::ClientContext* context) { return cluster_->ListWorkers(context, {}, &response); });
  std::map<std::string, v1::Worker> workers;
  for (const v1::Worker& worker : response.workers()) {
    workers[worker.name()] = worker;
    history_.Saw(worker);
  }
  return workers;
}

void Cluster::AwaitIdle(const std::set<std::string>& names, absl::Duration timeout) {
  std::string wrong;
  const auto done = [&] {
    const auto workers = Workers();
    wrong.clear();
    for (const std::string& name : names) {
      const auto worker = workers.find(name);
      if (worker == workers.end())
        absl::StrAppend(&wrong, name, " is not attached; ");
      else if (worker->second.state() != v1::WORKER_STATE_IDLE) {
        absl::StrAppend(&wrong, name, " is ", v1::WorkerState_Name(worker->second.state()), "; ");
      }
    }
    return wrong.empty();
  };
  if (!Poll(done, timeout)) ADD_FAILURE() << wrong;
}

void Cluster::Drain(const std::string& name) {
  v1::DrainWorkerRequest request;
  request.set_request_id(RequestId());
  request.set_worker(name);
  v1::DrainWorkerResponse response;
  const bool done = Call("drain " + name, [&](grpc::ClientContext* context) {
    return cluster_->DrainWorker(context, request, &response);
  });
  if (done) history_.AcknowledgedDrained(name, true);
}

void Cluster::Undrain(const std::string& name) {
  v1::UndrainWorkerRequest request;
  request.set_request_id(RequestId());
  request.set_worker(name);
  v1::UndrainWorkerResponse response;
  const bool done = Call("undrain " + name, [&](grpc::ClientContext* context) {
    return cluster_->UndrainWorker(context, request, &response);
  });
  if (done) history_.AcknowledgedDrained(name, false);
}

void Cluster::ExpectNothingLost() {
  for (const std::string& name : history_.JobNames()) {
    const v1::Job job = Job(name);
    history_.SawAtRest(job);
    if (HasEnded(job)) Steps(name);
  }
  Workers();
  for (const std::string& violation : history_.violations()) ADD_FAILURE() << violation;
  if (!history_.violations().empty())
    std::cerr << "acknowledged commands:\n" << history_.ToString() << std::endl;
}

}  // namespace takt::testing
