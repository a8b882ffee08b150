// SPDX-License-Identifier: Apache-2.0
#include "common/data/data_root.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::data {
namespace {

namespace fs = std::filesystem;

// True if `path` is `root` or below it. Both are normal.
bool IsUnder(const fs::path& root, const fs::path& path) {
  return std::mismatch(root.begin(), root.end(), path.begin(), path.end()).first == root.end();
}

// A path of a job and the root that it must not leave.
struct GivenPath {
  std::string_view field, root, path;

  // Files that a job writes lie under the worker's other root.
  bool IsOutput() const {
    return field.starts_with("checkpoint.") || field.starts_with("logging.");
  }
  const char* RootName() const { return IsOutput() ? "checkpoint" : "data"; }

  FieldError Error(std::string rule, std::string fix) const {
    return {.field = std::string(field),
            .value = std::string(path),
            .rule = std::move(rule),
            .fix = std::move(fix)};
  }
  absl::Status Refuse(std::string rule, std::string fix) const {
    return InvalidField(Error(std::move(rule), std::move(fix)));
  }
  absl::Status Outside(const fs::path& real_root) const {
    return Refuse(
        absl::StrCat("must lie under the worker's ", RootName(), " root ", real_root.string()),
        absl::StrCat(IsOutput() ? "name another" : "move the file there",
                     ", or start the worker with another --", RootName(), "-root"));
  }
  absl::StatusOr<fs::path> RealRoot() const {
    std::error_code error;
    const fs::path real = fs::canonical(root.empty() ? fs::path(".") : fs::path(root), error);
    if (!error) return real;
    return UnusableField(
        Error(absl::StrCat("the worker's ", RootName(), " root must be a directory that exists"),
              absl::StrCat("start the worker with another --", RootName(),
                           "-root: ", std::string(root), " (", error.message(), ")")));
  }
  absl::StatusOr<fs::path> Join(const fs::path& real_root) const {
    if (path.empty()) {
      return Refuse("must not be empty",
                    absl::StrCat("give a path under the ", RootName(), " root"));
    }
    const fs::path joined = (real_root / fs::path(path)).lexically_normal();
    if (!IsUnder(real_root, joined)) return Outside(real_root);
    return joined;
  }
};

// Escapes `text` so that the shell takes every character literally.
std::string Escape(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (std::string_view("*?[]\\").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

}  // namespace

absl::StatusOr<std::string> JoinUnderRoot(std::string_view field, std::string_view root,
                                          std::string_view path) {
  const GivenPath given{.field = field, .root = root, .path = path};
  ASSIGN_OR_RETURN(const fs::path real_root, given.RealRoot());
  ASSIGN_OR_RETURN(const fs::path joined, given.Join(real_root));
  return joined.string();
}

absl::StatusOr<std::string> ResolveUnderRoot(std::string_view field, std::string_view root,
                                             std::string_view path) {
  const GivenPath given{.field = field, .root = root, .path = path};
  ASSIGN_OR_RETURN(const fs::path real_root, given.RealRoot());
  // Checks before it touches the file, so that nobody can probe for files outside. It checks again
  // after it has followed links.
  ASSIGN_OR_RETURN(const fs::path joined, given.Join(real_root));
  std::error_code error;
  const fs::path real = fs::canonical(joined, error);
  if (error) {
    return UnusableField(given.Error(
        kMustExist, absl::StrCat("check the path: ", joined.string(), " (", error.message(), ")")));
  }
  if (!IsUnder(real_root, real)) return given.Outside(real_root);
  return real.string();
}

absl::StatusOr<std::vector<std::string>> MatchUnderRoot(std::string_view field,
                                                        std::string_view root,
                                                        std::string_view pattern) {
  const GivenPath given{.field = field, .root = root, .path = pattern};
  ASSIGN_OR_RETURN(const fs::path real_root, given.RealRoot());
  ASSIGN_OR_RETURN(const fs::path joined, given.Join(real_root));
  const fs::path escaped =
      fs::path(Escape(real_root.string())) / joined.lexically_relative(real_root);
  glob_t found{};
  const absl::Cleanup free_found = [&found] { globfree(&found); };
  std::vector<std::string> matches;
  if (glob(escaped.c_str(), GLOB_NOSORT, nullptr, &found) != 0) return matches;
  matches.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  std::sort(matches.begin(), matches.end());
  return matches;
}

}  // namespace takt::data
