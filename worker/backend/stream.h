// SPDX-License-Identifier: Apache-2.0
// The order of what a device does beside the host: streams, and points in them.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace takt::backend {

// A point of a stream: what was given to it before the last Record. One that was never recorded is
// reached. Owned by whoever created it; must not outlive the stream that records it, nor end before
// what waits for it has begun. Thread-safe.
class Event {
 public:
  virtual ~Event() = default;

  // Blocks until the point is reached.  Errors: those of the ops before it, kInternal (device
  // fault).
  virtual absl::Status Wait() = 0;

  // As Wait, but returns soon after `gives_up` is true: a device may hang. It is asked now and
  // then, on this thread.  Errors: also kCancelled (it gave up).
  virtual absl::Status WaitUnless(absl::FunctionRef<bool()> gives_up);

  // Whether the point is reached.  Blocks: never.  Errors: as Wait, as far as they are known.
  virtual absl::StatusOr<bool> Reached() = 0;

  // When it was reached, in nanoseconds of the steady clock, to within a few microseconds however
  // long the process has run. Only after Wait.
  virtual absl::StatusOr<std::int64_t> Nanos() = 0;
};

// What is given to a stream happens in that order, later. Thread: one caller at a time.
class Stream {
 public:
  virtual ~Stream() = default;

  virtual absl::StatusOr<std::unique_ptr<Event>> CreateEvent() = 0;

  // `event`, of this stream, is now the point after everything that was given to it so far.
  // Blocks: never.
  virtual absl::Status Record(Event& event) = 0;

  // What is given from now on begins once the point that `event` stands for now is reached. event:
  // of any stream of the device.  Blocks: never.
  virtual absl::Status Await(Event& event) = 0;

  // The stream as the device's own libraries know it: a cudaStream_t; of a simulated device, its
  // TaskStream. For libraries that give work to streams themselves.
  virtual void* native() = 0;
};

// What a stream is for. Where several have work, the device begins with that of the later kind:
// messages are small and somebody waits for them.
enum class StreamKind : std::uint8_t { kCompute, kReduce, kTransfer };

}  // namespace takt::backend
