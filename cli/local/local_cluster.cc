// SPDX-License-Identifier: Apache-2.0
#include "cli/local/local_cluster.h"

#include <sched.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

constexpr char kCoordinator[] = "coordinator";
constexpr absl::Duration kStartTimeout = absl::Seconds(20);
constexpr absl::Duration kStopGrace = absl::Seconds(5);
constexpr absl::Duration kPollInterval = absl::Milliseconds(50);
constexpr std::size_t kLogLinesShown = 15;

std::string LastLines(const std::string& path) {
  std::ifstream file(path);
  std::deque<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
    if (lines.size() > kLogLinesShown) lines.pop_front();
  }
  std::string text;
  for (const std::string& line : lines) absl::StrAppend(&text, "\n  ", line);
  return text;
}

}  // namespace

int NumCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(
    const LocalState& state, const LocalClusterOptions& options) {
  std::unique_ptr<LocalCluster> cluster(new LocalCluster(state, options));
  RETURN_IF_ERROR(cluster->StartCoordinator());
  RETURN_IF_ERROR(cluster->StartWorkers());
  return cluster;
}

LocalCluster::LocalCluster(const LocalState& state, LocalClusterOptions options)
    : state_(state), options_(std::move(options)) {}

LocalCluster::~LocalCluster() { Stop(); }

absl::Status LocalCluster::StartCoordinator() {
  RETURN_IF_ERROR(Spawn(kCoordinator,
                        {"--listen", state_.coordinator_address(), "--state",
                         state_.directory() + "/coordinator", "--metrics-listen", "127.0.0.1:0"}));
  const absl::Time deadline = absl::Now() + kStartTimeout;
  while (true) {
    auto client = Client::Connect(
        {.address = state_.coordinator_address(), .connect_timeout = absl::Milliseconds(500)});
    if (client.ok()) {
      client_ = *std::move(client);
      return absl::OkStatus();
    }
    Process& coordinator = processes_.front();
    if (coordinator.HasEnded()) return absl::InternalError(EndText(coordinator));
    if (absl::Now() > deadline) {
      return absl::InternalError(absl::StrCat("the coordinator does not answer after ",
                                              absl::FormatDuration(kStartTimeout), "; see ",
                                              state_.LogPath(kCoordinator)));
    }
  }
}

// Worker `index` gets the GPU of that number, modulo the number of GPUs.
std::vector<std::string> LocalCluster::WorkerArguments(const std::string& name, int index) const {
  const int threads =
      options_.threads > 0 ? options_.threads : std::max(1, NumCores() / options_.num_workers);
  std::vector<std::string> arguments = {"--coordinator",
                                        state_.coordinator_address(),
                                        "--name",
                                        name,
                                        "--data-root",
                                        "/",
                                        "--checkpoint-root",
                                        "/",
                                        "--threads",
                                        absl::StrCat(threads),
                                        "--kernel-plans",
                                        options_.kernel_plans,
                                        "--share-device",
                                        "--device",
                                        options_.device};
  if (options_.device != "cpu") absl::StrAppend(&arguments.back(), ":", index);
  if (options_.die_with_parent) arguments.push_back("--die-with-parent");
  return arguments;
}

absl::Status LocalCluster::StartWorkers() {
  for (int i = 0; i < options_.num_workers; ++i) {
    const std::string name = absl::StrCat("worker-", i);
    RETURN_IF_ERROR(Spawn(name, WorkerArguments(name, i)));
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::RestartWorkers() {
  for (std::size_t i = 1; i < processes_.size(); ++i) {
    if (!processes_[i].HasEnded()) continue;
    const std::string name = processes_[i].name();
    ASSIGN_OR_RETURN(Process process, Launch(name, WorkerArguments(name, static_cast<int>(i) - 1)));
    absl::MutexLock lock(&kill_mutex_);
    processes_[i] = std::move(process);
    end_taken_[i] = false;
    RETURN_IF_ERROR(processes_[i].WritePidFile(state_.PidPath(name)));
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::WaitForWorkers() {
  const absl::Time deadline = absl::Now() + kStartTimeout;
  while (true) {
    ASSIGN_OR_RETURN(const std::vector<v1::Worker> workers, client_->ListWorkers());
    const auto attached =
        std::count_if(workers.begin(), workers.end(), [](const v1::Worker& worker) {
          return worker.state() != v1::WORKER_STATE_LOST && worker.state() != v1::WORKER_STATE_AWAY;
        });
    if (attached >= options_.num_workers) return absl::OkStatus();
    for (const End& end : TakeEnds()) return end.status;
    if (absl::Now() > deadline) {
      return absl::InternalError(absl::StrCat(
          "only ", attached, " of ", options_.num_workers, " workers are attached after ",
          absl::FormatDuration(kStartTimeout), "; see ", state_.directory(), "/logs"));
    }
    absl::SleepFor(kPollInterval);
  }
}

absl::StatusOr<Process> LocalCluster::Launch(const std::string& name,
                                             std::vector<std::string> arguments) const {
  const bool is_coordinator = name == kCoordinator;
  arguments.insert(arguments.begin(),
                   absl::StrCat(options_.program_directory,
                                is_coordinator ? "/takt-coordinator" : "/takt-worker"));
  arguments.insert(arguments.end(), {"--settings", ""});  // ignores the settings of the machine
  return Process::Spawn({.name = name,
                         .argv = std::move(arguments),
                         .log_path = state_.LogPath(name),
                         .die_with_parent = options_.die_with_parent,
                         .inherited_fd = state_.lock_fd()});
}

absl::Status LocalCluster::Spawn(const std::string& name, std::vector<std::string> arguments) {
  std::error_code error;
  std::filesystem::remove(state_.LogPath(name), error);  // the log of an earlier run
  ASSIGN_OR_RETURN(Process process, Launch(name, std::move(arguments)));
  processes_.push_back(std::move(process));
  end_taken_.push_back(false);
  return processes_.back().WritePidFile(state_.PidPath(name));
}

void LocalCluster::Stop() {
  StopLocalProcesses(processes_);
  processes_.clear();
}

void LocalCluster::Kill() const {
  absl::MutexLock lock(&kill_mutex_);
  for (const Process& process : processes_) process.Kill();
}

std::vector<LocalCluster::End> LocalCluster::TakeEnds() {
  std::vector<End> ends;
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    if (end_taken_[i] || !processes_[i].HasEnded()) continue;
    end_taken_[i] = true;
    ends.push_back({.process = processes_[i].name(),
                    .text = EndText(processes_[i]),
                    .is_coordinator = i == 0,
                    .status = EndStatus(processes_[i])});
  }
  return ends;
}

int LocalCluster::num_live_workers() {
  int count = 0;
  for (std::size_t i = 1; i < processes_.size(); ++i) count += processes_[i].HasEnded() ? 0 : 1;
  return count;
}

std::string LocalCluster::EndText(const Process& process) const {
  const std::string log = state_.LogPath(process.name());
  return absl::StrCat(process.name(), " ended: ", process.EndText(), "; the end of ", log, ":",
                      LastLines(log));
}

absl::Status LocalCluster::EndStatus(const Process& process) const {
  const bool exited = absl::StartsWith(process.EndText(), "exit status");
  if (process.name() == kCoordinator || options_.device != "cuda" || !exited)
    return absl::InternalError(EndText(process));
  // The last line says why, after the name of the program.
  const std::string lines = LastLines(state_.LogPath(process.name()));
  absl::string_view last = absl::StripAsciiWhitespace(lines);
  last = absl::StripAsciiWhitespace(last.substr(last.rfind('\n') + 1));
  return InvalidField(
      {.field = "--device",
       .value = options_.device,
       .rule = absl::StrCat("no worker starts with it: ", absl::StripPrefix(last, "takt-worker: ")),
       .fix = "or leave it out, so that workers without a GPU compute on cores"});
}

std::vector<Process> FindLocalProcesses(const std::string& state_directory) {
  std::vector<Process> processes;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(state_directory + "/pids", error)) {
    if (entry.path().extension() != ".pid") continue;
    auto process = Process::FromPidFile(entry.path().stem().string(), entry.path().string());
    if (process.has_value()) processes.push_back(*std::move(process));
  }
  return processes;
}

void StopLocalProcesses(std::vector<Process>& processes) {
  std::vector<Process*> all;
  for (Process& process : processes) all.push_back(&process);
  StopAll(std::move(all), kStopGrace);
}

}  // namespace takt::cli
