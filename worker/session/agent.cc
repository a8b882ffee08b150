// SPDX-License-Identifier: Apache-2.0
#include "worker/session/agent.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace takt::session {
namespace {

// How often the agent looks at the clock when nothing happens.
constexpr absl::Duration kTick = absl::Milliseconds(500);

void LogUpdate(const control::JobUpdate& update) {
  const LogLevel level =
      update.phase == control::Phase::kRefused || update.phase == control::Phase::kFailed
          ? LogLevel::kWarning
          : LogLevel::kInfo;
  Log(level, absl::StrCat("rank ", Name(update.phase)),
      {{"job", update.key.job},
       {"generation", std::to_string(update.key.generation.value())},
       {"rank", std::to_string(update.rank.value())},
       {"step", std::to_string(update.status.last_step.value())},
       {"instruction", update.status.instruction},
       {"waiting_for", update.status.waiting_for},
       {"error", update.failure.error}});
}

}  // namespace

Agent::Agent(AgentOptions options)
    : options_(std::move(options)), lifecycle_(options_.leave_timeout) {}

Agent::~Agent() {
  outbox_.EndWaits();
  std::unique_ptr<JobThread> thread;
  {
    absl::MutexLock lock(&mutex_);
    thread = std::move(thread_);
  }
  if (thread != nullptr) thread->Stop(absl::CancelledError("the worker ends"));
}

int Agent::Run(CoordinatorLink& link) {
  committer_ = std::make_unique<CheckpointCommitter>(
      options_.commit, options_.retain,
      [&link](const control::CheckpointCommitted& answer) { link.Send(answer); });
  describer_ = std::make_unique<TaskThread>("takt-describe");
  link_ = &link;
  while (!exit_code_.has_value()) {
    if (const std::function<Effects()> event = NextEvent()) Apply(event(), link);
    if (lifecycle_.LeaveIsDue(Now())) Apply(lifecycle_.Leave(ThreadStatus(), Now()), link);
    if (!exit_code_.has_value()) Apply(lifecycle_.Tick(Now()), link);
    ForgetOldJob();
    absl::MutexLock lock(&mutex_);
    shown_.reset();
    if (lifecycle_.state() != RankLifecycle::State::kIdle)
      shown_ = {lifecycle_.key(), lifecycle_.rank()};
  }
  describer_.reset();
  committer_.reset();
  link_ = nullptr;
  return *exit_code_;
}

void Agent::ForgetOldJob() {
  if (lifecycle_.state() != RankLifecycle::State::kIdle) idle_since_ = Now();
  const absl::Duration idle = Now() - idle_since_;
  if (!copied_job_.empty() && idle >= (goes_on_ ? options_.keep_copies : options_.keep_job)) {
    if (options_.forget_copies) options_.forget_copies(copied_job_);
    copied_job_.clear();
  }
  if (!last_job_.empty() && idle >= options_.keep_job) {
    if (options_.on_job_over) options_.on_job_over(last_job_);
    last_job_.clear();
  }
}

void Agent::Post(std::function<Effects()> event) {
  absl::MutexLock lock(&mutex_);
  events_.push_back(std::move(event));
  posted_.SignalAll();
}

std::function<Effects()> Agent::NextEvent() {
  absl::MutexLock lock(&mutex_);
  const auto some = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !events_.empty(); };
  if (!posted_.AwaitFor(mutex_, absl::Condition(&some), kTick)) return nullptr;
  std::function<Effects()> event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void Agent::Apply(const Effects& effects, CoordinatorLink& link) {
  for (const Effect& effect : effects) {
    if (const auto* build = std::get_if<EffectBuild>(&effect)) {
      Build(build->key);
    } else if (const auto* send = std::get_if<EffectSend>(&effect)) {
      LogUpdate(send->update);
      link.Send(send->update);
    } else if (std::holds_alternative<EffectHeartbeat>(effect)) {
      link.SendHeartbeat();
    } else if (const auto* halt = std::get_if<EffectHalt>(&effect)) {
      absl::MutexLock lock(&mutex_);
      thread_->Halt(halt->in_memory);
    } else if (const auto* leaving = std::get_if<EffectLeaving>(&effect)) {
      if (!link.SendLeaving(leaving->reason)) Detached();
    } else if (const auto* exit = std::get_if<EffectExit>(&effect)) {
      Log(exit->code == kExitLeft ? LogLevel::kInfo : LogLevel::kError, "worker ends",
          {{"reason", exit->reason}, {"exit_code", std::to_string(exit->code)}});
      exit_code_ = exit->code;
    } else {
      const bool run = std::holds_alternative<EffectRun>(effect);
      if (!run) outbox_.EndWaits();
      absl::MutexLock lock(&mutex_);
      if (run) thread_->Run();
      if (std::holds_alternative<EffectRelease>(effect)) thread_->Release();
      if (const auto* stop = std::get_if<EffectStop>(&effect)) thread_->Stop(stop->reason);
    }
  }
}

void Agent::Build(const control::JobKey& key) {
  TAKT_CHECK(decode_.has_value() && decode_->first == key);
  if (options_.on_job_over && !last_job_.empty()) options_.on_job_over(last_job_);
  last_job_ = copied_job_ = key.job;
  goes_on_ = false;
  outbox_.BeginJob(key, lifecycle_.rank());
  {
    absl::MutexLock lock(&mutex_);
    shared_ = {};
  }
  auto decode_and_keep = [this, decode = std::move(decode_->second)] {
    absl::StatusOr<control::Assignment> assignment = decode();
    if (!assignment.ok()) return assignment;
    SharedPart shared = SharedPartOf(*assignment);
    absl::MutexLock lock(&mutex_);
    shared_ = std::move(shared);
    return assignment;
  };
  auto thread = std::make_unique<JobThread>(std::move(decode_and_keep), options_.runner_factory,
                                            ThreadCallbacks());
  decode_.reset();
  absl::MutexLock lock(&mutex_);
  thread_ = std::move(thread);
}

JobThread::Callbacks Agent::ThreadCallbacks() {
  return {
      .built =
          [this](absl::StatusOr<control::Resumed> resumed) {
            Post([this, resumed = std::move(resumed)] { return lifecycle_.Built(resumed, Now()); });
          },
      .report =
          [this, first = true](Report report) mutable {
            if (std::exchange(first, false)) {
              Post([this] { return lifecycle_.FirstStepDone(); });
            }
            outbox_.AddReport(std::move(report));
          },
      .run_ended =
          [this](absl::StatusOr<RunEnd> end, control::RankStatus rank_status) {
            Post([this, end = std::move(end), rank_status = std::move(rank_status)] {
              Effects effects = lifecycle_.RunEnded(end, rank_status, Now());
              for (Effect& effect : CheckFlushed()) effects.push_back(std::move(effect));
              return effects;
            });
          },
      .poisoned =
          [this](absl::Status reason) {
            Post([this, reason = std::move(reason)] { return lifecycle_.Poisoned(reason); });
          },
      .gone =
          [this] {
            Post([this] {
              std::unique_ptr<JobThread> thread;
              {
                absl::MutexLock lock(&mutex_);
                thread = std::move(thread_);
              }
              thread.reset();  // the event was the thread's last act, so this joins at once
              return lifecycle_.Gone();
            });
          }};
}

control::RankStatus Agent::ThreadStatus() const {
  absl::MutexLock lock(&mutex_);
  return thread_ == nullptr ? control::RankStatus() : thread_->Status();
}

Effects Agent::CheckFlushed() {
  if (lifecycle_.state() != RankLifecycle::State::kFlushing || !outbox_.AllAcknowledged())
    return {};
  return lifecycle_.Flushed(ThreadStatus(), Now());
}

void Agent::Prepare(control::JobKey key, Rank rank, DecodeAssignment decode) {
  Post([this, key = std::move(key), rank, decode = std::move(decode)] {
    // A rank that is held has its assignment; the newest one may be for the rank after it.
    if (!lifecycle_.Holds(key)) decode_ = {key, decode};
    return lifecycle_.Prepare(key, rank);
  });
}

void Agent::Start(control::JobKey key) {
  Post([this, key = std::move(key)] { return lifecycle_.Start(key); });
}

void Agent::Halt(control::JobKey key, std::string reason, bool in_memory) {
  Post([this, key = std::move(key), reason = std::move(reason), in_memory] {
    Log(LogLevel::kInfo, "asked to halt", {{"job", key.job}, {"reason", reason}});
    return lifecycle_.Halt(key, in_memory);
  });
}

void Agent::Abort(control::JobKey key, std::string reason) {
  Post([this, key = std::move(key), reason = std::move(reason)] {
    return lifecycle_.Abort(key, reason, ThreadStatus(), Now());
  });
}

void Agent::Acknowledge(control::JobKey key, bool keeps_copies) {
  Post([this, key = std::move(key), keeps_copies] {
    if (key.job == copied_job_) goes_on_ = keeps_copies;
    if (!keeps_copies && options_.forget_copies) options_.forget_copies(key.job);
    return lifecycle_.Acknowledge(key);
  });
}

void Agent::AcknowledgeReports(const control::JobKey& key, std::int64_t sequence) {
  outbox_.Acknowledge(key, sequence);
  if (outbox_.AllAcknowledged()) Post([this] { return CheckFlushed(); });
}

void Agent::Commit(control::CommitCheckpoint request) {
  Post([this, request = std::move(request)] {
    committer_->Add(request);
    return Effects();
  });
}

void Agent::Describe(const control::Describe& request, std::int64_t epoch) {
  Post([this, request, epoch] {
    if (lifecycle_.Holds(request.key)) DescribeHeld(request.whole, epoch);
    return Effects();
  });
}

void Agent::DescribeHeld(bool whole, std::int64_t epoch) {
  SharedPart shared;
  {
    absl::MutexLock lock(&mutex_);
    shared = shared_;
  }
  const BulkOutbox::Acknowledged acknowledged = outbox_.acknowledged();
  const control::Resumed& resumed = lifecycle_.resumed();
  control::RankDescription description{.key = lifecycle_.key(),
                                       .rank = lifecycle_.rank(),
                                       .assignment_hash = shared.hash,
                                       .acknowledged_step = acknowledged.step,
                                       .acknowledged_checkpoint = acknowledged.checkpoint,
                                       .epoch = epoch,
                                       .resumed = resumed.step,
                                       .from_memory = resumed.from_memory,
                                       .kernel_plan = resumed.kernel_plan};
  if (!whole || shared.hash.empty()) return link_->Send(description);
  describer_->Add([this, link = link_, shared = std::move(shared),
                   description = std::move(description)]() mutable {
    DescribeJob(shared, options_.checkpoint_root, description);
    link->Send(description);
  });
}

void Agent::Adopted(const control::JobKey& key) {
  Post([this, key] {
    if (!lifecycle_.Holds(key)) return Effects();
    outbox_.Resend();
    return lifecycle_.Attached();
  });
}

void Agent::Attached() {
  away_ = false;
  Post([this] { return lifecycle_.Attached(); });
}

void Agent::Detached() {
  away_ = true;
  Post([this] { return lifecycle_.Detached(ThreadStatus(), Now()); });
}

void Agent::Stuck(std::string reason) {
  Post([reason = std::move(reason)] { return Effects{EffectExit{kExitStuck, reason}}; });
}

void Agent::Ask(std::function<void()> answer) {
  Post([answer = std::move(answer)] {
    answer();
    return Effects();
  });
}

void Agent::Leave() {
  Post([this] { return lifecycle_.Leave(ThreadStatus(), Now()); });
}

std::optional<Holding> Agent::held() const {
  absl::MutexLock lock(&mutex_);
  if (!shown_.has_value()) return std::nullopt;
  Holding holding{.key = shown_->first, .rank = shown_->second};
  if (thread_ != nullptr) holding.status = thread_->Status();
  return holding;
}

}  // namespace takt::session
