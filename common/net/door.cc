// SPDX-License-Identifier: Apache-2.0
#include "common/net/door.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <limits>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/base/status.h"

namespace takt::net {

namespace {

using Clock = std::chrono::steady_clock;

// How long to leave those who wait outside alone when there is no descriptor for them.
constexpr std::chrono::milliseconds kOutOfDescriptors(100);

int MaxDescriptor() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > std::numeric_limits<int>::max())
    return std::numeric_limits<int>::max();
  return static_cast<int>(limit.rlim_cur) - Door::kReservedDescriptors;
}

std::string AddressOf(const Socket& listener) {
  const absl::StatusOr<SocketAddress> address = LocalAddress(listener);
  return address.ok() ? ToString(*address) : "";
}

}  // namespace

Door::Door(Socket listener, DoorOptions options)
    : listener_(std::move(listener)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      options_(std::move(options)),
      address_(AddressOf(listener_)),
      max_descriptor_(MaxDescriptor()),
      thread_([this] {
        pthread_setname_np(pthread_self(), options_.name.c_str());
        Run();
      }) {
  TAKT_CHECK(wake_.valid());
}

Door::~Door() {
  eventfd_write(wake_.fd(), 1);
  thread_.join();
}

void Door::Run() {
  bool lets_in = true;
  std::vector<pollfd> polled;
  for (;;) {
    polled = {{wake_.fd(), POLLIN, 0}, {lets_in ? listener_.fd() : -1, POLLIN, 0}};
    for (const Visit& visit : visits_) polled.push_back({visit.guest->fd(), visit.events, 0});
    std::chrono::milliseconds timeout(-1);
    if (!visits_.empty()) {
      timeout = std::chrono::ceil<std::chrono::milliseconds>(visits_.front().until - Clock::now());
      timeout = std::max(timeout, std::chrono::milliseconds(0));
    }
    if (!lets_in) timeout = kOutOfDescriptors;
    poll(polled.data(), polled.size(), static_cast<int>(timeout.count()));
    if (polled[0].revents != 0) return;

    const Time now = Clock::now();
    std::size_t index = 2;
    for (auto visit = visits_.begin(); visit != visits_.end(); ++index) {
      if (polled[index].revents != 0) visit->events = visit->guest->Serve(*this);
      if (visit->events != 0 && visit->until <= now) {
        Refuse(visit->guest->fd(), "took too long");
        visit->events = 0;
      }
      visit = visit->events == 0 ? visits_.erase(visit) : std::next(visit);
    }
    lets_in = polled[1].revents == 0 || LetIn();
  }
}

bool Door::LetIn() {
  Socket socket(accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket.valid())
    return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
  // The lowest free number: as many are taken.
  if (socket.fd() >= max_descriptor_) {
    Refuse(socket.fd(), "this process has too many connections");
    return true;
  }
  std::unique_ptr<Guest> guest = options_.welcome(std::move(socket));
  if (guest == nullptr) return true;
  if (static_cast<int>(visits_.size()) == options_.max_guests) {
    Refuse(visits_.front().guest->fd(), "was silent while too many others came");
    visits_.pop_front();
  }
  visits_.push_back({std::move(guest), POLLIN, Clock::now() + options_.patience});
  return true;
}

void Door::Refuse(int fd, const char* why) {
  if (!std::has_single_bit(++num_refused_)) return;
  Log(LogLevel::kWarning, "connection refused",
      {{"at", options_.name},
       {"address", address_},
       {"from", PeerName(fd)},
       {"reason", why},
       {"refused_so_far", std::to_string(num_refused_)}});
}

}  // namespace takt::net
