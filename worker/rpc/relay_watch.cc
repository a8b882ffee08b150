// SPDX-License-Identifier: Apache-2.0
#include "worker/rpc/relay_watch.h"

#include <pthread.h>

#include <random>
#include <utility>

namespace takt::worker_rpc {

RelayWatch::RelayWatch(RelayWatchOptions options)
    : options_(std::move(options)), thread_([this] { Main(); }) {}

RelayWatch::~RelayWatch() {
  {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
  }
  end_.SignalAll();
  thread_.join();
}

void RelayWatch::Main() {
  pthread_setname_np(pthread_self(), "takt-relay-look");
  std::mt19937 random{std::random_device()()};
  std::uniform_real_distribution<double> part(0.5, 1.0);
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      if (end_.AwaitFor(mutex_, absl::Condition(&ended_), options_.interval * part(random))) return;
    }
    if (options_.is_away() && options_.ask().ok()) options_.go_back();
  }
}

}  // namespace takt::worker_rpc
