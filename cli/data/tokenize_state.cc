// SPDX-License-Identifier: Apache-2.0
#include "cli/data/tokenize_state.h"

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/base/input_file.h"
#include "cli/base/new_file.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace takt::cli {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;
constexpr std::size_t kMaxBytes = 64 << 10;

// Calls `visit` on each number of a state, with the name that it has in the file.
template <class State, class Visit>
void ForEachNumber(State& state, Visit visit) {
  visit("file", state.next.file);
  visit("offset", state.next.offset);
  visit("documents", state.counts.documents);
  visit("tokens", state.counts.tokens);
  visit("bytes", state.counts.bytes);
  visit("replaced", state.counts.replaced);
  visit("input_bytes", state.counts.input_bytes);
}

}  // namespace

std::string TokenizeStatePath(const std::string& out) {
  const std::filesystem::path path(out);
  return (path.parent_path() / absl::StrCat(".", path.filename().string(), ".state")).string();
}

std::optional<TokenizeState> ReadTokenizeState(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFileUpTo(path, kMaxBytes);
  if (!text.ok()) return std::nullopt;
  const json object = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const auto version = object.find("version");
  if (version == object.end() || *version != kVersion) return std::nullopt;
  TokenizeState state;
  const auto job = object.find("job");
  bool ok = job != object.end() && job->is_string();
  if (ok) state.job = job->get<std::string>();
  ForEachNumber(state, [&](const char* name, std::int64_t& number) {
    const auto it = object.find(name);
    ok = ok && it != object.end() && it->is_number_integer() && it->get<std::int64_t>() >= 0;
    if (ok) number = it->get<std::int64_t>();
  });
  return ok ? std::optional(std::move(state)) : std::nullopt;
}

absl::Status WriteTokenizeState(const std::string& path, const TokenizeState& state) {
  json object;
  object["version"] = kVersion;
  object["job"] = state.job;
  ForEachNumber(state, [&](const char* name, std::int64_t number) { object[name] = number; });
  const std::string written = absl::StrCat(path, ".new");
  unlink(written.c_str());
  RETURN_IF_ERROR(WriteNewFile(written, object.dump() + "\n"));
  if (std::rename(written.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return FileError(errno, absl::StrCat("cannot write ", path));
}

}  // namespace takt::cli
