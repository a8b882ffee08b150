// SPDX-License-Identifier: Apache-2.0
#include "worker/rpc/rendezvous_client.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/counted.h"
#include "common/base/status.h"
#include "common/base/steady_cond_var.h"
#include "proto/rpc_status.h"
#include "takt/v1/rendezvous_service.grpc.pb.h"
#include "worker/transport/abort_signal.h"

namespace takt::worker_rpc {
namespace {

constexpr absl::Duration kSetTimeout = absl::Seconds(10);
// How much later than its own timeout a Wait is given up, so that the server answers first.
constexpr absl::Duration kSlack = absl::Seconds(2);
// The longest wait that the service allows.
constexpr absl::Duration kLongestWait = absl::Seconds(120);
// The service allows so many keys in one call.
constexpr std::size_t kKeysAtOnce = 64;
// How often to ask again while the coordinator is away, and where it says that it is asked too
// often (all ranks of a host may count as one caller).
constexpr absl::Duration kRetry = absl::Milliseconds(200), kRetrySlowly = absl::Seconds(1);

// Adds what was to be done. The coordinator has no meeting for a generation that is over, mostly
// because a peer is gone: that is not an error of this worker.
absl::Status Explain(const absl::Status& status, const std::string& what) {
  const bool is_over = absl::IsNotFound(status);
  return Annotate(is_over ? absl::AbortedError(status.message()) : status,
                  absl::StrCat("rendezvous, ", what));
}

class RendezvousClient final : public session::AbortableRendezvous {
 public:
  RendezvousClient(FindChannel find_channel, control::JobKey key)
      : key_(std::move(key)), find_channel_(std::move(find_channel)) {}

  absl::Status Set(const std::string& key, const std::string& value) override {
    v1::SetKeyRequest request;
    FillScope(*request.mutable_scope());
    request.set_key(key);
    request.set_value(value);
    // Setting the same value twice is the same as setting it once, so the call may be repeated when
    // its answer is lost.
    Attempts attempts;
    const auto set = [&](grpc::ClientContext& context) {
      v1::SetKeyResponse response;
      return Stub()->SetKey(&context, request, &response);
    };
    const absl::Status status = Retry(SteadyNow() + kSetTimeout, attempts, set);
    return Explain(status, absl::StrCat("setting ", key));
  }

  absl::StatusOr<std::string> Wait(const std::string& key, absl::Duration timeout) override {
    ASSIGN_OR_RETURN(std::vector<std::string> values, WaitAll({key}, timeout));
    return std::move(values.front());
  }

  absl::StatusOr<std::vector<std::string>> WaitAll(const std::vector<std::string>& keys,
                                                   absl::Duration timeout) override {
    transport::AbortSignal never;
    return WaitAllUnless(never, keys, timeout);
  }

  absl::StatusOr<std::vector<std::string>> WaitAllUnless(transport::AbortSignal& abort,
                                                         const std::vector<std::string>& keys,
                                                         absl::Duration timeout) override {
    std::vector<std::string> all;
    const absl::Duration deadline = SteadyNow() + timeout;
    for (std::span<const std::string> left = keys; !left.empty();) {
      const std::span<const std::string> batch = left.first(std::min(left.size(), kKeysAtOnce));
      ASSIGN_OR_RETURN(std::vector<std::string> values,
                       WaitAtOnce(batch, deadline - SteadyNow(), abort));
      std::ranges::move(values, std::back_inserter(all));
      left = left.subspan(batch.size());
    }
    return all;
  }

  absl::Duration longest_wait() const override { return kLongestWait; }

  void Abort() override {
    absl::MutexLock lock(&mutex_);
    aborted_ = true;
    abort_.SignalAll();
    for (grpc::ClientContext* context : in_flight_) context->TryCancel();
  }

 private:
  // One call, and its repetitions. Guarded by mutex_.
  struct Attempts {
    grpc::ClientContext* in_flight = nullptr;
    bool stopped = false;
  };

  absl::StatusOr<std::vector<std::string>> WaitAtOnce(std::span<const std::string> keys,
                                                      absl::Duration timeout,
                                                      transport::AbortSignal& abort) {
    const std::string names =
        keys.size() == 1
            ? keys.front()
            : absl::StrCat(keys.front(), " and ", Counted(std::ssize(keys) - 1, "other"));
    v1::WaitKeysRequest request;
    FillScope(*request.mutable_scope());
    for (const std::string& key : keys) request.add_keys(key);
    std::vector<std::string> values;
    const absl::Duration deadline = SteadyNow() + timeout;
    Attempts attempts;
    const auto stop = abort.OnRaise([&] { Stop(attempts); });
    const auto wait = [&](grpc::ClientContext& context) {
      const absl::Duration left =
          std::clamp(deadline - SteadyNow(), absl::Milliseconds(1), kLongestWait);
      request.set_timeout_seconds(absl::ToDoubleSeconds(left));
      v1::WaitKeysResponse response;
      grpc::Status answer = Stub()->WaitKeys(&context, request, &response);
      values.assign(response.values().begin(), response.values().end());
      return answer;
    };
    absl::Status status;
    do {  // the service ends each wait after kLongestWait
      status = Retry(deadline + kSlack, attempts, wait);
    } while (absl::IsDeadlineExceeded(status) && SteadyNow() < deadline);
    if (!status.ok()) return Explain(status, absl::StrCat("waiting for ", names));
    if (values.size() == keys.size()) return values;
    return absl::UnavailableError(
        absl::StrCat("rendezvous: the coordinator sent ", values.size(), " values for ", names));
  }

  // Another coordinator may lead at the next attempt.
  std::unique_ptr<v1::RendezvousService::Stub> Stub() const {
    return v1::RendezvousService::NewStub(find_channel_());
  }

  void FillScope(v1::RendezvousScope& scope) const {
    scope.set_job(key_.job);
    scope.set_generation(key_.generation.value());
  }

  // Repeats the call until it returns anything but kUnavailable and kResourceExhausted, the
  // deadline (steady) is near, or Abort or Stop was called.
  template <class Call>
  absl::Status Retry(absl::Duration deadline, Attempts& attempts, const Call& call) {
    for (;;) {
      grpc::ClientContext context;
      context.set_deadline(absl::ToChronoTime(absl::Now() + (deadline - SteadyNow())));
      if (!Enter(context, attempts)) return absl::AbortedError("stopped");
      const absl::Status status = FromGrpc(call(context), context);
      if (Leave(context, attempts)) return absl::AbortedError("stopped");
      const bool is_too_often = absl::IsResourceExhausted(status);
      const absl::Duration pause = is_too_often ? kRetrySlowly : kRetry;
      const bool may_pass = is_too_often || absl::IsUnavailable(status);
      if (!may_pass || SteadyNow() + pause >= deadline) return status;
      absl::MutexLock lock(&mutex_);
      abort_.AwaitFor(mutex_, absl::Condition(&aborted_), pause);
    }
  }

  bool Enter(grpc::ClientContext& context, Attempts& attempts) {
    absl::MutexLock lock(&mutex_);
    if (aborted_ || attempts.stopped) return false;
    in_flight_.insert(&context);
    attempts.in_flight = &context;
    return true;
  }

  // Returns whether Abort or Stop was called.
  bool Leave(grpc::ClientContext& context, Attempts& attempts) {
    absl::MutexLock lock(&mutex_);
    in_flight_.erase(&context);
    attempts.in_flight = nullptr;
    return aborted_ || attempts.stopped;
  }

  // Ends the attempts at one call.
  void Stop(Attempts& attempts) {
    absl::MutexLock lock(&mutex_);
    attempts.stopped = true;
    if (attempts.in_flight != nullptr) attempts.in_flight->TryCancel();
  }

  const control::JobKey key_;
  const FindChannel find_channel_;
  absl::Mutex mutex_;
  SteadyCondVar abort_;
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> in_flight_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<session::AbortableRendezvous> CreateRendezvousClient(FindChannel find_channel,
                                                                     control::JobKey key) {
  return std::make_unique<RendezvousClient>(std::move(find_channel), std::move(key));
}

}  // namespace takt::worker_rpc
