// SPDX-License-Identifier: Apache-2.0
#include "cli/ui/page_access.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

constexpr std::string_view kScheme = "http://";
constexpr const char* kNames[] = {"127.0.0.1", "localhost", "[::1]"};

// Takes the same time wherever the two differ, so that the time tells nothing of the token.
bool SameSecret(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

PageAccess::PageAccess(int port, std::string token)
    : port_(absl::StrCat(port)),
      token_(std::move(token)),
      // All ports of a host share their cookies.
      cookie_name_(absl::StrCat("takt_ui_", port)) {}

Verdict PageAccess::Judge(const RequestFacts& facts) const {
  if (facts.hosts.size() != 1 || !IsOurHost(facts.hosts[0])) {
    return {.status = 421,
            .reason = absl::StrCat("this server is 127.0.0.1:", port_,
                                   " and answers under no other name or port; through a tunnel "
                                   "use the same port on both ends")};
  }
  if (facts.method != "GET" && facts.method != "HEAD")
    return {.status = 405, .reason = "this page only shows; use GET"};
  const bool foreign_origin = std::ranges::any_of(facts.origins, [&](std::string_view origin) {
    return !origin.starts_with(kScheme) || !IsOurHost(origin.substr(kScheme.size()));
  });
  if (foreign_origin) return {.status = 403, .reason = "a page of another origin gets nothing"};
  if (facts.path == "/" && SameSecret(facts.token, token_)) return {.sets_cookie = true};
  if (!facts.site.empty() && facts.site != "same-origin" && facts.site != "none")
    return {.status = 403, .reason = "a page of another origin gets nothing"};
  if (!HasCookie(facts.cookies)) {
    return {.status = 403,
            .reason = "the token is missing or wrong; open the address that takt ui printed"};
  }
  return {};
}

std::string PageAccess::Address() const {
  return absl::StrCat("http://127.0.0.1:", port_, "/?token=", token_);
}

std::string PageAccess::Cookie() const {
  return absl::StrCat(cookie_name_, "=", token_, "; Path=/; HttpOnly; SameSite=Strict");
}

bool PageAccess::IsOurHost(std::string_view host) const {
  const std::string lower = absl::AsciiStrToLower(absl::string_view(host.data(), host.size()));
  return std::ranges::any_of(
      kNames, [&](const char* name) { return lower == absl::StrCat(name, ":", port_); });
}

bool PageAccess::HasCookie(std::string_view cookies) const {
  const absl::string_view all(cookies.data(), cookies.size());
  const std::string prefix = absl::StrCat(cookie_name_, "=");
  for (absl::string_view cookie : absl::StrSplit(all, ';')) {
    cookie = absl::StripAsciiWhitespace(cookie);
    if (!absl::ConsumePrefix(&cookie, prefix)) continue;
    if (SameSecret(std::string_view(cookie.data(), cookie.size()), token_)) return true;
  }
  return false;
}

std::string MakeToken() {
  std::array<char, 20> bytes;
  TAKT_CHECK(getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  return absl::BytesToHexString(absl::string_view(bytes.data(), bytes.size()));
}

}  // namespace takt::cli
