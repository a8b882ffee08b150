// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/control_link.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace takt::testing {
namespace {

constexpr int kBacklog = 64;
// A packet at a time is taken from each connection, so that they share the wire fairly.
constexpr std::size_t kPacketBytes = 1500;
// A direction of a connection holds so many packets. A throttled one holds few, as a router that
// does not hide how slow its wire is.
constexpr std::size_t kMostChunks = 1024, kMostThrottledChunks = 4;

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  TAKT_CHECK(path.size() < sizeof(address.sun_path));
  path.copy(address.sun_path, path.size());
  return address;
}

FileDescriptor NewSocket(int flags) {
  return FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
}

}  // namespace

ControlLink::ControlLink(const std::string& path, const std::string& target)
    : path_(path),
      target_(target),
      listener_(NewSocket(SOCK_NONBLOCK)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TAKT_CHECK(listener_.valid() && wake_.valid());
  const sockaddr_un address = AddressOf(path_);
  TAKT_CHECK(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ==
             0);
  TAKT_CHECK(listen(listener_.get(), kBacklog) == 0);
  thread_ = std::thread([this] { Main(); });
}

ControlLink::~ControlLink() {
  {
    absl::MutexLock lock(&mutex_);
    orders_.ended = true;
    AwaitTaken();
  }
  thread_.join();
  unlink(path_.c_str());
}

void ControlLink::Shape(const LinkShape& shape) {
  absl::MutexLock lock(&mutex_);
  orders_.shape = shape;
  AwaitTaken();
}

void ControlLink::Reset() {
  absl::MutexLock lock(&mutex_);
  orders_.reset = true;
  AwaitTaken();
}

void ControlLink::AwaitTaken() {
  ++given_;
  const std::uint64_t one = 1;
  TAKT_CHECK(write(wake_.get(), &one, sizeof(one)) == sizeof(one));
  const auto taken = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return taken_ == given_; };
  mutex_.Await(absl::Condition(&taken));
}

ControlLink::Orders ControlLink::TakeOrders() {
  std::uint64_t count = 0;
  if (read(wake_.get(), &count, sizeof(count)) < 0) count = 0;  // nothing was told
  absl::MutexLock lock(&mutex_);
  taken_ = given_;
  Orders orders = orders_;
  orders_.reset = false;
  return orders;
}

void ControlLink::Main() {
  pthread_setname_np(pthread_self(), "takt-link");
  while (true) {
    const Orders orders = TakeOrders();
    if (orders.ended) return;
    if (orders.reset) connections_.clear();
    shape_ = orders.shape;
    if (shape_.up && shape_.down) Accept();
    for (Connection& connection : connections_) {
      for (std::size_t way = 0; way < 2; ++way) {
        if (Passes(way)) Take(connection, way);
        if (Passes(way)) Deliver(connection, way);
      }
    }
    connections_.remove_if([](const Connection& connection) { return connection.broken; });
    AwaitWork();
  }
}

void ControlLink::AwaitWork() {
  std::vector<pollfd> polled = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  if (shape_.up && shape_.down)
    polled.push_back({.fd = listener_.get(), .events = POLLIN, .revents = 0});
  absl::Duration next = absl::InfiniteDuration();
  for (const Connection& connection : connections_) {
    for (std::size_t way = 0; way < 2; ++way) {
      const Flow& flow = connection.flows[way];
      if (!Passes(way)) continue;
      if (HasRoom(flow)) polled.push_back({.fd = flow.from, .events = POLLIN, .revents = 0});
      if (flow.blocked)
        polled.push_back({.fd = flow.to, .events = POLLOUT, .revents = 0});
      else if (!flow.under_way.empty())
        next = std::min(next, flow.under_way.front().due - SteadyNow());
    }
  }
  const timespec timeout = absl::ToTimespec(std::max(next, absl::ZeroDuration()));
  ppoll(polled.data(), polled.size(), next == absl::InfiniteDuration() ? nullptr : &timeout,
        nullptr);
}

bool ControlLink::HasRoom(const Flow& flow) const {
  const std::size_t most = shape_.bytes_per_second > 0 ? kMostThrottledChunks : kMostChunks;
  return !flow.ended && flow.under_way.size() < most;
}

void ControlLink::Accept() {
  while (true) {
    FileDescriptor front(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!front.valid()) return;
    Connection connection{.front = std::move(front), .back = NewSocket(0)};
    const sockaddr_un address = AddressOf(target_);
    const bool made = connection.back.valid() &&
                      connect(connection.back.get(), reinterpret_cast<const sockaddr*>(&address),
                              sizeof(address)) == 0;
    if (!made) continue;
    connection.flows[0] = {.from = connection.front.get(), .to = connection.back.get()};
    connection.flows[1] = {.from = connection.back.get(), .to = connection.front.get()};
    connections_.push_back(std::move(connection));
  }
}

void ControlLink::Take(Connection& connection, std::size_t way) {
  Flow& flow = connection.flows[way];
  std::array<char, kPacketBytes> buffer;
  while (HasRoom(flow)) {
    const ssize_t got = recv(flow.from, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      flow.ended = true;
      return;
    }
    const absl::Duration now = SteadyNow();
    absl::Duration& free = wire_free_[way];
    free = std::max(free, now);
    if (shape_.bytes_per_second > 0)
      free += absl::Seconds(static_cast<double>(got) / shape_.bytes_per_second);
    flow.under_way.push_back(
        {.due = free + shape_.delay, .bytes = {buffer.data(), buffer.data() + got}});
  }
}

void ControlLink::Deliver(Connection& connection, std::size_t way) {
  Flow& flow = connection.flows[way];
  flow.blocked = false;
  while (!flow.under_way.empty() && flow.under_way.front().due <= SteadyNow()) {
    Chunk& chunk = flow.under_way.front();
    const ssize_t sent = send(flow.to, chunk.bytes.data() + chunk.sent,
                              chunk.bytes.size() - chunk.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      flow.blocked = errno == EAGAIN;
      connection.broken = connection.broken || !flow.blocked;
      return;
    }
    chunk.sent += static_cast<std::size_t>(sent);
    if (chunk.sent == chunk.bytes.size()) flow.under_way.pop_front();
  }
  // The last bytes of an end that closed have arrived.
  if (flow.ended && flow.under_way.empty()) connection.broken = true;
}

}  // namespace takt::testing
