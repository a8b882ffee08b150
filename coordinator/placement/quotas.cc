// SPDX-License-Identifier: Apache-2.0
#include "coordinator/placement/quotas.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/access/identity.h"
#include "common/base/status.h"

namespace takt::placement {
namespace {

// Only users and admins own jobs.
bool IsOwner(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits('/', 1));
  return text == "*" || (parts.size() == 2 && (parts[0] == "user" || parts[0] == "admin") &&
                         access::IsName(parts[1]));
}

}  // namespace

absl::StatusOr<Quotas> Quotas::Parse(const std::vector<std::string>& texts) {
  std::map<std::string, int> by_owner;
  for (const std::string& text : texts) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
    const auto& [owner, number] = parts;
    int workers = 0;
    if (!IsOwner(owner) || !absl::SimpleAtoi(number, &workers) || workers < 0) {
      return InvalidField({.field = "--quota",
                           .value = text,
                           .rule = "must be IDENTITY=WORKERS",
                           .fix = "write e.g. user/ada=8, or *=16 for each of the others"});
    }
    if (!by_owner.emplace(owner, workers).second) {
      return InvalidField({.field = "--quota",
                           .value = text,
                           .rule = absl::StrCat("names ", owner, " again"),
                           .fix = "keep one of them"});
    }
  }
  return Quotas(std::move(by_owner));
}

std::optional<int> Quotas::Of(const std::string& owner) const {
  auto it = by_owner_.find(owner);
  if (it == by_owner_.end()) it = by_owner_.find("*");
  return it == by_owner_.end() ? std::nullopt : std::optional(it->second);
}

}  // namespace takt::placement
