// SPDX-License-Identifier: Apache-2.0
// takt-worker: attaches to a coordinator and runs the ranks that it hands out, until SIGTERM.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/daemon/certificate_watch.h"
#include "common/daemon/metrics_server.h"
#include "common/daemon/service_manager.h"
#include "common/metrics/catalog.h"
#include "common/metrics/registry.h"
#include "common/rpc/endpoint.h"
#include "common/rpc/health.h"
#include "nlohmann/json.hpp"
#include "worker/backend/backend.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/checkpoint/file_system.h"
#include "worker/compute_backends.h"
#include "worker/flags.h"
#include "worker/plugin/choose_device.h"
#include "worker/plugin/loader.h"
#include "worker/process_memory.h"
#include "worker/rpc/attachment_client.h"
#include "worker/rpc/coordinator_channel.h"
#include "worker/rpc/rendezvous_client.h"
#include "worker/session/agent.h"
#include "worker/session/pipeline_runner.h"
#include "worker/transport/nccl/nccl_transport.h"

namespace takt::worker {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

// Those that this process may run on, which in a container are fewer than the machine's.
int NumCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

std::string HostName() {
  utsname name{};
  return uname(&name) == 0 ? name.nodename : "localhost";
}

std::string RandomId() {
  std::random_device random;
  std::string id;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&id, absl::Hex(random(), absl::kZeroPad8));
  return id;
}

// 0 if it cannot be measured: the planner then takes its own guess. Logs what computes.
double MatmulFlopsPerSecond(int threads) {
  auto backend = backend::CreateCpuBackend({.threads = threads});
  if (backend.ok()) Log(LogLevel::kInfo, "backend", {{"description", (*backend)->description()}});
  absl::StatusOr<double> flops =
      backend.ok() ? backend::MeasureMatmulFlops(**backend) : backend.status();
  if (!flops.ok())
    Log(LogLevel::kWarning, "matmul rate not measured", {{"error", flops.status().ToString()}});
  return flops.value_or(0);
}

// 0 if it cannot be measured. The device is given back.
double MatmulFlopsPerSecond(const plugin::CudaEntry& cuda, int index) {
  const auto measure = [&]() -> absl::StatusOr<double> {
    ASSIGN_OR_RETURN(const auto device, cuda.open_device({.device = index}));
    ASSIGN_OR_RETURN(const auto backend, device->CreateCompute());
    Log(LogLevel::kInfo, "backend", {{"description", backend->description()}});
    return backend::MeasureMatmulFlops(*backend);
  };
  const absl::StatusOr<double> flops = measure();
  if (!flops.ok()) {
    Log(LogLevel::kWarning, "matmul rate of the GPU not measured",
        {{"error", flops.status().ToString()}});
  }
  return flops.value_or(0);
}

// What jobs on GPUs compute on here. Logs what there is, or why there is nothing.
absl::StatusOr<std::optional<Device>> ComputeDevice(const Flags& flags) {
  ASSIGN_OR_RETURN(plugin::DeviceWish wish, plugin::ParseDeviceWish(flags.device));
  wish.shared = flags.share_device;
  const auto load = []() -> absl::StatusOr<const plugin::CudaEntry*> {
    RETURN_IF_ERROR(plugin::FindDriver());
    return plugin::LoadCuda(plugin::ModuleDirectory());
  };
  ASSIGN_OR_RETURN(plugin::ChosenDevice chosen, plugin::ChooseDevice(wish, load, "/sys"));
  if (chosen.device) {
    ASSIGN_OR_RETURN(const plugin::CudaEntry* const cuda, load());
    chosen.device->matmul_flops_per_second = MatmulFlopsPerSecond(*cuda, chosen.device->index);
    Log(LogLevel::kInfo, "computes on a GPU",
        {{"device", absl::StrCat("cuda:", chosen.device->index)},
         {"name", chosen.device->name},
         {"uuid", chosen.device->uuid}});
  } else if (!chosen.why_not.empty()) {
    Log(LogLevel::kInfo, "computes on its cores alone", {{"reason", chosen.why_not}});
  }
  return chosen.device;
}

// What NCCL there is for the device; logs which, or why there is none.
transport::nccl::Library NcclOf(const Device& device) {
  const absl::StatusOr<const plugin::NcclEntry*> nccl = plugin::LoadNccl(plugin::ModuleDirectory());
  const absl::StatusOr<int> version = nccl.ok() ? (*nccl)->library_version() : nccl.status();
  if (!version.ok()) {
    Log(LogLevel::kWarning, "has no NCCL: its GPU exchanges through the host",
        {{"reason", std::string(version.status().message())}});
    return {};
  }
  Log(LogLevel::kInfo, "has NCCL", {{"version", transport::nccl::VersionText(*version)}});
  const char* const shares = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return {.api = (*nccl)->api,
          .device_index = device.index,
          .presence = {.version = *version,
                       .device = device.uuid,
                       .shares_gpu = shares != nullptr && std::string_view(shares) == "1"}};
}

// For the driver and the libraries, which read them when they are opened. Kernels of NCCL wait for
// other ranks on the device. What makes the device wait for them, or its queues, while others wait
// for us, is a deadlock: so kernels are loaded at once, not at their first launch, and each stream
// has a queue of its own. Who sets them otherwise knows why. NCCL makes its ids itself.
void PrepareEnvironment() {
  setenv("CUDA_MODULE_LOADING", "EAGER", /*replace=*/0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*replace=*/0);
  unsetenv("NCCL_COMM_ID");
}

// Whole or not at all, so that who waits for the file never reads a part.
absl::Status WriteStateFile(const Flags& flags, const std::string& incarnation,
                            const std::string& metrics_address) {
  const nlohmann::ordered_json state = {{"name", flags.name},
                                        {"pid", getpid()},
                                        {"incarnation", incarnation},
                                        {"coordinator", flags.coordinator},
                                        {"metrics_address", metrics_address}};
  const std::string temporary = flags.state_file + ".new";
  std::ofstream(temporary) << state.dump(2) << "\n";
  std::error_code error;
  std::filesystem::rename(temporary, flags.state_file, error);
  if (!error) return absl::OkStatus();
  return InvalidField({.field = "--state-file",
                       .value = flags.state_file,
                       .rule = error.message(),
                       .fix = "name a file in a directory that this user may write"});
}

// Calls `on_signal` for SIGTERM and SIGINT, which must be blocked in every thread.
class SignalThread {
 public:
  explicit SignalThread(std::function<void()> on_signal)
      : thread_([this, on_signal = std::move(on_signal)] {
          pthread_setname_np(pthread_self(), "takt-signals");
          const sigset_t signals = Signals();
          for (int signal = 0; sigwait(&signals, &signal) == 0 && !ended_;) on_signal();
        }) {}
  ~SignalThread() {
    ended_ = true;
    pthread_kill(thread_.native_handle(), SIGTERM);
    thread_.join();
  }
  static sigset_t Signals() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    return signals;
  }

 private:
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

// Ships log lines to the coordinator. Ends after every thread that logs.
class LogShipping {
 public:
  ~LogShipping() { SetLogSink(nullptr); }
  void Start(session::BulkOutbox& outbox) {
    SetLogSink([&outbox](LogLevel level, std::string_view line) {
      outbox.AddLog(level, line, absl::ToUnixNanos(absl::Now()));
    });
  }
};

// This program once more, in this process's place: threads that hang and a device that is lost to
// the process end with it, who supervises it sees no end.
[[noreturn]] void BeginAnew(char** argv, int exit_code) {
  std::error_code error;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  execv(program.c_str(), argv);
  _exit(exit_code);  // nothing can be destroyed in order
}

absl::StatusOr<int> Serve(const Flags& flags, char** argv) {
  ASSIGN_OR_RETURN(const auto channel, rpc::CoordinatorChannel({.coordinator = flags.coordinator,
                                                                .tls = flags.tls,
                                                                .insecure = flags.insecure}));
  PrepareEnvironment();
  ASSIGN_OR_RETURN(const std::optional<Device> device, ComputeDevice(flags));
  const transport::nccl::Library nccl =
      device.has_value() ? NcclOf(*device) : transport::nccl::Library();
  const int cores = NumCores();
  const int threads = flags.threads > 0 ? flags.threads : cores;
  const std::string incarnation = RandomId();
  metrics::Registry registry("takt-worker");
  const daemon::CertificateWatch certificate_watch(flags.tls, [&](absl::Time expires) {
    registry.Gauge(metrics::kCertificateExpiry, {}).Set(absl::ToUnixSeconds(expires));
  });
  backend::MemoryLedger ledger;
  std::unique_ptr<daemon::MetricsServer> metrics_server;
  if (!flags.metrics_listen.empty()) {
    ASSIGN_OR_RETURN(metrics_server, daemon::MetricsServer::Start(flags.metrics_listen, [&] {
                       RecordMemory(ledger.Read(), registry);
                       return registry.Text();
                     }));
  }
  const std::string metrics_address = metrics_server != nullptr ? metrics_server->address() : "";

  const auto files = checkpoint::CreatePosixFileSystem();
  session::PipelineRunnerOptions runner_options{
      .data_root = flags.data_root,
      .checkpoint_root = flags.checkpoint_root,
      .data_address = flags.data_address,
      .threads = threads,
      .make_rendezvous =
          [channel](const session::JobKey& key) {
            return rpc::CreateRendezvousClient(channel, key);
          },
      .files = files.get(),
      .metrics = &registry,
      .ledger = &ledger,
      .make_backends =
          [&](const session::Assignment& job, int job_threads) {
            return CreateComputeBackends({.device = device, .ledger = &ledger}, job, job_threads);
          },
      .nccl = nccl,
      .kernel_plans = flags.kernel_plans};
  LogShipping log_shipping;  // outlives the agent's threads
  session::Agent agent(
      {.runner_factory =
           [&](session::Assignment assignment) {
             return session::CreatePipelineRunner(runner_options, std::move(assignment));
           },
       .commit =
           [&](const session::CommitRequest& request) {
             return session::CommitCheckpoint(*files, flags.checkpoint_root, request);
           },
       .leave_timeout = absl::Seconds(flags.leave_seconds),
       .on_job_over =
           [&](const std::string& job) {
             registry.Drop({{"job", job}});
           }});
  log_shipping.Start(agent.outbox());
  runner_options.on_stuck = [&](const std::string& reason) { agent.Stuck(reason); };
  runner_options.on_trace = [&](std::string trace) { agent.outbox().AddTrace(std::move(trace)); };
  rpc::AttachmentClient client(
      {.channel = channel,
       .worker = flags.name,
       .incarnation = incarnation,
       .host = HostName(),
       .data_address = flags.data_address,
       .cores = cores,
       .memory_bytes = MemoryLimitBytes(),
       .matmul_flops_per_second = MatmulFlopsPerSecond(threads),
       .device = device,
       .has_nccl = nccl.api != nullptr,
       .on_attached =
           [&] { daemon::NotifyReady(absl::StrCat("attached to ", flags.coordinator)); }},
      agent);
  std::atomic<bool> leaving = false;
  const SignalThread signals([&] {
    leaving = true;
    daemon::NotifyStopping("finishes what it holds");
    agent.Leave();
  });
  const auto ask = [&](std::function<void()> answer) { agent.Ask(std::move(answer)); };
  const daemon::Watchdog watchdog(ask);
  std::unique_ptr<health::Server> health;
  if (!flags.health_socket.empty()) {
    const health::Check live = health::Answers(ask);
    const auto ready = [&client, &leaving, live] {
      if (leaving) return absl::UnavailableError("asked to leave");
      RETURN_IF_ERROR(client.attachment());
      return live();
    };
    ASSIGN_OR_RETURN(
        health, health::Server::Start(flags.health_socket, {{"live", live}, {"ready", ready}}));
  }
  if (!flags.state_file.empty())
    RETURN_IF_ERROR(WriteStateFile(flags, incarnation, metrics_address));
  Log(LogLevel::kInfo, "worker started",
      {{"version", kTaktVersion},
       {"incarnation", incarnation},
       {"coordinator", flags.coordinator},
       {"metrics", metrics_address}});
  const int exit_code = agent.Run(client);
  if (exit_code == session::kExitStuck || exit_code == session::kExitPoisoned)
    BeginAnew(argv, exit_code);
  return exit_code;
}

int Refuse(const absl::Status& status) {
  std::fprintf(stderr, "takt-worker: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? kExitUsage : kExitFailed;
}

int Main(int argc, char** argv) {
  Flags flags = ParseFlags(argc, argv);
  if (!flags.health.empty())
    return health::Report("takt-worker", flags.health_socket, flags.health);
  if (flags.die_with_parent) {
    const pid_t parent = getppid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) return 0;  // it ended before we asked
  }
  rpc::RequireTls13();
  absl::StatusOr<std::string> name = WorkerName(flags);
  if (!name.ok()) return Refuse(name.status());
  flags.name = *std::move(name);
  InitLogging(
      {.level = flags.log_level, .format = flags.log_format, .fields = {{"worker", flags.name}}});
  // Before the first thread: all inherit it.
  const sigset_t signals = SignalThread::Signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a checkpoint that outgrows a limit fails, not the worker
  const absl::StatusOr<int> exit_code = Serve(flags, argv);
  if (exit_code.ok()) return *exit_code;
  return Refuse(exit_code.status());
}

}  // namespace
}  // namespace takt::worker

int main(int argc, char** argv) { return takt::worker::Main(argc, argv); }
