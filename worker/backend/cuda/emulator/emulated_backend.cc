// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/emulator/emulated_backend.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>

#include "common/base/status.h"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/cuda/kernels/muon.h"
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

// Computes a product of MuonUpdate, in the place of the library.
absl::Status MultiplyPlainly(const Matmul& op) {
  for (std::int64_t i = 0; i < op.m; ++i) {
    for (std::int64_t j = 0; j < op.n; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < op.k; ++l) {
        const double a = op.a_transposed ? op.a[l * op.m + i] : op.a[i * op.k + l];
        sum += a * (op.b_transposed ? op.b[j * op.k + l] : op.b[l * op.n + j]);
      }
      op.c[i * op.n + j] = static_cast<float>(sum);
    }
  }
  return absl::OkStatus();
}

class EmulatedBackend final : public Backend {
 public:
  EmulatedBackend(emulator::ThreadOrder order, std::int64_t shared_bytes)
      : order_(order), shared_bytes_(shared_bytes) {}

  absl::Status Run(const Op& op) override {
    RETURN_IF_ERROR(ValidateOp(op));
    constexpr int kNan = 0xff;
    const Aligned scratch = Allocated(static_cast<std::size_t>(ScratchBytes(op)), kNan);
    const LaunchContext context = {.scratch = scratch.get(),
                                   .shared_bytes = shared_bytes_,
                                   .block_counts = block_counts_.data()};
    emulator::SetThreadOrder(order_);
    emulator::SetMostShared(static_cast<std::size_t>(shared_bytes_));
    RETURN_IF_ERROR(std::visit([&](const auto& o) { return Execute(o, context); }, op));
    for (const std::uint32_t count : block_counts_) {
      if (count != 0) return absl::InternalError("an op has left counts of blocks");
    }
    return absl::OkStatus();
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
    } else if constexpr (std::is_same_v<O, MuonUpdate>) {
      return UpdateByMuon(op, context, MultiplyPlainly);
    } else {
      Launch(op, context);
      return absl::OkStatus();
    }
  }

  const emulator::ThreadOrder order_;
  const std::int64_t shared_bytes_;
  std::array<std::uint32_t, kBlockCounts> block_counts_{};
};

}  // namespace

std::unique_ptr<Backend> CreateEmulatedBackend(emulator::ThreadOrder order,
                                               std::int64_t shared_bytes) {
  return std::make_unique<EmulatedBackend>(order, shared_bytes);
}

}  // namespace takt::backend::cuda
