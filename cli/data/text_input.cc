// SPDX-License-Identifier: Apache-2.0
#include "cli/data/text_input.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kUnitBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxParts = 256;  // of small files

absl::Status Unusable(const std::string& path, std::string rule, std::string fix) {
  return UnusableField(
      {.field = "IN", .value = path, .rule = std::move(rule), .fix = std::move(fix)});
}

absl::Status AddFile(const std::string& path, std::vector<InputFile>& files) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    return Unusable(path, absl::StrCat("cannot be read: ", std::strerror(errno)), "check the path");
  }
  if (!S_ISREG(info.st_mode)) return Unusable(path, "is not a regular file", "name a file");
  files.push_back(
      {.path = path,
       .bytes = info.st_size,
       .modified_nanos = std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec});
  return absl::OkStatus();
}

absl::Status AddDirectory(const std::string& directory, std::vector<InputFile>& files) {
  std::vector<std::string> paths;
  std::error_code error;
  fs::recursive_directory_iterator it(directory, error);
  while (!error && it != fs::recursive_directory_iterator()) {
    const bool is_hidden = it->path().filename().string().starts_with('.');
    std::error_code ignored;  // a broken link is no file
    if (is_hidden) it.disable_recursion_pending();
    if (!is_hidden && it->is_regular_file(ignored)) paths.push_back(it->path().string());
    it.increment(error);
  }
  if (error) {
    return Unusable(directory, absl::StrCat("cannot be listed: ", error.message()),
                    "make it readable");
  }
  std::ranges::sort(paths);
  for (const std::string& path : paths) RETURN_IF_ERROR(AddFile(path, files));
  return absl::OkStatus();
}

// Returns the end of the line in which text[begin + bytes] lies, or of the text.
std::size_t EndOfLines(std::string_view text, std::size_t begin, std::size_t bytes) {
  if (text.size() - begin <= bytes) return text.size();
  const std::size_t end = text.find('\n', begin + bytes - 1);
  return end == std::string_view::npos ? text.size() : end + 1;
}

}  // namespace

absl::StatusOr<std::vector<InputFile>> FindInputFiles(const std::vector<std::string>& names) {
  std::vector<InputFile> files;
  for (const std::string& name : names) {
    std::error_code ignored;  // AddFile gives a better error
    RETURN_IF_ERROR(fs::is_directory(name, ignored) ? AddDirectory(name, files)
                                                    : AddFile(name, files));
  }
  if (!files.empty()) return files;
  return Unusable(names.empty() ? "" : names.front(), "holds no files", "name files with text");
}

absl::Status TextInput::OpenFile() {
  const InputFile& input = files_[static_cast<std::size_t>(place_.file)];
  absl::StatusOr<MappedFile> mapped = MappedFile::Open(input.path);
  if (!mapped.ok()) {
    return Unusable(input.path, absl::StrCat("cannot be read: ", mapped.status().message()),
                    "make it readable");
  }
  if (std::ssize(mapped->bytes()) != input.bytes || place_.offset > input.bytes) {
    return Unusable(input.path, "changed while it was read", "let nobody write it, and run again");
  }
  file_ = std::make_shared<const MappedFile>(*std::move(mapped));
  return absl::OkStatus();
}

absl::StatusOr<std::optional<TextUnit>> TextInput::Next() {
  TextUnit unit;
  while (place_.file < std::ssize(files_) && unit.parts.size() < kMaxParts) {
    const auto taken = static_cast<std::size_t>(unit.bytes);
    if (taken >= kUnitBytes) break;
    if (file_ == nullptr) RETURN_IF_ERROR(OpenFile());
    TextPart part{.path = files_[static_cast<std::size_t>(place_.file)].path, .file = file_};
    part.begin = static_cast<std::size_t>(place_.offset);
    part.end = kind_ == DocumentKind::kFiles
                   ? part.whole().size()
                   : EndOfLines(part.whole(), part.begin, kUnitBytes - taken);
    place_.offset = static_cast<std::int64_t>(part.end);
    unit.bytes += static_cast<std::int64_t>(part.end - part.begin);
    if (part.end == part.whole().size()) {
      place_ = {.file = place_.file + 1};
      file_ = nullptr;
    }
    if (part.end > part.begin) unit.parts.push_back(std::move(part));
  }
  unit.next = place_;
  if (unit.parts.empty()) return std::optional<TextUnit>();
  return std::optional<TextUnit>(std::move(unit));
}

}  // namespace takt::cli
