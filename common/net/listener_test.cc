// SPDX-License-Identifier: Apache-2.0
#include "common/net/listener.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

namespace takt::net {
namespace {

// Sends back what it gets, once.
class Echo final : public Connection {
 public:
  explicit Echo(Socket socket) : socket_(std::move(socket)) {}
  int fd() const override { return socket_.fd(); }
  short Serve(Listener& /*listener*/) override {
    std::array<char, 16> bytes;
    const ssize_t received = recv(fd(), bytes.data(), bytes.size(), 0);
    if (received > 0) send(fd(), bytes.data(), received, MSG_NOSIGNAL);
    return 0;
  }

 private:
  const Socket socket_;
};

ListenerOptions EchoOptions() {
  return {.name = "echo",
          .accept = [](Socket socket) { return std::make_unique<Echo>(std::move(socket)); }};
}

Socket Connect(const Listener& listener) {
  const SocketAddress address = *ParseSocketAddress(listener.address());
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(socket.fd(), address.get(), address.size), 0);
  return socket;
}

// Returns what the other end sends until it closes the connection.
std::string Hear(const Socket& socket) {
  std::string text;
  for (char byte; recv(socket.fd(), &byte, 1, 0) == 1;) text += byte;
  return text;
}

std::string Ask(const Listener& listener, const std::string& what) {
  const Socket socket = Connect(listener);
  send(socket.fd(), what.data(), what.size(), MSG_NOSIGNAL);
  return Hear(socket);
}

TEST(ListenOn, BindsTheGivenAddressAndNoOther) {
  const Socket socket = *ListenOn("127.0.0.1:0");
  EXPECT_EQ(ToString(*LocalAddress(socket)).substr(0, 10), "127.0.0.1:");
  for (const char* wrong : {"192.0.2.1:0", ":0", "0", "", "no-such-host.invalid:0"})
    EXPECT_FALSE(ListenOn(wrong).ok()) << wrong;
  EXPECT_FALSE(ListenOn(ToString(*LocalAddress(socket))).ok()) << "taken";
}

TEST(SocketAddress, RoundTripsAsText) {
  for (const char* text : {"127.0.0.1:80", "[::1]:9464"})
    EXPECT_EQ(ToString(*ParseSocketAddress(text)), text);
  EXPECT_FALSE(ParseSocketAddress("localhost:1").ok());
}

TEST(Listener, ServesAConnection) {
  const Listener listener(*ListenOn("127.0.0.1:0"), EchoOptions());
  EXPECT_EQ(Ask(listener, "hello"), "hello");
}

// Else the kernel may keep an answer for 40 ms.
TEST(Listener, SendsAtOnce) {
  std::atomic<int> sends_at_once = -1;
  ListenerOptions options = EchoOptions();
  options.accept = [&](Socket socket) {
    int on = 0;
    socklen_t size = sizeof(on);
    EXPECT_EQ(getsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, &size), 0);
    sends_at_once = on;
    return std::make_unique<Echo>(std::move(socket));
  };
  const Listener listener(*ListenOn("127.0.0.1:0"), options);
  EXPECT_EQ(Ask(listener, "hello"), "hello");
  EXPECT_NE(sends_at_once, 0);
}

TEST(Listener, ClosesTheOldestWhenAThousandAreSilent) {
  const Listener listener(*ListenOn("127.0.0.1:0"), EchoOptions());
  std::vector<Socket> silent;
  for (int i = 0; i < 1000; ++i) silent.push_back(Connect(listener));
  EXPECT_EQ(Ask(listener, "hello"), "hello");
  EXPECT_EQ(Hear(silent.front()), "");
}

TEST(Listener, ClosesAConnectionThatTakesTooLong) {
  ListenerOptions options = EchoOptions();
  options.time_limit = std::chrono::milliseconds(1);
  const Listener listener(*ListenOn("127.0.0.1:0"), options);
  EXPECT_EQ(Hear(Connect(listener)), "");
}

TEST(Listener, AcceptsAtItsPaceAndRefusesNobody) {
  ListenerOptions options = EchoOptions();
  options.accepts_per_second = 200;
  options.accepts_at_once = 10;
  const auto start = std::chrono::steady_clock::now();
  const Listener listener(*ListenOn("127.0.0.1:0"), options);
  std::vector<Socket> clients;
  for (int i = 0; i < 30; ++i) clients.push_back(Connect(listener));
  for (const Socket& client : clients) {
    ASSERT_EQ(send(client.fd(), "x", 1, MSG_NOSIGNAL), 1);
    EXPECT_EQ(Hear(client), "x");
  }
  // Twenty of them had to wait for 5 ms each.
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(100));
}

TEST(Listener, KeepsDescriptorsForOtherThingsAndAcceptsAgain) {
  rlimit before;
  getrlimit(RLIMIT_NOFILE, &before);
  const int used = dup(0);
  close(used);
  const rlimit small = {static_cast<rlim_t>(used + Listener::kReservedDescriptors + 40),
                        before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &small);
  {
    std::atomic<int> accepted = 0;
    ListenerOptions options = EchoOptions();
    options.max_connections = 1000;
    options.accept = [&](Socket socket) {
      ++accepted;
      return std::make_unique<Echo>(std::move(socket));
    };
    const Listener listener(*ListenOn("127.0.0.1:0"), options);
    std::vector<Socket> silent;
    // Each connection has its two ends in this process.
    for (int i = 0; i < 35; ++i) silent.push_back(Connect(listener));
    EXPECT_EQ(Hear(silent.back()), "");
    EXPECT_LT(accepted, 25);
    silent.clear();
    EXPECT_EQ(Ask(listener, "hello"), "hello");
  }
  setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace takt::net
