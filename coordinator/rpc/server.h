// SPDX-License-Identifier: Apache-2.0
// The coordinator's gRPC server has all services, health and reflection on one address.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/access/rate_limiter.h"
#include "common/certificates/tls_files.h"
#include "coordinator/job/coordinator.h"
#include "coordinator/rpc/backup_stream.h"
#include "coordinator/timeouts/timeouts.h"
#include "coordinator/traces/trace_keeper.h"

namespace takt::coordinator_rpc {

struct ServerOptions {
  std::string listen;          // unix:PATH or HOST:PORT; port 0: chosen by the system
  certificates::TlsFiles tls;  // of HOST:PORT
  bool insecure = false;       // serve TCP without certificates
  access::RateLimit rate;      // for each identity
  // Directory of the authority that signs workers' first certificates; empty: none are signed.
  std::string join_authority;
  absl::Duration stall = timeouts::kStreamStall;
  // gRPC's buffers for all connections take at most so much. New ones are refused beyond it.
  std::size_t memory_bytes = std::size_t{256} << 20;
  traces::TraceKeeper* traces = nullptr;  // borrowed; null: none are kept
  Backups::OpenBackup open_backup;        // null: there is no state file
  // A coordinator that follows has this function (GuardOptions). It needs TLS, because the guard
  // sees no other calls.
  std::function<std::string()> leader;
};

// Errors: kInvalidArgument (FieldError), as rpc::CheckEndpoint, or because the certificate is not a
// coordinator's.
absl::Status CheckListen(const ServerOptions& options);

class Server {
 public:
  // coordinator: borrowed. Stop it first, so that streams that end are not taken for lost workers.
  // Errors: as CheckListen; kUnavailable (cannot bind).
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       job::Coordinator* coordinator);
  // Ends every call within a second.
  virtual ~Server() = default;

  // Returns what to dial: unix:PATH or HOST:PORT with the real port.
  virtual const std::string& address() const = 0;
};

}  // namespace takt::coordinator_rpc
