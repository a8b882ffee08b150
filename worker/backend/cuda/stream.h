// SPDX-License-Identifier: Apache-2.0
// Streams and events of one device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/backend/launch_window.h"
#include "worker/backend/stream.h"

namespace takt::backend::cuda {

// Converts the device's time to the host's steady time. The rates of the two clocks differ by parts
// in a million, so it uses the nearest moment at which both clocks were read. Thread-safe.
class DeviceClock {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceClock>> Create(int device);
  ~DeviceClock();
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;

  // Returns the time of an event that was recorded and reached.
  absl::StatusOr<std::int64_t> Nanos(cudaEvent_t event);

 private:
  explicit DeviceClock(int device) : device_(device) {}

  // Reads both clocks at about the same time. Where no reading is close enough, an earlier one
  // stays in use.
  absl::Status ReadBothLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int device_;
  absl::Mutex mutex_;
  // The events are on a stream of their own, which is always idle.
  cudaStream_t stream_ ABSL_GUARDED_BY(mutex_) = nullptr;
  cudaEvent_t moment_ ABSL_GUARDED_BY(mutex_) = nullptr, next_ ABSL_GUARDED_BY(mutex_) = nullptr,
                      spare_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::int64_t moment_nanos_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t read_nanos_ ABSL_GUARDED_BY(mutex_) = 0;  // when both were last read
  double rate_ ABSL_GUARDED_BY(mutex_) = 1;  // nanoseconds of the host in one of the device
};

// clock: borrowed, outlives the stream and its events.
class CudaStream final : public Stream {
 public:
  static absl::StatusOr<std::unique_ptr<CudaStream>> Create(int device, StreamKind kind,
                                                            DeviceClock& clock);
  ~CudaStream() override;

  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override;
  absl::Status Record(Event& event) override;
  absl::Status Await(Event& event) override;
  absl::Status MakeRoom(std::int64_t launches) override { return window_.Admit(launches); }
  void EndWaits() override { window_.EndWaits(); }
  void* native() override { return stream_; }

  cudaStream_t get() const { return stream_; }

 private:
  CudaStream(int device, cudaStream_t stream, StreamKind kind, DeviceClock& clock)
      : device_(device), stream_(stream), clock_(clock), window_(*this, MostLaunches(kind)) {}

  const int device_;
  const cudaStream_t stream_;
  DeviceClock& clock_;
  LaunchWindow window_;
};

}  // namespace takt::backend::cuda
