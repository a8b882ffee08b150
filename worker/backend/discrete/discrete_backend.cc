// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/discrete/discrete_backend.h"

#include <cstring>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/backend/discrete/device_memory.h"
#include "worker/backend/discrete/op_pointers.h"
#include "worker/backend/discrete/task_stream.h"
#include "worker/backend/validate.h"

namespace takt::backend {
namespace {

absl::Status NotOurs(const void* address) {
  return absl::InvalidArgumentError(absl::StrCat(
      "0x", absl::Hex(reinterpret_cast<std::uintptr_t>(address)), " is no memory of the device"));
}

// An op with all that it refers to in the caller's memory.
struct Held {
  Op op;
  std::vector<AdamwTensor> tensors;

  const Op& Whole() {
    if (auto* const adamw = std::get_if<AdamwUpdate>(&op)) adamw->tensors = tensors;
    return op;
  }
};

// Replaces the pointers of an op by their twins.
class Translation {
 public:
  explicit Translation(const DeviceMemory& memory) : memory_(memory) {}

  absl::StatusOr<Held> operator()(const Op& op) {
    Held held{.op = op};
    if (const auto* const adamw = std::get_if<AdamwUpdate>(&op)) {
      held.tensors.assign(adamw->tensors.begin(), adamw->tensors.end());
    }
    std::visit([this](auto& o) { MoveAll(o); }, held.op);
    for (AdamwTensor& tensor : held.tensors) MoveAll(tensor);
    if (stranger_ != nullptr) return NotOurs(stranger_);
    return held;
  }

 private:
  template <class O>
  void MoveAll(O& o) {
    ForEachPointer(o, [this](auto& field) { this->Move(field); });
  }
  template <class T>
  void Move(T*& pointer) {
    if (pointer == nullptr) return;
    auto* const twin = reinterpret_cast<T*>(memory_.Twin(pointer));
    if (twin == nullptr) stranger_ = pointer;
    pointer = twin;
  }
  void Move(Operand& operand) { Move(operand.f32), Move(operand.bf16); }
  void Move(Output& output) { Move(output.f32), Move(output.bf16); }

  const DeviceMemory& memory_;
  const void* stranger_ = nullptr;
};

class DiscreteBackend final : public Backend {
 public:
  DiscreteBackend(std::unique_ptr<Backend> cpu, DeviceMemory& memory,
                  const DiscreteOptions& options)
      : cpu_(std::move(cpu)), memory_(memory), ledger_(options.ledger), stream_(options.lazy) {}

  absl::Status Run(const Op& op) override {
    RETURN_IF_ERROR(ValidateOp(op));
    ASSIGN_OR_RETURN(Held moved, Translation(memory_)(op));
    stream_.Push([this, moved = std::move(moved)]() mutable { return cpu_->Run(moved.Whole()); });
    return absl::OkStatus();
  }

  absl::StatusOr<Buffer> Allocate(std::size_t bytes, MemoryKind kind) override {
    ASSIGN_OR_RETURN(std::byte* const data, memory_.Allocate(bytes));
    const std::int64_t counted = AllocatedBytes(static_cast<std::int64_t>(bytes));
    if (ledger_ != nullptr) ledger_->Add(kind, counted);
    return Buffer(data, bytes, [&memory = memory_, ledger = ledger_, kind, counted](std::byte* p) {
      memory.Free(p);
      if (ledger != nullptr) ledger->Add(kind, -counted);
    });
  }

  // The CPU backend belongs to the stream's thread.
  absl::StatusOr<Buffer> AllocateHost(std::size_t bytes) override {
    ASSIGN_OR_RETURN(const std::unique_ptr<Backend> host, CreateCpuBackend({}));
    return host->AllocateHost(bytes);
  }

  absl::Status CopyFromHost(std::span<const std::byte> source, std::byte* destination) override {
    if (source.empty()) return absl::OkStatus();
    std::byte* const twin = memory_.Twin(destination);
    if (twin == nullptr) return NotOurs(destination);
    stream_.Push([source, twin] {
      std::memcpy(twin, source.data(), source.size());
      return absl::OkStatus();
    });
    return absl::OkStatus();
  }

  absl::Status CopyToHost(const std::byte* source, std::span<std::byte> destination) override {
    if (destination.empty()) return absl::OkStatus();
    const std::byte* const twin = memory_.Twin(source);
    if (twin == nullptr) return NotOurs(source);
    stream_.Push([twin, destination] {
      std::memcpy(destination.data(), twin, destination.size());
      return absl::OkStatus();
    });
    return absl::OkStatus();
  }

  absl::Status Synchronize() override { return stream_.Drain(); }

  Stream* stream() override { return &stream_; }
  bool memory_is_host() const override { return false; }
  int threads() const override { return cpu_->threads(); }
  std::string description() const override { return cpu_->description(); }

 private:
  const std::unique_ptr<Backend> cpu_;  // of the stream's thread
  DeviceMemory& memory_;
  MemoryLedger* const ledger_;
  TaskStream stream_;  // last: what it runs uses everything above
};

class DiscreteBackends final : public BackendFactory {
 public:
  explicit DiscreteBackends(const DiscreteOptions& options) : options_(options) {}

  absl::StatusOr<std::unique_ptr<Backend>> Create(StreamKind kind) override {
    const int threads = kind == StreamKind::kCompute ? options_.threads : 1;
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> cpu, CreateCpuBackend({.threads = threads}));
    return std::make_unique<DiscreteBackend>(std::move(cpu), memory_, options_);
  }
  bool memory_is_host() const override { return false; }

 private:
  const DiscreteOptions options_;
  DeviceMemory memory_;
};

}  // namespace

std::unique_ptr<BackendFactory> CreateDiscreteBackends(const DiscreteOptions& options) {
  return std::make_unique<DiscreteBackends>(options);
}

}  // namespace takt::backend
