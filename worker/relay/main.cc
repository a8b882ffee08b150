// SPDX-License-Identifier: Apache-2.0
// takt-relay carries the streams of the workers of a host to the coordinator, until SIGTERM. Exit
// codes: 0 stopped by a signal, 1 failed, 2 wrong usage.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
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
#include "worker/relay/flags.h"
#include "worker/rpc/coordinator_channels.h"
#include "worker/rpc/relay.h"

namespace takt::relay {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

sigset_t EndSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// One thread at a time: that of the metrics page.
class RelayMetrics {
 public:
  RelayMetrics(metrics::Registry* registry, const worker_rpc::Relay* relay)
      : relay_(*relay),
        attached_(registry->Gauge(metrics::kRelayAttached)),
        workers_(registry->Gauge(metrics::kRelayWorkers)),
        messages_(registry->Counter(metrics::kRelayMessages)),
        frames_(registry->Counter(metrics::kRelayFrames)) {}

  void Record() {
    const worker_rpc::Relay::Counts now = relay_.counts();
    attached_.Set(relay_.attachment().ok() ? 1 : 0);
    workers_.Set(static_cast<double>(now.workers));
    messages_.Increment(static_cast<double>(now.messages - last_.messages));
    frames_.Increment(static_cast<double>(now.frames - last_.frames));
    last_ = now;
  }

 private:
  const worker_rpc::Relay& relay_;
  prometheus::Gauge& attached_;
  prometheus::Gauge& workers_;
  prometheus::Counter& messages_;
  prometheus::Counter& frames_;
  worker_rpc::Relay::Counts last_;
};

absl::Status Serve(const Flags& flags) {
  RETURN_IF_ERROR(CheckFlags(flags));
  ASSIGN_OR_RETURN(
      const auto channels,
      worker_rpc::CoordinatorChannels::Create(
          {.coordinator = flags.coordinator, .tls = flags.tls, .insecure = flags.insecure}));
  metrics::Registry registry("takt-relay");
  const daemon::CertificateWatch certificate_watch(flags.tls, [&](absl::Time expires) {
    registry.Gauge(metrics::kCertificateExpiry, {}).Set(absl::ToUnixSeconds(expires));
  });
  ASSIGN_OR_RETURN(
      const auto relay,
      worker_rpc::Relay::Start(
          {.listen = flags.listen, .channels = channels.get(), .on_attached = [&channels] {
             daemon::NotifyReady(absl::StrCat("connected to ", channels->address()));
           }}));
  const health::Check live = [] { return absl::OkStatus(); };
  const health::Check ready = [&relay] { return relay->attachment(); };
  ASSIGN_OR_RETURN(const auto health,
                   health::Server::Start(worker_rpc::HealthSocketOf(flags.listen),
                                         {{"live", live}, {"ready", ready}}));
  RelayMetrics relay_metrics(&registry, relay.get());
  std::unique_ptr<daemon::MetricsServer> metrics_server;
  if (!flags.metrics_listen.empty()) {
    ASSIGN_OR_RETURN(metrics_server, daemon::MetricsServer::Start(flags.metrics_listen, [&](bool) {
                       relay_metrics.Record();
                       return registry.Text();
                     }));
  }
  Log(LogLevel::kInfo, "relay started",
      {{"version", kTaktVersion},
       {"listen", flags.listen},
       {"coordinator", flags.coordinator},
       {"metrics", metrics_server != nullptr ? metrics_server->address() : ""}});
  const sigset_t signals = EndSignals();
  int signal = 0;
  sigwait(&signals, &signal);
  daemon::NotifyStopping("its workers dial the coordinator themselves");
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  takt::SkipLockChecks();
  const Flags flags = ParseFlags(argc, argv);
  if (!flags.health.empty())
    return health::Report("takt-relay", worker_rpc::HealthSocketOf(flags.listen), flags.health);
  if (flags.die_with_parent) {
    const pid_t parent = getppid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) return 0;  // it ended before we asked
  }
  rpc::RequireTls13();
  InitLogging({.level = flags.log_level, .format = flags.log_format});
  // This comes before the first thread, because all threads inherit it.
  const sigset_t signals = EndSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  umask(0077);  // only the owner may use the socket
  const absl::Status status = Serve(flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "takt-relay: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? kExitUsage : kExitFailed;
}

}  // namespace
}  // namespace takt::relay

int main(int argc, char** argv) { return takt::relay::Main(argc, argv); }
