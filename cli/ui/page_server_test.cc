// SPDX-License-Identifier: Apache-2.0
// Tests the server of the page over real connections, with a coordinator that answers what the test
// says.
#include "cli/ui/page_server.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
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
  explicit PageServerTest(
      const PageServerOptions& options = {.frame_pause = absl::ZeroDuration(),
                                          .connections = {.head_time = absl::Seconds(1)}})
      : synthetic_("1f1b", 2, 4) {
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
    server_ = PageServer::Create(*client_, options).value();
    thread_ = std::thread([this] { server_->Run(); });
  }
  ~PageServerTest() override {
    server_->Stop();
    thread_.join();
  }

  httplib::Client Browser() const {
    httplib::Client browser("127.0.0.1", server_->port());
    browser.set_read_timeout(120);  // on a busy core the page of schedules takes half a minute
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

  // A request of a stream that goes on until the peer closes it.
  std::string StreamRequest() const {
    return absl::StrCat(
        "GET /api/stream?view=cluster&view=job:a HTTP/1.1\r\nHost: 127.0.0.1:", server_->port(),
        "\r\nCookie: takt_ui_", server_->port(), "=", Token(), "\r\n\r\n");
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
  std::vector<int> connections;
  for (int i = 0; i < 20; ++i) connections.push_back(Send(StreamRequest()));
  EXPECT_THAT(Read("/api/stream?view=job:a", "[3,"), HasSubstr("SUCCEEDED"));
  for (const int connection : connections) close(connection);
}

// A server as `takt ui` makes it.
class UsualPageServerTest : public PageServerTest {
 protected:
  UsualPageServerTest() : PageServerTest(PageServerOptions{}) {}
};

TEST_F(UsualPageServerTest, AStepComesWhileTheStreamIsOpen) {
  // The coordinator may be asked again until the fixture ends.
  const auto is_open = std::make_shared<absl::Notification>();
  coordinator_.watch = [is_open](auto&, const auto&, auto& writer) {
    v1::WatchJobResponse response;
    response.mutable_job()->set_name("a");
    response.mutable_job()->set_state(v1::JOB_STATE_RUNNING);
    writer.Write(response);
    is_open->WaitForNotification();
    response.mutable_step()->set_step(7);
    writer.Write(response);
    return grpc::Status::OK;
  };
  std::string all;
  Browser().Get("/api/stream?view=job:a", Cookie(), [&](const char* data, std::size_t size) {
    all.append(data, size);
    const bool has_job = all.find("\"state\":\"RUNNING\"") != std::string::npos;
    if (has_job && !is_open->HasBeenNotified()) is_open->Notify();
    return all.find("[7,") == std::string::npos;
  });
  if (!is_open->HasBeenNotified()) is_open->Notify();
  EXPECT_THAT(all, HasSubstr("[7,"));
}

// Returns the first bytes of an answer, "HTTP/1.1 200", and leaves the others where they are.
std::string ReadStatus(int connection) {
  char text[12] = {};
  const ssize_t got = recv(connection, text, sizeof(text), MSG_WAITALL);
  return got > 0 ? std::string(text, static_cast<std::size_t>(got)) : "";
}

// Reads until the server closes the connection.
std::string ReadAll(int connection) {
  std::string all;
  char bytes[4096];
  for (ssize_t got = 0; (got = recv(connection, bytes, sizeof(bytes), 0)) > 0;)
    all.append(bytes, static_cast<std::size_t>(got));
  return all;
}

// Few connections and few streams.
class CrowdedPageServerTest : public PageServerTest {
 protected:
  CrowdedPageServerTest()
      : PageServerTest({.frame_pause = absl::ZeroDuration(),
                        .streams = 3,
                        .connections = {.connections = 6, .head_time = absl::Minutes(5)}}) {}
};

TEST_F(CrowdedPageServerTest, SlowReadersOfStreamsLeaveRoomForOthers) {
  std::vector<int> slow;
  for (int i = 0; i < 3; ++i) {
    slow.push_back(Send(StreamRequest()));
    EXPECT_EQ(ReadStatus(slow.back()), "HTTP/1.1 200");
  }
  for (int i = 0; i < 9; ++i) {
    const int refused = Send(StreamRequest());
    EXPECT_THAT(ReadAll(refused), testing::StartsWith("HTTP/1.1 503"));
    close(refused);
  }
  EXPECT_EQ(StatusOf("/page.js", Cookie()), 200);
  for (const int connection : slow) close(connection);
}

TEST_F(CrowdedPageServerTest, ConnectionsAboveTheLimitGetA503UntilThereIsRoom) {
  std::vector<int> never_end;
  for (int i = 0; i < 6; ++i) never_end.push_back(Send("GET / HTTP/1.1\r\nHost: "));
  for (int i = 0; i < 20; ++i) {
    const int refused = Send(StreamRequest());
    const std::string answer = ReadAll(refused);
    EXPECT_THAT(answer, AllOf(testing::StartsWith("HTTP/1.1 503"), HasSubstr("Content-Length: 42"),
                              testing::EndsWith("close some\n")));
    EXPECT_EQ(answer.size() - answer.find("\r\n\r\n") - 4, 42u);
    close(refused);
  }
  for (const int connection : never_end) close(connection);
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  int status = 0;
  while (status != 200 && absl::Now() < deadline) status = StatusOf("/page.js", Cookie());
  EXPECT_EQ(status, 200);
}

// The same at full size; it takes some seconds:
//   cli_ui_test --gtest_also_run_disabled_tests --gtest_filter='*AThousandSlowReaders*'
// The readers are a process of their own, since the library handles no descriptor above 1,023.
class ManyReaders {
 public:
  static constexpr int kReaders = 1000;
  struct Counts {
    int served = 0, refused = 0;
  };

  // open_one: opens a connection with a request.
  explicit ManyReaders(const std::function<int()>& open_one) {
    EXPECT_EQ(pipe(counts_), 0);
    EXPECT_EQ(pipe(stop_), 0);
    child_ = fork();
    if (child_ == 0) Read(open_one);
  }
  ~ManyReaders() {
    close(stop_[1]);  // the process ends
    EXPECT_EQ(waitpid(child_, nullptr, 0), child_);
    for (const int descriptor : {counts_[0], counts_[1], stop_[0]}) close(descriptor);
  }
  ManyReaders(const ManyReaders&) = delete;
  ManyReaders& operator=(const ManyReaders&) = delete;

  // Waits until all have an answer.
  Counts Wait() const {
    Counts counts;
    EXPECT_EQ(read(counts_[0], &counts, sizeof(counts)), static_cast<ssize_t>(sizeof(counts)));
    return counts;
  }

 private:
  [[noreturn]] void Read(const std::function<int()>& open_one) {
    close(stop_[1]);
    rlimit files{};
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    std::vector<int> connections;
    Counts counts;
    for (int i = 0; i < kReaders; ++i) {
      connections.push_back(open_one());
      const std::string status = ReadStatus(connections.back());
      counts.served += status == "HTTP/1.1 200" ? 1 : 0;
      counts.refused += status == "HTTP/1.1 503" ? 1 : 0;
    }
    if (write(counts_[1], &counts, sizeof(counts)) < 0) _exit(1);
    pollfd stopped{.fd = stop_[0], .events = POLLIN, .revents = 0};
    while (poll(&stopped, 1, /*timeout=*/1000) == 0) {  // a byte a second
      char byte = 0;
      for (const int connection : connections) recv(connection, &byte, 1, MSG_DONTWAIT);
    }
    _exit(0);
  }

  int counts_[2] = {}, stop_[2] = {};
  pid_t child_ = -1;
};

TEST_F(PageServerTest, DISABLED_AThousandSlowReadersChangeNothing) {
  const auto descriptors = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  const auto resident_pages = [] {
    std::int64_t size = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> size >> resident;
    return resident;
  };
  const auto descriptors_before = descriptors();
  const std::int64_t pages_before = resident_pages();
  const std::string request = StreamRequest();
  const ManyReaders readers([&] { return Send(request); });
  const ManyReaders::Counts counts = readers.Wait();
  EXPECT_EQ(counts.served, 40);
  EXPECT_EQ(counts.refused, ManyReaders::kReaders - 40);
  for (int i = 0; i < 20; ++i) {
    const absl::Time begin = absl::Now();
    EXPECT_EQ(StatusOf("/page.js", Cookie()), 200);
    EXPECT_LT(absl::Now() - begin, absl::Seconds(1));
  }
  EXPECT_LE(descriptors() - descriptors_before, 64 + 8);
  EXPECT_LE((resident_pages() - pages_before) * sysconf(_SC_PAGESIZE), 64 << 20);
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
