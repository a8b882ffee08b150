// SPDX-License-Identifier: Apache-2.0
// The command line of takt-worker.
#pragma once

#include <string>

#include "common/base/log.h"
#include "common/certificates/tls_files.h"

namespace takt::worker {

struct Flags {
  std::string coordinator = "unix:/run/takt/coordinator.sock";
  certificates::TlsFiles tls;
  bool insecure = false;
  std::string relay;  // unix:PATH; empty: none
  std::string name;   // empty: that of its certificate, or HOST-PID without one
  std::string data_root = "/var/lib/takt/data";
  std::string checkpoint_root = "/var/lib/takt/checkpoints";
  int threads = 0;              // 0: an even share of the host's cores
  std::string device = "auto";  // plugin::ParseDeviceWish
  bool share_device = false;
  std::string kernel_plans = "/var/lib/takt/kernel-plans";  // empty: none are kept
  std::string data_address = "127.0.0.1";
  int data_port = 0;                           // 0: any free one
  std::string data_advertise;                  // ADDRESS:PORT; empty: where it listens
  std::string metrics_listen = "127.0.0.1:0";  // empty: none
  int leave_seconds = 300;
  std::string state_file;     // empty: none
  std::string health_socket;  // empty: none
  std::string health;         // ask instead of run: "live" or "ready"
  bool die_with_parent = false;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
};

// If help or the version is asked for, or a flag is wrong, prints that and ends the process (0, or
// 2 for wrong usage).
Flags ParseFlags(int argc, char** argv);

// Returns the name to attach with. FieldError: the certificate is not a worker's, or belongs to
// another worker than --name.
absl::StatusOr<std::string> WorkerName(const Flags& flags);

}  // namespace takt::worker
