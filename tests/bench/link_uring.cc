// SPDX-License-Identifier: Apache-2.0
// Each call submits one operation to a ring of the caller's thread and waits for it, with the flags
// that make this cheapest.
#include <liburing.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/bench/links.h"

namespace takt::bench {

namespace {

constexpr unsigned kEntries = 4;

absl::Status Failed(const char* what, int error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(error)));
}

// Makes a ring that does not interrupt its thread or, on a kernel before 6.1, a plain ring. Returns
// 0, or an error number.
int MakeRing(io_uring& ring) {
  const int cheap =
      io_uring_queue_init(kEntries, &ring, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
  if (cheap != -EINVAL) return -cheap;
  return -io_uring_queue_init(kEntries, &ring, 0);
}

class UringLink final : public Link {
 public:
  static absl::StatusOr<std::unique_ptr<Link>> Create(net::Socket socket) {
    auto link = std::make_unique<UringLink>(std::move(socket));
    if (const int error = MakeRing(link->ring_); error != 0) return Failed("io_uring", error);
    link->has_ring_ = true;
    return link;
  }
  explicit UringLink(net::Socket socket) : socket_(std::move(socket)) {}
  ~UringLink() override {
    if (has_ring_) io_uring_queue_exit(&ring_);
  }

  absl::Status Send(std::span<const std::byte> data) override {
    while (!data.empty()) {
      io_uring_prep_send(io_uring_get_sqe(&ring_), socket_.fd(), data.data(), data.size(),
                         MSG_NOSIGNAL | MSG_WAITALL);
      ASSIGN_OR_RETURN(const std::size_t sent, Complete("send"));
      data = data.subspan(sent);
    }
    return absl::OkStatus();
  }
  absl::Status Recv(std::span<std::byte> data) override {
    while (!data.empty()) {
      io_uring_prep_recv(io_uring_get_sqe(&ring_), socket_.fd(), data.data(), data.size(),
                         MSG_WAITALL);
      ASSIGN_OR_RETURN(const std::size_t received, Complete("recv"));
      data = data.subspan(received);
    }
    return absl::OkStatus();
  }

 private:
  // Submits what was prepared and returns how many bytes it passed.
  absl::StatusOr<std::size_t> Complete(const char* what) {
    const int submitted = io_uring_submit_and_wait(&ring_, 1);
    if (submitted < 0 && submitted != -EINTR) return Failed(what, -submitted);
    io_uring_cqe* done = nullptr;
    int waited = 0;
    do {
      waited = io_uring_wait_cqe(&ring_, &done);
    } while (waited == -EINTR);
    if (waited < 0) return Failed(what, -waited);
    const int result = done->res;
    io_uring_cqe_seen(&ring_, done);
    if (result < 0) return Failed(what, -result);
    if (result == 0) return absl::UnavailableError(absl::StrCat(what, ": the peer left"));
    return static_cast<std::size_t>(result);
  }

  const net::Socket socket_;
  io_uring ring_ = {};
  bool has_ring_ = false;
};

}  // namespace

absl::Status FindUring() {
  io_uring ring = {};
  if (const int error = MakeRing(ring); error != 0)
    return Failed("the kernel refuses io_uring", error);
  io_uring_queue_exit(&ring);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Link>> MakeUringLink(const LinkOptions& options) {
  ASSIGN_OR_RETURN(net::Socket socket, ConnectLoopback(options));
  return UringLink::Create(std::move(socket));
}

}  // namespace takt::bench
