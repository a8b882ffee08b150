// SPDX-License-Identifier: Apache-2.0
#include "tests/security/recorder.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <utility>
#include <vector>

#include "common/base/status.h"

namespace takt::security {

namespace {

struct Connection {
  net::Socket client, server;
};

bool PassOn(const net::Socket& from, const net::Socket& to, std::string* heard) {
  std::vector<char> bytes(64 << 10);
  const ssize_t received = recv(from.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (received <= 0) return received < 0 && errno == EAGAIN;
  if (heard != nullptr) heard->append(bytes.data(), received);
  // Blocks while the other end does not listen: so does the one who speaks then.
  return send(to.fd(), bytes.data(), received, MSG_NOSIGNAL) == received;
}

}  // namespace

Recorder::Recorder(std::string upstream)
    : upstream_(std::move(upstream)),
      listener_(*net::ListenOn("127.0.0.1:0")),
      end_(eventfd(0, EFD_CLOEXEC)),
      address_(net::ToString(*net::LocalAddress(listener_))),
      thread_([this] { Run(); }) {}

Recorder::~Recorder() {
  eventfd_write(end_.fd(), 1);
  thread_.join();
}

std::string Recorder::heard() {
  std::lock_guard lock(mutex_);
  return heard_;
}

void Recorder::Run() {
  const net::SocketAddress target = *net::ParseSocketAddress(upstream_);
  std::vector<Connection> connections;
  for (;;) {
    std::vector<pollfd> polled = {{end_.fd(), POLLIN, 0}, {listener_.fd(), POLLIN, 0}};
    for (const Connection& connection : connections) {
      polled.push_back({connection.client.fd(), POLLIN, 0});
      polled.push_back({connection.server.fd(), POLLIN, 0});
    }
    poll(polled.data(), polled.size(), -1);
    if (polled[0].revents != 0) return;
    std::vector<Connection> open;
    for (std::size_t i = 0; i < connections.size(); ++i) {
      Connection& connection = connections[i];
      const bool asks = polled[2 * i + 2].revents != 0, answers = polled[2 * i + 3].revents != 0;
      std::lock_guard lock(mutex_);
      if (asks && !PassOn(connection.client, connection.server, nullptr)) continue;
      if (answers && !PassOn(connection.server, connection.client, &heard_)) continue;
      open.push_back(std::move(connection));
    }
    connections = std::move(open);
    if (polled[1].revents == 0) continue;
    Connection added{net::Socket(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC)),
                     net::Socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
    if (connect(added.server.fd(), target.get(), target.size) == 0)
      connections.push_back(std::move(added));
  }
}

}  // namespace takt::security
