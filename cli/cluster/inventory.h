// SPDX-License-Identifier: Apache-2.0
// Reads the file that names the machines and people of a cluster (inventory_file.proto).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace takt::cli {

struct Inventory {
  struct Worker {
    std::string name, data_address;
  };
  std::string domain = "takt.local";
  std::string coordinator;
  std::vector<std::string> hosts;  // of the coordinator
  int port = 7070;
  std::vector<Worker> workers;
  std::vector<std::string> relays;  // hosts that have a relay
  std::vector<std::string> users, admins;
  int days = 90;
  std::string data_root, checkpoint_root;  // empty: those of the packages
};

// Reads YAML or JSON text. `name` is the file's, for errors. Every name appears once, and none is
// `ca`, so that each can be a folder beside that of the authority. Errors: kInvalidArgument
// (FieldError with `where`): all that is wrong.
absl::StatusOr<Inventory> ParseInventory(std::string_view text, const std::string& name);

}  // namespace takt::cli
