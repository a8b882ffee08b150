// SPDX-License-Identifier: Apache-2.0
// Offers the coordinator's services as plain functions.
//
// Of several coordinators one leads. A call that another one refuses, or that gets no answer, goes
// to the next.
//
// Every call has a deadline. A change carries a random request_id. The client repeats it under the
// same id while the coordinator is away, so it happens at most once. When no answer comes in time
// the result is
//   kUnavailable  for a question, and for a change that was never sent: nothing happened
//   kUnknown      for a change: it may or may not have happened
// Other errors are those of the service (takt/v1/*_service.proto), with their FieldErrors.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/certificates/tls_files.h"
#include "common/profile/profile.h"
#include "common/trace/job_trace.h"
#include "takt/v1/cluster_service.pb.h"
#include "takt/v1/job_service.pb.h"

namespace grpc {
class ClientContext;
}

namespace takt::cli {

struct ClientOptions {
  std::string address;  // "unix:PATH" or "HOST:PORT", several coordinators separated by commas
  certificates::TlsFiles tls = {};
  bool insecure = false;  // allows TCP without TLS
  bool joins = false;     // the client has no certificate yet
  absl::Duration connect_timeout = absl::Seconds(3);
  absl::Duration call_timeout = absl::Seconds(15);  // includes retries
};

// The steps whose traces are wanted: first to last, or if both are 0, the `newest`. If step
// `around` is kept, it is wanted instead, with the `newest` - 1 kept before it and as many after
// it; older coordinators read the range.
struct TracedSteps {
  std::int64_t first = 0, last = 0;
  int newest = 1;
  std::int64_t around = 0;  // 0: none
};

// Thread-safe.
class Client final {
 public:
  // Waits until the coordinator answers. kUnavailable: it does not. kInvalidArgument: see
  // rpc::CheckEndpoint.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(ClientOptions options);
  ~Client();

  absl::StatusOr<v1::Job> SubmitJob(const v1::JobSpec& spec, bool validate_only);
  absl::StatusOr<v1::Job> GetJob(const std::string& name);
  // Reads all pages, or as many as hold the `most` newest jobs. The newest job comes first.
  absl::StatusOr<std::vector<v1::Job>> ListJobs(
      std::size_t most = std::numeric_limits<std::size_t>::max());
  absl::StatusOr<v1::Job> CancelJob(const std::string& name);
  absl::StatusOr<v1::Job> PauseJob(const std::string& name);
  absl::StatusOr<v1::Job> ResumeJob(const std::string& name);
  absl::Status DeleteJob(const std::string& name);
  // Returns nothing if the coordinator's program is older than held jobs.
  absl::StatusOr<std::vector<v1::HeldJob>> ListHeldJobs();
  absl::StatusOr<v1::Job> AdoptJob(const std::string& name);
  absl::Status AbandonJob(const std::string& name);

  absl::StatusOr<std::vector<v1::Worker>> ListWorkers();
  absl::StatusOr<v1::Worker> DrainWorker(const std::string& worker);
  absl::StatusOr<v1::Worker> UndrainWorker(const std::string& worker);
  absl::StatusOr<v1::GetVersionResponse> GetVersion();
  // Returns what the coordinator knows from the traces of jobs. kUnimplemented, or
  // kPermissionDenied where callers show certificates: the coordinator is older than profiles.
  // kFailedPrecondition: it is newer, and measures what this program does not know.
  absl::StatusOr<profile::Profile> GetProfile();

  absl::StatusOr<std::string> CreateJoinToken(const std::string& worker, absl::Duration lifetime);
  // Connects without a certificate: of options.tls it uses only the authority. request: PKCS #10 in
  // PEM. Returns a certificate in PEM.
  static absl::StatusOr<std::string> Join(ClientOptions options, const std::string& token,
                                          const std::string& request);

  // Lets another thread end a stream that a thread reads.
  class StreamStop {
   public:
    void Stop();   // ends the streams that use this object, and every later one at its start
    void Clear();  // lets later streams run again
    bool stopped() const;

   private:
    friend class Client;
    class Registration;
    mutable std::mutex mutex_;
    bool stopped_ = false;                    // guarded by mutex_
    std::set<grpc::ClientContext*> streams_;  // guarded by mutex_
  };

  // Reads one stream of events until the server closes it (OK), `timeout` has passed
  // (kDeadlineExceeded), `on_event` returns false or `stop` is used (kCancelled).
  absl::Status WatchJob(const std::string& name, std::int64_t after_step, absl::Duration timeout,
                        StreamStop& stop,
                        const std::function<bool(const v1::WatchJobResponse&)>& on_event);
  absl::Status GetJobLogs(const v1::GetJobLogsRequest& request, absl::Duration timeout,
                          StreamStop& stop, const std::function<bool(const v1::LogLine&)>& on_line);
  // Calls `on_part` with each part of a copy of the coordinator's state. It ends as WatchJob does.
  absl::Status BackUpState(absl::Duration timeout, StreamStop& stop,
                           const std::function<bool(const v1::BackUpStateResponse&)>& on_part);
  // Reads traces. More errors: kFailedPrecondition (no step was measured yet), kNotFound (none of
  // those is kept).
  absl::StatusOr<trace::JobTrace> GetTrace(const std::string& name, const TracedSteps& steps,
                                           absl::Duration timeout);

 private:
  struct Wire;
  explicit Client(ClientOptions options);
  // Returns whether a coordinator answers, which is then the one that is asked first: the one that
  // leads if it is found, because others are a little behind.
  bool FindCoordinator();
  bool Follows(const Wire& wire) const;
  // Returns what gRPC says about a connection that fails.
  std::string WhyNotConnected() const;
  const Wire& wire() const { return *wires_[current_ % wires_.size()]; }
  // Returns the status, after going on to the next coordinator if it is kUnavailable.
  absl::Status Judge(absl::Status status);
  template <class Method, class Request>
  auto Call(const char* what, Method method, const Request& request, bool changes);

  const ClientOptions options_;
  std::vector<std::unique_ptr<Wire>> wires_;  // constant after construction, not empty
  std::atomic<std::size_t> current_ = 0;      // counts on; the wire is the rest
};

}  // namespace takt::cli
