// SPDX-License-Identifier: Apache-2.0
// Tests the server of the page over real connections, with a coordinator that answers what the test
// says.
#include "cli/ui/page_server.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/testing/fake_trace.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace takt::cli {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class PageServerTest : public testing::Test {
 protected:
  PageServerTest() : synthetic_("1f1b", 2, 4) {
    synthetic_.Get();
    coordinator_.workers = [](auto&, const auto&, v1::ListWorkersResponse& response) {
      response.add_workers()->set_name("w<0>");
      return grpc::Status::OK;
    };
    coordinator_.list = [](auto&, const auto&, v1::ListJobsResponse& response) {
      response.add_jobs()->set_name("a");
      return grpc::Status::OK;
    };
    coordinator_.get = [](auto&, const v1::GetJobRequest& request, v1::GetJobResponse& response) {
      if (request.name() != "a") return grpc::Status(grpc::StatusCode::NOT_FOUND, "no job");
      response.mutable_job()->set_name("a");
      return grpc::Status::OK;
    };
    coordinator_.watch = [](auto&, const auto&, auto& writer) {
      v1::WatchJobResponse response;
      response.mutable_job()->set_name("a");
      response.mutable_job()->set_state(v1::JOB_STATE_SUCCEEDED);
      writer.Write(response);
      for (int step = 1; step <= 3; ++step) {
        response.mutable_step()->set_step(step);
        response.mutable_step()->set_loss(1.5);
        writer.Write(response);
      }
      return grpc::Status::OK;
    };
    coordinator_.logs = [](auto&, const auto&, auto& writer) {
      v1::GetJobLogsResponse response;
      response.mutable_line()->set_text("a line\nwith </script>");
      writer.Write(response);
      return grpc::Status::OK;
    };
    coordinator_.step_traces = [this](auto&, const v1::GetTraceRequest& request, auto& writer) {
      return WriteTrace(synthetic_.Get(), request, writer);
    };
    client_ = Client::Connect({.address = coordinator_.address()}).value();
    server_ = PageServer::Create(*client_, {.frame_pause = absl::ZeroDuration(),
                                            .connections = {.head_time = absl::Seconds(1)}})
                  .value();
    thread_ = std::thread([this] { server_->Run(); });
  }
  ~PageServerTest() override {
    server_->Stop();
    thread_.join();
  }

  httplib::Client Browser() const {
    httplib::Client browser("127.0.0.1", server_->port());
    browser.set_read_timeout(20);
    return browser;
  }
  std::string Token() const {
    return std::vector<std::string>(absl::StrSplit(server_->Address(), "token=")).back();
  }
  httplib::Headers Cookie() const {
    return {{"Cookie", absl::StrCat("takt_ui_", server_->port(), "=", Token())}};
  }
  int StatusOf(const std::string& path, httplib::Headers headers) {
    const auto result = Browser().Get(path, headers);
    return result ? result->status : 0;
  }
  // Returns what a stream sends until it has sent `text`.
  std::string Read(const std::string& path, const std::string& text) {
    std::string all;
    httplib::Headers headers = Cookie();
    headers.emplace("Accept-Encoding", "gzip, br");
    Browser().Get(path, headers, [&](const char* data, std::size_t size) {
      all.append(data, size);
      return all.find(text) == std::string::npos;
    });
    return all;
  }
  // Connects and sends `text`. The caller closes the socket.
  int Send(const std::string& text) const {
    const int connection = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(server_->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(send(connection, text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
    return connection;
  }

  trace::SyntheticTrace synthetic_;
  FakeCoordinator coordinator_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<PageServer> server_;
  std::thread thread_;
};

TEST_F(PageServerTest, AddressWithTheTokenOpensThePage) {
  const auto first = Browser().Get("/?token=" + Token());
  ASSERT_TRUE(first);
  EXPECT_EQ(first->status, 200);
  EXPECT_THAT(first->body, HasSubstr("<!DOCTYPE html>"));
  EXPECT_THAT(first->get_header_value("Set-Cookie"),
              AllOf(HasSubstr("HttpOnly"), HasSubstr("SameSite=Strict")));
  EXPECT_THAT(first->get_header_value("Content-Security-Policy"),
              AllOf(HasSubstr("default-src 'none'"), Not(HasSubstr("unsafe"))));
  EXPECT_EQ(first->get_header_value("X-Content-Type-Options"), "nosniff");
  EXPECT_EQ(first->get_header_value("Cache-Control"), "no-store");
  EXPECT_EQ(first->get_header_value("Referrer-Policy"), "no-referrer");
  for (const char* path : {"/", "/page.js", "/page.css"})
    EXPECT_EQ(StatusOf(path, Cookie()), 200) << path;
  EXPECT_EQ(StatusOf("/none", Cookie()), 404);
}

TEST_F(PageServerTest, WithoutTheTokenThereIsNothing) {
  for (const char* path : {"/", "/page.js", "/page.css", "/schedules", "/api/stream?view=cluster",
                           "/api/timeline?job=a", "/none", "/?token=", "/?token=0123"}) {
    const auto result = Browser().Get(path);
    ASSERT_TRUE(result) << path;
    EXPECT_EQ(result->status, 403) << path;
    EXPECT_EQ(result->get_header_value_count("Set-Cookie"), 0u) << path;
    EXPECT_THAT(result->body, Not(HasSubstr("w<0>"))) << path;
  }
}

TEST_F(PageServerTest, OtherNamesOriginsAndMethodsGetNothing) {
  httplib::Headers headers = Cookie();
  headers.emplace("Host", absl::StrCat("evil.example:", server_->port()));
  EXPECT_EQ(StatusOf("/", headers), 421);
  headers = Cookie();
  headers.emplace("Origin", "http://evil.example");
  EXPECT_EQ(StatusOf("/", headers), 403);
  headers = Cookie();
  headers.emplace("Sec-Fetch-Site", "same-site");  // a page of another port
  EXPECT_EQ(StatusOf("/", headers), 403);
  EXPECT_EQ(Browser().Post("/", Cookie(), "a=b", "text/plain")->status, 405);
  EXPECT_EQ(Browser().Delete("/", Cookie())->status, 405);
  EXPECT_EQ(Browser().Options("/", Cookie())->status, 405);
}

TEST_F(PageServerTest, PathsLeadToNoFiles) {
  for (const char* path :
       {"/../../../etc/passwd", "/..%2f..%2fetc/passwd", "//etc/passwd", "/page.js/../../x",
        "/%2e%2e/%2e%2e/etc/passwd", "/page.css%00", "/api/", "/page_js"}) {
    const int status = StatusOf(path, Cookie());
    EXPECT_TRUE(status == 404 || status == 400) << path << " " << status;
  }
}

TEST_F(PageServerTest, StreamsWhatTheCoordinatorSays) {
  const std::string cluster = Read("/api/stream?view=cluster", "\"kind\":\"workers\"");
  EXPECT_THAT(cluster, HasSubstr("data: {\"kind\":\"begin\"}\n\n"));
  EXPECT_THAT(cluster, HasSubstr("\"name\":\"w<0>\""));
  EXPECT_THAT(Read("/api/stream?view=job%3Aa", "[3,"),
              AllOf(HasSubstr("\"state\":\"SUCCEEDED\""), HasSubstr("[1,1.5,")));
  EXPECT_THAT(Read("/api/stream?view=logs:a", "\"lines\""), HasSubstr("a line\\nwith"));
  EXPECT_THAT(Read("/api/stream?view=timeline:a", "\"overview\""), HasSubstr("\"step\":2"));
  EXPECT_THAT(Read("/api/stream?view=job:none", "\"problem\""), HasSubstr("no job"));
}

TEST_F(PageServerTest, RefusesStreamsOfNothing) {
  for (const char* path :
       {"/api/stream", "/api/stream?view=", "/api/stream?view=secrets", "/api/stream?view=job:",
        "/api/stream?view=job:a&view=job:b&view=job:c&view=job:d&view=job:e"}) {
    EXPECT_EQ(StatusOf(path, Cookie()), 400) << path;
  }
}

TEST_F(PageServerTest, SendsPicturesOfTimelines) {
  const auto result = Browser().Get("/api/timeline?job=a", Cookie());
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 200);
  EXPECT_EQ(json::parse(result->body)["ranks"].size(), 2u);
  for (const char* path : {"/api/timeline?job=a&first=2", "/api/timeline?job=a&first=-1",
                           "/api/timeline?job=a&step=x", "/api/timeline?job=a&first=99999999999"}) {
    EXPECT_EQ(StatusOf(path, Cookie()), 400) << path;
  }
}

TEST_F(PageServerTest, ExplorerRunsOnlyItsOwnScript) {
  const auto result = Browser().Get("/schedules", Cookie());
  ASSERT_TRUE(result);
  const std::string policy = result->get_header_value("Content-Security-Policy");
  EXPECT_THAT(policy, AllOf(HasSubstr("script-src 'nonce-"), Not(HasSubstr("unsafe"))));
  EXPECT_THAT(result->body, AllOf(HasSubstr("<script nonce=\""), Not(HasSubstr("<script>")),
                                  Not(HasSubstr("style=\""))));
}

TEST_F(PageServerTest, LargeRequestsAndGarbageChangeNothing) {
  httplib::Headers headers = Cookie();
  headers.emplace("X-Large", std::string(100'000, 'x'));
  EXPECT_THAT(StatusOf("/", headers), testing::AnyOf(0, 400));
  EXPECT_THAT(StatusOf("/?" + std::string(100'000, 'x'), Cookie()), testing::AnyOf(0, 400, 414));
  std::vector<int> connections;
  for (int i = 0; i < 20; ++i) {
    connections.push_back(Send("\x16\x03\x01\x02 garbage\r\n\r\n"));
    connections.push_back(Send("GET / HTTP/1.1\r\nHost: "));  // never ends
  }
  EXPECT_EQ(StatusOf("/page.js", Cookie()), 200);
  for (const int connection : connections) close(connection);
}

TEST_F(PageServerTest, RequestsThatNeverEndAreShutDown) {
  const std::string never_ends[] = {"GET / HTTP/1.1\r\nHost: ", std::string(64 << 10, 'x'), ""};
  for (const std::string& text : never_ends) {
    const int connection = Send(text);
    char byte = 0;
    EXPECT_LE(recv(connection, &byte, 1, 0), 0) << text.size();  // closed or reset, not answered
    close(connection);
  }
}

TEST_F(PageServerTest, ViewersThatDoNotReadDelayNobody) {
  const std::string request = absl::StrCat(
      "GET /api/stream?view=cluster&view=job:a HTTP/1.1\r\nHost: 127.0.0.1:", server_->port(),
      "\r\nCookie: takt_ui_", server_->port(), "=", Token(), "\r\n\r\n");
  std::vector<int> connections;
  for (int i = 0; i < 20; ++i) connections.push_back(Send(request));
  EXPECT_THAT(Read("/api/stream?view=job:a", "[3,"), HasSubstr("SUCCEEDED"));
  for (const int connection : connections) close(connection);
}

TEST(PageServerCreate, TakenPortIsAnErrorOfTheOption) {
  FakeCoordinator coordinator;
  const auto client = Client::Connect({.address = coordinator.address()}).value();
  const auto server = PageServer::Create(*client, {}).value();
  const auto other = PageServer::Create(*client, {.port = server->port()});
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("--port"));
}

}  // namespace
}  // namespace takt::cli
