// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/link.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
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

LinkEnd UnixEnd(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  TAKT_CHECK(path.size() < sizeof(address.sun_path));
  path.copy(address.sun_path, path.size());
  LinkEnd end{.size = sizeof(address)};
  std::memcpy(&end.address, &address, sizeof(address));
  return end;
}

LinkEnd TcpEnd(const std::string& host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  TAKT_CHECK(inet_pton(AF_INET, host.c_str(), &address.sin_addr) == 1);
  LinkEnd end{.size = sizeof(address)};
  std::memcpy(&end.address, &address, sizeof(address));
  return end;
}

int PortOf(const LinkEnd& end) {
  sockaddr_in address{};
  std::memcpy(&address, &end.address, sizeof(address));
  return ntohs(address.sin_port);
}

const sockaddr* AddressOf(const LinkEnd& end) {
  return reinterpret_cast<const sockaddr*>(&end.address);
}

FileDescriptor NewSocket(const LinkEnd& end, int flags) {
  return FileDescriptor(socket(end.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
}

LinkEnd EndOf(const FileDescriptor& socket) {
  LinkEnd end{.size = sizeof(end.address)};
  TAKT_CHECK(getsockname(socket.get(), reinterpret_cast<sockaddr*>(&end.address), &end.size) == 0);
  return end;
}

// The link alone delays bytes. Unix sockets ignore the option.
void SendAtOnce(const FileDescriptor& socket) {
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// Closing it tells the other end of a TCP connection that it was reset.
void ResetOnClose(const FileDescriptor& socket) {
  const linger at_once = {.l_onoff = 1, .l_linger = 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}

}  // namespace

Link::Link(const LinkEnd& front, const LinkEnd& back)
    : back_(back),
      listener_(NewSocket(front, SOCK_NONBLOCK)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TAKT_CHECK(listener_.valid() && wake_.valid());
  TAKT_CHECK(bind(listener_.get(), AddressOf(front), front.size) == 0);
  TAKT_CHECK(listen(listener_.get(), kBacklog) == 0);
  thread_ = std::thread([this] { Main(); });
}

Link::~Link() {
  {
    absl::MutexLock lock(&mutex_);
    orders_.ended = true;
    AwaitTaken();
  }
  thread_.join();
}

LinkEnd Link::FrontEnd() const { return EndOf(listener_); }

void Link::Shape(const LinkShape& shape) {
  absl::MutexLock lock(&mutex_);
  orders_.shape = shape;
  AwaitTaken();
}

void Link::Reset() {
  absl::MutexLock lock(&mutex_);
  orders_.reset = true;
  AwaitTaken();
}

void Link::AwaitTaken() {
  ++given_;
  const std::uint64_t one = 1;
  TAKT_CHECK(write(wake_.get(), &one, sizeof(one)) == sizeof(one));
  const auto taken = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return taken_ == given_; };
  mutex_.Await(absl::Condition(&taken));
}

Link::Orders Link::TakeOrders() {
  std::uint64_t count = 0;
  if (read(wake_.get(), &count, sizeof(count)) < 0) count = 0;  // nothing was told
  absl::MutexLock lock(&mutex_);
  taken_ = given_;
  Orders orders = orders_;
  orders_.reset = false;
  return orders;
}

void Link::Main() {
  pthread_setname_np(pthread_self(), "takt-link");
  while (true) {
    const Orders orders = TakeOrders();
    if (orders.ended) return;
    if (orders.reset) Break();
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

void Link::Break() {
  for (const Connection& connection : connections_) {
    ResetOnClose(connection.front);
    ResetOnClose(connection.back);
  }
  connections_.clear();
}

void Link::AwaitWork() {
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

bool Link::HasRoom(const Flow& flow) const {
  const std::size_t most = shape_.bytes_per_second > 0 ? kMostThrottledChunks : kMostChunks;
  return !flow.ended && flow.under_way.size() < most;
}

void Link::Accept() {
  while (true) {
    FileDescriptor front(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!front.valid()) return;
    Connection connection{.front = std::move(front), .back = NewSocket(back_, 0)};
    const bool made = connection.back.valid() &&
                      connect(connection.back.get(), AddressOf(back_), back_.size) == 0;
    if (!made) continue;
    SendAtOnce(connection.front);
    SendAtOnce(connection.back);
    connection.flows[0] = {.from = connection.front.get(), .to = connection.back.get()};
    connection.flows[1] = {.from = connection.back.get(), .to = connection.front.get()};
    connections_.push_back(std::move(connection));
  }
}

void Link::Take(Connection& connection, std::size_t way) {
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

void Link::Deliver(Connection& connection, std::size_t way) {
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

ControlLink::ControlLink(const std::string& path, const std::string& target)
    : Link(UnixEnd(path), UnixEnd(target)), path_(path) {}

ControlLink::~ControlLink() { unlink(path_.c_str()); }

DataLink::DataLink(std::string host, int port)
    : Link(TcpEnd("127.0.0.1", 0), TcpEnd(host, port)), host_(std::move(host)), port_(port) {}

int DataLink::FreePort(const std::string& host) {
  const LinkEnd any = TcpEnd(host, 0);
  const FileDescriptor socket = NewSocket(any, 0);
  TAKT_CHECK(bind(socket.get(), AddressOf(any), any.size) == 0);
  return PortOf(EndOf(socket));
}

std::vector<std::string> DataLink::WorkerArguments() const {
  return {"--data-address",   host_,
          "--data-port",      absl::StrCat(port_),
          "--data-advertise", absl::StrCat("127.0.0.1:", PortOf(FrontEnd()))};
}

}  // namespace takt::testing
