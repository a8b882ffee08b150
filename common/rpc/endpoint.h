// SPDX-License-Identifier: Apache-2.0
// Says where a program listens or dials, and how: with mutual TLS 1.3 over TCP, and without TLS
// over a Unix socket, whose directory says which users may connect. It needs none of gRPC's
// headers.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/certificates/tls_files.h"

namespace takt::rpc {

// Makes gRPC refuse TLS 1.2, as server and as client. Call it in main before anything of gRPC and
// before the first thread: gRPC reads it once, from the environment.
void RequireTls13();

struct Endpoint {
  std::string flag;     // the flag that gave the address, for errors
  std::string address;  // unix:PATH or HOST:PORT
  certificates::TlsFiles tls;
  bool insecure = false;  // the user wants TCP without certificates
  bool joins = false;     // it dials without a certificate of its own, to ask for one

  bool is_unix() const { return address.starts_with("unix:"); }
  bool is_tls() const { return !is_unix() && !insecure; }
};

// Reports everything that is wrong with an endpoint before it is used, as FieldErrors: not an
// address; a path too long for a Unix socket; TCP without certificates and without --insecure, or
// with both; files that CheckTlsFiles refuses.
absl::Status CheckEndpoint(const Endpoint& endpoint, absl::Time now);

// Says for people what gRPC's message about a failed connection means. It is empty if the message
// says nothing about TLS.
std::string ExplainTlsFailure(const std::string& message, absl::Time now);

}  // namespace takt::rpc
