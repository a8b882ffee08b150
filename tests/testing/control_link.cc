// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/control_link.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace takt::testing {
namespace {

constexpr int kBacklog = 64;
constexpr std::size_t kBufferBytes = 64 << 10;

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  TAKT_CHECK(path.size() < sizeof(address.sun_path));
  path.copy(address.sun_path, path.size());
  return address;
}

FileDescriptor NewSocket() {
  return FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

}  // namespace

ControlLink::ControlLink(const std::string& path, const std::string& target)
    : path_(path),
      target_(target),
      listener_(NewSocket()),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TAKT_CHECK(listener_.valid() && wake_.valid());
  const sockaddr_un address = AddressOf(path_);
  TAKT_CHECK(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ==
             0);
  TAKT_CHECK(listen(listener_.get(), kBacklog) == 0);
  thread_ = std::thread([this] { Main(); });
}

ControlLink::~ControlLink() {
  Tell(State::kEnded);
  thread_.join();
  unlink(path_.c_str());
}

void ControlLink::Tell(State state) {
  absl::MutexLock lock(&mutex_);
  state_ = state;
  const std::uint64_t one = 1;
  TAKT_CHECK(write(wake_.get(), &one, sizeof(one)) == sizeof(one));
}

ControlLink::State ControlLink::Told() {
  absl::MutexLock lock(&mutex_);
  std::uint64_t count = 0;
  if (read(wake_.get(), &count, sizeof(count)) < 0) count = 0;  // nothing was told
  const State state = state_;
  if (state == State::kReset) state_ = State::kOpen;
  return state;
}

void ControlLink::Main() {
  pthread_setname_np(pthread_self(), "takt-link");
  while (true) {
    const State state = Told();
    if (state == State::kEnded) return;
    if (state == State::kReset) connections_.clear();
    std::vector<pollfd> polled = {{.fd = wake_.get(), .events = POLLIN}};
    if (state != State::kCut) {
      polled.push_back({.fd = listener_.get(), .events = POLLIN});
      for (const Connection& connection : connections_) {
        polled.push_back({.fd = connection.front.get(), .events = POLLIN});
        polled.push_back({.fd = connection.back.get(), .events = POLLIN});
      }
    }
    if (poll(polled.data(), polled.size(), -1) < 0 || polled[0].revents != 0) continue;
    std::size_t at = 2;
    for (auto it = connections_.begin(); it != connections_.end(); at += 2) {
      const int front = it->front.get(), back = it->back.get();
      const bool goes_on = (polled[at].revents == 0 || Pass(front, back)) &&
                           (polled[at + 1].revents == 0 || Pass(back, front));
      it = goes_on ? std::next(it) : connections_.erase(it);
    }
    if (polled[1].revents != 0) Accept();
  }
}

void ControlLink::Accept() {
  Connection connection{
      .front = FileDescriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)),
      .back = NewSocket()};
  const sockaddr_un address = AddressOf(target_);
  const bool made = connection.front.valid() && connection.back.valid() &&
                    connect(connection.back.get(), reinterpret_cast<const sockaddr*>(&address),
                            sizeof(address)) == 0;
  if (made) connections_.push_back(std::move(connection));
}

bool ControlLink::Pass(int from, int to) {
  std::array<char, kBufferBytes> buffer;
  const ssize_t got = read(from, buffer.data(), buffer.size());
  for (ssize_t sent = 0; sent < got;) {
    const ssize_t more = send(to, buffer.data() + sent, got - sent, MSG_NOSIGNAL);
    if (more <= 0) return false;
    sent += more;
  }
  return got > 0;
}

}  // namespace takt::testing
