// SPDX-License-Identifier: Apache-2.0
#include "worker/session/job_thread.h"

#include <pthread.h>

#include <utility>

namespace takt::session {

JobThread::JobThread(DecodeAssignment decode, RankRunnerFactory factory, Callbacks callbacks)
    : callbacks_(std::move(callbacks)),
      thread_([this, decode = std::move(decode), factory = std::move(factory)] {
        pthread_setname_np(pthread_self(), "takt-job");
        Main(decode, factory);
      }) {}

JobThread::~JobThread() {
  Release();
  thread_.join();
}

RankRunner* JobThread::Build(const DecodeAssignment& decode, const RankRunnerFactory& factory) {
  absl::StatusOr<control::Assignment> assignment = decode();
  if (!assignment.ok()) {
    callbacks_.built(assignment.status());
    return nullptr;
  }
  RankRunner* runner = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    runner_ = factory(*std::move(assignment));
    runner = runner_.get();
    if (halt_) runner->Halt(halt_in_memory_);
    if (!stop_reason_.ok()) runner->Stop(stop_reason_);
  }
  absl::StatusOr<control::Resumed> resumed = runner->Prepare();
  const bool ready = resumed.ok();
  callbacks_.built(std::move(resumed));
  return ready ? runner : nullptr;
}

void JobThread::Main(const DecodeAssignment& decode, const RankRunnerFactory& factory) {
  if (RankRunner* const runner = Build(decode, factory); runner != nullptr) {
    bool run = false;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &JobThread::ToldLocked));
      run = run_ && !released_;
    }
    if (run) {
      const absl::StatusOr<RunEnd> end = runner->Run(callbacks_.report);
      callbacks_.run_ended(end, runner->Status());
    }
  }
  std::unique_ptr<RankRunner> runner;
  {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&released_));
    if (runner_ != nullptr) last_status_ = runner_->Status();
    runner = std::move(runner_);
  }
  if (runner != nullptr) {
    if (absl::Status poisoned = runner->Poisoned(); !poisoned.ok())
      callbacks_.poisoned(std::move(poisoned));
  }
  runner.reset();  // outside the mutex: it may take long, and Status must not wait for it
  callbacks_.gone();
}

void JobThread::Run() {
  absl::MutexLock lock(&mutex_);
  run_ = true;
}

void JobThread::Halt(bool in_memory) {
  absl::MutexLock lock(&mutex_);
  halt_ = true;
  halt_in_memory_ &= in_memory;
  if (runner_ != nullptr) runner_->Halt(in_memory);
}

void JobThread::Stop(const absl::Status& reason) {
  absl::MutexLock lock(&mutex_);
  stop_reason_ = reason;
  if (runner_ != nullptr) runner_->Stop(reason);
  released_ = true;
}

void JobThread::Release() {
  absl::MutexLock lock(&mutex_);
  released_ = true;
}

control::RankStatus JobThread::Status() const {
  absl::MutexLock lock(&mutex_);
  return runner_ == nullptr ? last_status_ : runner_->Status();
}

}  // namespace takt::session
