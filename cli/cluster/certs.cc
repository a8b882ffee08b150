// SPDX-License-Identifier: Apache-2.0
#include "cli/cluster/certs.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/base/report.h"
#include "cli/cluster/commands.h"
#include "common/base/status.h"
#include "common/certificates/authority.h"

namespace takt::cli {
namespace {

struct InitOptions {
  std::string directory, domain = "takt.local";
};

struct IssueArguments {
  std::string directory, out, role, name;
  std::vector<std::string> hosts;
  int days = 90;
  bool renew = false;
};

absl::StatusOr<ExitCode> Init(const Context& context, const InitOptions& options) {
  const absl::Status created =
      certificates::CreateAuthority(options.directory, options.domain, absl::Now());
  if (absl::IsAlreadyExists(created)) {
    return InvalidField({.field = "DIR",
                         .value = options.directory,
                         .rule = absl::StrCat("has an authority already, which is never replaced (",
                                              created.message(), ")"),
                         .fix = absl::StrCat("use it (takt certs issue ", options.directory,
                                             " ...), or name another directory")});
  }
  RETURN_IF_ERROR(created);
  const std::string certificate = options.directory + "/ca.pem";
  const std::string key = options.directory + "/ca.key";
  if (context.json()) {
    PrintJson(context, {{"certificate", certificate}, {"key", key}});
  } else {
    context.terminal.out << certificate << "\n" << key << std::endl;
    context.terminal.err << "Give ca.pem to every machine; keep ca.key away from all of them.\n";
  }
  return ExitCode::kDone;
}

absl::StatusOr<ExitCode> Issue(const Context& context, const IssueArguments& options) {
  ASSIGN_OR_RETURN(const access::Role role, access::ParseRole(options.role));
  if (role == access::Role::kCoordinator && options.hosts.empty()) {
    return InvalidField({.field = "--host",
                         .rule = "is needed for a coordinator: clients check it",
                         .fix = "give every name and address by which it is dialled"});
  }
  const absl::StatusOr<certificates::IssuedFiles> files = certificates::IssueCertificate(
      options.directory, options.out.empty() ? options.directory : options.out,
      {.identity = {.role = role, .name = options.name},
       .hosts = options.hosts,
       .validity = absl::Hours(24) * options.days,
       .now = absl::Now(),
       .renew = options.renew});
  if (absl::IsAlreadyExists(files.status())) {
    return InvalidField(
        {.field = "NAME",
         .value = options.name,
         .rule = absl::StrCat("has files already, which are never replaced (",
                              files.status().message(), ")"),
         .fix = "add --renew for a new certificate of the same key, or give another --out"});
  }
  RETURN_IF_ERROR(files.status());
  PrintIssued(context, *files);
  return ExitCode::kDone;
}

}  // namespace

void PrintIssued(const Context& context, const certificates::IssuedFiles& files) {
  if (context.json()) {
    PrintJson(context, {{"certificate", files.certificate},
                        {"key", files.key},
                        {"uri", files.uri},
                        {"expires", absl::FormatTime(files.expires)}});
  } else {
    context.terminal.out << files.certificate << "\n" << files.key << std::endl;
    context.terminal.err << files.uri << ", until " << absl::FormatTime(files.expires) << "\n";
  }
}

void AddCerts(CLI::App& app, Context& context) {
  CLI::App* certs = app.add_subcommand("certs", "A small private certificate authority");
  certs->footer("Example:\n  takt certs init takt-ca && takt certs issue takt-ca user alice");
  AddCommand<InitOptions>(
      *certs, context, "init", "Make an authority: ca.pem and ca.key",
      [](CLI::App& app, InitOptions& options) {
        app.add_option("DIR", options.directory, "Its directory")->type_name("")->required();
        app.add_option("--domain", options.domain, "Trust domain of its identities")
            ->type_name("NAME")
            ->capture_default_str();
      },
      Init)
      ->footer("Example:\n  takt certs init takt-ca --domain lab.example");
  AddCommand<IssueArguments>(
      *certs, context, "issue", "Issue a certificate and its key: NAME.pem, NAME.key",
      [](CLI::App& app, IssueArguments& options) {
        app.add_option("DIR", options.directory, "The authority's directory")
            ->type_name("")
            ->required();
        app.add_option("ROLE", options.role, "coordinator, worker, host, user or admin")
            ->type_name("")
            ->required();
        app.add_option("NAME", options.name, "Whose it is; a worker's is its --name")
            ->type_name("")
            ->required();
        app.add_option("--host", options.hosts, "Name or address of a coordinator; repeat for more")
            ->type_name("HOST");
        app.add_option("--days", options.days, "How long it is valid")
            ->check(CLI::Range(1, 3650))
            ->capture_default_str();
        app.add_flag("--renew", options.renew,
                     "Issue a new certificate for the existing key, and replace the old one");
        app.add_option("--out", options.out, "Where to write; default: DIR")->type_name("DIR");
      },
      Issue)
      ->footer(
          "Examples:\n"
          "  takt certs issue takt-ca coordinator n1 --host n1 --host 10.0.0.1\n"
          "  takt certs issue takt-ca worker n2 --out n2\n"
          "  takt certs issue takt-ca worker n2 --out n2 --renew");
  AddCertsCluster(*certs, context);
  AddCertsJoin(*certs, context);
}

}  // namespace takt::cli
