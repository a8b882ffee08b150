// SPDX-License-Identifier: Apache-2.0
// Preloaded (LD_PRELOAD): maps of the file TAKT_SLOW_FILE are as of a slow disk with next to no
// cache: every page takes TAKT_SLOW_MILLISECONDS to come, while whoever touched it waits.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kCachedPages = 2;  // an access may lie across two

void* MapReally(void* address, std::size_t size, int protection, int flags, int fd, off_t offset) {
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, size, protection, flags, fd, offset));
}

bool IsSlow(int fd) {
  const char* const path = std::getenv("TAKT_SLOW_FILE");
  struct stat wanted {
  }, given{};
  return path != nullptr && fd >= 0 && stat(path, &wanted) == 0 && fstat(fd, &given) == 0 &&
         wanted.st_dev == given.st_dev && wanted.st_ino == given.st_ino;
}

[[noreturn]] void Fail(const char* what) {
  std::perror(what);
  std::abort();
}

// For the life of the process: brings the pages that are touched.
void Serve(int faults, int file, std::byte* memory) {
  const std::chrono::milliseconds delay(std::atoi(std::getenv("TAKT_SLOW_MILLISECONDS")));
  std::vector<std::byte> page(kPage);
  std::array<std::byte*, kCachedPages> cached{};
  std::size_t oldest = 0;
  for (uffd_msg message; read(faults, &message, sizeof message) == sizeof message;) {
    if (message.event != UFFD_EVENT_PAGEFAULT) continue;
    const std::uint64_t address = message.arg.pagefault.address & ~(kPage - 1);
    std::this_thread::sleep_for(delay);
    std::fill(page.begin(), page.end(), std::byte{0});
    const auto offset = static_cast<off_t>(address - reinterpret_cast<std::uintptr_t>(memory));
    if (pread(file, page.data(), kPage, offset) < 0) Fail("slow file: read");
    if (cached[oldest] != nullptr) madvise(cached[oldest], kPage, MADV_DONTNEED);
    uffdio_copy copy{};
    copy.dst = address;
    copy.src = reinterpret_cast<std::uintptr_t>(page.data());
    copy.len = kPage;
    if (ioctl(faults, UFFDIO_COPY, &copy) != 0) Fail("slow file: copy");
    cached[oldest] = reinterpret_cast<std::byte*>(address);
    oldest = (oldest + 1) % kCachedPages;
  }
}

void* MapSlowly(std::size_t size, int fd) {
  const std::size_t whole = (size + kPage - 1) / kPage * kPage;
  void* const memory =
      MapReally(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const int faults = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY));
  if (memory == MAP_FAILED || faults < 0) Fail("slow file: userfaultfd");
  uffdio_api api{};
  api.api = UFFD_API;
  uffdio_register pages{};
  pages.range = {.start = reinterpret_cast<std::uintptr_t>(memory), .len = whole};
  pages.mode = UFFDIO_REGISTER_MODE_MISSING;
  if (ioctl(faults, UFFDIO_API, &api) != 0 || ioctl(faults, UFFDIO_REGISTER, &pages) != 0) {
    Fail("slow file: register");
  }
  std::thread(Serve, faults, dup(fd), static_cast<std::byte*>(memory)).detach();
  return memory;
}

}  // namespace

extern "C" void* mmap(void* address, std::size_t size, int protection, int flags, int fd,
                      off_t offset) noexcept {
  if (IsSlow(fd)) return MapSlowly(size, fd);
  return MapReally(address, size, protection, flags, fd, offset);
}

extern "C" void* mmap64(void* address, std::size_t size, int protection, int flags, int fd,
                        off64_t offset) noexcept {
  return mmap(address, size, protection, flags, fd, offset);
}
