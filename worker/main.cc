// SPDX-License-Identifier: Apache-2.0
// takt-worker attaches to a coordinator and runs the ranks that the coordinator assigns, until
// SIGTERM.
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/lock_checks.h"
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
#include "worker/backend/fp8.h"
#include "worker/backend/memory_ledger.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/state_copy.h"
#include "worker/compute_backends.h"
#include "worker/flags.h"
#include "worker/inference/model_child.h"
#include "worker/machine.h"
#include "worker/process_memory.h"
#include "worker/rpc/attachment_client.h"
#include "worker/rpc/coordinator_channels.h"
#include "worker/rpc/rendezvous_client.h"
#include "worker/session/agent.h"
#include "worker/session/pipeline_runner.h"

namespace takt::worker {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

std::string RandomId() {
  std::random_device random;
  std::string id;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&id, absl::Hex(random(), absl::kZeroPad8));
  return id;
}

// Writes the file whole or not at all, so that its readers never see a part of it.
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

// Runs this program anew in the same process. Threads that hang and the state of a lost device end
// with the old program, and the supervisor of the process sees no end.
[[noreturn]] void BeginAnew(char** argv, int exit_code) {
  std::error_code error;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  execv(program.c_str(), argv);
  _exit(exit_code);  // nothing can be destroyed in order
}

// What the ranks of this process share.
struct Shared {
  const Flags& flags;
  Machine machine;
  int threads = 1;
  std::unique_ptr<worker_rpc::CoordinatorChannels> channels;
  const std::string incarnation = RandomId();
  metrics::Registry registry{"takt-worker"};
  backend::MemoryLedger ledger;
  backend::Fp8Counters fp8_counters;
  std::unique_ptr<worker_checkpoint::FileSystem> files = worker_checkpoint::CreatePosixFileSystem();
  worker_checkpoint::CopyStore copies;
};

// Returns null if --metrics-listen is empty.
absl::StatusOr<std::unique_ptr<daemon::MetricsServer>> StartMetrics(Shared& shared) {
  if (shared.flags.metrics_listen.empty()) return nullptr;
  return daemon::MetricsServer::Start(shared.flags.metrics_listen, [&shared](bool all) {
    RecordMemory(shared.ledger.Read(), shared.registry);
    return shared.registry.Text(all ? metrics::Registry::Detail::kAll
                                    : metrics::Registry::Detail::kUsual);
  });
}

// Leaves out the calls into the agent, which is made from these options.
session::PipelineRunnerOptions RunnerOptions(Shared& shared) {
  return {.data_root = shared.flags.data_root,
          .checkpoint_root = shared.flags.checkpoint_root,
          .data = {.address = shared.flags.data_address,
                   .port = shared.flags.data_port,
                   .advertise = shared.flags.data_advertise},
          .threads = shared.threads,
          .make_rendezvous =
              [&shared](const control::JobKey& key) {
                return worker_rpc::CreateRendezvousClient(
                    [&shared] { return shared.channels->control(); }, key);
              },
          .files = shared.files.get(),
          .metrics = &shared.registry,
          .fp8_counters = &shared.fp8_counters,
          .make_backends =
              [&shared](const control::Assignment& job, int threads) {
                return CreateComputeBackends({.device = shared.machine.device,
                                              .ledger = &shared.ledger,
                                              .fp8_counters = &shared.fp8_counters},
                                             job, threads);
              },
          .nccl = &shared.machine.nccl,
          .copies = &shared.copies,
          .kernel_plans = shared.flags.kernel_plans};
}

session::CommitPlace CommitPlaceOf(const Shared& shared) {
  return {.files = shared.files.get(),
          .root = shared.flags.checkpoint_root,
          .incarnation = shared.incarnation};
}

// runner: borrowed for the agent's life.
session::AgentOptions AgentOptionsOf(Shared& shared, const session::PipelineRunnerOptions& runner) {
  return {.runner_factory =
              [&runner](control::Assignment assignment) {
                return session::CreatePipelineRunner(runner, std::move(assignment));
              },
          .commit =
              [place = CommitPlaceOf(shared)](const control::CommitCheckpoint& request) {
                return session::CommitCheckpoint(place, request);
              },
          .retain =
              [place = CommitPlaceOf(shared)](const control::CommitCheckpoint& request) {
                return session::RetainCheckpoints(place, request);
              },
          .checkpoint_root = shared.flags.checkpoint_root,
          .leave_timeout = absl::Seconds(shared.flags.leave_seconds),
          .on_job_over =
              [&shared](const std::string& job) {
                shared.registry.Drop({{"job", job}});
              },
          .forget_copies = [&shared](const std::string& job) { shared.copies.Forget(job); }};
}

const char* Name(control::RefusalCause cause) {
  return cause == control::RefusalCause::kOtherCluster ? "other_cluster" : "later_epoch";
}

worker_rpc::AttachmentOptions AttachmentOptionsOf(Shared& shared) {
  const Flags& flags = shared.flags;
  const Machine& machine = shared.machine;
  return {.channels = shared.channels.get(),
          .hello = {.worker = flags.name,
                    .incarnation = shared.incarnation,
                    .host = machine.host,
                    .processor = machine.processor,
                    .cores = machine.cores,
                    .threads = flags.threads,
                    .memory_bytes = MemoryLimitBytes(),
                    .matmul_rates = MeasureCores(shared.threads),
                    .data_address = flags.data_address,
                    .device = machine.device,
                    .has_nccl = machine.nccl.api != nullptr},
          .on_attached =
              [&shared] {
                daemon::NotifyReady(absl::StrCat("attached to ", shared.channels->address()));
                if (!shared.channels->has_relay()) return;
                shared.registry.Gauge(metrics::kThroughRelay, {})
                    .Set(shared.channels->through_relay() ? 1 : 0);
              },
          .ask_relay = [socket = worker_rpc::HealthSocketOf(
                            flags.relay)] { return health::Ask(socket, "ready"); },
          .on_refused =
              [&shared](control::RefusalCause cause) {
                shared.registry.Counter(metrics::kCommandsRefused, {Name(cause)}).Increment();
              }};
}

// Returns null if `socket` is empty.
absl::StatusOr<std::unique_ptr<health::Server>> StartHealth(const std::string& socket,
                                                            const health::Check& live,
                                                            const health::Check& ready) {
  if (socket.empty()) return nullptr;
  return health::Server::Start(socket, {{"live", live}, {"ready", ready}});
}

absl::StatusOr<int> Serve(const Flags& flags, char** argv) {
  const worker_rpc::ChannelOptions dialled{.coordinator = flags.coordinator,
                                           .tls = flags.tls,
                                           .insecure = flags.insecure,
                                           .relay = flags.relay};
  ASSIGN_OR_RETURN(auto channels, worker_rpc::CoordinatorChannels::Create(dialled));
  ASSIGN_OR_RETURN(Machine machine, InspectMachine(flags.device, flags.share_device));
  Shared shared{.flags = flags,
                .machine = std::move(machine),
                .threads = flags.threads,
                .channels = std::move(channels)};
  if (shared.threads == 0) shared.threads = shared.machine.cores;
  const daemon::CertificateWatch certificate_watch(flags.tls, [&](absl::Time expires) {
    shared.registry.Gauge(metrics::kCertificateExpiry, {}).Set(absl::ToUnixSeconds(expires));
  });
  for (const auto cause :
       {control::RefusalCause::kOtherCluster, control::RefusalCause::kLaterEpoch})
    shared.registry.Counter(metrics::kCommandsRefused, {Name(cause)});
  ASSIGN_OR_RETURN(const auto metrics_server, StartMetrics(shared));
  const std::string metrics_address = metrics_server != nullptr ? metrics_server->address() : "";
  session::PipelineRunnerOptions runner_options = RunnerOptions(shared);
  const absl::Cleanup end_log_shipping = [] { SetLogSink(nullptr); };  // once no thread logs
  session::Agent agent(AgentOptionsOf(shared, runner_options));
  SetLogSink([&outbox = agent.outbox()](LogLevel level, std::string_view line) {
    outbox.AddLog(level, line, absl::ToUnixNanos(absl::Now()));
  });
  runner_options.on_stuck = [&](const std::string& reason) { agent.Stuck(reason); };
  runner_options.withdraw = [&](StepId step, const std::string& error) {
    return agent.WithdrawCheckpoint(step, error);
  };
  runner_options.on_trace = [&](std::string trace) { agent.outbox().AddTrace(std::move(trace)); };
  worker_rpc::AttachmentClient client(AttachmentOptionsOf(shared), agent);
  std::atomic<bool> leaving = false;
  const SignalThread signals([&] {
    leaving = true;
    daemon::NotifyStopping("finishes what it holds");
    agent.Leave();
  });
  const auto ask = [&](std::function<void()> answer) { agent.Ask(std::move(answer)); };
  const daemon::Watchdog watchdog(ask);
  const health::Check live = health::Answers(ask);
  const auto ready = [&client, &leaving, live] {
    if (leaving) return absl::UnavailableError("asked to leave");
    RETURN_IF_ERROR(client.attachment());
    return live();
  };
  ASSIGN_OR_RETURN(const auto health, StartHealth(flags.health_socket, live, ready));
  if (!flags.state_file.empty())
    RETURN_IF_ERROR(WriteStateFile(flags, shared.incarnation, metrics_address));
  Log(LogLevel::kInfo, "worker started",
      {{"version", kTaktVersion},
       {"incarnation", shared.incarnation},
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
  takt::SkipLockChecks();
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
  // This comes before the first thread, because all threads inherit it.
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

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == takt::inference::kModelChild)
    return takt::inference::RunModelChild({argv + 2, argv + argc});
  return takt::worker::Main(argc, argv);
}
