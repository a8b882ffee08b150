// SPDX-License-Identifier: Apache-2.0
#include "common/net/listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
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

// When there is no descriptor, connections wait this long for the next attempt to accept them.
constexpr std::chrono::milliseconds kOutOfDescriptors(100);

int MaxDescriptor() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > std::numeric_limits<int>::max())
    return std::numeric_limits<int>::max();
  return static_cast<int>(limit.rlim_cur) - Listener::kReservedDescriptors;
}

Clock::duration IntervalOf(const ListenerOptions& options) {
  if (options.accepts_per_second <= 0) return Clock::duration::zero();
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(1 / options.accepts_per_second));
}

std::string AddressOf(const Socket& socket) {
  const absl::StatusOr<SocketAddress> address = LocalAddress(socket);
  return address.ok() ? ToString(*address) : "";
}

}  // namespace

Listener::Listener(Socket socket, ListenerOptions options)
    : socket_(std::move(socket)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      options_(std::move(options)),
      address_(AddressOf(socket_)),
      max_descriptor_(MaxDescriptor()),
      accept_interval_(IntervalOf(options_)),
      thread_([this] {
        pthread_setname_np(pthread_self(), options_.name.c_str());
        Run();
      }) {
  TAKT_CHECK(wake_.valid());
}

Listener::~Listener() {
  eventfd_write(wake_.fd(), 1);
  thread_.join();
}

Listener::Duration Listener::PauseAt(Time now) const {
  const Duration ahead = accept_interval_ * (options_.accepts_at_once - 1);
  return std::max(paced_until_ - now - ahead, Duration::zero());
}

void Listener::Run() {
  bool accepts = true;
  std::vector<pollfd> polled;
  for (;;) {
    const Time before = Clock::now();
    const Duration pause = accepts ? PauseAt(before) : Duration(kOutOfDescriptors);
    const bool listens = pause == Duration::zero();
    polled = {{wake_.fd(), POLLIN, 0}, {listens ? socket_.fd() : -1, POLLIN, 0}};
    for (const Served& each : served_) polled.push_back({each.connection->fd(), each.events, 0});
    Duration wait = listens ? Duration::max() : pause;
    if (!served_.empty())
      wait = std::min(wait, std::max(served_.front().until - before, Duration::zero()));
    const auto millis = std::chrono::ceil<std::chrono::milliseconds>(wait);
    const int timeout = wait == Duration::max() ? -1 : static_cast<int>(millis.count());
    poll(polled.data(), polled.size(), timeout);
    if (polled[0].revents != 0) return;

    const Time now = Clock::now();
    std::size_t index = 2;
    for (auto served = served_.begin(); served != served_.end(); ++index) {
      if (polled[index].revents != 0) served->events = served->connection->Serve(*this);
      if (served->events != 0 && served->until <= now) {
        LogRefusal(served->connection->fd(), "took too long");
        served->events = 0;
      }
      served = served->events == 0 ? served_.erase(served) : std::next(served);
    }
    accepts = polled[1].revents == 0 || Accept();
  }
}

bool Listener::Accept() {
  Socket socket(accept4(socket_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket.valid())
    return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
  // What is written must not wait until the peer has acknowledged what was before it, which takes
  // the kernel's 40 ms.
  const int on = 1;
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  paced_until_ = std::max(paced_until_, Clock::now()) + accept_interval_;
  // A new descriptor has the lowest free number, so at least as many are taken.
  if (socket.fd() >= max_descriptor_) {
    LogRefusal(socket.fd(), "this process has too many connections");
    return true;
  }
  std::unique_ptr<Connection> connection = options_.accept(std::move(socket));
  if (connection == nullptr) return true;
  if (static_cast<int>(served_.size()) == options_.max_connections) {
    LogRefusal(served_.front().connection->fd(), "was silent while too many others came");
    served_.pop_front();
  }
  served_.push_back({std::move(connection), POLLIN, Clock::now() + options_.time_limit});
  return true;
}

void Listener::LogRefusal(int fd, const char* why) {
  if (!std::has_single_bit(++num_refused_)) return;
  Log(LogLevel::kWarning, "connection refused",
      {{"at", options_.name},
       {"address", address_},
       {"from", PeerName(fd)},
       {"reason", why},
       {"refused_so_far", std::to_string(num_refused_)}});
}

}  // namespace takt::net
