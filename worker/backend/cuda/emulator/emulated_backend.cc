// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/emulator/emulated_backend.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "common/base/status.h"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/validate.h"

namespace takt::backend::cuda {
namespace {

constexpr std::align_val_t kAlignment{256};

struct FreeAligned {
  void operator()(std::byte* p) const { ::operator delete(p, kAlignment); }
};
using Aligned = std::unique_ptr<std::byte, FreeAligned>;

Aligned Allocated(std::size_t bytes, int value) {
  Aligned memory(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
  std::memset(memory.get(), value, bytes);
  return memory;
}

class EmulatedBackend final : public Backend {
 public:
  explicit EmulatedBackend(emulator::ThreadOrder order) : order_(order) {}

  absl::Status Run(const Op& op) override {
    RETURN_IF_ERROR(ValidateOp(op));
    constexpr int kNan = 0xff;
    const Aligned scratch = Allocated(static_cast<std::size_t>(ScratchBytes(op)), kNan);
    const LaunchContext context = {.scratch = scratch.get()};
    emulator::SetThreadOrder(order_);
    return std::visit([&](const auto& o) { return Execute(o, context); }, op);
  }

  absl::StatusOr<Buffer> Allocate(std::size_t bytes, MemoryKind /*kind*/) override {
    return Buffer(Allocated(bytes, 0).release(), bytes, FreeAligned());
  }
  absl::StatusOr<Buffer> AllocateHost(std::size_t bytes) override {
    return Allocate(bytes, MemoryKind::kScratch);
  }
  absl::Status CopyFromHost(std::span<const std::byte> source, std::byte* destination) override {
    if (!source.empty()) std::memcpy(destination, source.data(), source.size());
    return absl::OkStatus();
  }
  absl::Status CopyToHost(const std::byte* source, std::span<std::byte> destination) override {
    if (!destination.empty()) std::memcpy(destination.data(), source, destination.size());
    return absl::OkStatus();
  }
  absl::Status Synchronize() override { return absl::OkStatus(); }
  Stream* stream() override { return nullptr; }
  bool memory_is_host() const override { return true; }
  std::string description() const override { return "emulated cuda"; }

 private:
  template <class O>
  absl::Status Execute(const O& op, const LaunchContext& context) {
    if constexpr (ProductOp<O>) {
      return absl::UnimplementedError("products of matrices are not emulated");
    } else if constexpr (ExpertOp<O>) {
      return absl::UnimplementedError("experts have no kernels for GPUs");
    } else {
      Launch(op, context);
      return absl::OkStatus();
    }
  }

  const emulator::ThreadOrder order_;
};

}  // namespace

std::unique_ptr<Backend> CreateEmulatedBackend(emulator::ThreadOrder order) {
  return std::make_unique<EmulatedBackend>(order);
}

}  // namespace takt::backend::cuda
