// SPDX-License-Identifier: Apache-2.0
#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/base/report.h"
#include "cli/base/signals.h"
#include "cli/client/client.h"
#include "cli/client/connect.h"
#include "cli/ui/commands.h"
#include "cli/ui/page_server.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

// A call that takes longer would only delay the news that the coordinator is away.
constexpr absl::Duration kCallTimeout = absl::Seconds(3);

struct UiOptions {
  int port = 0;
};

absl::StatusOr<ExitCode> ServePage(const Context& context, const UiOptions& options) {
  ASSIGN_OR_RETURN(ClientOptions client_options, ClientOptionsOf(context));
  client_options.call_timeout = std::min(client_options.call_timeout, kCallTimeout);
  ASSIGN_OR_RETURN(const auto client, Client::Connect(std::move(client_options)));
  ASSIGN_OR_RETURN(const auto server, PageServer::Create(*client, {.port = options.port}));
  const SignalThread signals({SIGINT, SIGTERM}, [&](int) { server->Stop(); });
  if (context.json()) {
    PrintJson(context, {{"url", server->Address()}, {"port", server->port()}});
  } else {
    context.terminal.out << server->Address() << '\n' << std::flush;
    Say(context,
        "open this address in a browser; who has it sees what you may see. Ctrl-C ends the page");
  }
  server->Run();
  return ExitCode::kDone;
}

}  // namespace

void AddUi(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand<UiOptions>(
      app, context, "ui", "Show the cluster and its jobs in a browser",
      [](CLI::App& app, UiOptions& options) {
        app.add_option("--port", options.port, "Port on loopback (default: the system chooses)")
            ->type_name("PORT")
            ->check(CLI::Range(1, 65535));
      },
      ServePage);
  command->footer(
      "Serves a page on 127.0.0.1 until Ctrl-C, and prints its address with a token. The page\n"
      "shows workers, the queue, and of each job progress, curves, a live timeline of the "
      "pipeline,\n"
      "where the time went, memory, checkpoints, faults and logs. It asks the coordinator with "
      "your\n"
      "credentials and changes nothing.\n\n"
      "With -o json it prints one object: url, port.\n\n"
      "Examples:\n"
      "  takt ui\n"
      "  takt ui --port 8080          on a machine that you reach by ssh -L 8080:127.0.0.1:8080");
}

}  // namespace takt::cli
