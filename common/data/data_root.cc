// SPDX-License-Identifier: Apache-2.0
#include "common/data/data_root.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::data {
namespace {

namespace fs = std::filesystem;

// `path` is `root` or below it; both real.
bool IsUnder(const fs::path& root, const fs::path& path) {
  return std::mismatch(root.begin(), root.end(), path.begin(), path.end()).first == root.end();
}

}  // namespace

absl::StatusOr<std::string> ResolveUnderRoot(std::string_view field, std::string_view root,
                                             std::string_view path) {
  const auto refuse = [&](std::string rule, std::string fix) {
    return InvalidField({.field = std::string(field),
                         .value = std::string(path),
                         .rule = std::move(rule),
                         .fix = std::move(fix)});
  };
  std::error_code error;
  const fs::path real_root = fs::canonical(root.empty() ? fs::path(".") : fs::path(root), error);
  if (error) {
    return refuse("the worker's data root must be a directory that exists",
                  absl::StrCat("start the worker with another --data-root: ", std::string(root),
                               " (", error.message(), ")"));
  }
  if (path.empty()) return refuse("must name a file", "give a path under the data root");

  const auto outside = [&] {
    return refuse(absl::StrCat("must lie under the worker's data root ", real_root.string()),
                  "move the file there, or start the worker with another --data-root");
  };
  // Before touching the file, so that nothing outside can be probed for; then again for where links
  // lead.
  const fs::path joined = (real_root / fs::path(path)).lexically_normal();
  if (!IsUnder(real_root, joined)) return outside();
  const fs::path real = fs::canonical(joined, error);
  if (error)
    return refuse("must exist",
                  absl::StrCat("check the path: ", joined.string(), " (", error.message(), ")"));
  if (!IsUnder(real_root, real)) return outside();
  return real.string();
}

}  // namespace takt::data
