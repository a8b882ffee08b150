// SPDX-License-Identifier: Apache-2.0
// The command line of takt-relay.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/base/log.h"
#include "common/certificates/tls_files.h"

namespace takt::relay {

struct Flags {
  std::string listen = "unix:/run/takt-relay/relay.sock";
  std::string coordinator;
  certificates::TlsFiles tls;
  bool insecure = false;
  std::string metrics_listen = "127.0.0.1:0";  // empty: none
  std::string health;                          // ask instead of run: "live" or "ready"
  bool die_with_parent = false;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
};

// Parses the command line and the settings file. If help or the version is asked for, or a flag is
// wrong, it prints that and ends the process (exit status 0, or 2 for wrong usage).
Flags ParseFlags(int argc, char** argv);

// Errors: FieldError if --coordinator is missing, or if the certificate is not a host's.
absl::Status CheckFlags(const Flags& flags);

}  // namespace takt::relay
