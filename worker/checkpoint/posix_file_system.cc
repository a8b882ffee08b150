// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string_view>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/open_real.h"
#include "common/base/status.h"
#include "worker/checkpoint/file_system.h"

namespace takt::worker_checkpoint {
namespace {

absl::Status Failed(const char* what, const std::string& path) {
  return FileError(errno, absl::StrCat("cannot ", what, " ", path));
}

class PosixFile final : public WritableFile {
 public:
  PosixFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  ~PosixFile() override {
    if (fd_ >= 0) close(fd_);
  }

  absl::Status Append(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t count = write(fd_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return Failed("write", path_);
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    return fsync(fd_) == 0 ? absl::OkStatus() : Failed("sync", path_);
  }

  absl::Status Close() override {
    // The file is closed even if close returns EINTR or EIO.
    return close(std::exchange(fd_, -1)) == 0 ? absl::OkStatus() : Failed("close", path_);
  }

 private:
  const std::string path_;
  int fd_;
};

class PosixFileSystem final : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    const int fd = OpenReal(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0) return Failed("create", path);
    return std::make_unique<PosixFile>(path, fd);
  }

  absl::Status CreateDirectory(const std::string& path) override {
    if (mkdir(path.c_str(), 0777) == 0) return absl::OkStatus();
    struct stat info {};
    const int error = errno;
    if (error == EEXIST && stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode))
      return absl::OkStatus();
    errno = error;
    return Failed("create the directory", path);
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (std::rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
    return Failed("rename", absl::StrCat(from, " to ", to));
  }

  absl::Status Exchange(const std::string& a, const std::string& b) override {
    if (renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0)
      return absl::OkStatus();
    if (errno == EINVAL || errno == ENOSYS)
      return absl::UnimplementedError(absl::StrCat("cannot exchange ", a, " and ", b));
    return Failed("exchange", absl::StrCat(a, " and ", b));
  }

  absl::Status Symlink(const std::string& target, const std::string& path) override {
    return symlink(target.c_str(), path.c_str()) == 0 ? absl::OkStatus()
                                                      : Failed("create the link", path);
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override {
    const int fd = OpenReal(directory, O_RDONLY | O_DIRECTORY);
    DIR* const stream = fd < 0 ? nullptr : fdopendir(fd);
    if (stream == nullptr) {
      const absl::Status status = Failed("list", directory);
      if (fd >= 0) close(fd);
      return status;
    }
    const absl::Cleanup close_stream = [stream] { closedir(stream); };
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* const entry = readdir(stream)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
    if (errno != 0) return Failed("list", directory);
    return names;
  }

  absl::Status Remove(const std::string& path) override {
    return std::remove(path.c_str()) == 0 ? absl::OkStatus() : Failed("remove", path);
  }

  absl::Status SyncDirectory(const std::string& path) override {
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return Failed("open", path);
    const absl::Cleanup close_fd = [fd] { close(fd); };
    return fsync(fd) == 0 ? absl::OkStatus() : Failed("sync", path);
  }
};

}  // namespace

std::unique_ptr<FileSystem> CreatePosixFileSystem() { return std::make_unique<PosixFileSystem>(); }

}  // namespace takt::worker_checkpoint
