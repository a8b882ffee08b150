// SPDX-License-Identifier: Apache-2.0
#include "common/data/token_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mapped_file.h"
#include "common/base/status.h"

namespace takt::data {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "files hold numbers as they are");

constexpr std::size_t kBlockBytes = std::size_t{1} << 20;

template <class T>
void Put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Returns the code of the type in Megatron's index.
std::uint8_t IndexCode(TokenType type) { return type == TokenType::kU16 ? 8 : 4; }

}  // namespace

std::string TokenWriter::Hidden(std::string_view suffix) const {
  const fs::path path(options_.path);
  return (path.parent_path() / absl::StrCat(".", path.filename().string(), std::string(suffix)))
      .string();
}

std::string TokenWriter::IndexPath() const {
  return fs::path(options_.path).replace_extension(".idx").string();
}

absl::Status TokenWriter::Failed(int error_number, const std::string& path) const {
  const bool is_full = error_number == ENOSPC || error_number == EDQUOT;
  return UnusableField(
      {.field = options_.field,
       .value = options_.path,
       .rule = absl::StrCat("cannot be written: ", path, ": ", std::strerror(error_number)),
       .fix = is_full ? "free space and give the same command again: it goes on where it stopped"
                      : "check the directory and its disk, or write elsewhere"});
}

// Checks that the output has not appeared.
absl::Status TokenWriter::CheckAbsent() const {
  std::error_code ignored;  // what cannot be looked at cannot be written, which says why
  if (!fs::exists(fs::symlink_status(options_.path, ignored))) return absl::OkStatus();
  return UnusableField({.field = options_.field,
                        .value = options_.path,
                        .rule = "is there: another process has written it meanwhile, and nothing "
                                "is overwritten",
                        .fix = "use it, or give another name"});
}

// Opens a hidden file, and locks it until it is closed.
absl::StatusOr<FileDescriptor> TokenWriter::OpenLocked(const std::string& path) const {
  FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!file.valid()) return Failed(errno, path);
  const bool is_locked = flock(file.get(), LOCK_EX | LOCK_NB) == 0;
  if (!is_locked && errno != EWOULDBLOCK) return Failed(errno, path);
  // Between the two calls another process may have given the file its final name, or removed it.
  struct stat own {};
  struct stat named {};
  const bool is_own = is_locked && fstat(file.get(), &own) == 0 &&
                      lstat(path.c_str(), &named) == 0 && own.st_ino == named.st_ino &&
                      own.st_dev == named.st_dev;
  if (is_own) return file;
  return UnusableField({.field = options_.field,
                        .value = options_.path,
                        .rule = "is being written by another process",
                        .fix = "wait for it, or give another name"});
}

absl::StatusOr<FileDescriptor> TokenWriter::OpenAt(const std::string& path,
                                                   std::int64_t size) const {
  ASSIGN_OR_RETURN(FileDescriptor file, OpenLocked(path));
  struct stat info {};
  if (fstat(file.get(), &info) != 0) return Failed(errno, path);
  if (info.st_size < size) {
    return absl::DataLossError(
        absl::StrCat(path, " has ", info.st_size, " bytes; ", size, " were written"));
  }
  if (ftruncate(file.get(), size) != 0 || lseek(file.get(), size, SEEK_SET) < 0) {
    return Failed(errno, path);
  }
  return file;
}

absl::StatusOr<TokenWriter> TokenWriter::Open(TokenWriterOptions options, std::int64_t tokens,
                                              std::int64_t documents) {
  TokenWriter writer(std::move(options));
  RETURN_IF_ERROR(writer.CheckAbsent());
  ASSIGN_OR_RETURN(writer.tokens_, writer.OpenAt(writer.Hidden(".partial"),
                                                 tokens * WidthOf(writer.options_.type)));
  // Whoever writes the output locks these files, so from here on it appears only by this writer.
  if (const absl::Status absent = writer.CheckAbsent(); !absent.ok()) {
    if (tokens == 0) unlink(writer.Hidden(".partial").c_str());
    return absent;
  }
  if (writer.options_.has_index) {
    const auto width = static_cast<std::int64_t>(sizeof(std::int32_t));
    ASSIGN_OR_RETURN(writer.lengths_, writer.OpenAt(writer.Hidden(".lengths"), documents * width));
  }
  return writer;
}

absl::Status TokenWriter::Write(const FileDescriptor& file,
                                std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t written = write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Failed(errno, Hidden(".partial"));
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status TokenWriter::Append(std::span<const std::int32_t> ids,
                                 std::span<const std::int32_t> lengths) {
  if (options_.type == TokenType::kU16) {
    buffer_.clear();
    for (const std::int32_t id : ids) Put(buffer_, static_cast<std::uint16_t>(id));
    RETURN_IF_ERROR(Write(tokens_, BytesOf(buffer_)));
  } else {
    RETURN_IF_ERROR(Write(tokens_, std::as_bytes(ids)));
  }
  return options_.has_index ? Write(lengths_, std::as_bytes(lengths)) : absl::OkStatus();
}

absl::Status TokenWriter::Sync() {
  if (fdatasync(tokens_.get()) != 0) return Failed(errno, Hidden(".partial"));
  if (options_.has_index && fdatasync(lengths_.get()) != 0) {
    return Failed(errno, Hidden(".lengths"));
  }
  return absl::OkStatus();
}

absl::Status TokenWriter::WriteWhole(const std::string& path, std::string_view text) const {
  FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.valid()) return Failed(errno, path);
  RETURN_IF_ERROR(Write(file, BytesOf(text)));
  if (fsync(file.get()) != 0 || !file.Close()) return Failed(errno, path);
  return absl::OkStatus();
}

// Writes a sequence for each document.
absl::Status TokenWriter::WriteIndex() const {
  ASSIGN_OR_RETURN(const MappedFile mapped, MappedFile::Open(Hidden(".lengths")));
  const TokenValues lengths(TokenType::kI32, mapped.bytes());
  const std::string path = Hidden(".idx");
  FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.valid()) return Failed(errno, path);
  std::string out("MMIDIDX\0\0", 9);
  Put(out, std::uint64_t{1});  // version
  Put(out, IndexCode(options_.type));
  Put(out, static_cast<std::uint64_t>(lengths.size()));
  Put(out, static_cast<std::uint64_t>(lengths.size() + 1));
  RETURN_IF_ERROR(Write(file, BytesOf(out)));
  RETURN_IF_ERROR(Write(file, mapped.bytes()));
  out.clear();
  const auto flush_if = [&](bool is_due) {
    if (!is_due) return absl::OkStatus();
    const absl::Status status = Write(file, BytesOf(out));
    out.clear();
    return status;
  };
  std::int64_t pointer = 0;
  for (std::int64_t i = 0; i < lengths.size(); ++i) {
    Put(out, pointer);
    pointer += lengths.At(i) * WidthOf(options_.type);
    RETURN_IF_ERROR(flush_if(out.size() >= kBlockBytes));
  }
  for (std::int64_t i = 0; i <= lengths.size(); ++i) {
    Put(out, i);
    RETURN_IF_ERROR(flush_if(out.size() >= kBlockBytes));
  }
  RETURN_IF_ERROR(flush_if(true));
  if (fsync(file.get()) != 0 || !file.Close()) return Failed(errno, path);
  return absl::OkStatus();
}

absl::Status TokenWriter::Rename(const std::string& from, const std::string& to) const {
  return std::rename(from.c_str(), to.c_str()) == 0 ? absl::OkStatus() : Failed(errno, to);
}

absl::Status TokenWriter::SyncDirectory() const {
  const fs::path parent = fs::path(options_.path).parent_path();
  const std::string directory = parent.empty() ? "." : parent.string();
  const FileDescriptor file(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return file.valid() && fsync(file.get()) == 0 ? absl::OkStatus() : Failed(errno, directory);
}

absl::Status TokenWriter::Publish(std::string_view origin) {
  RETURN_IF_ERROR(CheckAbsent());
  RETURN_IF_ERROR(Sync());
  if (options_.has_index) {
    RETURN_IF_ERROR(WriteIndex());
    RETURN_IF_ERROR(Rename(Hidden(".idx"), IndexPath()));
  }
  RETURN_IF_ERROR(WriteWhole(Hidden(".json"), origin));
  RETURN_IF_ERROR(Rename(Hidden(".json"), absl::StrCat(options_.path, ".json")));
  RETURN_IF_ERROR(SyncDirectory());
  RETURN_IF_ERROR(Rename(Hidden(".partial"), options_.path));
  if (options_.has_index) unlink(Hidden(".lengths").c_str());
  return SyncDirectory();
}

}  // namespace takt::data
