// SPDX-License-Identifier: Apache-2.0
#include "tests/observability/delayed_link.h"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"

namespace takt::observability {
namespace {

constexpr char kDevice[] = "takt0";
constexpr std::size_t kMaxPacketBytes = 65536;

absl::Status Refused(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// One end of the wire.
struct Side {
  int net = -1;     // its namespace
  int device = -1;  // what is sent there is read here
};

// On a thread of its own: a namespace is entered for good.
absl::Status OpenSide(int number, Side& side) {
  if (unshare(CLONE_NEWNET) != 0) return Refused("a network namespace");
  side.net = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
  side.device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (side.device < 0) return Refused("/dev/net/tun");
  ifreq request{};
  std::strncpy(request.ifr_name, kDevice, IFNAMSIZ - 1);
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (ioctl(side.device, TUNSETIFF, &request) != 0) return Refused("a tun device");
  const std::string command = absl::StrCat(
      "ip link set lo up && ip address add ", DelayedLink::Address(number), " peer ",
      DelayedLink::Address(1 - number), " dev ", kDevice, " && ip link set ", kDevice, " up");
  if (std::system(command.c_str()) != 0) return absl::UnavailableError(command);
  return absl::OkStatus();
}

class Wire final : public DelayedLink {
 public:
  explicit Wire(absl::Duration delay) : delay_(delay) {}
  ~Wire() override {
    if (pump_.joinable()) {
      const std::uint64_t one = 1;
      TAKT_CHECK(write(stop_, &one, sizeof one) == sizeof one);
      pump_.join();
    }
    for (const Side& side : sides_) {
      if (side.device >= 0) close(side.device);
      if (side.net >= 0) close(side.net);
    }
    if (stop_ >= 0) close(stop_);
  }

  absl::Status Open() {
    for (int number = 0; number < 2; ++number) {
      absl::Status status;
      std::thread([&] { status = OpenSide(number, sides_[number]); }).join();
      RETURN_IF_ERROR(status);
    }
    stop_ = eventfd(0, EFD_CLOEXEC);
    if (stop_ < 0) return Refused("eventfd");
    pump_ = std::thread([this] { Pump(); });
    return absl::OkStatus();
  }

  std::string NetFile(int side) const override {
    return absl::StrCat("/proc/", getpid(), "/fd/", sides_[side].net);
  }

 private:
  struct Packet {
    std::int64_t due_nanos = 0;
    std::vector<char> bytes;
  };

  static std::int64_t Now() { return Clock::Real().SteadyNanos(); }

  void Pump() {
    std::array<pollfd, 3> files = {{{.fd = sides_[0].device, .events = POLLIN, .revents = 0},
                                    {.fd = sides_[1].device, .events = POLLIN, .revents = 0},
                                    {.fd = stop_, .events = POLLIN, .revents = 0}}};
    while (files[2].revents == 0) {
      std::int64_t wait = 1'000'000'000;
      for (int from = 0; from < 2; ++from) {
        Deliver(from);
        if (!under_way_[from].empty()) {
          wait = std::min(wait, under_way_[from].front().due_nanos - Now());
        }
      }
      const timespec timeout = absl::ToTimespec(absl::Nanoseconds(std::max<std::int64_t>(wait, 0)));
      if (ppoll(files.data(), files.size(), &timeout, nullptr) < 0) continue;
      for (int from = 0; from < 2; ++from) Take(from);
    }
  }

  void Take(int from) {
    std::array<char, kMaxPacketBytes> buffer;
    for (ssize_t size; (size = read(sides_[from].device, buffer.data(), buffer.size())) > 0;) {
      under_way_[from].push_back(
          {Now() + absl::ToInt64Nanoseconds(delay_), {buffer.data(), buffer.data() + size}});
    }
  }

  void Deliver(int from) {
    std::deque<Packet>& packets = under_way_[from];
    for (; !packets.empty() && packets.front().due_nanos <= Now(); packets.pop_front()) {
      // What does not fit is lost, as on any wire; TCP sends it again.
      [[maybe_unused]] const ssize_t written = write(
          sides_[1 - from].device, packets.front().bytes.data(), packets.front().bytes.size());
    }
  }

  const absl::Duration delay_;
  std::array<Side, 2> sides_;
  int stop_ = -1;
  std::array<std::deque<Packet>, 2> under_way_;  // by side of origin; the pump's
  std::thread pump_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DelayedLink>> DelayedLink::Create(absl::Duration delay) {
  auto wire = std::make_unique<Wire>(delay);
  RETURN_IF_ERROR(wire->Open());
  return std::unique_ptr<DelayedLink>(std::move(wire));
}

std::string DelayedLink::Address(int side) { return absl::StrCat("10.213.77.", side + 1); }

}  // namespace takt::observability
