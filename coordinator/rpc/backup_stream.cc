// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rpc/backup_stream.h"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/checkpoint/hash.h"
#include "coordinator/timeouts/timeouts.h"
#include "proto/writing_stream.h"

namespace takt::coordinator_rpc {
namespace {

using Reactor = grpc::ServerWriteReactor<v1::BackUpStateResponse>;

constexpr std::size_t kChunkBytes = 256 << 10;
constexpr std::size_t kMaxQueue = 2;

// Reads a chunk when the one before it is written, so a slow reader costs no memory.
class BackupStream final : public WritingStream<Reactor, v1::BackUpStateResponse>,
                           public std::enable_shared_from_this<BackupStream> {
 public:
  BackupStream(grpc::CallbackServerContext* context, AuditEntry audit_entry)
      : WritingStream(context, kMaxQueue, timeouts::kStreamStall),
        audit_entry_(std::move(audit_entry)) {}

  void Begin() { KeepUntilDone(shared_from_this()); }

  // Call it once. The audit entry says whether a copy was handed out.
  void Send(absl::StatusOr<FileDescriptor> copy) {
    audit_entry_.Write(copy.status());
    if (!copy.ok()) {
      Cut(copy.status());
      return;
    }
    copy_ = *std::move(copy);
    SendNext();
  }

  void OnCancel() override { Cut(absl::CancelledError("the client left")); }

 private:
  void OnWrittenOut() override { SendNext(); }

  // Push comes last: from then on the next call may run on another thread.
  void SendNext() {
    if (ended_) return;
    v1::BackUpStateResponse response;
    std::string& data = *response.mutable_data();
    data.resize(kChunkBytes);
    ssize_t got = 0;
    do {
      got = ::read(copy_.get(), data.data(), data.size());
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
      Cut(FileError(errno, "cannot read the copy of the state"));
      return;
    }
    if (got == 0) {
      ended_ = true;
      response.mutable_end()->set_size_bytes(size_bytes_);
      response.mutable_end()->set_xxh3_128(hasher_.Digest());
      Push(std::move(response));
      FinishAfterWrites(absl::OkStatus());
      return;
    }
    data.resize(static_cast<std::size_t>(got));
    size_bytes_ += got;
    hasher_.Add(std::as_bytes(std::span(data)));
    Push(std::move(response));
  }

  const AuditEntry audit_entry_;
  // The thread that makes the copy uses these until its first Push, and then the callback of each
  // write.
  FileDescriptor copy_;
  checkpoint::Hasher hasher_;
  std::int64_t size_bytes_ = 0;
  bool ended_ = false;
};

}  // namespace

Backups::~Backups() {
  absl::ReleasableMutexLock lock(&mutex_);
  std::thread last = std::move(thread_);
  lock.Release();
  if (last.joinable()) last.join();
}

Reactor* Backups::Start(grpc::CallbackServerContext* context, AuditEntry audit_entry) {
  auto stream = std::make_shared<BackupStream>(context, std::move(audit_entry));
  BackupStream* const reactor = stream.get();
  stream->Begin();
  OpenAsync([stream = std::move(stream)](absl::StatusOr<FileDescriptor> copy) {
    stream->Send(std::move(copy));
  });
  return reactor;
}

void Backups::OpenAsync(Done done) {
  if (open_ == nullptr) {
    done(absl::FailedPreconditionError("this coordinator has no state file to back up"));
    return;
  }
  absl::ReleasableMutexLock lock(&mutex_);
  if (busy_) {
    lock.Release();
    done(absl::UnavailableError("another copy of the state is being made; ask again"));
    return;
  }
  busy_ = true;
  if (thread_.joinable()) thread_.join();  // the copy before this one is made
  thread_ = std::thread([this, done = std::move(done)] {
    pthread_setname_np(pthread_self(), "takt-backup");
    absl::StatusOr<FileDescriptor> copy = open_();
    {
      absl::MutexLock made(&mutex_);
      busy_ = false;
    }
    done(std::move(copy));
  });
}

}  // namespace takt::coordinator_rpc
