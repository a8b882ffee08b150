// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tracking/step_sender.h"

#include <pthread.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/log.h"

namespace takt::tracking {
namespace {

constexpr absl::Duration kInterval = absl::Seconds(2);
constexpr absl::Duration kLongestInterval = absl::Minutes(5);
// A coordinator that was away for less time tells the server of jobs that ended before.
constexpr absl::Duration kPast = absl::Hours(24);

}  // namespace

StepSender::StepSender(Tracker* tracker, store::Store* store,
                       std::function<Deliveries::Jobs()> jobs)
    : jobs_(std::move(jobs)),
      deliveries_(tracker, store, absl::Now() - kPast),
      thread_(&StepSender::Loop, this) {}

StepSender::~StepSender() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  stop_.SignalAll();
  thread_.join();
}

void StepSender::Loop() {
  pthread_setname_np(pthread_self(), "takt-tracking");
  absl::Duration interval = kInterval;
  std::string said;
  while (!Rest(interval)) {
    const absl::Status status = deliveries_.Round(jobs_());
    const std::string error(status.message());
    if (!status.ok() && error != said) {
      Log(LogLevel::kWarning, "curves are late at the tracking server", {{"error", error}});
    } else if (status.ok() && !said.empty()) {
      Log(LogLevel::kInfo, "the tracking server has all curves again");
    }
    said = error;
    interval = absl::IsUnavailable(status) ? std::min(2 * interval, kLongestInterval) : kInterval;
  }
  // `takt local run` stops its coordinator as soon as the job has ended. Its end is delivered here.
  if (said.empty()) deliveries_.Round(jobs_()).IgnoreError();
}

bool StepSender::Rest(absl::Duration time) {
  absl::MutexLock lock(&mutex_);
  return stop_.AwaitFor(mutex_, absl::Condition(&stopping_), time);
}

}  // namespace takt::tracking
