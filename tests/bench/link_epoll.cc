// SPDX-License-Identifier: Apache-2.0
// A thread waits with epoll and receives into the memory that a caller has posted. The caller's
// thread sends. Event loops such as Gloo's do this for many connections.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/bench/links.h"
#include "worker/transport/wake_word.h"

namespace takt::bench {

namespace {

class EpollLink final : public Link {
 public:
  explicit EpollLink(net::Socket socket)
      : socket_(std::move(socket)),
        stop_(eventfd(0, EFD_CLOEXEC)),
        epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    Watch(EPOLL_CTL_ADD, stop_, EPOLLIN);
    Watch(EPOLL_CTL_ADD, socket_, EPOLLONESHOT);
    thread_ = std::thread([this] { Serve(); });
  }
  ~EpollLink() override {
    eventfd_write(stop_.fd(), 1);
    thread_.join();
  }

  absl::Status Send(std::span<const std::byte> data) override {
    while (!data.empty()) {
      const ssize_t sent =
          send(socket_.fd(), data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent >= 0) {
        data = data.subspan(static_cast<std::size_t>(sent));
        continue;
      }
      if (errno != EAGAIN)
        return absl::UnavailableError(absl::StrCat("send: ", std::strerror(errno)));
      pollfd room{socket_.fd(), POLLOUT, 0};
      poll(&room, 1, -1);
    }
    return absl::OkStatus();
  }

  absl::Status Recv(std::span<std::byte> data) override {
    posted_ = data;
    state_.store(kPosted);
    Watch(EPOLL_CTL_MOD, socket_, EPOLLIN | EPOLLONESHOT);
    done_.Await([this] { return state_.load() != kPosted; }, transport::kNoDeadline, 0);
    if (state_.load() == kBroken) return absl::UnavailableError("recv: the peer left");
    return absl::OkStatus();
  }

 private:
  enum State { kPosted, kFilled, kBroken };

  void Watch(int operation, const net::Socket& socket, unsigned events) {
    epoll_event event{.events = events, .data = {.fd = socket.fd()}};
    TAKT_CHECK(epoll_ctl(epoll_.fd(), operation, socket.fd(), &event) == 0);
  }

  void Serve() {
    for (;;) {
      epoll_event event;
      if (epoll_wait(epoll_.fd(), &event, 1, -1) != 1) continue;
      if (event.data.fd == stop_.fd()) return;
      // epoll reports a socket that has ended although nothing is posted.
      if (state_.load() != kPosted) continue;
      const ssize_t received = recv(socket_.fd(), posted_.data(), posted_.size(), MSG_DONTWAIT);
      if (received > 0) posted_ = posted_.subspan(static_cast<std::size_t>(received));
      const bool goes_on = received > 0 || (received < 0 && errno == EAGAIN);
      if (goes_on && !posted_.empty()) {
        Watch(EPOLL_CTL_MOD, socket_, EPOLLIN | EPOLLONESHOT);
        continue;
      }
      state_.store(goes_on ? kFilled : kBroken);
      done_.Wake();
    }
  }

  const net::Socket socket_, stop_, epoll_;
  // `state_` says whether the caller or the thread owns this memory.
  std::span<std::byte> posted_;
  std::atomic<State> state_{kFilled};
  transport::WakeWord done_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Link>> MakeEpollLink(const LinkOptions& options) {
  ASSIGN_OR_RETURN(net::Socket socket, ConnectLoopback(options));
  return std::make_unique<EpollLink>(std::move(socket));
}

}  // namespace takt::bench
