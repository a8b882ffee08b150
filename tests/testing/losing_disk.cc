// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/losing_disk.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/file_descriptor.h"
#include "common/base/status.h"

namespace takt::testing {
namespace {

bool Runs(const std::string& command) {
  return std::system(absl::StrCat(command, " >&2").c_str()) == 0;
}

}  // namespace

absl::Status EnterOwnMounts() {
  if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
    return absl::UnavailableError("may not have mounts of its own");
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return absl::UnavailableError("may not make mounts private");
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<LosingDisk>> LosingDisk::Create(const std::string& image,
                                                               const std::string& directory,
                                                               int mebibytes) {
  std::unique_ptr<LosingDisk> disk(new LosingDisk(image, directory));
  if (!Runs(absl::StrCat("truncate -s ", mebibytes, "M ", image, " && mkfs.ext4 -q ", image)))
    return absl::UnavailableError("there is no mkfs.ext4");
  if (!disk->Mount().ok()) return absl::UnavailableError("may not mount an image");
  return disk;
}

LosingDisk::~LosingDisk() {
  umount2(directory_.c_str(), MNT_DETACH);  // users may not be gone yet
  std::remove(image_.c_str());
}

absl::Status LosingDisk::Mount() const {
  if (Runs(absl::StrCat("mount -o loop ", image_, " ", directory_))) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cannot mount ", image_));
}

bool LosingDisk::ShutDown() const {
  constexpr unsigned long kShutdown = 0x8004587d;  // EXT4_IOC_SHUTDOWN
  std::uint32_t without_flushing = 2;
  const FileDescriptor directory(open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return directory.valid() && ioctl(directory.get(), kShutdown, &without_flushing) == 0;
}

absl::Status LosingDisk::CutPower(const DiskUsers& users) {
  users.stop();
  const bool shut_down = ShutDown();
  last_cut_ = shut_down ? "the file system was shut down (EXT4_IOC_SHUTDOWN)"
                        : "a copy of the image took the place of the disk";
  // What the kernel holds back for the disk is not in its image.
  const std::string copy = image_ + ".copy";
  if (!shut_down && !Runs(absl::StrCat("cp --sparse=always ", image_, " ", copy)))
    return absl::InternalError(absl::StrCat("cannot copy ", image_));
  users.end();
  if (umount(directory_.c_str()) != 0)
    return absl::InternalError(
        absl::StrCat("cannot unmount ", directory_, ": ", std::strerror(errno)));
  if (!shut_down && std::rename(copy.c_str(), image_.c_str()) != 0)
    return absl::InternalError(absl::StrCat("cannot replace ", image_));
  return Mount();
}

}  // namespace takt::testing
