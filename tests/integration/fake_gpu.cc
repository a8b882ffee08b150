// SPDX-License-Identifier: Apache-2.0
// A takt_cuda.so whose one GPU is the host, so that what a worker does about GPUs, their kernel
// plans and their faults shows between real processes on any machine. The environment says what it
// is:
//   TAKT_FAKE_GPU_UUID   of the device
//   TAKT_FAKE_GPU_BYTES  of memory that may be reserved
//   TAKT_FAKE_GPU_LOST   a path: from when there is a file, the device is off the bus
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "tests/testing/planned_backends.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/backend/cuda/cuda_backend.h"
#include "worker/plugin/entry.h"

// Here, and not linked from common/base: that would bring a second copy of generated protobuf into
// the worker.
void takt::CheckFailed(const char*, int, const char*) { std::abort(); }

namespace takt::testing {
namespace {

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool IsLost() { return std::filesystem::exists(Environment("TAKT_FAKE_GPU_LOST")); }

absl::Status Lost(const char* during) {
  return absl::InternalError(absl::StrCat(during, ": the GPU is lost (cudaErrorFake)"));
}

class FakeMemory final : public backend::cuda::MemorySource {
 public:
  FakeMemory() {
    if (!absl::SimpleAtoi(Environment("TAKT_FAKE_GPU_BYTES"), &free_))
      free_ = std::int64_t{1} << 33;
  }
  absl::StatusOr<std::byte*> Reserve(std::int64_t bytes) override {
    if (bytes > free_) return absl::ResourceExhaustedError("reserving: out of memory");
    free_ -= bytes;
    void* const base = ::operator new(static_cast<std::size_t>(bytes), kAlignment);
    return sizes_.emplace(static_cast<std::byte*>(base), bytes).first->first;
  }
  void Release(std::byte* base) override {
    free_ += sizes_.extract(base).mapped();
    ::operator delete(base, kAlignment);
  }
  std::int64_t FreeBytes() override { return free_; }

 private:
  static constexpr std::align_val_t kAlignment{backend::cuda::kArenaAlignment};
  std::int64_t free_ = 0;
  std::map<std::byte*, std::int64_t> sizes_;
};

class FakeBackend final : public backend::ForwardingBackend {
 public:
  FakeBackend(backend::cuda::Arena& arena, std::unique_ptr<backend::Backend> inner)
      : ForwardingBackend(*inner), arena_(arena), inner_(std::move(inner)) {}
  absl::Status Run(const backend::Op& op) override {
    return IsLost() ? Lost("enqueueing an op") : ForwardingBackend::Run(op);
  }
  absl::StatusOr<backend::Buffer> Allocate(std::size_t bytes, MemoryKind kind) override {
    ASSIGN_OR_RETURN(std::byte* const data,
                     arena_.Allocate(static_cast<std::int64_t>(bytes), kind));
    std::fill_n(data, bytes, std::byte{0});
    return backend::Buffer(data, bytes, [arena = &arena_](std::byte* p) { arena->Free(p); });
  }
  absl::Status Synchronize() override { return IsLost() ? Lost("waiting") : absl::OkStatus(); }
  backend::Stream* stream() override { return nullptr; }
  bool memory_is_host() const override { return true; }
  std::string description() const override { return "fake GPU"; }

 private:
  backend::cuda::Arena& arena_;
  const std::unique_ptr<backend::Backend> inner_;
};

class FakeDevice final : public backend::cuda::CudaDevice {
 public:
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Open(
      const backend::cuda::CudaOptions& options) {
    if (IsLost()) return Lost("opening the device");
    auto device = std::make_unique<FakeDevice>();
    ASSIGN_OR_RETURN(device->arena_,
                     backend::cuda::Arena::Create(device->memory_, {.predicted = options.predicted,
                                                                    .ledger = options.ledger}));
    return device;
  }

  absl::StatusOr<std::unique_ptr<backend::Backend>> CreateCompute() override {
    ASSIGN_OR_RETURN(auto planned, planned_.CreateCompute());
    return std::make_unique<FakeBackend>(*arena_, std::move(planned));
  }
  absl::StatusOr<std::unique_ptr<backend::MemoryBackend>> CreateMemory(
      backend::StreamKind) override {
    return CreateCompute();
  }
  bool memory_is_host() const override { return true; }
  absl::Status status() override {
    return IsLost() ? Lost("looking at the device") : absl::OkStatus();
  }
  backend::PlanCache& plans() override { return planned_.plans(); }
  absl::Status Choose(const backend::Op& op) override { return planned_.Choose(op); }
  const backend::cuda::Arena& arena() const override { return *arena_; }

 private:
  PlannedBackends planned_{
      {.compute_capability = "9.0", .sm_count = 132, .cublaslt = "13.0.2", .cudnn = ""},
      /*seed=*/1,
      backend::CreateCpuBackends({})};
  FakeMemory memory_;
  std::unique_ptr<backend::cuda::Arena> arena_;
};

absl::StatusOr<std::vector<Device>> ListDevices() {
  if (IsLost())
    return absl::UnavailableError("cudaGetDeviceCount: no CUDA-capable device is detected");
  return std::vector<Device>{{.name = "Fake GPU",
                              .uuid = Environment("TAKT_FAKE_GPU_UUID"),
                              .memory_bytes = std::int64_t{1} << 33,
                              .compute_capability = "9.0",
                              .driver_version = "13.0"}};
}

constexpr plugin::CudaEntry kEntry = {
    .version = kTaktVersion, .list_devices = ListDevices, .open_device = FakeDevice::Open};

}  // namespace
}  // namespace takt::testing

extern "C" __attribute__((visibility("default"))) const takt::plugin::CudaEntry* TaktCudaPlugin() {
  return &takt::testing::kEntry;
}
