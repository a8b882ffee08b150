// SPDX-License-Identifier: Apache-2.0
#include "common/daemon/metrics_server.h"

#include <sys/socket.h>

#include <string>
#include <vector>

#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::daemon {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

net::Socket Connect(const std::string& text) {
  const net::SocketAddress address = *net::ParseSocketAddress(text);
  net::Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(socket.fd(), address.get(), address.size), 0);
  return socket;
}

std::string Ask(const MetricsServer& server, const std::string& request) {
  const net::Socket socket = Connect(server.address());
  send(socket.fd(), request.data(), request.size(), MSG_NOSIGNAL);
  std::string answer;
  std::vector<char> bytes(1 << 16);
  for (ssize_t n; (n = recv(socket.fd(), bytes.data(), bytes.size(), 0)) > 0;)
    answer.append(bytes.data(), n);
  return answer;
}

class MetricsServerTest : public ::testing::Test {
 protected:
  std::string page_ = "takt_jobs 1\n";
  const std::unique_ptr<MetricsServer> server_ = *MetricsServer::Start(
      "127.0.0.1:0", [this](bool all) { return all ? page_ + "takt_more 1\n" : page_; });
};

TEST_F(MetricsServerTest, AnswersAScrape) {
  const std::string answer = Ask(*server_, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 12\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\ntakt_jobs 1\n"));
}

TEST_F(MetricsServerTest, ServesMoreOnDemand) {
  const auto page_of = [&](const std::string& target) {
    return Ask(*server_, "GET " + target + " HTTP/1.1\r\n\r\n");
  };
  for (const char* const target : {"/metrics?detail=all", "/metrics?a=b&detail=all"})
    EXPECT_THAT(page_of(target), EndsWith("takt_jobs 1\ntakt_more 1\n")) << target;
  for (const char* const target : {"/metrics?", "/metrics?detail=", "/metrics?xdetail=all"})
    EXPECT_THAT(page_of(target), EndsWith("\r\n\r\ntakt_jobs 1\n")) << target;
}

TEST_F(MetricsServerTest, SendsAPageThatNoBufferHolds) {
  page_.assign(32 << 20, 'x');
  EXPECT_THAT(Ask(*server_, "GET /metrics HTTP/1.0\r\n\r\n").size(), ::testing::Gt(32u << 20));
}

TEST_F(MetricsServerTest, DoesNothingElse) {
  EXPECT_THAT(Ask(*server_, "POST /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(Ask(*server_, "GET /etc/passwd HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Ask(*server_, "garbage\r\n\r\n"), StartsWith("HTTP/1.1 400"));
}

TEST_F(MetricsServerTest, ReadsNoEndlessRequest) {
  EXPECT_THAT(Ask(*server_, "GET /" + std::string((8 << 10) - 4, 'x')), StartsWith("HTTP/1.1 431"));
}

TEST_F(MetricsServerTest, IsNotKeptFromOthersByAThousandSilentClients) {
  std::vector<net::Socket> silent;
  for (int i = 0; i < 1000; ++i) silent.push_back(Connect(server_->address()));
  EXPECT_THAT(Ask(*server_, "GET /metrics HTTP/1.1\r\n\r\n"), HasSubstr("takt_jobs 1"));
}

TEST(MetricsServer, NeedsAHost) {
  for (const char* wrong : {":9464", "9464", ""}) {
    const auto server = MetricsServer::Start(wrong, [](bool) { return ""; });
    ASSERT_FALSE(server.ok()) << wrong;
    const auto errors = FieldErrorsOf(server.status());
    ASSERT_EQ(errors.size(), 1u);
    EXPECT_EQ(errors[0].field, "--metrics-listen");
    EXPECT_EQ(errors[0].value, wrong);
  }
}

TEST_F(MetricsServerTest, SaysWhatCannotBeBound) {
  for (const std::string& address : {std::string("192.0.2.1:0"), server_->address()}) {
    const absl::Status status = MetricsServer::Start(address, [](bool) { return ""; }).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr(address));
  }
}

}  // namespace
}  // namespace takt::daemon
