// SPDX-License-Identifier: Apache-2.0
#include "cli/ui/page_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "cli/ui/assets.h"
#include "cli/ui/connection_threads.h"
#include "cli/ui/explorer.h"
#include "cli/ui/followers.h"
#include "cli/ui/hub.h"
#include "cli/ui/page_access.h"
#include "cli/ui/sources.h"
#include "cli/ui/timelines.h"
#include "common/base/status.h"
#include "common/trace/page.h"

namespace takt::cli {
namespace {

using httplib::DataSink;
using httplib::Request;
using httplib::Response;

constexpr char kLoopback[] = "127.0.0.1";
constexpr std::size_t kMostViews = 4;
// How long a peer may take for the next part of a request, or to take the next part of an answer.
constexpr int kPeerSeconds = 5;
constexpr int kSendBufferBytes = 256 << 10;
// A stream without news sends a comment, which finds out whether the peer is still there.
constexpr absl::Duration kLongestSilence = absl::Seconds(10);
constexpr std::size_t kPieceBytes = 32u << 10;

constexpr char kPagePolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

using Body = std::shared_ptr<const std::string>;

Body Text(std::string_view text) { return std::make_shared<const std::string>(text); }

// Sends an answer that the library neither copies nor compresses.
void Reply(Response& response, const char* type, const Body& body,
           const std::string& policy = kPagePolicy) {
  response.set_header("Content-Security-Policy", policy);
  response.set_content_provider(
      body->size(), type, [body](std::size_t offset, std::size_t length, DataSink& sink) {
        return sink.write(body->data() + offset, std::min(length, kPieceBytes));
      });
}

void ReplyError(Response& response, int status, const std::string& text) {
  response.status = status;
  Reply(response, "text/plain; charset=utf-8", Text(text + "\n"));
}

int HttpStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
      return 404;
    default:
      return 503;
  }
}

std::vector<std::string> HeadersOf(const Request& request, const char* name) {
  std::vector<std::string> values;
  // The functions of requests that take an index differ between versions of the library.
  const auto [begin, end] = request.headers.equal_range(name);
  for (auto header = begin; header != end; ++header) values.push_back(header->second);
  return values;
}

RequestFacts FactsOf(const Request& request) {
  return {.method = request.method,
          .path = request.path,
          .hosts = HeadersOf(request, "Host"),
          .origins = HeadersOf(request, "Origin"),
          .site = request.get_header_value("Sec-Fetch-Site"),
          .cookies = request.get_header_value("Cookie"),
          .token = request.get_param_value("token")};
}

// A number of the address; empty means 0.
absl::StatusOr<std::int64_t> NumberOf(const Request& request, const char* name) {
  const std::string text = request.get_param_value(name);
  std::int64_t number = 0;
  if (text.empty() || (absl::SimpleAtoi(text, &number) && number >= 0)) return number;
  return InvalidField({.field = name,
                       .value = text,
                       .rule = "must be a whole number, 0 or more",
                       .fix = "leave it out for the newest step and the first rank"});
}

void SetSocketOptions(socket_t socket) {
  const auto set = [&](int level, int name, auto value) {
    setsockopt(socket, level, name, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_REUSEADDR, 1);
  // Accepted sockets inherit these.
  set(SOL_SOCKET, SO_SNDTIMEO, timeval{.tv_sec = kPeerSeconds, .tv_usec = 0});
  set(SOL_SOCKET, SO_RCVTIMEO, timeval{.tv_sec = kPeerSeconds, .tv_usec = 0});
  set(SOL_SOCKET, SO_SNDBUF, kSendBufferBytes);
  set(IPPROTO_TCP, TCP_NODELAY, 1);
}

}  // namespace

class PageServer::Impl {
 public:
  Impl(Client& client, const PageServerOptions& options)
      : options_(options),
        timelines_(client),
        sources_(client, hub_, timelines_),
        followers_([this](const std::string& view, const std::stop_token& stop) {
          sources_.Follow(view, stop);
        }),
        script_(Text(absl::StrCat("'use strict';\n", std::string(trace::TimelineScript()), "\n",
                                  kPageScript))) {}

  absl::Status Listen() {
    http_.set_socket_options([this](socket_t socket) {
      SetSocketOptions(socket);
      listener_ = socket;
    });
    const int port = options_.port == 0 ? http_.bind_to_any_port(kLoopback)
                     : http_.bind_to_port(kLoopback, options_.port) ? options_.port
                                                                    : -1;
    if (port <= 0) {
      return UnusableField({.field = "--port",
                            .value = absl::StrCat(options_.port),
                            .rule = "must be a port of this machine that nobody listens on",
                            .fix = "leave it out, and the system chooses one"});
    }
    // The library lets five connections wait. The system drops what comes beside them, and a
    // browser tries again only a second later.
    ::listen(listener_, SOMAXCONN);
    port_ = port;
    access_ = std::make_unique<PageAccess>(port, MakeToken());
    SetLimits();
    AddHandlers();
    return absl::OkStatus();
  }

  void Run() {
    std::atomic<bool> ended = false;
    std::thread listener([&] {
      http_.listen_after_bind();
      ended = true;
    });
    while (!ended && !stop_.WaitForNotificationWithTimeout(absl::Seconds(1)))
      followers_.Sweep(absl::Now());
    hub_.Close();
    // The library ignores a stop that comes before it listens.
    while (!ended && !http_.is_running()) absl::SleepFor(absl::Milliseconds(1));
    http_.stop();
    listener.join();
  }

  void Stop() {
    std::call_once(stops_, [this] { stop_.Notify(); });
  }

  const PageAccess& access() const { return *access_; }
  int port() const { return port_; }

 private:
  // Sends one stream of events. It lives as long as the answer.
  struct Stream {
    explicit Stream(std::atomic<int>& streams) : num_streams(streams) { ++num_streams; }
    ~Stream() { --num_streams; }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    std::atomic<int>& num_streams;
    std::vector<std::unique_ptr<Followers::Lease>> leases = {};
    Hub::Viewer viewer = {};
    bool has_begun = false;
  };

  void SetLimits() {
    http_.new_task_queue = [port = port_, limits = options_.connections] {
      return new ConnectionThreads(port, limits);
    };
    http_.set_read_timeout(kPeerSeconds);
    http_.set_write_timeout(kPeerSeconds);
    http_.set_keep_alive_max_count(1);  // as ConnectionThreads needs it
    http_.set_payload_max_length(1);    // no request has a body
    http_.set_default_headers({{"X-Content-Type-Options", "nosniff"},
                               {"Referrer-Policy", "no-referrer"},
                               {"Cross-Origin-Resource-Policy", "same-origin"},
                               {"Cross-Origin-Opener-Policy", "same-origin"},
                               {"Cache-Control", "no-store"}});
    http_.set_pre_routing_handler([this](const Request& request, Response& response) {
      const Verdict verdict = access_->Judge(FactsOf(request));
      if (verdict.sets_cookie) response.set_header("Set-Cookie", access_->Cookie());
      if (verdict.status == 200) return httplib::Server::HandlerResponse::Unhandled;
      if (verdict.status == 405) response.set_header("Allow", "GET, HEAD");
      ReplyError(response, verdict.status, verdict.reason);
      return httplib::Server::HandlerResponse::Handled;
    });
  }

  void AddHandlers() {
    http_.Get("/", [page = Text(kPageHtml)](const Request&, Response& response) {
      Reply(response, "text/html; charset=utf-8", page);
    });
    http_.Get("/page\\.css", [style = Text(kPageStyle)](const Request&, Response& response) {
      Reply(response, "text/css; charset=utf-8", style);
    });
    http_.Get("/page\\.js", [this](const Request&, Response& response) {
      Reply(response, "text/javascript; charset=utf-8", script_);
    });
    http_.Get("/schedules", [this](const Request&, Response& response) { Explore(response); });
    http_.Get("/api/stream", [this](const Request& request, Response& response) {
      OpenStream(request, response);
    });
    http_.Get("/api/timeline", [this](const Request& request, Response& response) {
      SendTimeline(request, response);
    });
  }

  void Explore(Response& response) {
    const absl::StatusOr<Explorer> explorer = explorer_.Get();
    if (!explorer.ok()) return ReplyError(response, 500, std::string(explorer.status().message()));
    Reply(response, "text/html; charset=utf-8", explorer->page, explorer->policy);
  }

  void OpenStream(const Request& request, Response& response) {
    const std::size_t num_views = request.get_param_value_count("view");
    if (num_views < 1 || num_views > kMostViews)
      return ReplyError(response, 400, absl::StrCat("view: 1 to ", kMostViews, " of them"));
    const auto stream = std::make_shared<Stream>(num_streams_);
    if (num_streams_ > options_.streams)
      return ReplyError(response, 503, "too many pages are open; close some");
    for (std::size_t i = 0; i < num_views; ++i) {
      std::string view = request.get_param_value("view", i);
      if (!ParseView(view).has_value())
        return ReplyError(response, 400, "view: must be cluster, job:, timeline: or logs:NAME");
      auto lease = followers_.Acquire(view, absl::Now());
      if (!lease.ok()) return ReplyError(response, 503, std::string(lease.status().message()));
      stream->leases.push_back(*std::move(lease));
      stream->viewer.views.push_back(std::move(view));
    }
    response.set_header("Content-Security-Policy", kPagePolicy);
    response.set_chunked_content_provider(
        "text/event-stream",
        [this, stream](std::size_t, DataSink& sink) { return SendFrame(*stream, sink); });
  }

  // Returns false when the peer is gone or too slow.
  bool SendFrame(Stream& stream, DataSink& sink) {
    if (stream.has_begun) absl::SleepFor(options_.frame_pause);
    std::optional<std::string> text = hub_.Next(stream.viewer, kLongestSilence);
    if (!text.has_value()) {
      sink.done();
      return true;
    }
    // The page forgets what an earlier stream has sent.
    if (!stream.has_begun) text->insert(0, "retry: 1000\ndata: {\"kind\":\"begin\"}\n\n");
    stream.has_begun = true;
    if (text->empty()) *text = ":\n\n";
    for (std::size_t at = 0; at < text->size(); at += kPieceBytes) {
      if (!sink.write(text->data() + at, std::min(kPieceBytes, text->size() - at))) return false;
    }
    return true;
  }

  void SendTimeline(const Request& request, Response& response) {
    const absl::StatusOr<std::int64_t> step = NumberOf(request, "step");
    const absl::StatusOr<std::int64_t> first = NumberOf(request, "first");
    if (!step.ok()) return ReplyError(response, 400, std::string(step.status().message()));
    if (!first.ok() || *first > 1'000'000)
      return ReplyError(response, 400, "first: must be a rank of the job");
    const auto picture =
        timelines_.Picture(request.get_param_value("job"), *step, static_cast<int>(*first));
    if (!picture.ok()) {
      return ReplyError(response, HttpStatusOf(picture.status()),
                        std::string(picture.status().message()));
    }
    Reply(response, "application/json; charset=utf-8", *picture);
  }

  const PageServerOptions options_;
  int port_ = 0;
  socket_t listener_ = -1;              // the library owns it
  std::unique_ptr<PageAccess> access_;  // constant after Listen
  Hub hub_;
  Timelines timelines_;
  Sources sources_;
  Followers followers_;  // its threads use what is above
  LazyExplorer explorer_;
  const Body script_;
  std::atomic<int> num_streams_ = 0;
  std::once_flag stops_;
  absl::Notification stop_;
  httplib::Server http_;  // its connections use all of the above
};

PageServer::PageServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PageServer::~PageServer() = default;

absl::StatusOr<std::unique_ptr<PageServer>> PageServer::Create(Client& client,
                                                               const PageServerOptions& options) {
  auto impl = std::make_unique<Impl>(client, options);
  RETURN_IF_ERROR(impl->Listen());
  return std::unique_ptr<PageServer>(new PageServer(std::move(impl)));
}

std::string PageServer::Address() const { return impl_->access().Address(); }
int PageServer::port() const { return impl_->port(); }
void PageServer::Run() { impl_->Run(); }
void PageServer::Stop() { impl_->Stop(); }

}  // namespace takt::cli
