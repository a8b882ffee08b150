// SPDX-License-Identifier: Apache-2.0
#include "common/base/steady_cond_var.h"

#include <chrono>
#include <thread>

#include "gtest/gtest.h"

namespace takt {
namespace {

struct Door {
  absl::Mutex mutex;
  SteadyCondVar changed;
  bool open ABSL_GUARDED_BY(mutex) = false;

  bool AwaitOpen(absl::Duration timeout) {
    absl::MutexLock lock(&mutex);
    return changed.AwaitFor(mutex, absl::Condition(&open), timeout);
  }
  void Open() {
    absl::MutexLock lock(&mutex);
    open = true;
    changed.SignalAll();
  }
};

TEST(SteadyCondVar, AWaitEndsWhenItsConditionIsTrue) {
  Door door;
  std::thread opener([&] { door.Open(); });
  EXPECT_TRUE(door.AwaitOpen(absl::InfiniteDuration()));
  opener.join();
  EXPECT_TRUE(door.AwaitOpen(absl::ZeroDuration()));
}

TEST(SteadyCondVar, AWaitEndsAfterItsTimeAndNotBefore) {
  Door door;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(door.AwaitOpen(absl::Milliseconds(20)));
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(20));
  EXPECT_FALSE(door.AwaitOpen(-absl::InfiniteDuration()));
}

TEST(SteadyCondVar, ASignalWithoutTheConditionDoesNotEndAWait) {
  Door door;
  std::thread knocker([&] { door.changed.SignalAll(); });
  EXPECT_FALSE(door.AwaitOpen(absl::Milliseconds(20)));
  knocker.join();
}

}  // namespace
}  // namespace takt
