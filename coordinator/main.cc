// SPDX-License-Identifier: Apache-2.0
// Connects the parts of takt-coordinator. Exit codes: 0 stopped by a signal, 1 failed, 2 wrong
// usage.
#include <malloc.h>
#include <openssl/rand.h>
#include <signal.h>
#include <sys/stat.h>

#include <cstdio>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/lock_checks.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/daemon/certificate_watch.h"
#include "common/daemon/metrics_server.h"
#include "common/daemon/service_manager.h"
#include "common/metrics/catalog.h"
#include "common/metrics/registry.h"
#include "common/plan/plan.h"
#include "common/rpc/endpoint.h"
#include "common/rpc/health.h"
#include "coordinator/etcd/election.h"
#include "coordinator/flags.h"
#include "coordinator/follow.h"
#include "coordinator/job/coordinator.h"
#include "coordinator/placement/quotas.h"
#include "coordinator/planner/child_planner.h"
#include "coordinator/planner/planning_child.h"
#include "coordinator/profiles/profile_keeper.h"
#include "coordinator/rpc/server.h"
#include "coordinator/store/maintenance.h"
#include "coordinator/store/sqlite_store.h"
#include "coordinator/store/state_dir.h"
#include "coordinator/traces/step_explainer.h"
#include "coordinator/traces/trace_keeper.h"
#include "coordinator/tracking/mlflow_tracker.h"
#include "coordinator/tracking/step_sender.h"

namespace takt {
namespace {

using coordinator::Flags;
using coordinator::ParseFlags;

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

std::string RandomBytes(int count) {
  std::string bytes(count, '\0');
  TAKT_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), count) == 1);
  return bytes;
}

// Blocks the signals for all threads made later, so that one thread alone waits for them.
sigset_t BlockStopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return signals;
}

// How often a coordinator that leads looks whether it still does.
constexpr timespec kLook{.tv_sec = 0, .tv_nsec = 100'000'000};

// Waits for a signal, for the coordinator to fail, or for the end of its leadership. leadership:
// null if it does not lead by a lease.
absl::Status AwaitEnd(job::Coordinator& coordinator, const etcd::Leadership* leadership,
                      metrics::Registry& registry, const sigset_t& signals) {
  std::thread waiter([&] {
    absl::Status lost;
    while (lost.ok() && sigtimedwait(&signals, nullptr, &kLook) < 0) {
      if (leadership == nullptr) continue;
      registry.Gauge(metrics::kLeaderLease).Set(absl::ToDoubleSeconds(leadership->Left()));
      lost = leadership->Check();
    }
    coordinator.Stop(lost);
  });
  const absl::Status end = coordinator.WaitForEnd();
  if (!end.ok()) pthread_kill(waiter.native_handle(), SIGTERM);
  waiter.join();
  return end;
}

// Returns a function that lets children of `planner` make plans.
planner::MakePlan PlansOf(planner::ChildPlanner& planner) {
  return [&planner](const config::JobSpec& job, const plan::PlanOptions& options) {
    return planner.Make(job, options);
  };
}

job::RetentionOptions RetentionOf(const Flags& flags) {
  return {.jobs = flags.keep_ended_jobs,
          .age = flags.keep_ended_days == 0 ? absl::InfiniteDuration()
                                            : absl::Hours(24) * flags.keep_ended_days};
}

absl::StatusOr<job::ClusterOptions> ClusterOptionsOf(const Flags& flags) {
  job::ClusterOptions options;
  options.random_bytes = RandomBytes;
  options.retention = RetentionOf(flags);
  options.tracks = !flags.mlflow.empty();
  if (flags.abandon_held_seconds > 0)
    options.abandon_held_after = absl::Seconds(flags.abandon_held_seconds);
  ASSIGN_OR_RETURN(options.quotas, placement::Quotas::Parse(flags.quotas));
  return options;
}

// Brings the curves of jobs to a tracking server.
class Tracking final {
 public:
  // Returns null if there is no server. coordinator: borrowed.
  static absl::StatusOr<std::unique_ptr<Tracking>> Start(const Flags& flags,
                                                         job::Coordinator* coordinator) {
    if (flags.mlflow.empty()) return std::unique_ptr<Tracking>();
    ASSIGN_OR_RETURN(
        std::unique_ptr<tracking::HttpClient> http,
        tracking::MakeCurlClient({.url = flags.mlflow, .token_file = flags.mlflow_token_file}));
    return std::make_unique<Tracking>(std::move(http), coordinator);
  }

  Tracking(std::unique_ptr<tracking::HttpClient> http, job::Coordinator* coordinator)
      : http_(std::move(http)),
        tracker_(http_.get()),
        sender_(&tracker_, &coordinator->store(), [coordinator] {
          return coordinator->board().List(0, std::numeric_limits<int>::max(),
                                           [](const store::JobRecord&) { return true; });
        }) {}

 private:
  const std::unique_ptr<tracking::HttpClient> http_;
  tracking::MlflowTracker tracker_;
  tracking::StepSender sender_;
};

// The parts that Serve needs. All are borrowed.
struct Parts {
  const Flags& flags;
  const store::StateDir& state;
  metrics::Registry& registry;
  traces::TraceKeeper& traces;
  job::Coordinator& coordinator;
  const etcd::Leadership* leadership;  // null: the state is in a file
};

// Answers calls, and tells the service manager that it does, until a signal comes.
absl::Status Serve(const Parts& parts, store::Addresses addresses, const sigset_t& signals) {
  const Flags& flags = parts.flags;
  const daemon::CertificateWatch certificate_watch(flags.tls, [&](absl::Time expires) {
    parts.registry.Gauge(metrics::kCertificateExpiry, {}).Set(absl::ToUnixSeconds(expires));
  });
  coordinator_rpc::ServerOptions server_options{
      .listen = flags.listen, .tls = flags.tls, .insecure = flags.insecure};
  server_options.traces = &parts.traces;
  server_options.join_authority = flags.join_authority;
  server_options.memory_bytes = static_cast<std::size_t>(flags.rpc_memory);
  if (parts.leadership == nullptr) {
    server_options.open_backup = [file = parts.state.state_file()] {
      return store::OpenBackup(file);
    };
  } else {
    // The directory may hold the file of an earlier state.
    server_options.open_backup = [source = &parts.coordinator.store(),
                                  scratch = parts.state.state_file() + ".etcd"] {
      return store::OpenBackup(*source, scratch);
    };
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Tracking> tracking,
                   Tracking::Start(flags, &parts.coordinator));
  // The server calls the coordinator until it is destroyed. The coordinator is stopped before that.
  ASSIGN_OR_RETURN(const std::unique_ptr<coordinator_rpc::Server> server,
                   coordinator_rpc::Server::Start(server_options, &parts.coordinator));
  addresses.listen = server->address();
  RETURN_IF_ERROR(parts.state.PublishAddresses(addresses));
  Log(LogLevel::kInfo, "coordinator ready",
      {{"listen", addresses.listen},
       {"metrics", addresses.metrics},
       {"state", flags.state},
       {"version", kTaktVersion}});

  daemon::NotifyReady(absl::StrCat("serves on ", addresses.listen));
  const auto ask = [&](std::function<void()> answer) {
    parts.coordinator.Post([answer = std::move(answer)](job::Cluster&, Moment) { answer(); });
  };
  std::optional<daemon::Watchdog> watchdog(std::in_place, ask);
  std::unique_ptr<health::Server> health;
  if (!flags.health_socket.empty()) {
    const health::Check live = health::Answers(ask);
    // A coordinator that serves takes work at once, so it is ready whenever it is live.
    ASSIGN_OR_RETURN(health,
                     health::Server::Start(flags.health_socket, {{"live", live}, {"ready", live}}));
  }
  const absl::Status end = AwaitEnd(parts.coordinator, parts.leadership, parts.registry, signals);
  watchdog.reset();
  health.reset();
  daemon::NotifyStopping("running jobs go on");
  Log(LogLevel::kInfo, "coordinator stops; running jobs go on", {});
  return end;
}

// What a coordinator that leads is made from. All are borrowed.
struct Ground {
  const store::StateDir& state;
  metrics::Registry& registry;
  store::Store& store;
  const etcd::Leadership* leadership;
  const store::Addresses& addresses;
  const sigset_t& signals;
};

// Runs the coordinator that decides.
absl::Status Lead(const Flags& flags, const Ground& ground) {
  planner::ChildPlanner child_planner({.memory_bytes = flags.planner_memory});
  planner::ChildPlanner yielding_planner({.memory_bytes = flags.planner_memory, .yields = true});
  job::CoordinatorOptions options;
  options.metrics = &ground.registry;
  options.make_plan = plan::MakePlan;
  if (flags.planner == "child") {
    options.make_plan = PlansOf(child_planner);
    options.make_plan_beside_jobs = PlansOf(yielding_planner);
  }
  ASSIGN_OR_RETURN(options.cluster, ClusterOptionsOf(flags));
  traces::TraceKeeper traces({.directory = flags.state + "/traces"});
  ASSIGN_OR_RETURN(const std::unique_ptr<profiles::ProfileKeeper> profiles,
                   profiles::ProfileKeeper::Open(&ground.store));
  options.on_launch = [&](const job::Launch& launch) {
    traces.Begin(launch);
    profiles->Begin(launch);
  };
  options.on_delete = [&](const std::string& name) {
    traces.Forget(name);
    profiles->Forget(name);
  };
  options.on_checkpoint = [&](const job::SettledCheckpoint& checkpoint) {
    if (!checkpoint.failed) profiles->LearnPause(checkpoint.job, checkpoint.snapshot_seconds);
  };
  options.cluster.read_profile = [&] { return profiles->Read(); };
  ASSIGN_OR_RETURN(const std::unique_ptr<job::Coordinator> coordinator,
                   job::Coordinator::Start(options, &ground.store));
  ground.registry.Gauge(metrics::kLeader).Set(1);
  ground.registry.Gauge(metrics::kEpoch).Set(static_cast<double>(coordinator->epoch()));
  // The coordinator's destructor waits for the plans that are being made.
  const absl::Cleanup stop_planning = [&] {
    child_planner.Stop();
    yielding_planner.Stop();
  };
  const traces::StepExplainer explainer(
      &traces,
      [&](const std::string& name, job::StepSplit split) {
        coordinator->board().ShowSplit(name, std::move(split));
      },
      [&](const trace::JobTrace& trace) { profiles->Learn(trace); });
  return Serve({.flags = flags,
                .state = ground.state,
                .registry = ground.registry,
                .traces = traces,
                .coordinator = *coordinator,
                .leadership = ground.leadership},
               ground.addresses, ground.signals);
}

absl::Status Run(const Flags& flags) {
  const sigset_t signals = BlockStopSignals();
  ASSIGN_OR_RETURN(const store::StateDir state, store::StateDir::Acquire(flags.state));
  metrics::Registry registry("takt-coordinator");
  std::unique_ptr<daemon::MetricsServer> metrics_server;
  store::Addresses addresses;
  if (!flags.metrics_listen.empty()) {
    ASSIGN_OR_RETURN(metrics_server, daemon::MetricsServer::Start(flags.metrics_listen, [&](bool) {
                       return registry.Text();
                     }));
    addresses.metrics = metrics_server->address();
  }

  if (flags.store == "etcd") {
    ASSIGN_OR_RETURN(const std::unique_ptr<coordinator::LedState> led,
                     coordinator::FollowUntilLeader({.flags = flags,
                                                     .state = state,
                                                     .registry = registry,
                                                     .signals = signals,
                                                     .addresses = addresses}));
    if (led == nullptr) return absl::OkStatus();
    if (!flags.import_state.empty())
      return store::ImportState(flags.import_state, state.state_file() + ".import", *led->store);
    Flags leading = flags;
    leading.listen = led->listen;
    return Lead(leading, {.state = state,
                          .registry = registry,
                          .store = *led->store,
                          .leadership = led->leadership.get(),
                          .addresses = addresses,
                          .signals = signals});
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<store::Store> store,
                   store::OpenSqliteStore(state.state_file()));
  return Lead(flags, {.state = state,
                      .registry = registry,
                      .store = *store,
                      .leadership = nullptr,
                      .addresses = addresses,
                      .signals = signals});
}

int Main(int argc, char** argv) {
  const Flags flags = ParseFlags(argc, argv);
  if (!flags.health.empty())
    return health::Report("takt-coordinator", flags.health_socket, flags.health);

  LogOptions log;
  log.level = *FindLogLevel(flags.log_level);
  if (flags.log_format == "json") log.format = LogFormat::kJson;
  InitLogging(log);
  rpc::RequireTls13();
  // All threads share one heap, so that the next flood of calls uses again what the last one freed.
  // Otherwise each thread that frees late would keep a heap of its own (docs/data-plane.md).
  mallopt(M_ARENA_MAX, 1);
  umask(0077);  // only the owner may use the socket and the state

  absl::Status status = coordinator_rpc::CheckListen(
      {.listen = flags.listen, .tls = flags.tls, .insecure = flags.insecure});
  if (status.ok()) status = coordinator::CheckStore(flags);
  if (status.ok()) status = Run(flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "takt-coordinator: %s\n", std::string(status.message()).c_str());
  return status.code() == absl::StatusCode::kInvalidArgument ? kExitUsage : kExitFailed;
}

}  // namespace
}  // namespace takt

int main(int argc, char** argv) {
  takt::SkipLockChecks();
  if (argc > 1 && std::string(argv[1]) == takt::planner::kPlanningChild)
    return takt::planner::RunPlanningChild({argv + 2, argv + argc}, takt::plan::MakePlan);
  if (argc > 1 && std::string(argv[1]) == takt::store::kMaintenance)
    return takt::store::RunMaintenance({argv + 2, argv + argc}, std::cout, std::cerr);
  return takt::Main(argc, argv);
}
