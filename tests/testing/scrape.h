// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <string>

#include "common/net/socket.h"
#include "gtest/gtest.h"

namespace takt::testing {

// Returns the answer to GET /metrics, with its header. address: HOST:PORT of a daemon's metrics.
inline std::string Scrape(const std::string& address) {
  const net::SocketAddress target = *net::ParseSocketAddress(address);
  const net::Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(socket.fd(), target.get(), target.size), 0) << address;
  const std::string request = "GET /metrics HTTP/1.1\r\n\r\n";
  send(socket.fd(), request.data(), request.size(), MSG_NOSIGNAL);
  std::string page;
  for (char bytes[4096];;) {
    const ssize_t n = recv(socket.fd(), bytes, sizeof(bytes), 0);
    if (n <= 0) return page;
    page.append(bytes, n);
  }
}

}  // namespace takt::testing
