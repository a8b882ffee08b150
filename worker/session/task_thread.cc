// SPDX-License-Identifier: Apache-2.0
#include "worker/session/task_thread.h"

#include <pthread.h>

#include <utility>

namespace takt::session {

TaskThread::TaskThread(const char* name)
    : thread_([this, name] {
        pthread_setname_np(pthread_self(), name);
        Main();
      }) {}

TaskThread::~TaskThread() {
  {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
  }
  thread_.join();
}

void TaskThread::Add(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
}

void TaskThread::Finish() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &TaskThread::IdleLocked));
}

void TaskThread::Main() {
  for (;;) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mutex_);
      running_ = false;
      mutex_.Await(absl::Condition(this, &TaskThread::ToldLocked));
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      running_ = true;
    }
    task();
  }
}

}  // namespace takt::session
