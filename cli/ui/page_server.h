// SPDX-License-Identifier: Apache-2.0
// Serves the page of `takt ui` on loopback.
//
// Path                                      Answer
// /                                         the page; with ?token=TOKEN it also sets the cookie
// /page.css, /page.js                       its style and its script
// /schedules                                the explorer of schedules (cli/schedule/page.h)
// /api/stream?view=V[&view=V...]            server-sent events of these views (hub.h, sources.h)
// /api/timeline?job=J&step=N&first=R        data of a timeline's picture (timelines.h)
// PageAccess decides who gets them. No request changes anything.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/client/client.h"
#include "cli/ui/connection_limits.h"

namespace takt::cli {

struct PageServerOptions {
  int port = 0;  // 0: the system chooses one
  // Says how long a stream waits between two frames at least.
  absl::Duration frame_pause = absl::Milliseconds(100);
  // Streams at a time. The other connections are for short requests.
  int streams = 40;
  ConnectionLimits connections = {};
};

class PageServer final {
 public:
  // Begins to listen. Borrows the client. kUnavailable: the port is taken.
  static absl::StatusOr<std::unique_ptr<PageServer>> Create(Client& client,
                                                            const PageServerOptions& options);
  ~PageServer();

  // Returns the address that opens the page, with the token.
  std::string Address() const;
  int port() const;

  // Serves until Stop. Call it once.
  void Run();
  // Lets Run return. Any thread may call it, also before Run, and more than once.
  void Stop();

 private:
  class Impl;
  explicit PageServer(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace takt::cli
