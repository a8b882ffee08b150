// SPDX-License-Identifier: Apache-2.0
// `takt certs cluster` issues the certificates of a whole cluster and writes its settings, into a
// folder for each machine and person.
#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "cli/base/input_file.h"
#include "cli/base/new_file.h"
#include "cli/base/report.h"
#include "cli/base/text.h"
#include "cli/cluster/commands.h"
#include "cli/cluster/inventory.h"
#include "cli/cluster/packaged_settings.h"
#include "common/access/identity.h"
#include "common/base/status.h"
#include "common/certificates/authority.h"

namespace takt::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLargestInventory = std::size_t{1} << 20;
constexpr char kTlsOfMachines[] = "/etc/takt/tls/";  // where settings look for certificates
// The relay of the package listens here.
constexpr char kRelaySocket[] = "unix:/run/takt-relay/relay.sock";

struct ClusterOptions {
  std::string inventory, directory;
  bool renew = false;
};

// A machine or person that gets a folder.
struct Holder {
  access::Identity identity;
  std::vector<std::string> hosts = {};
  // They are empty for people.
  std::string settings_file = {}, settings = {};
};

// Sets a field of a settings file in which each has a line of its own, perhaps commented out.
void Set(std::string& settings, const std::string& field, const std::string& value) {
  std::vector<std::string> lines = absl::StrSplit(settings, '\n');
  for (std::string& line : lines) {
    const bool is_set = absl::StartsWith(line, field + ":");
    if (!is_set && !absl::StartsWith(line, absl::StrCat("# ", field, ":"))) continue;
    line = absl::StrCat(field, ": ", value);
    settings = absl::StrJoin(lines, "\n");
    return;
  }
  TAKT_CHECK(!"a setting that the packages' file does not have");
}

void SetTls(std::string& settings, const std::string& name) {
  Set(settings, "tls_certificate", absl::StrCat(kTlsOfMachines, name, ".pem"));
  Set(settings, "tls_key", absl::StrCat(kTlsOfMachines, name, ".key"));
  Set(settings, "tls_authority", absl::StrCat(kTlsOfMachines, "ca.pem"));
}

// Returns where the coordinator listens. An IPv6 address needs brackets before a port, and then
// quotes in YAML.
std::string EndpointOf(const Inventory& inventory) {
  const std::string& host = inventory.hosts[0];
  if (!absl::StrContains(host, ':')) return absl::StrCat(host, ":", inventory.port);
  return absl::StrCat("\"[", host, "]:", inventory.port, "\"");
}

Holder CoordinatorOf(const Inventory& inventory) {
  Holder holder{.identity = {.role = access::Role::kCoordinator, .name = inventory.coordinator},
                .hosts = inventory.hosts,
                .settings_file = "coordinator.yaml",
                .settings = kCoordinatorSettings};
  Set(holder.settings, "listen", EndpointOf(inventory));
  SetTls(holder.settings, inventory.coordinator);
  return holder;
}

// Sets apart what the workers of a host with a relay must not share: they run as
// takt-worker@NUMBER, and their folders all go to /etc/takt of the host.
void SetPlaceOnHost(Holder& holder, std::string_view host) {
  const std::string number = holder.identity.name.substr(host.size() + 1);
  constexpr int kFirstPort = 9470;  // behind those of the packages' settings
  int offset = 0;
  const bool has_port = absl::SimpleAtoi(number, &offset) && offset < 1000;
  holder.settings_file = absl::StrCat("worker-", number, ".yaml");
  Set(holder.settings, "relay", kRelaySocket);
  Set(holder.settings, "metrics_listen",
      absl::StrCat("127.0.0.1:", has_port ? kFirstPort + offset : 0));
  Set(holder.settings, "health_socket", absl::StrCat("/run/takt-worker-", number, "/health.sock"));
}

Holder WorkerOf(const Inventory& inventory, const Inventory::Worker& worker) {
  Holder holder{.identity = {.role = access::Role::kWorker, .name = worker.name},
                .settings_file = "worker.yaml",
                .settings = kWorkerSettings};
  Set(holder.settings, "name", worker.name);
  Set(holder.settings, "coordinator", EndpointOf(inventory));
  const std::string host(access::HostOf(worker.name));
  const std::vector<std::string>& relays = inventory.relays;
  const bool has_relay = std::ranges::find(relays, host) != relays.end();
  const bool names_itself = worker.data_address == worker.name;
  Set(holder.settings, "data_address", has_relay && names_itself ? host : worker.data_address);
  if (!inventory.data_root.empty()) Set(holder.settings, "data_root", inventory.data_root);
  if (!inventory.checkpoint_root.empty())
    Set(holder.settings, "checkpoint_root", inventory.checkpoint_root);
  if (has_relay) SetPlaceOnHost(holder, host);
  SetTls(holder.settings, worker.name);
  return holder;
}

Holder RelayOf(const Inventory& inventory, const std::string& host) {
  Holder holder{.identity = {.role = access::Role::kHost, .name = host},
                .settings_file = "relay.yaml",
                .settings = kRelaySettings};
  Set(holder.settings, "coordinator", EndpointOf(inventory));
  SetTls(holder.settings, host);
  return holder;
}

std::vector<Holder> HoldersOf(const Inventory& inventory) {
  std::vector<Holder> holders = {CoordinatorOf(inventory)};
  for (const Inventory::Worker& worker : inventory.workers)
    holders.push_back(WorkerOf(inventory, worker));
  for (const std::string& host : inventory.relays) holders.push_back(RelayOf(inventory, host));
  for (const std::string& name : inventory.users)
    holders.push_back({.identity = {.role = access::Role::kUser, .name = name}});
  for (const std::string& name : inventory.admins)
    holders.push_back({.identity = {.role = access::Role::kAdmin, .name = name}});
  return holders;
}

absl::Status MakeDirectory(const fs::path& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (!error) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("cannot make ", directory.string(), ": ", error.message()));
}

bool IsThere(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Fills DIR/NAME. Returns what was issued: "new", "renewed", or "" if a certificate was there.
absl::StatusOr<std::string> Fill(const ClusterOptions& options, int days, const fs::path& authority,
                                 const Holder& holder) {
  const fs::path folder = fs::path(options.directory) / holder.identity.name, tls = folder / "tls";
  RETURN_IF_ERROR(MakeDirectory(tls));
  const bool has_key = IsThere(tls / absl::StrCat(holder.identity.name, ".key"));
  if (!has_key || options.renew) {
    RETURN_IF_ERROR(certificates::IssueCertificate(authority.string(), tls.string(),
                                                   {.identity = holder.identity,
                                                    .hosts = holder.hosts,
                                                    .validity = absl::Hours(24) * days,
                                                    .now = absl::Now(),
                                                    .renew = has_key})
                        .status());
  }
  std::error_code error;
  fs::copy_file(authority / "ca.pem", tls / "ca.pem", fs::copy_options::overwrite_existing, error);
  if (error) {
    return absl::InternalError(
        absl::StrCat("cannot write ", (tls / "ca.pem").string(), ": ", error.message()));
  }
  const fs::path settings = folder / holder.settings_file;
  if (!holder.settings_file.empty() && !IsThere(settings))
    RETURN_IF_ERROR(WriteNewFile(settings.string(), holder.settings));
  if (!has_key) return std::string("new");
  return std::string(options.renew ? "renewed" : "");
}

absl::StatusOr<ExitCode> Cluster(const Context& context, const ClusterOptions& options) {
  ASSIGN_OR_RETURN(const std::string text,
                   ReadInputFile(options.inventory, "INVENTORY", kLargestInventory));
  ASSIGN_OR_RETURN(const Inventory inventory, ParseInventory(text, options.inventory));
  const fs::path authority = fs::path(options.directory) / "ca";
  RETURN_IF_ERROR(MakeDirectory(options.directory));
  if (!IsThere(authority / "ca.pem")) {
    RETURN_IF_ERROR(
        certificates::CreateAuthority(authority.string(), inventory.domain, absl::Now()));
  }
  Json folders = Json::array();
  Table table({"ROLE", "NAME", "FOLDER", "CERTIFICATE"});
  for (const Holder& holder : HoldersOf(inventory)) {
    ASSIGN_OR_RETURN(const std::string issued, Fill(options, inventory.days, authority, holder));
    const std::string role(access::Name(holder.identity.role));
    const std::string folder = (fs::path(options.directory) / holder.identity.name).string();
    table.Add({role, holder.identity.name, folder, issued.empty() ? "there already" : issued});
    folders.push_back({{"role", role},
                       {"name", holder.identity.name},
                       {"folder", folder},
                       {"issued", !issued.empty()}});
  }
  if (context.json()) {
    Json json = Json::object();
    json["authority"] = authority.string();
    json["folders"] = std::move(folders);
    PrintJson(context, json);
  } else {
    context.terminal.out << table.ToString() << std::flush;
    Say(context,
        absl::StrCat("copy the contents of each folder alone to /etc/takt of its machine; keep ",
                     (authority / "ca.key").string(), " away from all of them"));
  }
  return ExitCode::kDone;
}

}  // namespace

void AddCertsCluster(CLI::App& certs, Context& context) {
  AddCommand<ClusterOptions>(
      certs, context, "cluster", "Issue the certificates and settings of a whole cluster",
      [](CLI::App& app, ClusterOptions& options) {
        app.add_option("INVENTORY", options.inventory, "File that names machines and people")
            ->type_name("FILE.yaml")
            ->required();
        app.add_option("DIR", options.directory, "Gets a folder for each, and `ca`")
            ->type_name("")
            ->required();
        app.add_flag("--renew", options.renew,
                     "Also issue new certificates for the keys that are there");
      },
      Cluster)
      ->footer(
          "Each folder has tls/NAME.pem, tls/NAME.key, tls/ca.pem, and for a machine the settings "
          "file. The contents\nof a folder go to /etc/takt of its machine, those of a relay's "
          "workers to their host. Run the command again for what the "
          "inventory names since; what is there\nstays. docs/security.md has an inventory.\n\n"
          "Example:\n"
          "  takt certs cluster inventory.yaml takt-cluster\n"
          "  takt certs cluster inventory.yaml takt-cluster --renew");
}

}  // namespace takt::cli
