// SPDX-License-Identifier: Apache-2.0
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/tracking/http_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::tracking {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Answers one connection with a text, and keeps what the client sent until its body was complete.
class OneAnswer final {
 public:
  explicit OneAnswer(std::string answer) {
    setenv("no_proxy", "127.0.0.1", /*overwrite=*/1);
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    TAKT_CHECK(bind(listening_, any, size) == 0 && listen(listening_, 1) == 0);
    TAKT_CHECK(getsockname(listening_, any, &size) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, answer = std::move(answer)] { Serve(answer); });
  }
  ~OneAnswer() {
    shutdown(listening_, SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    close(listening_);
  }

  std::string url() const { return absl::StrCat("http://127.0.0.1:", port_, "/"); }
  // Waits until the client has its answer.
  const std::string& request() {
    thread_.join();
    return request_;
  }

 private:
  void Serve(const std::string& answer) {
    const int connection = accept(listening_, nullptr, nullptr);
    if (connection < 0) return;
    char bytes[4096];
    while (!absl::EndsWith(request_, "}")) {
      const ssize_t size = recv(connection, bytes, sizeof(bytes), 0);
      if (size <= 0) break;
      request_.append(bytes, static_cast<std::size_t>(size));
    }
    send(connection, answer.data(), answer.size(), MSG_NOSIGNAL);
    close(connection);
  }

  const int listening_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int port_ = 0;
  std::string request_;
  std::thread thread_;
};

TEST(CurlClient, PostsJsonAndReturnsTheAnswer) {
  OneAnswer server("HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nabcde");
  const std::unique_ptr<HttpClient> client = *MakeCurlClient({.url = server.url()});
  const absl::StatusOr<HttpResponse> response = client->Post("/api/x", "{\"a\": 1}");
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->status, 404);
  EXPECT_EQ(response->body, "abcde");
  EXPECT_THAT(
      server.request(),
      AllOf(StartsWith("POST /api/x HTTP/1.1\r\n"), HasSubstr("Content-Type: application/json\r\n"),
            Not(HasSubstr("Authorization")), EndsWith("\r\n\r\n{\"a\": 1}")));
}

TEST(CurlClient, SendsTheTokenOfItsFile) {
  const std::string file = ::testing::TempDir() + "/token";
  std::ofstream(file) << "secret\n";
  OneAnswer server("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
  const std::unique_ptr<HttpClient> client =
      *MakeCurlClient({.url = server.url(), .token_file = file});
  ASSERT_TRUE(client->Post("/x", "{}").ok());
  EXPECT_THAT(server.request(), HasSubstr("Authorization: Bearer secret\r\n"));
}

TEST(CurlClient, SaysThatTheServerIsAway) {
  std::string url;
  {
    const OneAnswer gone("");
    url = gone.url();
  }
  const std::unique_ptr<HttpClient> client = *MakeCurlClient({.url = url});
  const absl::Status status = client->Post("/x", "{}").status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), StartsWith(url.substr(0, url.size() - 1)));
}

TEST(CurlClient, RefusesWhatIsNoUrl) {
  EXPECT_THAT(std::string(MakeCurlClient({.url = "mlflow:5000"}).status().message()),
              HasSubstr("--mlflow is mlflow:5000: must begin with http://"));
}

}  // namespace
}  // namespace takt::tracking
