// SPDX-License-Identifier: Apache-2.0
#include "worker/relay/flags.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "common/base/status.h"
#include "common/base/version.h"
#include "common/daemon/log_flags.h"
#include "common/daemon/settings.h"

namespace takt::relay {
namespace {

constexpr int kWrongUsage = 2;

void AddConnection(CLI::App& app, Flags& flags) {
  app.add_option("--listen", flags.listen,
                 "unix:PATH of the socket on which the workers of this host find the relay; give "
                 "them the same --relay")
      ->capture_default_str();
  app.add_option("--coordinator", flags.coordinator,
                 "HOST:PORT or unix:PATH; of several coordinators with one state, all of them, "
                 "separated by commas");
  app.add_option("--tls-certificate", flags.tls.certificate,
                 "PEM file of a certificate of role host, whose name is that of the workers here "
                 "without their numbers; it is read again when it changes, as are the next two");
  app.add_option("--tls-key", flags.tls.key,
                 "PEM file of its private key, which only its owner may read");
  app.add_option("--tls-authority", flags.tls.authority,
                 "PEM file of the authority that must have issued the coordinator's certificate");
  app.add_flag("--insecure", flags.insecure, "Dial a HOST:PORT without TLS");
}

void AddProcess(CLI::App& app, Flags& flags) {
  app.add_option("--metrics-listen", flags.metrics_listen,
                 "HOST:PORT of /metrics; port 0: any; empty: none")
      ->capture_default_str();
  app.add_flag("--die-with-parent", flags.die_with_parent,
               "End when the process that started this one ends");
  daemon::AddLogFlags(app, flags.log_level, flags.log_format);
}

}  // namespace

Flags ParseFlags(int argc, char** argv) {
  Flags flags;
  CLI::App app(
      "takt-relay: carries the streams of the workers of a host to a Takt coordinator over one "
      "connection.");
  app.set_version_flag("--version",
                       std::string("takt-relay ") + kTaktVersion + "\nbuilt in: " + kTaktBuild);
  AddConnection(app, flags);
  AddProcess(app, flags);
  daemon::AddSettings(app, "/etc/takt/relay.yaml", "TAKT_RELAY");
  app.add_flag("--health{live}", flags.health,
               "Ask the relay that runs with these settings instead, exit 0 or 1: live (it "
               "answers) or --health=ready (it is connected to the coordinator)")
      ->check(CLI::IsMember({"live", "ready"}))
      ->configurable(false);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : kWrongUsage);
  }
  return flags;
}

absl::Status CheckFlags(const Flags& flags) {
  if (flags.coordinator.empty()) {
    return InvalidField({.field = "--coordinator",
                         .rule = "is missing",
                         .fix = "give the address that the workers of this host would dial"});
  }
  if (!flags.tls.any()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const certificates::CertificateFacts facts,
                   certificates::ReadFacts(flags.tls.certificate));
  if (facts.identity.role == access::Role::kHost) return absl::OkStatus();
  return InvalidField({.field = "--tls-certificate",
                       .value = flags.tls.certificate,
                       .rule = "is of " + facts.identity.ToString() + ", not of a host",
                       .fix = "issue one with `takt certs issue DIR host NAME`"});
}

}  // namespace takt::relay
