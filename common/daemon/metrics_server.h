// SPDX-License-Identifier: Apache-2.0
// The metrics page of a daemon: GET /metrics, and nothing else.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/net/door.h"

namespace takt::daemon {

// Whoever reaches the address may read the page and do nothing else: a request is at most 8 KiB, is
// answered once, and the connection is closed. See net::Door for what keeps silent clients from
// keeping others out.
class MetricsServer {
 public:
  // address: HOST:PORT, port 0 for any; binds that host alone.  page: the text of the page; called
  // on the server's thread. Errors: kInvalidArgument (FieldError on
  // --metrics-listen: not HOST:PORT); kUnavailable (that cannot be bound now).
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& address,
                                                              std::function<std::string()> page);

  // With the real port.
  const std::string& address() const { return door_.address(); }

 private:
  MetricsServer(net::Socket listener, std::function<std::string()> page);

  net::Door door_;
};

// The whole answer to a request whose head is `head`.
std::string AnswerToScrape(std::string_view head, const std::function<std::string()>& page);

}  // namespace takt::daemon
