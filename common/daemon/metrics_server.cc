// SPDX-License-Identifier: Apache-2.0
#include "common/daemon/metrics_server.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace takt::daemon {

namespace {

constexpr std::size_t kMaxRequestBytes = 8 << 10;

std::string Answer(std::string_view status, std::string_view type, std::string_view body) {
  std::string answer = "HTTP/1.1 ";
  answer.append(status).append("\r\nContent-Type: ").append(type);
  absl::StrAppend(&answer, "\r\nContent-Length: ", body.size(), "\r\nConnection: close\r\n\r\n");
  return answer.append(body);
}

// query: of a request, with its question mark; or empty.
bool AsksForAll(std::string_view query) {
  if (query.empty()) return false;
  const std::vector<std::string> parameters =
      absl::StrSplit(std::string(query.substr(1)), absl::ByChar('&'));
  return std::ranges::count(parameters, "detail=all") > 0;
}

// Reads up to the end of a request's head, then writes the answer.
class Scrape final : public net::Connection {
 public:
  Scrape(net::Socket socket, const MetricsServer::Page& page)
      : socket_(std::move(socket)), page_(page) {}

  int fd() const override { return socket_.fd(); }
  short Serve(net::Listener& /*listener*/) override { return answer_.empty() ? Read() : Write(); }

 private:
  short Read() {
    std::array<char, 1024> bytes;
    const ssize_t received = recv(fd(), bytes.data(), bytes.size(), 0);
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) return POLLIN;
    if (received <= 0) return 0;
    request_.append(bytes.data(), received);
    if (request_.find("\r\n\r\n") == std::string::npos) {
      if (request_.size() <= kMaxRequestBytes) return POLLIN;
      answer_ = Answer("431 Request Header Fields Too Large", "text/plain", "too long\n");
    } else {
      answer_ = AnswerToScrape(request_, page_);
    }
    return Write();
  }

  short Write() {
    const ssize_t sent =
        send(fd(), answer_.data() + sent_bytes_, answer_.size() - sent_bytes_, MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return POLLOUT;
    if (sent < 0) return 0;
    sent_bytes_ += sent;
    return sent_bytes_ < answer_.size() ? POLLOUT : 0;
  }

  const net::Socket socket_;
  const MetricsServer::Page& page_;
  std::string request_, answer_;
  std::size_t sent_bytes_ = 0;
};

}  // namespace

std::string AnswerToScrape(std::string_view head, const MetricsServer::Page& page) {
  constexpr std::string_view kText = "text/plain; charset=utf-8";
  const std::string_view line = head.substr(0, head.find("\r\n"));
  const std::string_view method = line.substr(0, line.find(' '));
  if (line.size() == method.size()) return Answer("400 Bad Request", kText, "not HTTP\n");
  if (method != "GET") return Answer("405 Method Not Allowed", kText, "only GET\n");
  const std::string_view rest = line.substr(method.size() + 1);
  const std::string_view target = rest.substr(0, rest.find(' '));
  const std::string_view path = target.substr(0, target.find('?'));
  if (path != "/metrics") return Answer("404 Not Found", kText, "see /metrics\n");
  const bool all = AsksForAll(target.substr(path.size()));
  return Answer("200 OK", "text/plain; version=0.0.4; charset=utf-8", page(all));
}

MetricsServer::MetricsServer(net::Socket socket, Page page)
    : listener_(std::move(socket),
                {.name = "takt-metrics", .accept = [page = std::move(page)](net::Socket accepted) {
                   return std::make_unique<Scrape>(std::move(accepted), page);
                 }}) {}

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& address,
                                                                    Page page) {
  absl::StatusOr<net::Socket> socket = net::ListenOn(address);
  if (absl::IsInvalidArgument(socket.status())) {
    return InvalidField({.field = "--metrics-listen",
                         .value = address,
                         .rule = std::string(socket.status().message()),
                         .fix = "e.g. 127.0.0.1:9464 (port 0: any), or nothing for no metrics"});
  }
  if (!socket.ok()) {
    return absl::UnavailableError(
        absl::StrCat("cannot serve metrics at ", socket.status().message(),
                     "; give --metrics-listen a free HOST:PORT of this machine"));
  }
  return std::unique_ptr<MetricsServer>(new MetricsServer(*std::move(socket), std::move(page)));
}

}  // namespace takt::daemon
