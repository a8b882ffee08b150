// SPDX-License-Identifier: Apache-2.0
#include "worker/flags.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <climits>
#include <cstdlib>

#include "common/base/status.h"
#include "common/base/version.h"
#include "common/config/job_spec.h"
#include "common/daemon/log_flags.h"
#include "common/daemon/settings.h"
#include "common/net/socket.h"

namespace takt::worker {
namespace {

constexpr int kWrongUsage = 2;

std::string DefaultName() {
  char host[HOST_NAME_MAX + 1] = {};
  gethostname(host, sizeof(host) - 1);
  return std::string(host) + "-" + std::to_string(getpid());
}

// Flags that say how the worker reaches the coordinator, and as which worker.
void AddConnection(CLI::App& app, Flags& flags) {
  app.add_option("--coordinator", flags.coordinator,
                 "unix:PATH or HOST:PORT; of several coordinators with one state, all of them, "
                 "separated by commas")
      ->capture_default_str();
  app.add_option("--tls-certificate", flags.tls.certificate,
                 "PEM file of the certificate that the worker presents to HOST:PORT; it is read "
                 "again when it changes, as are the next two");
  app.add_option("--tls-key", flags.tls.key,
                 "PEM file of its private key, which only its owner may read");
  app.add_option("--tls-authority", flags.tls.authority,
                 "PEM file of the authority that must have issued the coordinator's certificate");
  app.add_flag("--insecure", flags.insecure, "Dial a HOST:PORT without TLS");
  app.add_option(
      "--relay", flags.relay,
      "unix:PATH of the relay of this host (takt-relay), over which the worker attaches; "
      "while it is away, the worker dials the coordinator itself; empty: none");
  app.add_option("--name", flags.name,
                 "Stable name of this worker; default: the name in its certificate, or HOST-PID "
                 "without one");
}

// Flags that say what the worker's jobs may read and write, and what they compute on.
void AddResources(CLI::App& app, Flags& flags) {
  app.add_option("--data-root", flags.data_root, "Directory that holds the data jobs may read")
      ->capture_default_str();
  app.add_option("--checkpoint-root", flags.checkpoint_root,
                 "Directory that holds the checkpoints of jobs; all workers must see the same one")
      ->capture_default_str();
  app.add_option(
         "--threads", flags.threads,
         "Compute threads of a rank whose job names no number; 0: the host's cores, divided "
         "by its workers")
      ->check(CLI::Range(0, config::kMaxThreads))
      ->capture_default_str();
  app.add_option("--device", flags.device,
                 "The device for jobs that ask for GPUs: auto (the first GPU, if there is one), "
                 "cpu, cuda or cuda:N; each worker has a GPU of its own")
      ->capture_default_str();
  app.add_flag("--share-device", flags.share_device,
               "Lets other workers with this flag compute on the same GPU, for tests; cuda:N then "
               "takes N modulo the number of GPUs");
  app.add_option("--kernel-plans", flags.kernel_plans,
                 "Directory that keeps the kernels chosen on this GPU, so that later jobs need "
                 "not time them again; empty: none")
      ->capture_default_str();
  app.add_option("--data-address", flags.data_address,
                 "Address of this host on which other workers reach this one")
      ->capture_default_str();
  app.add_option(
         "--data-port", flags.data_port,
         "Port on which other workers reach this one; 0: any free one, another for each job")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  app.add_option("--data-advertise", flags.data_advertise,
                 "ADDRESS:PORT that other workers dial instead of --data-address and --data-port, "
                 "where something between them forwards it (NAT, a proxy)")
      ->check([](const std::string& text) -> std::string {
        if (text.empty() || net::ParseSocketAddress(text).ok()) return "";
        return "must be a numeric ADDRESS:PORT, e.g. 203.0.113.5:7071";
      });
}

// Flags that say how it runs as a process: what it reports about itself and when it ends.
void AddProcess(CLI::App& app, Flags& flags) {
  app.add_option("--metrics-listen", flags.metrics_listen,
                 "HOST:PORT of /metrics; port 0: any; empty: none")
      ->capture_default_str();
  app.add_option("--leave-seconds", flags.leave_seconds,
                 "After SIGTERM, how long the job it holds may take to save and halt")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
  app.add_option("--state-file", flags.state_file,
                 "Write pid, incarnation and addresses here as JSON");
  app.add_option("--health-socket", flags.health_socket,
                 "Unix socket on which --health asks (the gRPC health service); empty: none");
  app.add_flag("--die-with-parent", flags.die_with_parent,
               "End when the process that started this one ends");
  daemon::AddLogFlags(app, flags.log_level, flags.log_format);
}

}  // namespace

Flags ParseFlags(int argc, char** argv) {
  Flags flags;
  CLI::App app("takt-worker: runs one rank of a training job for a Takt coordinator.");
  app.set_version_flag("--version",
                       std::string("takt-worker ") + kTaktVersion + "\nbuilt in: " + kTaktBuild);
  AddConnection(app, flags);
  AddResources(app, flags);
  AddProcess(app, flags);
  daemon::AddSettings(app, "/etc/takt/worker.yaml", "TAKT_WORKER");
  app.add_flag("--health{live}", flags.health,
               "Ask the worker that runs with these settings instead, exit 0 or 1: live (it makes "
               "progress) or --health=ready (attached, takes work)")
      ->check(CLI::IsMember({"live", "ready"}))
      ->configurable(false);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : kWrongUsage);
  }
  return flags;
}

absl::StatusOr<std::string> WorkerName(const Flags& flags) {
  if (!flags.tls.any()) return flags.name.empty() ? DefaultName() : flags.name;
  ASSIGN_OR_RETURN(const certificates::CertificateFacts facts,
                   certificates::ReadFacts(flags.tls.certificate));
  if (facts.identity.role != access::Role::kWorker) {
    return InvalidField({.field = "--tls-certificate",
                         .value = flags.tls.certificate,
                         .rule = "is of " + facts.identity.ToString() + ", not of a worker",
                         .fix = "issue one with `takt certs issue DIR worker NAME`"});
  }
  if (flags.name.empty() || flags.name == facts.identity.name) return facts.identity.name;
  return InvalidField({.field = "--name",
                       .value = flags.name,
                       .rule = "is not the name in " + flags.tls.certificate + ", " +
                               facts.identity.name + ": a worker speaks only for itself",
                       .fix = "leave it out, or issue a certificate for this name"});
}

}  // namespace takt::worker
