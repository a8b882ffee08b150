// SPDX-License-Identifier: Apache-2.0
#include "worker/engine/side_thread.h"

#include <pthread.h>

#include <utility>

#include "worker/engine/lane_waits.h"

namespace takt::engine {

SideThread::SideThread() : thread_([this] { Main(); }) {}

SideThread::~SideThread() {
  ended_.store(true, std::memory_order_seq_cst);
  given_moved_.Wake();
  thread_.join();
}

void SideThread::Start(std::function<void()> work) {
  work_ = std::move(work);
  given_.fetch_add(1, std::memory_order_seq_cst);
  given_moved_.Wake();
}

void SideThread::Await() {
  const std::uint64_t given = given_.load(std::memory_order_relaxed);
  done_moved_.Await([&] { return done_.load(std::memory_order_seq_cst) == given; },
                    transport::kNoDeadline, kSpinNanos);
}

void SideThread::Main() {
  pthread_setname_np(pthread_self(), "takt/pair");
  for (std::uint64_t number = 1;; ++number) {
    given_moved_.Await(
        [&] {
          return given_.load(std::memory_order_seq_cst) >= number ||
                 ended_.load(std::memory_order_seq_cst);
        },
        transport::kNoDeadline, kSpinNanos);
    if (given_.load(std::memory_order_seq_cst) < number) return;
    work_();
    done_.store(number, std::memory_order_seq_cst);
    done_moved_.Wake();
  }
}

}  // namespace takt::engine
