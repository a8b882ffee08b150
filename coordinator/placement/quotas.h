// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace takt::placement {

// Limits how many workers the jobs of one owner may hold together. Immutable.
class Quotas final {
 public:
  // by_owner: "*" stands for all owners that are not named, each for itself.
  explicit Quotas(std::map<std::string, int> by_owner = {}) : by_owner_(std::move(by_owner)) {}
  // Reads "user/ada=8", "admin/eve=4" or "*=16" each. Errors: kInvalidArgument.
  static absl::StatusOr<Quotas> Parse(const std::vector<std::string>& texts);

  // Returns nullopt if the owner is not limited.
  std::optional<int> Of(const std::string& owner) const;
  bool operator==(const Quotas&) const = default;

 private:
  std::map<std::string, int> by_owner_;
};

}  // namespace takt::placement
