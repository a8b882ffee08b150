// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/worker_swarm.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/version.h"
#include "common/trace/encoding.h"
#include "takt/v1/attachment_service.grpc.pb.h"

namespace takt::testing {
namespace {

constexpr std::int64_t kInstructionNanos = 1'000'000;

// One stream of a worker: writes in order, reads until the end.
template <class Request, class Response>
class Stream final : public grpc::ClientBidiReactor<Request, Response> {
 public:
  explicit Stream(std::function<void(const Response&)> on_message)
      : on_message_(std::move(on_message)) {}

  template <class Open>
  void Begin(const Open& open, const Request& hello) {
    open(&context_, this);
    Push(hello);
    this->StartRead(&response_);
    this->StartCall();
  }

  void Push(Request request) {
    absl::MutexLock lock(&mutex_);
    if (done_) return;
    requests_.push_back(std::move(request));
    if (requests_.size() == 1) this->StartWrite(&requests_.front());
  }

  // Ends it and waits until it has.
  void Cut() {
    context_.TryCancel();
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&done_));
  }
  bool done() const {
    absl::MutexLock lock(&mutex_);
    return done_;
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    requests_.pop_front();
    if (!ok) requests_.clear();
    if (!requests_.empty()) this->StartWrite(&requests_.front());
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    on_message_(response_);
    this->StartRead(&response_);
  }
  void OnDone(const grpc::Status&) override {
    absl::MutexLock lock(&mutex_);
    done_ = true;
  }

 private:
  const std::function<void(const Response&)> on_message_;
  grpc::ClientContext context_;
  Response response_;
  mutable absl::Mutex mutex_;
  std::deque<Request> requests_ ABSL_GUARDED_BY(mutex_);  // the first is being written
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

// A step of `instructions` of them in a row.
std::string SomeTrace(int rank, std::int64_t step, int instructions) {
  trace::StepTrace trace{.rank = Rank(rank),
                         .step = StepId(step),
                         .start_nanos = step * (instructions + 1) * kInstructionNanos};
  for (int i = 0; i < instructions; ++i) {
    const std::int64_t start = trace.start_nanos + i * kInstructionNanos;
    trace.body.push_back({start, start + kInstructionNanos * 9 / 10});
  }
  return trace::Encode(trace);
}

class FakeWorker {
 public:
  FakeWorker(const SwarmOptions& options, int number)
      : options_(options),
        name_(absl::StrCat("fake-", number)),
        control_([this](const v1::AttachResponse& response) { OnCommand(response); }),
        bulk_([this](const v1::StreamBulkResponse& response) { OnAcknowledged(response); }) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
    stub_ = v1::AttachmentService::NewStub(grpc::CreateCustomChannel(
        options_.coordinator, grpc::InsecureChannelCredentials(), arguments));
    v1::AttachRequest request;
    v1::Hello& hello = *request.mutable_hello();
    hello.set_worker(name_);
    hello.set_incarnation(name_);
    hello.set_protocol_version(kProtocolVersion);
    hello.set_host(name_);
    hello.set_cores(1);
    hello.set_memory_bytes(std::int64_t{1} << 34);
    hello.set_matmul_flops_per_second(1e11);
    hello.set_data_address("127.0.0.1");
    control_.Begin([&](auto* context, auto* reactor) { stub_->async()->Attach(context, reactor); },
                   request);
  }

  void Cut() {
    control_.Cut();
    if (attached()) bulk_.Cut();
  }

  bool attached() const {
    absl::MutexLock lock(&mutex_);
    return attached_;
  }
  bool training() const {
    absl::MutexLock lock(&mutex_);
    return training_;
  }
  bool all_acknowledged() const {
    absl::MutexLock lock(&mutex_);
    return sent_at_.empty();
  }
  void AddTo(WorkerSwarm::Counts& counts) const {
    absl::MutexLock lock(&mutex_);
    counts.reported += step_;
    counts.acknowledged += step_ - static_cast<std::int64_t>(sent_at_.size());
    counts.lost_streams += control_.done() || (attached_ && bulk_.done()) ? 1 : 0;
  }
  void TakeAckSeconds(std::vector<double>& seconds) {
    absl::MutexLock lock(&mutex_);
    seconds.insert(seconds.end(), ack_seconds_.begin(), ack_seconds_.end());
    ack_seconds_.clear();
  }

  void Heartbeat() {
    v1::AttachRequest request;
    {
      absl::MutexLock lock(&mutex_);
      if (!attached_) return;
      v1::Heartbeat& heartbeat = *request.mutable_heartbeat();
      heartbeat.set_job(assignment_.job());
      heartbeat.set_generation(assignment_.generation());
      heartbeat.mutable_status()->set_rank(assignment_.rank());
      heartbeat.mutable_status()->set_last_step(step_);
    }
    control_.Push(std::move(request));
  }

  void Step() {
    v1::StreamBulkRequest report, trace;
    {
      absl::MutexLock lock(&mutex_);
      if (!training_ || step_ == options_.steps) return;
      ++step_;
      sent_at_.push_back(absl::Now());
      FillReport(*report.mutable_step());
      trace.mutable_trace()->set_job(assignment_.job());
      trace.mutable_trace()->set_generation(assignment_.generation());
      trace.mutable_trace()->set_trace(
          SomeTrace(assignment_.rank(), step_, assignment_.program().body_size()));
    }
    bulk_.Push(std::move(report));
    if (options_.traces) bulk_.Push(std::move(trace));
  }

 private:
  void FillReport(v1::RankStepReport& report) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    report.set_job(assignment_.job());
    report.set_generation(assignment_.generation());
    report.set_rank(assignment_.rank());
    report.set_sequence(step_);
    report.set_step(step_);
    report.set_loss(1.0 / static_cast<double>(step_));
    report.set_grad_norm(1);
    report.set_learning_rate(1e-3);
    report.set_tokens(1024);
    report.set_step_seconds(1);
    report.set_busy_seconds(0.75);
  }

  void OnCommand(const v1::AttachResponse& response) {
    switch (response.message_case()) {
      case v1::AttachResponse::kWelcome:
        return OpenBulk();
      case v1::AttachResponse::kClock: {
        v1::AttachRequest request;
        request.mutable_clock()->set_coordinator_nanos(response.clock().coordinator_nanos());
        request.mutable_clock()->set_worker_nanos(Clock::Real().SteadyNanos());
        return control_.Push(std::move(request));
      }
      case v1::AttachResponse::kPrepare: {
        absl::MutexLock lock(&mutex_);
        assignment_ = response.prepare().assignment();
        step_ = 0;
        sent_at_.clear();
        return Tell(v1::JobUpdate::PHASE_ADMITTED);
      }
      case v1::AttachResponse::kStart: {
        absl::MutexLock lock(&mutex_);
        training_ = true;
        return;
      }
      case v1::AttachResponse::kAbort: {
        absl::MutexLock lock(&mutex_);
        training_ = false;
        return Tell(v1::JobUpdate::PHASE_ABORTED);
      }
      default:
        return;
    }
  }

  void OpenBulk() {
    v1::StreamBulkRequest request;
    request.mutable_hello()->set_worker(name_);
    request.mutable_hello()->set_incarnation(name_);
    bulk_.Begin([&](auto* context, auto* reactor) { stub_->async()->StreamBulk(context, reactor); },
                request);
    absl::MutexLock lock(&mutex_);
    attached_ = true;
  }

  void OnAcknowledged(const v1::StreamBulkResponse& response) {
    absl::MutexLock lock(&mutex_);
    if (response.generation() != assignment_.generation()) return;
    const absl::Time now = absl::Now();
    while (step_ - static_cast<std::int64_t>(sent_at_.size()) < response.acknowledged_sequence() &&
           !sent_at_.empty()) {
      ack_seconds_.push_back(absl::ToDoubleSeconds(now - sent_at_.front()));
      sent_at_.pop_front();
    }
    if (training_ && step_ == options_.steps && sent_at_.empty()) {
      training_ = false;
      Tell(v1::JobUpdate::PHASE_FINISHED);
    }
  }

  void Tell(v1::JobUpdate::Phase phase) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    v1::AttachRequest request;
    v1::JobUpdate& update = *request.mutable_update();
    update.set_job(assignment_.job());
    update.set_generation(assignment_.generation());
    update.set_rank(assignment_.rank());
    update.set_phase(phase);
    update.mutable_status()->set_rank(assignment_.rank());
    update.mutable_status()->set_last_step(step_);
    control_.Push(std::move(request));
  }

  const SwarmOptions& options_;
  const std::string name_;
  std::unique_ptr<v1::AttachmentService::Stub> stub_;
  mutable absl::Mutex mutex_;
  bool attached_ ABSL_GUARDED_BY(mutex_) = false;
  bool training_ ABSL_GUARDED_BY(mutex_) = false;
  v1::Assignment assignment_ ABSL_GUARDED_BY(mutex_);
  std::int64_t step_ ABSL_GUARDED_BY(mutex_) = 0;           // the last one told of
  std::deque<absl::Time> sent_at_ ABSL_GUARDED_BY(mutex_);  // of those not acknowledged
  std::vector<double> ack_seconds_ ABSL_GUARDED_BY(mutex_);
  Stream<v1::AttachRequest, v1::AttachResponse> control_;
  Stream<v1::StreamBulkRequest, v1::StreamBulkResponse> bulk_;
};

class Swarm final : public WorkerSwarm {
 public:
  explicit Swarm(SwarmOptions options) : options_(std::move(options)) {
    for (int number = 0; number < options_.num_workers; ++number) {
      workers_.push_back(std::make_unique<FakeWorker>(options_, number));
    }
    heart_ = std::thread([this] { Beat(); });
  }
  ~Swarm() override {
    stopped_.Notify();
    heart_.join();
    for (const auto& worker : workers_) worker->Cut();
  }

  bool AwaitAttached(absl::Duration timeout) override {
    return AwaitAll(&FakeWorker::attached, timeout);
  }
  bool AwaitTraining(absl::Duration timeout) override {
    return AwaitAll(&FakeWorker::training, timeout);
  }
  void Step(int worker) override { workers_[worker]->Step(); }
  bool AwaitAcknowledged(absl::Duration timeout) override {
    return AwaitAll(&FakeWorker::all_acknowledged, timeout);
  }

  Counts counts() const override {
    Counts counts;
    for (const auto& worker : workers_) worker->AddTo(counts);
    return counts;
  }
  std::vector<double> TakeAckSeconds() override {
    std::vector<double> seconds;
    for (const auto& worker : workers_) worker->TakeAckSeconds(seconds);
    return seconds;
  }

 private:
  bool AwaitAll(bool (FakeWorker::*state)() const, absl::Duration timeout) const {
    const absl::Time deadline = absl::Now() + timeout;
    while (!std::all_of(workers_.begin(), workers_.end(),
                        [&](const auto& worker) { return ((*worker).*state)(); })) {
      if (absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return true;
  }

  // Heartbeats of all, spread over a second.
  void Beat() {
    const absl::Duration pause = absl::Seconds(1) / options_.num_workers;
    for (std::size_t next = 0; !stopped_.WaitForNotificationWithTimeout(pause); ++next) {
      workers_[next % workers_.size()]->Heartbeat();
    }
  }

  const SwarmOptions options_;
  std::vector<std::unique_ptr<FakeWorker>> workers_;
  absl::Notification stopped_;
  std::thread heart_;
};

}  // namespace

std::unique_ptr<WorkerSwarm> WorkerSwarm::Start(SwarmOptions options) {
  return std::make_unique<Swarm>(std::move(options));
}

}  // namespace takt::testing
