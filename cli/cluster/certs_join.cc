// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <iostream>
#include <iterator>

#include "absl/strings/ascii.h"
#include "cli/base/report.h"
#include "cli/client/connect.h"
#include "cli/cluster/certs.h"
#include "cli/cluster/commands.h"
#include "common/base/status.h"
#include "common/certificates/authority.h"

namespace takt::cli {
namespace {

struct TokenOptions {
  std::string worker;
  double minutes = 60;
};

struct JoinOptions {
  std::string token_file = "-", out = ".";
};

absl::StatusOr<ExitCode> Token(const Context& context, const TokenOptions& options) {
  ASSIGN_OR_RETURN(const auto client, ConnectToCoordinator(context));
  ASSIGN_OR_RETURN(const std::string token,
                   client->CreateJoinToken(options.worker, absl::Minutes(options.minutes)));
  if (context.json()) {
    PrintJson(context, {{"worker", options.worker}, {"token", token}});
  } else {
    context.terminal.out << token << std::endl;
  }
  return ExitCode::kDone;
}

absl::StatusOr<std::string> ReadToken(const std::string& file) {
  std::string token;
  if (file == "-") {
    std::getline(std::cin, token);
  } else {
    std::ifstream in(file);
    std::getline(in, token);
  }
  absl::StripAsciiWhitespace(&token);
  if (!token.empty()) return token;
  return InvalidField({.field = "--token-file",
                       .value = file,
                       .rule = "holds no token",
                       .fix = "give what `takt certs token WORKER` printed, here or on stdin"});
}

absl::StatusOr<ExitCode> Join(const Context& context, const JoinOptions& options) {
  ASSIGN_OR_RETURN(const std::string token, ReadToken(options.token_file));
  ASSIGN_OR_RETURN(const certificates::Request request, certificates::MakeRequest());
  ASSIGN_OR_RETURN(ClientOptions coordinator, ClientOptionsOf(context));
  ASSIGN_OR_RETURN(const std::string certificate,
                   Client::Join(std::move(coordinator), token, request.text));
  ASSIGN_OR_RETURN(const certificates::IssuedFiles files,
                   certificates::WriteIssued(options.out, request.key, certificate));
  PrintIssued(context, files);
  return ExitCode::kDone;
}

}  // namespace

void AddCertsJoin(CLI::App& certs, Context& context) {
  AddCommand<TokenOptions>(
      certs, context, "token", "Make a token with which a worker gets its first certificate",
      [](CLI::App& app, TokenOptions& options) {
        app.add_option("WORKER", options.worker, "The name that its certificate will have")
            ->type_name("")
            ->required();
        app.add_option("--minutes", options.minutes, "How long the token is valid; it works once")
            ->check(CLI::Range(1.0, 1440.0))
            ->capture_default_str();
      },
      Token)
      ->footer(
          "For administrators. The coordinator must run with --join-authority.\n\n"
          "Example:\n"
          "  takt certs token n2 > n2.token");
  AddCommand<JoinOptions>(
      certs, context, "join", "Get a worker's first certificate for a token: NAME.pem, NAME.key",
      [](CLI::App& app, JoinOptions& options) {
        app.add_option("--token-file", options.token_file, "File with the token; -: stdin")
            ->type_name("FILE")
            ->capture_default_str();
        app.add_option("--out", options.out, "Where to write")
            ->type_name("DIR")
            ->capture_default_str();
      },
      Join)
      ->footer(
          "Of the --tls options it needs only --tls-authority. The key is made on this machine and "
          "stays "
          "here.\n\n"
          "Example:\n"
          "  takt certs join --coordinator c1:7070 --tls-authority ca.pem --token-file n2.token");
}

}  // namespace takt::cli
