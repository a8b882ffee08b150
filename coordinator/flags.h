// SPDX-License-Identifier: Apache-2.0
// Parses the command line of takt-coordinator.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/certificates/tls_files.h"

namespace takt::coordinator {

// How to reach the state in etcd, if it is not in a file under --state.
struct EtcdFlags {
  std::vector<std::string> endpoints;  // HOST:PORT
  certificates::TlsFiles tls;
  std::string prefix = "takt/";
  std::int64_t lease_seconds = 5;
};

struct Flags {
  std::string state;
  std::string store = "sqlite";  // or "etcd"
  EtcdFlags etcd;
  std::string advertise;       // HOST:PORT at which clients reach it; empty: as `listen`
  std::string listen;          // "unix:PATH" or "HOST:PORT"
  std::string metrics_listen;  // empty: none
  std::string health_socket;   // empty: none
  std::string health;          // ask instead of run: "live" or "ready"
  std::string import_state;    // take this copy of a state instead of serving; empty: serve
  std::string log_level = "info", log_format = "text";
  certificates::TlsFiles tls;
  std::string join_authority;  // empty: no first certificates are signed
  std::string mlflow;          // URL of a tracking server; empty: none
  std::string mlflow_token_file;
  bool insecure = false;
  std::string planner = "child";
  // The largest plan that is not refused takes half of the default.
  std::int64_t planner_memory = std::int64_t{3} << 30;
  std::vector<std::string> quotas;                            // "IDENTITY=WORKERS"
  std::int64_t keep_ended_jobs = 1000, keep_ended_days = 90;  // 0: no limit
  std::int64_t abandon_held_seconds = 0;                      // 0: never
  std::int64_t rpc_memory = std::int64_t{256} << 20;
};

// Checks what the flags of the store need of one another. Errors: kInvalidArgument (FieldError).
absl::Status CheckStore(const Flags& flags);

// Returns the flags. If help or the version is asked for, or a flag is wrong, the function prints
// that and ends the process with status 0, or 2 for wrong usage.
Flags ParseFlags(int argc, char** argv);

}  // namespace takt::coordinator
