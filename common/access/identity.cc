// SPDX-License-Identifier: Apache-2.0
#include "common/access/identity.h"

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"

namespace takt::access {
namespace {

constexpr absl::string_view kScheme = "spiffe://";
constexpr absl::string_view kProgram = "takt";
constexpr std::size_t kMaxName = 63;
constexpr std::array kCertified = {Role::kCoordinator, Role::kWorker, Role::kHost, Role::kUser,
                                   Role::kAdmin};

}  // namespace

absl::string_view Name(Role role) {
  constexpr std::array<absl::string_view, 7> kNames = {"nobody", "coordinator", "worker", "host",
                                                       "user",   "admin",       "trusted"};
  return kNames[static_cast<std::size_t>(role)];
}

std::string Identity::ToString() const {
  return name.empty() ? std::string(Name(role)) : absl::StrCat(Name(role), "/", name);
}

std::string Identity::Uri() const {
  return absl::StrCat(kScheme, domain, "/", kProgram, "/", Name(role), "/", name);
}

bool IsName(absl::string_view text) {
  return !text.empty() && text.size() <= kMaxName && text != "." && text != ".." &&
         std::ranges::all_of(text, [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
         });
}

absl::string_view HostOf(absl::string_view worker) {
  const std::size_t hyphen = worker.rfind('-');
  if (hyphen == absl::string_view::npos) return {};
  const absl::string_view number = worker.substr(hyphen + 1);
  const bool is_number = !number.empty() && std::ranges::all_of(number, [](unsigned char c) {
    return absl::ascii_isdigit(c);
  });
  return is_number ? worker.substr(0, hyphen) : absl::string_view();
}

absl::StatusOr<Role> ParseRole(absl::string_view name) {
  for (const Role role : kCertified) {
    if (Name(role) == name) return role;
  }
  return InvalidField({.field = "ROLE",
                       .value = std::string(name),
                       .rule = "is not a role",
                       .fix = "use one of coordinator, worker, host, user, admin"});
}

absl::StatusOr<Identity> ParseUri(absl::string_view uri) {
  absl::string_view rest = uri;
  const bool spiffe = absl::ConsumePrefix(&rest, kScheme);
  const std::vector<absl::string_view> parts = absl::StrSplit(rest, '/');
  if (spiffe && parts.size() == 4 && IsName(parts[0]) && parts[1] == kProgram && IsName(parts[3])) {
    if (const absl::StatusOr<Role> role = ParseRole(parts[2]); role.ok()) {
      return Identity{
          .role = *role, .name = std::string(parts[3]), .domain = std::string(parts[0])};
    }
  }
  return InvalidField({.field = "URI",
                       .value = std::string(uri),
                       .rule = "is not spiffe://DOMAIN/takt/ROLE/NAME",
                       .fix = "issue the certificate with `takt certs issue`, or give it this URI "
                              "as its only one"});
}

}  // namespace takt::access
