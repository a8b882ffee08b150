// SPDX-License-Identifier: Apache-2.0
#include "cli/admin/fetch_backup.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/base/new_file.h"
#include "cli/base/report.h"
#include "cli/base/signals.h"
#include "cli/base/text.h"
#include "cli/client/connect.h"
#include "common/base/file_descriptor.h"
#include "common/base/status.h"
#include "common/checkpoint/hash.h"

namespace takt::cli {
namespace {

// A large state over a slow line takes less.
constexpr absl::Duration kLongestFetch = absl::Hours(1);

// The file under way. Its end removes it, unless Finish succeeded.
class BackupFile final {
 public:
  static absl::StatusOr<BackupFile> Create(const std::string& path) {
    FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file.valid()) return FileError(errno, absl::StrCat("cannot make ", path));
    return BackupFile(path, std::move(file));
  }
  BackupFile(BackupFile&& other) noexcept = default;
  BackupFile& operator=(BackupFile&&) = delete;
  ~BackupFile() {
    if (file_.valid()) ::unlink(path_.c_str());
  }

  absl::Status Add(std::string_view bytes) {
    hasher_.Add(std::as_bytes(std::span(bytes)));
    size_bytes_ += static_cast<std::int64_t>(bytes.size());
    while (!bytes.empty()) {
      const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return FileError(errno, absl::StrCat("cannot write ", path_));
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
    return absl::OkStatus();
  }

  absl::Status Finish(const v1::BackupEnd& end) {
    if (end.size_bytes() != size_bytes_ || end.xxh3_128() != hasher_.Digest()) {
      return absl::DataLossError(absl::StrCat("the backup came with ", size_bytes_, " of ",
                                              end.size_bytes(), " bytes, or with a wrong hash ('",
                                              end.xxh3_128(), "' was sent); fetch it again"));
    }
    if (::fsync(file_.get()) == 0 && file_.Close()) return absl::OkStatus();
    const int error = errno;
    ::unlink(path_.c_str());
    return FileError(error, absl::StrCat("cannot write ", path_));
  }

  std::int64_t size_bytes() const { return size_bytes_; }

 private:
  BackupFile(std::string path, FileDescriptor file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  FileDescriptor file_;  // valid until Finish has closed it
  checkpoint::Hasher hasher_;
  std::int64_t size_bytes_ = 0;
};

// Reads the stream into the file, to its end.
absl::Status Receive(Client& client, Client::StreamStop& stop, BackupFile& file) {
  absl::Status written;
  v1::BackupEnd end;
  const absl::Status status =
      client.BackUpState(kLongestFetch, stop, [&](const v1::BackUpStateResponse& part) {
        if (part.has_end()) end = part.end();
        if (part.message_case() == v1::BackUpStateResponse::kData) written = file.Add(part.data());
        return written.ok();
      });
  RETURN_IF_ERROR(written);
  if (stop.stopped()) return absl::CancelledError("interrupted; nothing was written");
  RETURN_IF_ERROR(status);
  return file.Finish(end);
}

}  // namespace

absl::StatusOr<ExitCode> FetchBackup(const Context& context, const std::string& file) {
  RETURN_IF_ERROR(CheckNewFile(file));
  ASSIGN_OR_RETURN(const auto client, ConnectToCoordinator(context));
  ASSIGN_OR_RETURN(BackupFile backup, BackupFile::Create(file));
  Client::StreamStop stop;
  const SignalThread signals({SIGINT, SIGTERM}, [&](int) { stop.Stop(); });
  RETURN_IF_ERROR(Receive(*client, stop, backup));
  if (context.json())
    PrintJson(context, {{"file", file}, {"size_bytes", backup.size_bytes()}});
  else
    Say(context, absl::StrCat(file, ": ", FormatBytes(static_cast<double>(backup.size_bytes()))));
  return ExitCode::kDone;
}

}  // namespace takt::cli
