// SPDX-License-Identifier: Apache-2.0
// The metrics page of a daemon. It answers GET /metrics, with ?detail=all or without, and nothing
// else.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/net/listener.h"

namespace takt::daemon {

// A client that reaches the address may read the page and do nothing else. A request has at most
// 8 KiB, is answered once, and the connection is closed. net::Listener says why silent clients keep
// no others out.
class MetricsServer {
 public:
  // Returns the text of the page. all: whether it also has the metrics that are served on demand.
  using Page = std::function<std::string(bool all)>;
  // Binds the host of `address` alone. address: HOST:PORT, port 0 for any.  page: the server's
  // thread calls it. Errors: kInvalidArgument (FieldError on
  // --metrics-listen: not HOST:PORT); kUnavailable (the address cannot be bound now).
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& address,
                                                              Page page);

  // The address with the real port.
  const std::string& address() const { return listener_.address(); }

 private:
  MetricsServer(net::Socket socket, Page page);

  net::Listener listener_;
};

// Returns the whole answer to a request whose head is `head`.
std::string AnswerToScrape(std::string_view head, const MetricsServer::Page& page);

}  // namespace takt::daemon
