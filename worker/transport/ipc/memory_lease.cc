// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/ipc/memory_lease.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "worker/transport/handshake.h"
#include "worker/transport/wake_word.h"

namespace takt::transport::ipc {

// Memory of zeros is a lease that nobody has taken.
struct LeaseWords {
  Nonce token;                         // which lease this is, as announced
  std::atomic<std::int32_t> borrower;  // its process; 0: nobody attached
  std::atomic<std::uint32_t> asked, returned;
  WakeWord borrower_wakes, lender_wakes;
};

namespace {

// A process that has ended is noticed by looking.
constexpr std::int64_t kLookNanos = 20'000'000;

LeaseWords& WordsOf(const SharedMemory& memory) {
  return *reinterpret_cast<LeaseWords*>(memory.bytes.get());
}

absl::Status NotShared(const std::string& why) {
  return absl::FailedPreconditionError(
      absl::StrCat("the two processes do not share memory of the host", why));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Lender>> Lender::Create(const std::string& label) {
  ASSIGN_OR_RETURN(SharedMemory memory, CreateSharedMemory(label, sizeof(LeaseWords)));
  WordsOf(memory).token = RandomNonce();
  return std::unique_ptr<Lender>(new Lender(std::move(memory)));
}

Lender::Lender(SharedMemory memory) : memory_(std::move(memory)), words_(WordsOf(memory_)) {}

Lender::~Lender() {
  if (borrower_ >= 0) close(borrower_);
}

std::string Lender::announcement() const {
  return absl::StrCat(memory_.handle, ";", ToHex(AsText(words_.token)));
}

void Lender::Watch() {
  const std::int32_t process = words_.borrower.load();
  if (borrower_ >= 0 || borrower_is_gone_ || process == 0) return;
  borrower_ = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
  borrower_is_gone_ = borrower_ < 0 && errno == ESRCH;
}

bool Lender::BorrowerHasEnded() const {
  pollfd ended{.fd = borrower_, .events = POLLIN, .revents = 0};
  return borrower_is_gone_ || (borrower_ >= 0 && poll(&ended, 1, 0) > 0);
}

bool Lender::TakeBack(absl::Duration timeout) {
  // A borrower says who it is before it looks whether the memory is wanted back, and here it is the
  // other way round. So one of the two sees the other.
  words_.asked.store(1);
  words_.borrower_wakes.Wake();
  if (words_.borrower.load() == 0) return true;
  Watch();
  const std::int64_t deadline = MonotonicNanos() + absl::ToInt64Nanoseconds(timeout);
  for (;;) {
    const std::int64_t look = std::min(deadline, MonotonicNanos() + kLookNanos);
    if (words_.lender_wakes.Await([this] { return words_.returned.load() != 0; }, look, 0))
      return true;
    if (BorrowerHasEnded()) return true;
    if (MonotonicNanos() >= deadline) return false;
  }
}

absl::StatusOr<std::unique_ptr<Borrower>> Borrower::Attach(const std::string& announcement) {
  const std::vector<std::string> fields = absl::StrSplit(announcement, ';');
  if (fields.size() != 2) return absl::FailedPreconditionError("its lease cannot be read");
  absl::StatusOr<SharedMemory> memory = AttachSharedMemory(fields[0]);
  if (!memory.ok()) return NotShared(absl::StrCat(": ", memory.status().message()));
  if (memory->size_bytes < sizeof(LeaseWords) || ToHex(AsText(WordsOf(*memory).token)) != fields[1])
    return NotShared("");
  std::unique_ptr<Borrower> borrower(new Borrower(*std::move(memory)));
  borrower->words_.borrower.store(getpid());
  if (borrower->asked()) return absl::UnavailableError("it wants its memory back already");
  return borrower;
}

Borrower::Borrower(SharedMemory memory) : memory_(std::move(memory)), words_(WordsOf(memory_)) {}

void Borrower::Await(absl::FunctionRef<bool()> ready) {
  words_.borrower_wakes.Await(ready, kNoDeadline, 0);
}

void Borrower::Wake() { words_.borrower_wakes.WakeAfterAll(); }

bool Borrower::asked() const { return words_.asked.load() != 0; }

void Borrower::Return() {
  words_.returned.store(1);
  words_.lender_wakes.Wake();
}

}  // namespace takt::transport::ipc
