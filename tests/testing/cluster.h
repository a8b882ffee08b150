// SPDX-License-Identifier: Apache-2.0
// A coordinator and workers as real processes, in a directory of their own, which talk over a Unix
// socket or over TCP on the loopback interface. Tests of tests/integration and tests/fault use it
// for what can only be seen between processes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/local/process.h"
#include "common/access/identity.h"
#include "common/certificates/tls_files.h"
#include "common/trace/job_trace.h"
#include "takt/v1/cluster_service.grpc.pb.h"
#include "takt/v1/job_service.grpc.pb.h"
#include "tests/testing/history.h"

namespace takt::testing {

// Where a worker runs, and how.
struct WorkerPlace {
  std::vector<std::string> wrapper;    // a program and its arguments, which becomes the worker
  std::vector<std::string> arguments;  // more of the worker's own
  std::string root = "/";              // --data-root and --checkpoint-root
  std::string device = "cpu";          // several workers on a machine may find one GPU
};

// One thread. Nothing that it started outlives it: the destructor kills and reaps the processes,
// and the kernel kills them if the test itself dies. When a test has failed, the destructor prints
// the ends of the logs.
//
// A method fails the running test when something does not happen in time, and then returns what
// there is.
class Cluster final {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(120);

  // How the processes can be reached. kTcp: control at 127.0.0.1, data at 127.0.0.2, metrics at
  // 127.0.0.3, each on a free port; a coordinator that is started again listens on the same one.
  // kTls: as kTcp, with certificates of authority(); it starts no workers.
  enum class Network { kSocketFile, kTcp, kTls };

  // Starts the coordinator and workers w0, w1, ..., and waits until all are idle.
  explicit Cluster(int num_workers, Network network = Network::kSocketFile);
  // places: of workers that are not like the others, by name.
  explicit Cluster(int num_workers, std::map<std::string, WorkerPlace> places);
  ~Cluster();
  Cluster(const Cluster&) = delete;

  // Processes.
  // state: the directory of its state, in directory(). arguments: more of its own.
  void StartCoordinator(const std::string& state = "state",
                        const std::vector<std::string>& arguments = {});
  // coordinator: what it dials; empty: address().
  void StartWorker(const std::string& name, const std::string& coordinator = "");
  cli::Process& coordinator() { return *coordinator_; }
  cli::Process& worker(const std::string& name) { return *workers_.at(name); }
  // Sends SIGKILL. The process is gone on return.
  void Kill(cli::Process& process);
  // Sends SIGTERM to all. Returns every exit status that is not 0, by name.
  std::map<std::string, std::string> StopAll();

  // Jobs. A job file's text; `data.txt` in directory() holds 64 KiB of bytes to train on.
  void Submit(const std::string& yaml);
  void Submit(const v1::JobSpec& spec);
  v1::Job Job(const std::string& name);
  v1::Job AwaitJob(const std::string& name, const std::function<bool(const v1::Job&)>& until,
                   absl::Duration timeout = kPatience);
  // Succeeded, failed or cancelled.
  v1::Job AwaitEnd(const std::string& name, absl::Duration timeout = kPatience);
  // Until a step >= `step` is committed.
  v1::Job AwaitStep(const std::string& name, std::int64_t step, absl::Duration timeout = kPatience);
  // Returns the step log of a job that ended.
  std::vector<v1::StepReport> Steps(const std::string& name);
  // Returns the traces of the newest steps, at most this many.
  trace::JobTrace Trace(const std::string& name, int newest_steps);
  void Cancel(const std::string& name);
  // Precondition: the job has ended.
  void Delete(const std::string& name);
  void Pause(const std::string& name);
  void Resume(const std::string& name);

  // Jobs that workers hold and the coordinator does not know. AwaitHeld waits until the job can be
  // adopted.
  v1::HeldJob AwaitHeld(const std::string& name);
  void Adopt(const std::string& name);
  void Abandon(const std::string& name);

  // Workers.
  std::map<std::string, v1::Worker> Workers();
  void AwaitIdle(const std::set<std::string>& names, absl::Duration timeout = kPatience);
  void Drain(const std::string& name);
  void Undrain(const std::string& name);

  // Fails the test if the coordinator lost anything of what it acknowledged or showed (history.h).
  // No command and no fault may be under way.
  void ExpectNothingLost();

  const std::string& directory() const { return directory_; }
  // Returns the directory of the authority that kTls makes.
  std::string authority() const { return directory_ + "/ca"; }
  // What to dial: unix:PATH or HOST:PORT.
  const std::string& address() const { return address_; }

 private:
  Cluster(int num_workers, Network network, std::map<std::string, WorkerPlace> places);
  certificates::TlsFiles Issue(access::Role role, const std::string& name) const;
  absl::StatusOr<cli::Process> Spawn(const std::string& name, std::vector<std::string> argv);
  std::string AwaitAddress();
  std::string Tail(const std::string& name) const;
  // Asks every few milliseconds, since the services notify nobody of changes.
  bool Poll(const std::function<bool()>& done, absl::Duration timeout);

  const Network network_;
  const std::map<std::string, WorkerPlace> places_;
  const std::string directory_;
  std::string address_;
  std::optional<certificates::TlsFiles> coordinator_tls_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::ClusterService::Stub> cluster_;
  std::optional<cli::Process> coordinator_;
  std::map<std::string, std::optional<cli::Process>> workers_;
  History history_;
};

bool HasEnded(const v1::Job& job);

// A job of the emulated family: `steps` steps of about microbatches * 3 * milliseconds, on
// `pipeline` ranks.
struct EmulatedJob {
  std::string name = "emulated";
  int pipeline = 4, data = 1, tensor = 1, microbatches = 4;
  std::int64_t steps = 10;
  double milliseconds = 1;           // of each of F, I and W
  std::int64_t parameter_bytes = 0;  // of each of the two layers of a rank
  std::string schedule = "1f1b";
  std::string Yaml() const;
};

}  // namespace takt::testing
