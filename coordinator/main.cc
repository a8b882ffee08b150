// SPDX-License-Identifier: Apache-2.0
// takt-coordinator: flags and wiring. Exit codes: 0 stopped by a signal, 1 failed, 2 wrong usage.
#include <malloc.h>
#include <openssl/rand.h>
#include <signal.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/daemon/certificate_watch.h"
#include "common/daemon/metrics_server.h"
#include "common/daemon/service_manager.h"
#include "common/daemon/settings.h"
#include "common/metrics/catalog.h"
#include "common/metrics/registry.h"
#include "common/plan/plan.h"
#include "common/rpc/endpoint.h"
#include "common/rpc/health.h"
#include "coordinator/job/coordinator.h"
#include "coordinator/planner/child_planner.h"
#include "coordinator/planner/planning_child.h"
#include "coordinator/rpc/server.h"
#include "coordinator/store/sqlite_store.h"
#include "coordinator/store/state_dir.h"
#include "coordinator/traces/step_explainer.h"
#include "coordinator/traces/trace_keeper.h"

namespace takt {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

struct Flags {
  std::string listen, state, metrics_listen, health_socket;
  std::string health;  // ask instead of run: "live" or "ready"
  std::string log_level = "info", log_format = "text";
  certificates::TlsFiles tls;
  std::string join_authority;
  bool insecure = false;
  std::string planner = "child";
  // The largest plan that is not refused takes half of it.
  std::int64_t planner_memory = std::int64_t{3} << 30;
};

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

absl::Status Run(const Flags& flags) {
  const sigset_t signals = BlockStopSignals();
  ASSIGN_OR_RETURN(const store::StateDir state, store::StateDir::Acquire(flags.state));
  ASSIGN_OR_RETURN(const std::unique_ptr<store::Store> store,
                   store::OpenSqliteStore(state.state_file()));

  metrics::Registry registry("takt-coordinator");
  std::unique_ptr<daemon::MetricsServer> metrics_server;
  store::Addresses addresses;
  if (!flags.metrics_listen.empty()) {
    ASSIGN_OR_RETURN(metrics_server, daemon::MetricsServer::Start(flags.metrics_listen,
                                                                  [&] { return registry.Text(); }));
    addresses.metrics = metrics_server->address();
  }

  planner::ChildPlanner child_planner({.memory_bytes = flags.planner_memory});
  job::CoordinatorOptions options;
  options.metrics = &registry;
  options.make_plan = plan::MakePlan;
  if (flags.planner == "child") {
    options.make_plan = [&](const config::JobSpec& job, const plan::PlanOptions& about) {
      return child_planner.Make(job, about);
    };
  }
  options.cluster.membership.protocol_version = kProtocolVersion;
  options.cluster.random_bytes = RandomBytes;
  traces::TraceKeeper traces({.directory = flags.state + "/traces"});
  options.on_launch = [&](const job::Launch& launch) { traces.Begin(launch); };
  options.on_delete = [&](const std::string& name) { traces.Forget(name); };
  ASSIGN_OR_RETURN(const std::unique_ptr<job::Coordinator> coordinator,
                   job::Coordinator::Start(options, store.get()));
  // The coordinator's end waits for the plan at hand.
  const absl::Cleanup stop_planning = [&] { child_planner.Stop(); };

  const traces::StepExplainer explainer(&traces,
                                        [&](const std::string& name, job::StepSplit split) {
                                          coordinator->board().ShowSplit(name, std::move(split));
                                        });

  const daemon::CertificateWatch certificate_watch(flags.tls, [&](absl::Time expires) {
    registry.Gauge(metrics::kCertificateExpiry, {}).Set(absl::ToUnixSeconds(expires));
  });
  coordinator_rpc::ServerOptions server_options{
      .listen = flags.listen, .tls = flags.tls, .insecure = flags.insecure};
  server_options.traces = &traces;
  server_options.join_authority = flags.join_authority;
  // After the coordinator, before it in destruction: but the coordinator is stopped first, below.
  ASSIGN_OR_RETURN(std::unique_ptr<coordinator_rpc::Server> server,
                   coordinator_rpc::Server::Start(server_options, coordinator.get()));
  addresses.listen = server->address();
  RETURN_IF_ERROR(state.PublishAddresses(addresses));
  Log(LogLevel::kInfo, "coordinator ready",
      {{"listen", addresses.listen},
       {"metrics", addresses.metrics},
       {"state", flags.state},
       {"version", kTaktVersion}});

  daemon::NotifyReady(absl::StrCat("serves on ", addresses.listen));
  const auto ask = [&](std::function<void()> answer) {
    coordinator->Post([answer = std::move(answer)](job::Cluster&, Moment) { answer(); });
  };
  std::optional<daemon::Watchdog> watchdog(std::in_place, ask);
  std::unique_ptr<health::Server> health;
  if (!flags.health_socket.empty()) {
    const health::Check live = health::Answers(ask);
    // It takes work from the moment on at which it serves.
    ASSIGN_OR_RETURN(health,
                     health::Server::Start(flags.health_socket, {{"live", live}, {"ready", live}}));
  }

  std::thread waiter([&] {
    int signal = 0;
    sigwait(&signals, &signal);
    coordinator->Stop();
  });
  const absl::Status end = coordinator->WaitForEnd();
  if (!end.ok()) pthread_kill(waiter.native_handle(), SIGTERM);
  waiter.join();
  watchdog.reset();
  health.reset();
  daemon::NotifyStopping("running jobs go on");
  Log(LogLevel::kInfo, "coordinator stops; running jobs go on", {});
  server.reset();
  return end;
}

int Main(int argc, char** argv) {
  CLI::App app("Takt coordinator: plans jobs, hands them to workers, keeps their state.",
               "takt-coordinator");
  Flags flags;
  app.add_option("--state", flags.state, "Directory of its state; made if missing");
  app.add_option("--listen", flags.listen,
                 "unix:PATH or HOST:PORT (default: unix:STATE/coordinator.sock)");
  app.add_option(
      "--metrics-listen", flags.metrics_listen,
      "HOST:PORT of /metrics, e.g. 127.0.0.1:9464; port 0: any free one (default: none)");
  app.add_option("--health-socket", flags.health_socket,
                 "Unix socket on which --health asks (the gRPC health service); default: none");
  app.add_option("--tls-certificate", flags.tls.certificate,
                 "PEM file that says who it is to those that dial HOST:PORT; read again when it "
                 "changes, as are the next two");
  app.add_option("--tls-key", flags.tls.key, "PEM file of its private key, for its owner alone");
  app.add_option("--tls-authority", flags.tls.authority,
                 "PEM file of the authority whose certificates are let in");
  app.add_option("--join-authority", flags.join_authority,
                 "Directory of `takt certs init` whose key signs workers' first certificates, for "
                 "tokens of `takt certs token`; default: none are signed");
  app.add_flag("--insecure", flags.insecure,
               "Serve TCP without certificates: anyone who reaches the port may do anything");
  app.add_option("--log-level", flags.log_level, "debug, info, warning or error")
      ->check(CLI::IsMember(kLogLevelNames));
  app.add_option("--log-format", flags.log_format, "text or json")
      ->check(CLI::IsMember({"text", "json"}));
  app.add_option("--planner", flags.planner,
                 "child: each plan is made in a process of its own, and one that crashes or takes "
                 "too much ends its job alone (default); thread: in this process")
      ->check(CLI::IsMember({"child", "thread"}));
  app.add_option("--planner-memory", flags.planner_memory,
                 "Memory that a plan may take in its process, e.g. 2GB; 0: no limit (default: 3GB)")
      ->transform(CLI::AsSizeValue(false));
  app.set_version_flag("--version", std::string("takt-coordinator ") + kTaktVersion);
  daemon::AddSettings(app, "/etc/takt/coordinator.yaml", "TAKT_COORDINATOR");
  app.add_flag("--health{live}", flags.health,
               "Ask the coordinator that runs with these settings instead, exit 0 or 1: live (it "
               "makes progress) or --health=ready (it serves)")
      ->check(CLI::IsMember({"live", "ready"}))
      ->configurable(false);
  try {
    app.parse(argc, argv);
    if (flags.health.empty() && flags.state.empty()) throw CLI::RequiredError("--state");
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  if (!flags.health.empty())
    return health::Report("takt-coordinator", flags.health_socket, flags.health);
  if (flags.listen.empty()) flags.listen = absl::StrCat("unix:", flags.state, "/coordinator.sock");

  LogOptions log;
  log.level = *FindLogLevel(flags.log_level);
  if (flags.log_format == "json") log.format = LogFormat::kJson;
  InitLogging(log);
  rpc::RequireTls13();
  // One heap, which the next flood of calls finds as the last one left it, instead of one for each
  // thread that frees late (docs/data-plane.md).
  mallopt(M_ARENA_MAX, 1);
  umask(0077);  // the socket and the state are the owner's alone

  absl::Status status = coordinator_rpc::CheckListen(
      {.listen = flags.listen, .tls = flags.tls, .insecure = flags.insecure});
  if (status.ok()) status = Run(flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "takt-coordinator: %s\n", std::string(status.message()).c_str());
  return status.code() == absl::StatusCode::kInvalidArgument ? kExitUsage : kExitFailed;
}

}  // namespace
}  // namespace takt

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == takt::planner::kPlanningChild)
    return takt::planner::RunPlanningChild({argv + 2, argv + argc}, takt::plan::MakePlan);
  return takt::Main(argc, argv);
}
