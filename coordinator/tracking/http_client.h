// SPDX-License-Identifier: Apache-2.0
// Sends requests to an HTTP server.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace takt::tracking {

struct HttpResponse {
  int status = 0;  // 200, 404, ...
  std::string body;
};

// One caller at a time.
class HttpClient {
 public:
  virtual ~HttpClient() = default;

  // Sends JSON to a path of the server. Errors: kUnavailable: there was no whole answer; the
  // message names the server.  Blocks: at most the time limit.
  virtual absl::StatusOr<HttpResponse> Post(const std::string& path, const std::string& json) = 0;
};

struct CurlOptions {
  std::string url;         // http://HOST:PORT or https://HOST
  std::string token_file;  // holds a bearer token, and is read for every request; empty: none
  absl::Duration time_limit = absl::Seconds(10);
};

// Returns a client that follows no redirects. Errors: kInvalidArgument (FieldError): `url` is not
// the URL of a server.
absl::StatusOr<std::unique_ptr<HttpClient>> MakeCurlClient(CurlOptions options);

}  // namespace takt::tracking
