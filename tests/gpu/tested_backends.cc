// SPDX-License-Identifier: Apache-2.0
// The tests of the CPU's ops (worker/backend/cpu) on the GPU. Their tensors are vectors, which lie
// in pinned memory here; their host outputs are variables, which are copied.
#include <utility>
#include <variant>

#include "common/base/status.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/reachable_memory.h"
#include "worker/backend/cpu/op_testing.h"

namespace takt::backend::testing {
namespace {

// Runs an op to its end: what it wrote is there on return.
class WaitingBackend final : public Backend {
 public:
  WaitingBackend(std::unique_ptr<Backend> backend, Buffer number)
      : backend_(std::move(backend)), number_(std::move(number)) {}

  absl::Status Run(const Op& op) override {
    Op here = op;
    double* output = nullptr;  // of the caller
    auto* const number = reinterpret_cast<double*>(number_.data());
    if (auto* loss = std::get_if<CrossEntropy>(&here)) {
      output = std::exchange(loss->loss_sum, number);
    } else if (auto* squares = std::get_if<SumOfSquares>(&here)) {
      output = std::exchange(squares->result, number);
    }
    RETURN_IF_ERROR(backend_->Run(here));
    RETURN_IF_ERROR(backend_->Synchronize());
    if (output != nullptr) *output = *number;
    return absl::OkStatus();
  }

  absl::StatusOr<Buffer> Allocate(std::size_t bytes, MemoryKind kind) override {
    return backend_->Allocate(bytes, kind);
  }
  absl::StatusOr<Buffer> AllocateHost(std::size_t bytes) override {
    return backend_->AllocateHost(bytes);
  }
  absl::Status CopyFromHost(std::span<const std::byte> source, std::byte* destination) override {
    return backend_->CopyFromHost(source, destination);
  }
  absl::Status CopyToHost(const std::byte* source, std::span<std::byte> destination) override {
    return backend_->CopyToHost(source, destination);
  }
  absl::Status Synchronize() override { return backend_->Synchronize(); }
  Stream* stream() override { return backend_->stream(); }
  bool memory_is_host() const override { return false; }
  std::string description() const override { return backend_->description(); }

 private:
  const std::unique_ptr<Backend> backend_;
  const Buffer number_;
};

// Opened once and never closed: all memory of the program is its.
BackendFactory* Device() {
  static BackendFactory* const device = []() -> BackendFactory* {
    auto opened = gpu::OpenGpu();
    if (!opened.ok()) return nullptr;
    constexpr std::size_t kPoolBytes = std::size_t{1} << 30;
    auto backend = (*opened)->CreateCompute();
    auto pool = backend.ok() ? (*backend)->AllocateHost(kPoolBytes) : backend.status();
    if (!pool.ok()) return nullptr;
    auto* const kept = new Buffer(*std::move(pool));
    gpu::AllocateFrom({kept->data(), kept->bytes()});
    return opened->release();
  }();
  return device;
}

TEST(Gpu, RunsTheTestsOfTheCpusOps) {
  const auto device = gpu::OpenGpu();
  TAKT_SKIP_WITHOUT(device);
  ASSERT_NE(Device(), nullptr) << "a GPU is there, but it or pinned memory cannot be used";
}

}  // namespace

std::vector<std::string> TestedBackends() { return {"cuda"}; }

std::unique_ptr<Backend> CreateTestedBackend(const std::string& /*name*/) {
  if (Device() == nullptr) return nullptr;
  auto backend = Device()->CreateCompute().value();
  auto number = backend->AllocateHost(sizeof(double)).value();
  return std::make_unique<WaitingBackend>(std::move(backend), std::move(number));
}

}  // namespace takt::backend::testing
