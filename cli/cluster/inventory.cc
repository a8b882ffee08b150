// SPDX-License-Identifier: Apache-2.0
#include "cli/cluster/inventory.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/access/identity.h"
#include "common/base/field_rules.h"
#include "common/base/status.h"
#include "common/config/job_file.h"
#include "takt/v1/inventory_file.pb.h"

namespace takt::cli {
namespace {

constexpr int kMostNamesOfARange = 4096;

// Returns the names that "n[01-16]" stands for, or the text alone if it has no brackets, or nothing
// if the range is wrong.
std::vector<std::string> Expand(const std::string& text) {
  const std::size_t open = text.find('['), close = text.find(']');
  if (open == std::string::npos) return {text};
  if (close == std::string::npos || close < open) return {};
  const std::vector<std::string> ends =
      absl::StrSplit(text.substr(open + 1, close - open - 1), '-');
  int first = 0, last = 0;
  if (ends.size() != 2 || !absl::SimpleAtoi(ends[0], &first) || !absl::SimpleAtoi(ends[1], &last) ||
      first < 0 || last < first || last - first >= kMostNamesOfARange) {
    return {};
  }
  std::vector<std::string> names;
  for (int number = first; number <= last; ++number) {
    std::string digits = absl::StrCat(number);
    if (digits.size() < ends[0].size()) digits.insert(0, ends[0].size() - digits.size(), '0');
    names.push_back(absl::StrCat(text.substr(0, open), digits, text.substr(close + 1)));
  }
  return names;
}

// Returns whether a setting can hold the text without quotes.
bool IsAddress(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_' || c == ':';
  });
}

class InventoryReader {
 public:
  Inventory Read(const v1::InventoryFile& file) {
    Inventory inventory;
    if (file.has_domain()) inventory.domain = file.domain();
    rules_.Check(access::IsName(inventory.domain), NameError("domain", inventory.domain));
    if (file.has_days()) inventory.days = file.days();
    rules_.Between("days", inventory.days, 1, 3650);
    ReadCoordinator(file.coordinator(), inventory);
    for (int i = 0; i < file.workers_size(); ++i)
      ReadWorkers(absl::StrCat("workers[", i, "]"), file.workers(i), inventory.workers);
    for (int i = 0; i < file.relays_size(); ++i)
      ReadRelays(absl::StrCat("relays[", i, "]"), file.relays(i), inventory.relays);
    for (int i = 0; i < file.users_size(); ++i)
      AddName(absl::StrCat("users[", i, "]"), file.users(i), inventory.users);
    for (int i = 0; i < file.admins_size(); ++i)
      AddName(absl::StrCat("admins[", i, "]"), file.admins(i), inventory.admins);
    inventory.data_root = ReadRoot("data_root", file.data_root());
    inventory.checkpoint_root = ReadRoot("checkpoint_root", file.checkpoint_root());
    return inventory;
  }

  const FieldRules& rules() const { return rules_; }

 private:
  static FieldError NameError(const std::string& field, const std::string& value) {
    return {.field = field,
            .value = value,
            .rule = "must be 1 to 63 letters, digits, '.', '_' or '-'",
            .fix = "correct it"};
  }

  bool AddName(const std::string& field, const std::string& name, std::vector<std::string>& names) {
    if (!rules_.Check(access::IsName(name), NameError(field, name))) return false;
    if (!rules_.Check(name != "ca" && names_.insert(name).second,
                      {.field = field,
                       .value = name,
                       .rule = "is the name of another folder",
                       .fix = "give every machine and person a name of its own, and none `ca`"})) {
      return false;
    }
    names.push_back(name);
    return true;
  }

  void ReadCoordinator(const v1::InventoryFile::Coordinator& coordinator, Inventory& inventory) {
    std::vector<std::string> names;
    if (AddName("coordinator.name", coordinator.name(), names)) inventory.coordinator = names[0];
    inventory.hosts.assign(coordinator.hosts().begin(), coordinator.hosts().end());
    rules_.Check(!inventory.hosts.empty(),
                 {.field = "coordinator.hosts",
                  .rule = "is missing: clients check it",
                  .fix = "give every name and address by which the coordinator is dialled"});
    for (std::size_t i = 0; i < inventory.hosts.size(); ++i) {
      rules_.Check(IsAddress(inventory.hosts[i]),
                   {.field = absl::StrCat("coordinator.hosts[", i, "]"),
                    .value = inventory.hosts[i],
                    .rule = "is neither a host's name nor an address",
                    .fix = "name the coordinator as its clients dial it, without a port"});
    }
    if (coordinator.has_port()) inventory.port = coordinator.port();
    rules_.Between("coordinator.port", inventory.port, 1, 65535);
  }

  std::vector<std::string> ExpandOrComplain(const std::string& field, const std::string& text) {
    std::vector<std::string> expanded = Expand(text);
    rules_.Check(!expanded.empty(),
                 {.field = field,
                  .value = text,
                  .rule = absl::StrCat("must be one, or a range of at most ", kMostNamesOfARange),
                  .fix = "e.g. n[01-16]"});
    return expanded;
  }

  void ReadRelays(const std::string& field, const std::string& text,
                  std::vector<std::string>& relays) {
    for (const std::string& name : ExpandOrComplain(field, text)) AddName(field, name, relays);
  }

  void ReadWorkers(const std::string& field, const v1::InventoryFile::Worker& worker,
                   std::vector<Inventory::Worker>& workers) {
    std::vector<std::string> names;
    const auto expand = [&](const char* part, const std::string& text) {
      return ExpandOrComplain(absl::StrCat(field, ".", part), text);
    };
    for (const std::string& name : expand("name", worker.name()))
      AddName(field + ".name", name, names);
    const std::string& address = worker.data_address();
    const std::vector<std::string> addresses =
        worker.has_data_address() ? expand("data_address", address) : names;
    if (addresses.empty() || names.empty()) return;
    rules_.Check(addresses.size() == names.size() && IsAddress(addresses[0]),
                 {.field = field + ".data_address",
                  .value = address,
                  .rule = absl::StrCat("must be ", names.size(), " addresses, one for each name"),
                  .fix = "e.g. 10.0.0.[1-16], or leave it out"});
    for (std::size_t i = 0; i < std::min(names.size(), addresses.size()); ++i)
      workers.push_back({.name = names[i], .data_address = addresses[i]});
  }

  std::string ReadRoot(const char* field, const std::string& path) {
    rules_.Check(path.empty() || (path[0] == '/' && path.find_first_of("\n#:") == path.npos),
                 {.field = field,
                  .value = path,
                  .rule = "must be an absolute path without '#' and ':'",
                  .fix = "correct it, or leave it out"});
    return path;
  }

  FieldRules rules_;
  std::set<std::string> names_;  // of all folders
};

}  // namespace

absl::StatusOr<Inventory> ParseInventory(std::string_view text, const std::string& name) {
  const config::JobFileOptions options{.name = name, .rules = {.what = "inventory"}};
  v1::InventoryFile file;
  RETURN_IF_ERROR(config::ParseMessageFile(text, options, file));
  InventoryReader reader;
  Inventory inventory = reader.Read(file);
  if (!reader.rules().ok()) return config::LocateErrors(reader.rules().status(), text, options);
  return inventory;
}

}  // namespace takt::cli
