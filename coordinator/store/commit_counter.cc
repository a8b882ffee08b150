// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/commit_counter.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/store/sync_folder.h"

namespace takt::store {
namespace {

// The file has two slots, which are written in turn. A power cut can tear only the slot that is
// being written, and the other one then has the number before it.
constexpr int kSlots = 2;
constexpr int kSlotStride = 512;  // a slot is alone in its sector
constexpr int kSlotBytes = 16;    // the number, then the XXH3-64 of the cluster id and the number

using Slot = std::array<unsigned char, kSlotBytes>;

void PutNumber(std::uint64_t value, unsigned char* out) {
  for (int byte = 0; byte < 8; ++byte) out[byte] = static_cast<unsigned char>(value >> (8 * byte));
}

Slot MakeSlot(std::string_view cluster_id, std::int64_t commits) {
  Slot slot = {};
  PutNumber(static_cast<std::uint64_t>(commits), slot.data());
  std::string summed(cluster_id);
  summed.append(slot.begin(), slot.begin() + 8);
  PutNumber(XXH3_64bits(summed.data(), summed.size()), slot.data() + 8);
  return slot;
}

std::int64_t NumberIn(const Slot& slot) {
  std::uint64_t value = 0;
  for (int byte = 0; byte < 8; ++byte) value |= std::uint64_t{slot[byte]} << (8 * byte);
  return static_cast<std::int64_t>(value);
}

absl::Status Failed(std::string_view what, const std::string& path) {
  return absl::UnavailableError(absl::StrCat("cannot ", std::string(what), " ", path, ": ",
                                             std::strerror(errno),
                                             "; check that its folder is writable"));
}

}  // namespace

bool CommitCounter::exists() const { return ::access(path_.c_str(), F_OK) == 0; }

absl::StatusOr<std::optional<std::int64_t>> CommitCounter::Read(std::string_view cluster_id) const {
  const FileDescriptor file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid() && errno == ENOENT) return std::optional<std::int64_t>();
  if (!file.valid()) return Failed("open", path_);
  std::optional<std::int64_t> newest;
  for (int i = 0; i < kSlots; ++i) {
    Slot slot = {};
    const ssize_t got = ::pread(file.get(), slot.data(), slot.size(), i * kSlotStride);
    if (got < 0) return Failed("read", path_);
    const std::int64_t number = NumberIn(slot);
    if (got == kSlotBytes && slot == MakeSlot(cluster_id, number))
      newest = std::max(newest.value_or(number), number);
  }
  if (newest) return newest;
  return absl::DataLossError(absl::StrCat(
      "commit counter ", path_,
      " is damaged, or of another state file; restore both with `takt admin restore`. If the state "
      "file is known to be the newest, remove the counter and start again"));
}

absl::Status CommitCounter::Open() {
  const bool is_new = !exists();
  file_ = FileDescriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file_.valid()) return Failed("open", path_);
  return is_new ? SyncFolderOf(path_) : absl::OkStatus();
}

absl::Status CommitCounter::Write(std::string_view cluster_id, std::int64_t commits) {
  if (!file_.valid()) RETURN_IF_ERROR(Open());
  const Slot slot = MakeSlot(cluster_id, commits);
  const off_t offset = (commits % kSlots) * kSlotStride;
  if (::pwrite(file_.get(), slot.data(), slot.size(), offset) != kSlotBytes ||
      ::fdatasync(file_.get()) != 0)
    return Failed("write", path_);
  return absl::OkStatus();
}

}  // namespace takt::store
