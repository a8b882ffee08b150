// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/worker_swarm.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <thread>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/access/identity.h"
#include "common/base/clock.h"
#include "common/base/overloaded.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/control/assignment.h"
#include "common/control/attachment_serde.h"
#include "common/control/reports_serde.h"
#include "common/mesh/mesh.h"
#include "common/trace/encoding.h"
#include "takt/v1/attachment_service.grpc.pb.h"
#include "takt/v1/rendezvous_service.grpc.pb.h"
#include "tests/testing/swarm_connection.h"

namespace takt::testing {
namespace {

constexpr std::int64_t kInstructionNanos = 1'000'000;

// Returns the trace of a step of so many instructions in a row.
std::string SomeTrace(Rank rank, std::int64_t step, int instructions) {
  trace::StepTrace trace{.rank = rank,
                         .step = StepId(step),
                         .start_nanos = step * (instructions + 1) * kInstructionNanos};
  for (int i = 0; i < instructions; ++i) {
    const std::int64_t start = trace.start_nanos + i * kInstructionNanos;
    trace.body.push_back({start, start + kInstructionNanos * 9 / 10});
  }
  return trace::Encode(trace);
}

// A rank tells where it listens and waits until its neighbours have told the same.
class Meeting {
 public:
  // stub: borrowed. done: called once, if the neighbours came, on a thread of gRPC.
  Meeting(v1::RendezvousService::Stub* stub, const control::Assignment& assignment,
          std::function<void()> done)
      : stub_(stub), done_(std::move(done)) {
    const mesh::Mesh& mesh = assignment.mesh;
    const int rank = assignment.rank.value();
    const auto name = [](int of) { return absl::StrCat("tcp/rank/", of); };
    for (v1::RendezvousScope* const scope : {set_.mutable_scope(), wait_.mutable_scope()}) {
      scope->set_job(assignment.key.job);
      scope->set_generation(assignment.key.generation.value());
    }
    set_.set_key(name(rank));
    set_.set_value("127.0.0.1:1");
    for (const int step : {1, mesh.num_chains()}) {
      for (const int other : {rank - step, rank + step}) {
        if (other >= 0 && other < mesh.size()) wait_.add_keys(name(other));
      }
    }
    wait_.set_timeout_seconds(kMeetingSeconds);
    for (grpc::ClientContext* const context : {&set_context_, &wait_context_}) {
      context->set_deadline(std::chrono::system_clock::now() +
                            std::chrono::seconds(kMeetingSeconds + 10));
    }
  }

  void Begin() {
    stub_->async()->SetKey(&set_context_, &set_, &set_answer_, [this](const grpc::Status& status) {
      if (!status.ok()) return End();
      stub_->async()->WaitKeys(&wait_context_, &wait_, &wait_answer_,
                               [this](const grpc::Status& waited) {
                                 if (waited.ok()) done_();
                                 End();
                               });
    });
  }

  // Ends it and waits until it has.
  void Cut() {
    set_context_.TryCancel();
    wait_context_.TryCancel();
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&ended_));
  }

 private:
  static constexpr int kMeetingSeconds = 110;

  void End() {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
  }

  v1::RendezvousService::Stub* const stub_;
  const std::function<void()> done_;
  grpc::ClientContext set_context_, wait_context_;
  v1::SetKeyRequest set_;
  v1::SetKeyResponse set_answer_;
  v1::WaitKeysRequest wait_;
  v1::WaitKeysResponse wait_answer_;
  absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

class FakeWorker {
 public:
  using Dial = std::function<std::unique_ptr<SwarmConnection>()>;

  FakeWorker(const SwarmOptions& options, std::string name, Dial dial)
      : options_(options), name_(std::move(name)), dial_(std::move(dial)) {
    Attach();
  }

  // Attaches for the first time, or again after Cut, over a new connection and with the rank that
  // it holds.
  void Attach() {
    absl::MutexLock streams(&streams_mutex_);
    control_.reset();
    bulk_.reset();
    meetings_.clear();
    connection_ = dial_();
    rendezvous_ = v1::RendezvousService::NewStub(connection_->channel());
    control_ = connection_->OpenControl(
        [this](const v1::AttachResponse& response) { OnCommand(response); });
    bulk_ = connection_->OpenBulk(
        [this](const v1::StreamBulkResponse& response) { OnAcknowledged(response); });
    control::Hello hello{.worker = name_,
                         .incarnation = name_,
                         .protocol_version = kProtocolVersion,
                         .host = name_,
                         .cores = 1,
                         .memory_bytes = std::int64_t{1} << 34,
                         .matmul_rates = {.f32 = 1e11},
                         .data_address = "127.0.0.1"};
    {
      absl::MutexLock lock(&mutex_);
      if (training_) {
        hello.running = control::RunningJob{
            .key = key_, .rank = rank_, .last_step = StepId(step_), .cluster_id = cluster_id_};
      }
    }
    control_->Begin(control::ToProto(hello));
  }

  void Cut() {
    control_->Cut();
    if (attached()) bulk_->Cut();
    // No command comes any more, so no meeting is added.
    for (const auto& meeting : meetings_) meeting->Cut();
    absl::MutexLock lock(&mutex_);
    attached_ = false;
  }

  bool attached() const {
    absl::MutexLock lock(&mutex_);
    return attached_;
  }
  bool training() const {
    absl::MutexLock lock(&mutex_);
    return training_;
  }
  bool stopped() const { return !training(); }
  // Returns the job that it trains; empty: none.
  std::string job() const {
    absl::MutexLock lock(&mutex_);
    return training_ ? key_.job : "";
  }
  bool all_acknowledged() const {
    absl::MutexLock lock(&mutex_);
    return sent_at_.empty();
  }
  void AddTo(WorkerSwarm::Counts& counts) const {
    absl::MutexLock lock(&mutex_);
    counts.reported += step_;
    counts.acknowledged += step_ - static_cast<std::int64_t>(sent_at_.size());
    counts.lost_streams += control_->done() || (attached_ && bulk_->done()) ? 1 : 0;
    counts.largest_assignment_bytes = std::max(counts.largest_assignment_bytes, assignment_bytes_);
  }
  void TakeAckSeconds(std::vector<double>& seconds) {
    absl::MutexLock lock(&mutex_);
    seconds.insert(seconds.end(), ack_seconds_.begin(), ack_seconds_.end());
    ack_seconds_.clear();
  }

  void Heartbeat() {
    absl::MutexLock streams(&streams_mutex_);
    control::Heartbeat heartbeat;
    {
      absl::MutexLock lock(&mutex_);
      if (!attached_) return;
      heartbeat = {.key = key_, .status = StatusLocked()};
    }
    control_->Push(control::ToProto(heartbeat));
  }

  void Fail() {
    absl::MutexLock lock(&mutex_);
    if (!training_) return;
    training_ = false;
    Tell(control::Phase::kFailed);
  }

  void Step() {
    control::RankStepReport report;
    control::StepTrace trace;
    {
      absl::MutexLock lock(&mutex_);
      if (!training_ || step_ == options_.steps) return;
      ++step_;
      sent_at_.push_back(absl::Now());
      report = {.key = key_,
                .rank = rank_,
                .sequence = step_,
                .step = StepId(step_),
                .step_seconds = 1,
                .busy_seconds = 0.75,
                .loss = 1.0 / static_cast<double>(step_),
                .grad_norm = 1,
                .learning_rate = 1e-3,
                .tokens = 1024};
      trace = {.key = key_, .trace = SomeTrace(rank_, step_, instructions_)};
    }
    bulk_->Push(control::ToProto(report));
    if (options_.traces) bulk_->Push(control::ToProto(trace));
  }

 private:
  control::RankStatus StatusLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return {.rank = rank_, .last_step = StepId(step_)};
  }

  void OnCommand(const v1::AttachResponse& response) {
    if (const auto command = control::FromProto(response)) {
      std::visit(Overloaded{[&](const control::Welcome& welcome) { OpenBulk(welcome); },
                            [&](const control::ClockProbe& probe) {
                              control_->Push(control::ToProto(control::ClockAnswer{
                                  .coordinator_nanos = probe.coordinator_nanos,
                                  .worker_nanos = Clock::Real().SteadyNanos()}));
                            },
                            [&](const control::Prepare& prepare) {
                              Prepare(prepare, response.ByteSizeLong());
                            },
                            [&](const control::Start&) {
                              absl::MutexLock lock(&mutex_);
                              training_ = true;
                            },
                            [&](const control::Abort&) {
                              absl::MutexLock lock(&mutex_);
                              training_ = false;
                              Tell(control::Phase::kAborted);
                            },
                            [](const auto&) {}},
                 *command);
    }
  }

  void Prepare(const control::Prepare& prepare, std::size_t bytes) {
    const absl::StatusOr<control::Assignment> assignment = prepare.assignment();
    const bool meets = options_.meets && assignment.ok();
    {
      absl::MutexLock lock(&mutex_);
      key_ = prepare.key;
      rank_ = prepare.rank;
      instructions_ = assignment.ok() ? static_cast<int>(assignment->program.body.size()) : 0;
      assignment_bytes_ = static_cast<std::int64_t>(bytes);
      step_ = 0;
      sent_at_.clear();
      if (!meets) Tell(control::Phase::kAdmitted);
    }
    if (!meets) return;
    meetings_.push_back(std::make_unique<Meeting>(rendezvous_.get(), *assignment, [this] {
      absl::MutexLock lock(&mutex_);
      Tell(control::Phase::kAdmitted);
    }));
    meetings_.back()->Begin();
  }

  void OpenBulk(const control::Welcome& welcome) {
    bulk_->Begin(control::ToProto(control::BulkHello{name_, name_}));
    absl::MutexLock lock(&mutex_);
    cluster_id_ = welcome.cluster_id;
    attached_ = true;
  }

  void OnAcknowledged(const v1::StreamBulkResponse& response) {
    const control::ReportsAcknowledged acknowledged = control::FromProto(response);
    absl::MutexLock lock(&mutex_);
    if (acknowledged.key.generation != key_.generation) return;
    const absl::Time now = absl::Now();
    while (step_ - static_cast<std::int64_t>(sent_at_.size()) < acknowledged.sequence &&
           !sent_at_.empty()) {
      ack_seconds_.push_back(absl::ToDoubleSeconds(now - sent_at_.front()));
      sent_at_.pop_front();
    }
    if (training_ && step_ == options_.steps && sent_at_.empty()) {
      training_ = false;
      Tell(control::Phase::kFinished);
    }
  }

  void Tell(control::Phase phase) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    control_->Push(control::ToProto(
        control::JobUpdate{.key = key_, .rank = rank_, .phase = phase, .status = StatusLocked()}));
  }

  const SwarmOptions& options_;
  const std::string name_;
  const Dial dial_;
  std::unique_ptr<SwarmConnection> connection_;
  std::unique_ptr<v1::RendezvousService::Stub> rendezvous_;
  mutable absl::Mutex mutex_;
  bool attached_ ABSL_GUARDED_BY(mutex_) = false;
  bool training_ ABSL_GUARDED_BY(mutex_) = false;
  std::string cluster_id_ ABSL_GUARDED_BY(mutex_);
  control::JobKey key_ ABSL_GUARDED_BY(mutex_);
  Rank rank_ ABSL_GUARDED_BY(mutex_);
  int instructions_ ABSL_GUARDED_BY(mutex_) = 0;  // of its program
  std::int64_t assignment_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t step_ ABSL_GUARDED_BY(mutex_) = 0;           // the last one told of
  std::deque<absl::Time> sent_at_ ABSL_GUARDED_BY(mutex_);  // of those not acknowledged
  std::vector<double> ack_seconds_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Meeting>> meetings_;  // the control stream's callbacks add to it
  // Attach replaces the streams while none of their callbacks runs. The thread that sends
  // heartbeats holds this mutex meanwhile.
  absl::Mutex streams_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  std::unique_ptr<SwarmConnection::ControlPort> control_;
  std::unique_ptr<SwarmConnection::BulkPort> bulk_;
};

class Swarm final : public WorkerSwarm {
 public:
  explicit Swarm(SwarmOptions options)
      : options_(std::move(options)), certifier_(options_.authority) {
    // To dial for thousands takes longer than a lease, so the first ones have a heart by then.
    workers_.resize(options_.num_workers);
    heart_ = std::thread([this] { Beat(); });
    if (shares()) flusher_ = std::thread([this] { FlushHosts(); });
    for (int number = 0; number < options_.num_workers; ++number) {
      if (shares() && number % options_.workers_per_host == 0) AddHost();
      workers_[number] = std::make_unique<FakeWorker>(options_, NameOf(number), HowToDial(number));
      num_begun_ = number + 1;
    }
  }
  ~Swarm() override {
    stopped_.Notify();
    heart_.join();
    if (flusher_.joinable()) flusher_.join();
    for (const auto& worker : workers_) worker->Cut();
  }

  void Reconnect(int num_workers) override {
    const int share = std::max(1, options_.workers_per_host);
    const int num_hosts = std::max(1, num_workers / share);
    const auto first = std::span(workers_).first(static_cast<std::size_t>(num_hosts * share));
    for (const auto& worker : first) worker->Cut();
    for (int host = 0; shares() && host < num_hosts; ++host) DialHost(host);
    for (const auto& worker : first) worker->Attach();
  }
  bool AwaitAttached(absl::Duration timeout) override {
    return AwaitAll(&FakeWorker::attached, timeout);
  }
  bool AwaitTraining(absl::Duration timeout) override {
    return AwaitAll(&FakeWorker::training, timeout);
  }
  bool AwaitStopped(absl::Duration timeout) override {
    return AwaitAll(&FakeWorker::stopped, timeout);
  }
  void Fail(int worker) override { workers_[worker]->Fail(); }
  std::vector<std::vector<int>> WorkersOfJobs() const override {
    std::map<std::string, std::vector<int>> by_job;
    for (int i = 0; i < options_.num_workers; ++i) {
      if (const std::string job = workers_[i]->job(); !job.empty()) by_job[job].push_back(i);
    }
    std::vector<std::vector<int>> jobs;
    for (auto& [job, workers] : by_job) jobs.push_back(std::move(workers));
    return jobs;
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

  // Heartbeats of all, spread over a second. One that is late does not delay those after it.
  void Beat() {
    const absl::Duration pause = absl::Seconds(1) / options_.num_workers;
    absl::Time due = absl::Now();
    for (int next = 0; !stopped_.WaitForNotificationWithTimeout(due - absl::Now());
         next = (next + 1) % options_.num_workers) {
      if (next < num_begun_) workers_[next]->Heartbeat();
      due += pause;
    }
  }

  bool shares() const { return options_.workers_per_host > 0; }

  // Gangs are in the order of names, so those of all digits keep neighbours in one job.
  std::string NameOf(int number) const {
    const int share = options_.workers_per_host;
    return shares() ? absl::StrCat(HostName(number / share), "-", number % share)
                    : absl::StrCat("fake-", absl::Dec(number, absl::kZeroPad5));
  }
  static std::string HostName(int host) { return absl::StrCat("host-", host); }

  FakeWorker::Dial HowToDial(int number) {
    if (shares()) {
      return [this, host = number / options_.workers_per_host] {
        absl::MutexLock lock(&hosts_mutex_);
        return hosts_[host]->Join();
      };
    }
    return [this, credentials = certifier_.CredentialsOf(access::Role::kWorker, NameOf(number))] {
      return DialAlone(options_.coordinator, credentials);
    };
  }

  void AddHost() {
    const int host = static_cast<int>(host_credentials_.size());
    host_credentials_.push_back(certifier_.CredentialsOf(access::Role::kHost, HostName(host)));
    DialHost(host);
  }
  // Again, or for the first time: then it is the next one.
  void DialHost(int host) {
    std::shared_ptr<SwarmHost> dialled =
        SwarmHost::Dial(options_.coordinator, host_credentials_[host]);
    absl::MutexLock lock(&hosts_mutex_);
    if (host == static_cast<int>(hosts_.size())) hosts_.emplace_back();
    hosts_[host].swap(dialled);
  }

  void FlushHosts() {
    while (!stopped_.WaitForNotificationWithTimeout(absl::Milliseconds(2))) {
      std::vector<std::shared_ptr<SwarmHost>> hosts;
      {
        absl::MutexLock lock(&hosts_mutex_);
        hosts = hosts_;
      }
      for (const auto& host : hosts) host->Flush();
    }
  }

  const SwarmOptions options_;
  const Certifier certifier_;
  std::vector<std::shared_ptr<grpc::ChannelCredentials>> host_credentials_;
  absl::Mutex hosts_mutex_;
  std::vector<std::shared_ptr<SwarmHost>> hosts_ ABSL_GUARDED_BY(hosts_mutex_);
  std::vector<std::unique_ptr<FakeWorker>> workers_;
  std::atomic<int> num_begun_ = 0;  // of workers_: the others are null
  absl::Notification stopped_;
  std::thread heart_, flusher_;
};

}  // namespace

std::unique_ptr<WorkerSwarm> WorkerSwarm::Start(SwarmOptions options) {
  return std::make_unique<Swarm>(std::move(options));
}

}  // namespace takt::testing
