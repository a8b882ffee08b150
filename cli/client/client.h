// SPDX-License-Identifier: Apache-2.0
// The coordinator's services as plain functions: deadlines, request ids and retries are inside.
//
// Every call has a deadline. A change carries a random request_id and is repeated under the same id
// while the coordinator is away, so it happens at most once. When no answer comes in time the
// result is
//   kUnavailable  of a question, and of a change that never left: nothing happened
//   kUnknown      of a change: it may or may not have happened
// Errors otherwise: those of the service (takt/v1/*_service.proto), with their FieldErrors.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/certificates/tls_files.h"
#include "common/trace/job_trace.h"
#include "takt/v1/cluster_service.pb.h"
#include "takt/v1/job_service.pb.h"

namespace takt::cli {

struct ClientOptions {
  std::string address;  // "unix:PATH" or "HOST:PORT"
  certificates::TlsFiles tls = {};
  bool insecure = false;  // TCP without TLS is meant
  bool joins = false;     // has no certificate yet
  absl::Duration connect_timeout = absl::Seconds(3);
  absl::Duration call_timeout = absl::Seconds(15);  // with retries
};

// Thread-safe.
class Client final {
 public:
  // Waits until the coordinator answers. kUnavailable: it does not. kInvalidArgument: as
  // rpc::CheckEndpoint.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(ClientOptions options);
  ~Client();

  absl::StatusOr<v1::Job> SubmitJob(const v1::JobSpec& spec, bool validate_only);
  absl::StatusOr<v1::Job> GetJob(const std::string& name);
  // All pages, newest first.
  absl::StatusOr<std::vector<v1::Job>> ListJobs();
  absl::StatusOr<v1::Job> CancelJob(const std::string& name);
  absl::StatusOr<v1::Job> PauseJob(const std::string& name);
  absl::StatusOr<v1::Job> ResumeJob(const std::string& name);
  absl::Status DeleteJob(const std::string& name);

  absl::StatusOr<std::vector<v1::Worker>> ListWorkers();
  absl::StatusOr<v1::Worker> DrainWorker(const std::string& worker);
  absl::StatusOr<v1::Worker> UndrainWorker(const std::string& worker);
  absl::StatusOr<v1::GetVersionResponse> GetVersion();

  absl::StatusOr<std::string> CreateJoinToken(const std::string& worker, absl::Duration lifetime);
  // Without a certificate: of options.tls the authority alone counts. request: PKCS #10 in PEM.
  // Gives a certificate in PEM.
  static absl::StatusOr<std::string> Join(ClientOptions options, const std::string& token,
                                          const std::string& request);

  // Lets another thread end a stream that is being read.
  class StreamStop {
   public:
    StreamStop();
    ~StreamStop();
    void Stop();   // now, and every later stream that is given this object
    void Clear();  // later streams run again
    bool stopped() const;

   private:
    friend class Client;
    struct State;
    std::unique_ptr<State> state_;
  };

  // One stream of events until the server closes it (OK), at most `timeout` long
  // (kDeadlineExceeded), or until `on_event` returns false or `stop` is used (kCancelled).
  absl::Status WatchJob(const std::string& name, std::int64_t after_step, absl::Duration timeout,
                        StreamStop& stop,
                        const std::function<bool(const v1::WatchJobResponse&)>& on_event);
  absl::Status GetJobLogs(const v1::GetJobLogsRequest& request, absl::Duration timeout,
                          StreamStop& stop, const std::function<bool(const v1::LogLine&)>& on_line);
  // Steps first to last, or, both 0, the `newest`. Errors also: kFailedPrecondition (no step was
  // measured yet), kNotFound (none of those is kept).
  absl::StatusOr<trace::JobTrace> GetTrace(const std::string& name, std::int64_t first,
                                           std::int64_t last, int newest, absl::Duration timeout);

 private:
  struct Wire;
  explicit Client(ClientOptions options);
  // What gRPC says of a connection that does not come about.
  std::string WhyNotConnected() const;
  template <class Method, class Request>
  auto Call(const char* what, Method method, const Request& request, bool changes);

  const ClientOptions options_;
  const std::unique_ptr<Wire> wire_;
};

}  // namespace takt::cli
