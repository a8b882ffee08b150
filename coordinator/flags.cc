// SPDX-License-Identifier: Apache-2.0
#include "coordinator/flags.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/daemon/settings.h"

namespace takt::coordinator {
namespace {

constexpr int kWrongUsage = 2;

// Adds the flags that say where the coordinator serves and who may connect.
void AddListeners(CLI::App& app, Flags& flags) {
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
}

// Adds the flags that say where the state is.
void AddStore(CLI::App& app, Flags& flags) {
  app.add_option("--store", flags.store,
                 "sqlite: the state is a file in --state (default); etcd: it is in etcd, and "
                 "several coordinators may run, of which one leads (docs/two-coordinators.md)")
      ->check(CLI::IsMember({"sqlite", "etcd"}));
  app.add_option("--etcd-endpoints", flags.etcd.endpoints,
                 "HOST:PORT of each member of etcd, separated by commas; over mutual TLS only")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--etcd-certificate", flags.etcd.tls.certificate,
                 "PEM file that says who it is to etcd; of an authority for etcd alone, because "
                 "whoever has a certificate of that one may write the state");
  app.add_option("--etcd-key", flags.etcd.tls.key,
                 "PEM file of its private key, for its owner alone");
  app.add_option("--etcd-authority", flags.etcd.tls.authority,
                 "PEM file of the authority that signed etcd's certificates");
  app.add_option("--etcd-prefix", flags.etcd.prefix,
                 "What the keys of this cluster begin with, and no other's (default: takt/)");
  app.add_option("--etcd-lease", flags.etcd.lease_seconds,
                 "Seconds after which another coordinator leads if this one is not heard in etcd "
                 "(default: 5)")
      ->check(CLI::Range(2, 60));
  app.add_option("--advertise", flags.advertise,
                 "HOST:PORT at which clients reach this coordinator, told by those that follow it "
                 "(default: that of --listen)");
}

// Adds the flags of the queue.
void AddQueue(CLI::App& app, Flags& flags) {
  app.add_option("--quota", flags.quotas,
                 "IDENTITY=WORKERS: the jobs of this identity hold at most so many workers "
                 "together, e.g. user/ada=8; * is each identity that is not named. Give it again, "
                 "or separate several by commas (default: no limits)")
      ->delimiter(',')
      ->allow_extra_args(false);
}

// Adds the flags that say which ended jobs are kept, and for how long jobs are held.
void AddRetention(CLI::App& app, Flags& flags) {
  app.add_option("--keep-ended-jobs", flags.keep_ended_jobs,
                 "Keep so many ended jobs with their steps and logs, those that ended last; the "
                 "others are deleted; 0: all (default: 1000)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--keep-ended-days", flags.keep_ended_days,
                 "Keep an ended job for so many days; 0: for ever (default: 90)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--abandon-held-jobs-after", flags.abandon_held_seconds,
                 "Tell workers to abort a job that they hold and this state does not know after so "
                 "many seconds; 0: never, people decide with `takt adopt` and `takt abandon` "
                 "(default: 0)")
      ->check(CLI::NonNegativeNumber);
}

// Adds the flags of the tracking server.
void AddTracking(CLI::App& app, Flags& flags) {
  app.add_option("--mlflow", flags.mlflow,
                 "URL of an MLflow server, which gets the curves of jobs that name an experiment "
                 "(default: none)");
  app.add_option("--mlflow-token-file", flags.mlflow_token_file,
                 "File with a bearer token for it; read for every request (default: none)");
}

// Adds the flags of the process: what it logs, and how plans are made.
void AddProcess(CLI::App& app, Flags& flags) {
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
  app.add_option("--rpc-memory", flags.rpc_memory,
                 "Memory that the buffers of all connections may take, e.g. 1GB; beyond it new "
                 "connections are refused. With TLS allow 100KB for each worker (default: 256MB)")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber);
}

}  // namespace

Flags ParseFlags(int argc, char** argv) {
  Flags flags;
  CLI::App app("Takt coordinator: plans jobs, hands them to workers, keeps their state.",
               "takt-coordinator");
  app.add_option("--state", flags.state, "Directory of its state; made if missing");
  AddListeners(app, flags);
  AddStore(app, flags);
  AddQueue(app, flags);
  AddRetention(app, flags);
  AddTracking(app, flags);
  AddProcess(app, flags);
  app.set_version_flag("--version", std::string("takt-coordinator ") + kTaktVersion);
  daemon::AddSettings(app, "/etc/takt/coordinator.yaml", "TAKT_COORDINATOR");
  app.add_flag("--health{live}", flags.health,
               "Ask the coordinator that runs with these settings instead, exit 0 or 1: live (it "
               "makes progress) or --health=ready (it serves)")
      ->check(CLI::IsMember({"live", "ready"}))
      ->configurable(false);
  app.add_option("--import-state", flags.import_state,
                 "Copy this file of `takt admin backup` into the state in etcd, which must be new, "
                 "and end; no other coordinator may run")
      ->type_name("FILE")
      ->configurable(false);
  try {
    app.parse(argc, argv);
    if (flags.health.empty() && flags.state.empty()) throw CLI::RequiredError("--state");
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : kWrongUsage);
  }
  if (flags.listen.empty()) flags.listen = "unix:" + flags.state + "/coordinator.sock";
  return flags;
}

absl::Status CheckStore(const Flags& flags) {
  if (flags.store != "etcd") {
    if (!flags.import_state.empty()) {
      return InvalidField({.field = "--import-state",
                           .value = flags.import_state,
                           .rule = "is for a state in etcd",
                           .fix = "use `takt admin restore` for a state in a file"});
    }
    if (flags.etcd.endpoints.empty()) return absl::OkStatus();
    return InvalidField({.field = "--etcd-endpoints",
                         .rule = "is given, but the state is not in etcd",
                         .fix = "add --store etcd, or leave it out"});
  }
  if (flags.etcd.prefix.empty() || flags.etcd.prefix.back() != '/') {
    return InvalidField({.field = "--etcd-prefix",
                         .value = flags.etcd.prefix,
                         .rule = "must end with a slash, so that no other prefix begins with it",
                         .fix = "e.g. takt/"});
  }
  if (!flags.etcd.tls.authority.empty() && flags.etcd.tls.authority == flags.tls.authority) {
    return InvalidField({.field = "--etcd-authority",
                         .value = flags.etcd.tls.authority,
                         .rule = "is the authority of workers and users too, who could write the "
                                 "state in etcd with their certificates",
                         .fix = "make another one with `takt certs init` for etcd and the "
                                "coordinators' certificates for it"});
  }
  if (!flags.insecure && !flags.listen.starts_with("unix:")) return absl::OkStatus();
  return InvalidField({.field = "--listen",
                       .value = flags.listen,
                       .rule = "must be HOST:PORT with certificates if the state is in etcd: "
                               "clients and workers of other machines come when this one leads",
                       .fix = "give --listen HOST:PORT, --tls-certificate, --tls-key and "
                              "--tls-authority"});
}

}  // namespace takt::coordinator
