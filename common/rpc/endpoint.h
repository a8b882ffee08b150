// SPDX-License-Identifier: Apache-2.0
// Where a program listens or dials, and how: mutual TLS 1.3 over TCP, nothing over Unix sockets,
// whose directory says who may come. Without gRPC's headers.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/certificates/tls_files.h"

namespace takt::rpc {

// Makes gRPC refuse TLS 1.2, as server and as client. In main, before anything of gRPC and before
// the first thread: gRPC reads it once, from the environment.
void RequireTls13();

struct Endpoint {
  std::string flag;     // that gave the address, for errors
  std::string address;  // unix:PATH or HOST:PORT
  certificates::TlsFiles tls;
  bool insecure = false;  // TCP without certificates is meant
  bool joins = false;     // dials without a certificate of its own, to ask for one

  bool is_unix() const { return address.starts_with("unix:"); }
  bool is_tls() const { return !is_unix() && !insecure; }
};

// Everything that can be said about it before it is used. FieldErrors: not an address; a path too
// long for a Unix socket; TCP without certificates and without --insecure, or with both; files that
// CheckTlsFiles refuses.
absl::Status CheckEndpoint(const Endpoint& endpoint, absl::Time now);

// What gRPC's words about a connection that failed mean, for people; empty: nothing about TLS.
std::string ExplainTlsFailure(const std::string& message, absl::Time now);

}  // namespace takt::rpc
