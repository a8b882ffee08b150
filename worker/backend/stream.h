// SPDX-License-Identifier: Apache-2.0
// The order in which a device works beside the host: streams, and points in them.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace takt::backend {

// A point of a stream: the end of all work that was given to it before the last Record. An event
// that was never recorded is reached. Its creator owns it. It must not outlive the stream that
// records it, nor end before the work that waits for it has begun. Thread-safe.
class Event {
 public:
  virtual ~Event() = default;

  // Blocks until the point is reached.  Errors: those of the ops before it, kInternal (device
  // fault).
  virtual absl::Status Wait() = 0;

  // As Wait, but returns soon after `gives_up` returns true, since a device may hang. `gives_up` is
  // called now and then on this thread.  Errors: also kCancelled (it gave up).
  virtual absl::Status WaitUnless(absl::FunctionRef<bool()> gives_up);

  // Returns whether the point is reached.  Blocks: never.  Errors: as Wait, as far as they are
  // known.
  virtual absl::StatusOr<bool> Reached() = 0;

  // Returns when it was reached, in nanoseconds of the steady clock, to within a few microseconds
  // however long the process has run. Call it only after Wait.
  virtual absl::StatusOr<std::int64_t> Nanos() = 0;
};

// Does the work that it is given later, in the order given. Thread: one caller at a time.
class Stream {
 public:
  virtual ~Stream() = default;

  virtual absl::StatusOr<std::unique_ptr<Event>> CreateEvent() = 0;

  // Makes `event`, of this stream, the point after all work that was given to the stream so far.
  // Blocks: never.
  virtual absl::Status Record(Event& event) = 0;

  // Work that is given from now on begins after the current point of `event` is reached. event: of
  // any stream of the device.  Blocks: never.
  virtual absl::Status Await(Event& event) = 0;

  // Call it before giving the stream so many launches: kernels, copies, messages, events. Blocks:
  // while too much that was given before is not done (launch_window.h). Errors: those of the work
  // before; kCancelled (EndWaits was called).
  virtual absl::Status MakeRoom(std::int64_t launches) = 0;
  // Makes MakeRoom return kCancelled where it waits or would wait, for good. Thread-safe.
  virtual void EndWaits() = 0;

  // The stream for libraries that give work to it themselves: a cudaStream_t; of a simulated
  // device, its TaskStream.
  virtual void* native() = 0;
};

// The purpose of a stream. If several streams have work, the device begins with that of the later
// kind: messages are small, and another rank waits for them.
enum class StreamKind : std::uint8_t { kCompute, kReduce, kTransfer };

}  // namespace takt::backend
