// SPDX-License-Identifier: Apache-2.0
// Runs a coordinator and workers as processes of this machine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "cli/client/client.h"
#include "cli/local/local_state.h"
#include "cli/local/process.h"

namespace takt::cli {

struct LocalClusterOptions {
  std::string program_directory;
  int num_workers = 4;
  int threads = 0;              // of each worker; 0: the machine's cores divided by the workers
  std::string device = "auto";  // "auto", "cpu" or "cuda"; workers share the GPUs
  std::string kernel_plans;     // directory: takt-worker --kernel-plans
  // True: children end with this process. False: they keep running in the background.
  bool die_with_parent = true;
};

// Only the thread that made it uses it. When that thread ends, the kernel kills the children.
// Borrows `state`.
class LocalCluster final {
 public:
  // Starts all processes and waits until the coordinator answers. After an error none of them runs.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(const LocalState& state,
                                                             const LocalClusterOptions& options);
  // Stops the processes that still run.
  ~LocalCluster();

  Client& client() { return *client_; }
  // Stops all at once; each gets a few seconds before SIGKILL.
  void Stop();
  // Waits until every worker is attached. Errors: End::status (a process ended), kInternal (one is
  // too slow).
  absl::Status WaitForWorkers();
  // Lets the processes keep running without this object.
  void Leave() { processes_.clear(); }
  // Sends SIGKILL to all. Any thread.
  void Kill() const;
  // Starts every worker that has ended again, as a new process of its name.
  absl::Status RestartWorkers();

  // A process that ended although it was not stopped.
  struct End {
    std::string process;
    std::string text;  // how, and the last lines of its log
    bool is_coordinator = false;
    // The error of a cluster that has not started: kInvalidArgument (FieldError on --device) if a
    // worker exited that should use a GPU, else kInternal with `text`.
    absl::Status status;
  };
  // The processes that ended since the last call.
  std::vector<End> TakeEnds();
  int num_live_workers();

 private:
  LocalCluster(const LocalState& state, LocalClusterOptions options);
  absl::Status StartCoordinator();
  absl::Status StartWorkers();
  absl::Status Spawn(const std::string& name, std::vector<std::string> arguments);
  absl::StatusOr<Process> Launch(const std::string& name, std::vector<std::string> arguments) const;
  std::vector<std::string> WorkerArguments(const std::string& name, int index) const;
  std::string EndText(const Process& process) const;
  absl::Status EndStatus(const Process& process) const;

  const LocalState& state_;
  const LocalClusterOptions options_;
  // The coordinator comes first. The number of processes is constant between Start and Stop, on the
  // owner's thread.
  std::vector<Process> processes_;
  mutable absl::Mutex kill_mutex_;  // held by Kill, and while one of them is replaced
  std::vector<bool> end_taken_;
  std::unique_ptr<Client> client_;
};

// Returns the number of cores that this process, and so its children, may run on.
int NumCores();

// The processes that `local up` left running on a state directory, found by their pid files.
std::vector<Process> FindLocalProcesses(const std::string& state_directory);

// Stops all at once; each gets a few seconds before SIGKILL.
void StopLocalProcesses(std::vector<Process>& processes);

}  // namespace takt::cli
