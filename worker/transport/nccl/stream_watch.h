// SPDX-License-Identifier: Apache-2.0
// Detects work that hangs on a stream. NCCL itself waits for a peer for ever.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/backend/stream.h"

namespace takt::transport::nccl {

// Watches one stream at a time, whose events outlive neither it nor this. Thread-safe.
class StreamWatch {
 public:
  // timeout: counted from the time at which something on the stream could begin (all before it is
  // done).
  explicit StreamWatch(absl::Duration timeout) : timeout_(timeout) {}

  // Something is given to the stream between these two calls.
  absl::Status Begin(backend::Stream& stream);
  absl::Status End(backend::Stream& stream);

  // Errors: kDeadlineExceeded; those of the stream.
  absl::Status Check(std::int64_t now_nanos);

  // Drops the events of the stream.
  void Forget();

 private:
  struct Work {
    std::unique_ptr<backend::Event> begun, done;
    std::int64_t begun_nanos = 0;  // when Check first saw it begun; 0: not yet
    bool given = false;            // whole
  };
  absl::StatusOr<Work> SpareLocked(backend::Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const absl::Duration timeout_;
  absl::Mutex mutex_;
  std::deque<Work> works_ ABSL_GUARDED_BY(mutex_);  // not known to be done, in order
  std::vector<Work> spare_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace takt::transport::nccl
