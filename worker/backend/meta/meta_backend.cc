// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/meta/meta_backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>
#include <variant>

#include "common/base/status.h"
#include "worker/backend/validate.h"

namespace takt::backend {
namespace {

// Each pair of a query and a key that it sees takes part in two products of head_size. Shares of
// the queries have equally many pairs, but for windows.
double AttentionFlops(const AttentionShape& shape) {
  const std::int64_t window =
      shape.window > 0 ? std::min(shape.window, shape.context) : shape.context;
  const std::int64_t pairs = window * (window + 1) / 2 + (shape.context - window) * window;
  return 4.0 * static_cast<double>(shape.batch * pairs) *
         static_cast<double>(shape.heads * shape.head_size) / static_cast<double>(shape.shares);
}

// All experts together have all rows, however the rows are divided among them.
double ExpertFlops(const ExpertRows& rows, std::int64_t elements) {
  return 2.0 * static_cast<double>(rows.count()) * static_cast<double>(elements);
}

double FlopsOf(const Op& op) {
  return std::visit(
      []<class T>(const T& o) -> double {
        if constexpr (ProductOp<T>) {
          return 2.0 * static_cast<double>(o.m) * static_cast<double>(o.n) *
                 static_cast<double>(o.k);
        } else if constexpr (std::is_same_v<T, ExpertMatmul>) {
          return ExpertFlops(o.rows, o.n * o.k);
        } else if constexpr (std::is_same_v<T, ExpertMatmulTransposed>) {
          return ExpertFlops(o.rows, o.m * o.n);
        } else if constexpr (std::is_same_v<T, AttentionForward>) {
          return AttentionFlops(o.shape);
        } else if constexpr (std::is_same_v<T, AttentionBackward>) {
          return 2 * AttentionFlops(o.shape);
        } else {
          return 0;
        }
      },
      op);
}

void ClearSums(const SumOfSquares& op) {
  if (op.block_sums == nullptr) {
    *op.result = 0;
  } else {
    std::fill_n(op.block_sums, (op.count + kSquaresPerBlock - 1) / kSquaresPerBlock, 0.0);
  }
}

class MetaBackend final : public Backend {
 public:
  MetaBackend(MetaCounts& counts, OpListener listener)
      : counts_(counts), listener_(std::move(listener)) {}

  absl::Status Run(const Op& op) override {
    RETURN_IF_ERROR(ValidateOp(op));
    counts_.flops += FlopsOf(op);
    const auto* loss = std::get_if<CrossEntropy>(&op);
    if (loss != nullptr && loss->loss_sum != nullptr) *loss->loss_sum = 0;
    if (const auto* squares = std::get_if<SumOfSquares>(&op)) ClearSums(*squares);
    return listener_ ? listener_(op) : absl::OkStatus();
  }

  absl::StatusOr<Buffer> Allocate(std::size_t bytes, MemoryKind kind) override {
    const std::int64_t taken = AllocatedBytes(static_cast<std::int64_t>(bytes));
    counts_.bytes[kind] += taken;
    counts_.peak_bytes = std::max(counts_.peak_bytes, counts_.bytes.total());
    return Buffer(Place(bytes), bytes,
                  [&counts = counts_, kind, taken](std::byte*) { counts.bytes[kind] -= taken; });
  }
  absl::StatusOr<Buffer> AllocateHost(std::size_t bytes) override {
    auto* data = static_cast<std::byte*>(std::calloc(1, std::max<std::size_t>(bytes, 1)));
    return Buffer(data, bytes, [](std::byte* p) { std::free(p); });
  }

  absl::Status CopyFromHost(std::span<const std::byte>, std::byte*) override {
    return absl::OkStatus();
  }
  absl::Status CopyToHost(const std::byte*, std::span<std::byte> destination) override {
    std::fill(destination.begin(), destination.end(), std::byte{0});
    return absl::OkStatus();
  }
  absl::Status Synchronize() override { return absl::OkStatus(); }
  Stream* stream() override { return nullptr; }
  bool memory_is_host() const override { return false; }
  std::string description() const override { return "meta"; }

 private:
  // Returns addresses that no process has: they are above the half that Linux gives to programs.
  std::byte* Place(std::size_t bytes) {
    constexpr std::size_t kLine = 64;
    const std::uintptr_t place = next_;
    next_ += (bytes / kLine + 1) * kLine;
    return reinterpret_cast<std::byte*>(place);  // NOLINT(performance-no-int-to-ptr)
  }

  MetaCounts& counts_;
  const OpListener listener_;
  std::uintptr_t next_ = std::uintptr_t{1} << 48;
};

class MetaBackends final : public BackendFactory {
 public:
  MetaBackends(MetaCounts& counts, OpListener listener)
      : counts_(counts), listener_(std::move(listener)) {}
  absl::StatusOr<std::unique_ptr<Backend>> CreateCompute() override {
    return std::make_unique<MetaBackend>(counts_, listener_);
  }
  absl::StatusOr<std::unique_ptr<MemoryBackend>> CreateMemory(StreamKind) override {
    return CreateCompute();
  }
  bool memory_is_host() const override { return false; }

 private:
  MetaCounts& counts_;
  const OpListener listener_;
};

}  // namespace

std::unique_ptr<BackendFactory> CreateMetaBackends(MetaCounts& counts, OpListener listener) {
  return std::make_unique<MetaBackends>(counts, std::move(listener));
}

}  // namespace takt::backend
