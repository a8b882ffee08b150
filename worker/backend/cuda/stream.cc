// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/stream.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "worker/backend/cuda/clock_reading.h"
#include "worker/backend/cuda/device.h"

namespace takt::backend::cuda {
namespace {

// This is long enough ago to measure the rate by, and recent enough for a rate that is off by 1e-6.
constexpr std::int64_t kReadAgainNanos = 500'000'000;

class CudaEvent final : public Event {
 public:
  CudaEvent(int device, cudaEvent_t event, DeviceClock& clock)
      : device_(device), event_(event), clock_(clock) {}
  ~CudaEvent() override {
    static_cast<void>(cudaSetDevice(device_));
    static_cast<void>(cudaEventDestroy(event_));
  }

  absl::Status Wait() override {
    RETURN_IF_ERROR(ToStatus(cudaSetDevice(device_), "choosing the device"));
    return ToStatus(cudaEventSynchronize(event_), "waiting for the device");
  }
  absl::StatusOr<bool> Reached() override {
    RETURN_IF_ERROR(ToStatus(cudaSetDevice(device_), "choosing the device"));
    const cudaError_t result = cudaEventQuery(event_);
    if (result == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());  // clears it; the next launch would report it
      return false;
    }
    RETURN_IF_ERROR(ToStatus(result, "asking for an event"));
    return true;
  }
  absl::StatusOr<std::int64_t> Nanos() override { return clock_.Nanos(event_); }

  cudaEvent_t get() const { return event_; }

 private:
  const int device_;
  const cudaEvent_t event_;
  DeviceClock& clock_;
};

// Returns the time from `a` to `b`, which is negative if `b` was reached first. The manual does not
// say what the library returns in that order. So it is asked both ways: the answer need not be
// signed, as long as it is not positive in the wrong order.
absl::StatusOr<double> MillisecondsBetween(cudaEvent_t a, cudaEvent_t b) {
  float forward = 0, backward = 0;
  RETURN_IF_ERROR(ToStatus(cudaEventElapsedTime(&forward, a, b), "reading an event"));
  if (forward > 0) return forward;
  RETURN_IF_ERROR(ToStatus(cudaEventElapsedTime(&backward, b, a), "reading an event"));
  return -static_cast<double>(backward);
}

// Every event of this device is one of ours.
cudaEvent_t EventOf(Event& event) { return static_cast<CudaEvent&>(event).get(); }

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceClock>> DeviceClock::Create(int device) {
  auto clock = std::unique_ptr<DeviceClock>(new DeviceClock(device));
  absl::MutexLock lock(&clock->mutex_);
  RETURN_IF_ERROR(ToStatus(cudaSetDevice(device), "choosing the device"));
  RETURN_IF_ERROR(ToStatus(cudaStreamCreateWithFlags(&clock->stream_, cudaStreamNonBlocking),
                           "creating a stream"));
  RETURN_IF_ERROR(ToStatus(cudaEventCreate(&clock->moment_), "creating an event"));
  RETURN_IF_ERROR(ToStatus(cudaEventCreate(&clock->next_), "creating an event"));
  RETURN_IF_ERROR(ToStatus(cudaEventCreate(&clock->spare_), "creating an event"));
  RETURN_IF_ERROR(clock->ReadBothLocked());
  return clock;
}

DeviceClock::~DeviceClock() {
  absl::MutexLock lock(&mutex_);
  static_cast<void>(cudaSetDevice(device_));
  for (const cudaEvent_t event : {moment_, next_, spare_}) {
    if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
  }
  if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
}

absl::Status DeviceClock::ReadBothLocked() {
  const cudaStream_t stream = stream_;
  cudaEvent_t next = next_, spare = spare_;
  const auto read = [&]() -> absl::StatusOr<ClockReading> {
    ClockReading reading{.before = Clock::Real().SteadyNanos()};
    RETURN_IF_ERROR(ToStatus(cudaEventRecord(spare, stream), "recording an event"));
    RETURN_IF_ERROR(ToStatus(cudaEventSynchronize(spare), "waiting for the device"));
    reading.after = Clock::Real().SteadyNanos();
    return reading;
  };
  const absl::StatusOr<ClockReading> reading =
      ClosestReading(read, [&] { std::swap(next, spare); });
  next_ = next;
  spare_ = spare;
  RETURN_IF_ERROR(reading.status());
  read_nanos_ = reading->after;
  const std::int64_t nanos = reading->nanos();
  if (moment_nanos_ != 0) {
    if (reading->gap() > kWidestGapNanos) return absl::OkStatus();
    ASSIGN_OR_RETURN(const double milliseconds, MillisecondsBetween(moment_, next_));
    if (milliseconds > 0) rate_ = static_cast<double>(nanos - moment_nanos_) / (1e6 * milliseconds);
  }
  moment_nanos_ = nanos;
  std::swap(moment_, next_);
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> DeviceClock::Nanos(cudaEvent_t event) {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(ToStatus(cudaSetDevice(device_), "choosing the device"));
  if (Clock::Real().SteadyNanos() - read_nanos_ > kReadAgainNanos) {
    RETURN_IF_ERROR(ReadBothLocked());
  }
  ASSIGN_OR_RETURN(const double milliseconds, MillisecondsBetween(moment_, event));
  return moment_nanos_ + std::llround(1e6 * milliseconds * rate_);
}

absl::StatusOr<std::unique_ptr<CudaStream>> CudaStream::Create(int device, StreamKind kind,
                                                               DeviceClock& clock) {
  RETURN_IF_ERROR(ToStatus(cudaSetDevice(device), "choosing the device"));
  int least = 0, greatest = 0;  // the most urgent is the smallest number
  RETURN_IF_ERROR(ToStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                           "reading the range of priorities"));
  const int priority = std::max(greatest, least - static_cast<int>(kind));
  cudaStream_t stream = nullptr;
  RETURN_IF_ERROR(ToStatus(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority),
                           "creating a stream"));
  return std::unique_ptr<CudaStream>(new CudaStream(device, stream, kind, clock));
}

CudaStream::~CudaStream() {
  static_cast<void>(cudaSetDevice(device_));
  static_cast<void>(cudaStreamSynchronize(stream_));
  static_cast<void>(cudaStreamDestroy(stream_));
}

absl::StatusOr<std::unique_ptr<Event>> CudaStream::CreateEvent() {
  RETURN_IF_ERROR(ToStatus(cudaSetDevice(device_), "choosing the device"));
  cudaEvent_t event = nullptr;
  // A thread that waits for this event sleeps. Lanes that spin would keep the host's cores from
  // lanes that enqueue.
  RETURN_IF_ERROR(
      ToStatus(cudaEventCreateWithFlags(&event, cudaEventBlockingSync), "creating an event"));
  return std::make_unique<CudaEvent>(device_, event, clock_);
}

absl::Status CudaStream::Record(Event& event) {
  RETURN_IF_ERROR(ToStatus(cudaSetDevice(device_), "choosing the device"));
  return ToStatus(cudaEventRecord(EventOf(event), stream_), "recording an event");
}

absl::Status CudaStream::Await(Event& event) {
  RETURN_IF_ERROR(ToStatus(cudaSetDevice(device_), "choosing the device"));
  return ToStatus(cudaStreamWaitEvent(stream_, EventOf(event), 0), "waiting for an event");
}

}  // namespace takt::backend::cuda
