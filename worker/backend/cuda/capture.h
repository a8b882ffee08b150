// SPDX-License-Identifier: Apache-2.0
// CUDA graphs, which capture the work that a thread gives to a stream and launch it again, and a
// guard for calls that must not happen while a thread captures.
#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/cuda/arena.h"
#include "worker/backend/cuda/stream.h"
#include "worker/backend/recorder.h"

namespace takt::backend::cuda {

// A capture fails if any thread waits for the whole device meanwhile, as libraries do when they
// open and close. Make such a call in the scope of a NoCapture: the scope waits for captures to
// end, and captures wait for the scope. A thread that captures must not make one; WaitForDevice
// makes its own.
class ABSL_SCOPED_LOCKABLE NoCapture {
 public:
  NoCapture();
  ~NoCapture();
  NoCapture(const NoCapture&) = delete;
  NoCapture& operator=(const NoCapture&) = delete;
};

// Blocks until the device of this thread has done everything.
// Errors: kFailedPrecondition (this thread captures: what it waits for cannot be recorded),
// kInternal (device fault).
absl::Status WaitForDevice();

// Returns whether this thread captures now.
bool Captures();

// Captures what `ops` gives to the device's stream. Meanwhile other threads may make any call
// outside of NoCapture. The recording is void once kScratch memory was given back to the arena.
// stream, arena: borrowed, outlive the recording. Errors: as Recorder::Record; kResourceExhausted
// (no memory for a graph).
absl::StatusOr<std::unique_ptr<Recording>> Capture(int device, CudaStream& stream,
                                                   const Arena& arena,
                                                   absl::FunctionRef<absl::Status()> ops);

}  // namespace takt::backend::cuda
