// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/parallel.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace takt::worker_checkpoint {

absl::Status RunOnThreads(int threads, std::size_t count,
                          const std::function<absl::Status(std::size_t)>& task) {
  std::vector<absl::Status> results(count);  // one thread writes each; read after all have joined
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  const auto work = [&] {
    for (std::size_t i = next++; i < count && !failed; i = next++) {
      results[i] = task(i);
      if (!results[i].ok()) failed = true;
    }
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < std::min(threads, static_cast<int>(count)); ++i) {
      others.emplace_back([&] {
        pthread_setname_np(pthread_self(), "takt-ckpt");
        work();
      });
    }
    work();
  }
  const auto error = std::ranges::find_if_not(results, &absl::Status::ok);
  return error == results.end() ? absl::OkStatus() : *error;
}

}  // namespace takt::worker_checkpoint
