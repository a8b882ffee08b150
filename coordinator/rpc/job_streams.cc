// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rpc/job_streams.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/rpc/convert.h"
#include "coordinator/store/record_serde.h"
#include "proto/writing_stream.h"

namespace takt::coordinator_rpc {
namespace {

constexpr int kBatch = 256;
constexpr std::size_t kMaxQueue = 1024;

// Reads from the store when there may be something new, one reader at a time.
template <class Response>
class Follower : public WritingStream<grpc::ServerWriteReactor<Response>, Response>,
                 public std::enable_shared_from_this<Follower<Response>> {
 public:
  void Begin(const absl::StatusOr<job::JobView>& job) {
    this->KeepUntilDone(this->shared_from_this());
    if (!job.ok()) {
      this->Cut(job.status());
      return;
    }
    id_ = (*job)->id;
    // The pointer is weak, because the board must not keep a stream alive.
    subscription_ = coordinator_->board().Subscribe(id_, [weak = this->weak_from_this()] {
      if (const auto self = weak.lock()) self->OnChange();
    });
    OnChange();
  }

  void OnCancel() override { this->Cut(absl::CancelledError("the client left")); }

 protected:
  Follower(grpc::CallbackServerContext* context, job::Coordinator* coordinator,
           absl::Duration stall)
      : WritingStream<grpc::ServerWriteReactor<Response>, Response>(context, kMaxQueue, stall),
        coordinator_(coordinator) {}

  // Pushes what is new, at most a batch. job: as last published. Returns true if there may be more.
  virtual bool Pull(const store::JobRecord& job) = 0;

  job::Coordinator* const coordinator_;
  std::string id_;

 private:
  void OnWrittenOut() override { OnChange(); }

  void OnChange() {
    absl::MutexLock lock(&pull_mutex_);
    while (!this->finished()) {
      if (this->writing()) return;
      const job::JobView job = coordinator_->board().FindById(id_);
      if (job == nullptr) {
        this->Cut(absl::NotFoundError("the job was deleted"));
        return;
      }
      if (!Pull(*job)) return;
    }
  }

  absl::Mutex pull_mutex_;  // before the stream's own
  job::Board::Subscription subscription_;
};

class WatchStream final : public Follower<v1::WatchJobResponse> {
 public:
  WatchStream(grpc::CallbackServerContext* context, job::Coordinator* coordinator,
              absl::Duration stall, StepId after)
      : Follower(context, coordinator, stall), after_(after) {}

 private:
  void PushJob(const store::JobRecord& job) {
    v1::WatchJobResponse response;
    *response.mutable_job() = store::ToProto(job);
    this->Push(std::move(response));
    shown_transitions_ = job.num_transitions();
    shown_reason_ = job.reason;
    shown_checkpoint_ = CheckpointOf(job);
    shown_notices_ = job.notices;
  }

  static StepId CheckpointOf(const store::JobRecord& job) {
    return job.checkpoint ? job.checkpoint->step : StepId(0);
  }

  bool IsNews(const store::JobRecord& job) const {
    return job.reason != shown_reason_ || CheckpointOf(job) != shown_checkpoint_ ||
           job.notices != shown_notices_;
  }

  void PushSplit(const job::StepSplit& split) {
    v1::WatchJobResponse response;
    *response.mutable_split() = ToProto(split);
    this->Push(std::move(response));
    shown_split_ = {split.generation, split.step};
  }

  // Returns the job as it was when transition number `i` was its last.
  static store::JobRecord AsOf(const store::JobRecord& job, std::size_t i) {
    store::JobRecord past = job;
    past.state = job.transitions[i].state;
    past.reason = job.transitions[i].reason;
    past.transitions.resize(i + 1);
    past.end_time.reset();
    return past;
  }

  // Pushes the job first, then every change of state before its end, then steps, then where the
  // time of the newest explained step went, and the job's end last.
  bool Pull(const store::JobRecord& job) override {
    const bool ended = store::HasEnded(job.state);
    if (shown_transitions_ == 0) PushJob(job);
    const std::size_t open_transitions = job.transitions.size() - (ended ? 1 : 0);
    for (std::size_t i = job.FirstTransitionAfter(shown_transitions_); i < open_transitions; ++i) {
      PushJob(i + 1 == job.transitions.size() ? job : AsOf(job, i));
    }
    if (!ended && IsNews(job)) PushJob(job);
    if (job.last_step && job.last_step->step > after_) {
      absl::StatusOr<std::vector<store::StepRecord>> steps =
          coordinator_->store().ReadSteps(id_, after_, kBatch);
      if (!steps.ok()) {
        this->Cut(steps.status());
        return false;
      }
      for (const store::StepRecord& step : *steps) {
        v1::WatchJobResponse response;
        *response.mutable_step() = store::ToProto(step);
        this->Push(std::move(response));
        after_ = step.step;
      }
      if (!steps->empty()) return true;
    }
    if (const job::SplitView split = coordinator_->board().FindSplit(id_);
        split != nullptr && std::pair(split->generation, split->step) != shown_split_) {
      PushSplit(*split);
    }
    if (!ended) return false;
    PushJob(job);
    this->FinishAfterWrites(absl::OkStatus());
    return false;
  }

  StepId after_;
  std::int64_t shown_transitions_ = 0;  // forgotten ones among them
  std::string shown_reason_;
  StepId shown_checkpoint_;
  std::pair<Generation, StepId> shown_split_;
  std::vector<std::string> shown_notices_;
};

class LogStream final : public Follower<v1::GetJobLogsResponse> {
 public:
  LogStream(grpc::CallbackServerContext* context, job::Coordinator* coordinator,
            absl::Duration stall, const v1::GetJobLogsRequest& request)
      : Follower(context, coordinator, stall),
        follow_(request.follow()),
        ranks_(request.ranks().begin(), request.ranks().end()) {}

 private:
  bool Pull(const store::JobRecord& job) override {
    const absl::StatusOr<std::vector<store::LogRecord>> lines =
        coordinator_->store().ReadLogs(id_, after_, kBatch);
    if (!lines.ok()) {
      this->Cut(lines.status());
      return false;
    }
    for (const store::LogRecord& line : *lines) {
      after_ = line.number;
      if (!ranks_.empty() && !ranks_.contains(line.rank.value())) continue;
      v1::GetJobLogsResponse response;
      *response.mutable_line() = store::ToProto(line);
      this->Push(std::move(response));
    }
    if (!lines->empty()) return true;
    if (!follow_ || store::HasEnded(job.state)) this->FinishAfterWrites(absl::OkStatus());
    return false;
  }

  const bool follow_;
  const std::set<std::int32_t> ranks_;  // empty: all
  std::int64_t after_ = 0;
};

}  // namespace

grpc::ServerWriteReactor<v1::WatchJobResponse>* StartWatch(grpc::CallbackServerContext* context,
                                                           job::Coordinator* coordinator,
                                                           const absl::StatusOr<job::JobView>& job,
                                                           absl::Duration stall, StepId after) {
  auto stream = std::make_shared<WatchStream>(context, coordinator, stall, after);
  stream->Begin(job);
  return stream.get();
}

grpc::ServerWriteReactor<v1::GetJobLogsResponse>* StartLogs(grpc::CallbackServerContext* context,
                                                            job::Coordinator* coordinator,
                                                            const absl::StatusOr<job::JobView>& job,
                                                            absl::Duration stall,
                                                            const v1::GetJobLogsRequest& request) {
  auto stream = std::make_shared<LogStream>(context, coordinator, stall, request);
  stream->Begin(job);
  return stream.get();
}

}  // namespace takt::coordinator_rpc
