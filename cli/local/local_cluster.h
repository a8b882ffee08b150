// SPDX-License-Identifier: Apache-2.0
// A coordinator and workers as processes of this machine.
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
  int threads = 0;              // of each worker; 0: this machine's cores shared out
  std::string device = "auto";  // "auto", "cpu" or "cuda": of workers that share the GPUs out
  std::string kernel_plans;     // directory: takt-worker --kernel-plans
  // Children end with this process; false: they go on in the background.
  bool die_with_parent = true;
};

// Used by the thread that made it, and dies with it: the kernel kills the children when that thread
// ends. Borrows `state`.
class LocalCluster final {
 public:
  // Starts all and waits until the coordinator answers. On an error nothing is left running.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(const LocalState& state,
                                                             const LocalClusterOptions& options);
  // Stops what still runs.
  ~LocalCluster();

  Client& client() { return *client_; }
  // All at once; each gets a few seconds before SIGKILL.
  void Stop();
  // Until every worker is attached. Errors: kInternal, a process ended or is too slow.
  absl::Status WaitForWorkers();
  // Lets the processes go on without us.
  void Leave() { processes_.clear(); }
  // SIGKILL to all, now. Any thread.
  void Kill() const;
  // Every worker that has ended lives again, as a new process of its name.
  absl::Status RestartWorkers();

  // A process that ended though nobody stopped it.
  struct End {
    std::string process;
    std::string text;  // how, and the last lines of its log
    bool is_coordinator = false;
  };
  // Those since the last call.
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

  const LocalState& state_;
  const LocalClusterOptions options_;
  // The coordinator first. Their number is constant between Start and Stop, on the owner's thread.
  std::vector<Process> processes_;
  mutable absl::Mutex kill_mutex_;  // held by Kill, and while one of them is replaced
  std::vector<bool> end_taken_;
  std::unique_ptr<Client> client_;
};

// What `local up` left running on a state directory, by its pid files.
std::vector<Process> FindLocalProcesses(const std::string& state_directory);

// All at once; each gets a few seconds before SIGKILL.
void StopLocalProcesses(std::vector<Process>& processes);

}  // namespace takt::cli
