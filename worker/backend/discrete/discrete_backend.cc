// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/discrete/discrete_backend.h"

#include <cstring>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/backend/discrete/device_memory.h"
#include "worker/backend/discrete/discrete_peer_memory.h"
#include "worker/backend/discrete/prepared_ops.h"
#include "worker/backend/discrete/task_stream.h"
#include "worker/backend/launch_window.h"
#include "worker/backend/op_fields.h"
#include "worker/backend/validate.h"

namespace takt::backend {
namespace {

absl::Status NotOurs(const void* address) {
  return absl::InvalidArgumentError(absl::StrCat(
      "0x", absl::Hex(reinterpret_cast<std::uintptr_t>(address)), " is no memory of the device"));
}

// An op together with everything that it refers to in the caller's memory.
struct Held {
  Op op;
  std::vector<UpdatedTensor> tensors;
  std::vector<ExpertMatrix> matrices;
  std::vector<ExpertGradient> gradients;

  Op Whole() const {
    Op whole = op;
    std::visit(
        [this]<class O>(O& o) {
          if constexpr (UpdateOp<O>) o.tensors = tensors;
          if constexpr (std::is_same_v<O, ExpertMatmul>) o.matrices = matrices;
          if constexpr (std::is_same_v<O, ExpertMatmulTransposed>) o.gradients = gradients;
        },
        whole);
    return whole;
  }
};

// Replaces the pointers of an op by their twins.
class Translation : public IgnoreFields {
 public:
  explicit Translation(const DeviceMemory& memory) : memory_(memory) {}

  absl::StatusOr<Held> operator()(const Op& op) {
    Held held{.op = op};
    std::visit(
        [&held]<class O>(const O& o) {
          if constexpr (UpdateOp<O>) held.tensors.assign(o.tensors.begin(), o.tensors.end());
          if constexpr (std::is_same_v<O, ExpertMatmul>)
            held.matrices.assign(o.matrices.begin(), o.matrices.end());
          if constexpr (std::is_same_v<O, ExpertMatmulTransposed>)
            held.gradients.assign(o.gradients.begin(), o.gradients.end());
        },
        op);
    std::visit([this](auto& o) { DescribeFields(o, *this); }, held.op);
    for (UpdatedTensor& tensor : held.tensors) DescribeFields(tensor, *this);
    for (ExpertMatrix& matrix : held.matrices) DescribeFields(matrix, *this);
    for (ExpertGradient& gradient : held.gradients) DescribeFields(gradient, *this);
    if (stranger_ != nullptr) return NotOurs(stranger_);
    return held;
  }

  void Tensor(const char* /*name*/, auto& field, const auto&... /*extent*/) { Move(field); }
  void Optional(auto& field, const auto&... /*extent*/) { Move(field); }

 private:
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

// Each float of such bytes is NaN, in f32, in bf16 and in double, and each integer is -1.
constexpr int kSpoiled = 0xff;

using Ops = std::vector<Held>;

absl::Status NotWhileRecording(const char* what) {
  return absl::FailedPreconditionError(absl::StrCat(what, " cannot be recorded"));
}

class DiscreteBackend final : public Backend, public Recorder {
 public:
  // memory, queue: of the device, borrowed; the queue may be null.
  DiscreteBackend(std::unique_ptr<Backend> cpu, DeviceMemory& memory, BoundedQueue* queue,
                  StreamKind kind, const DiscreteOptions& options)
      : cpu_(std::move(cpu)),
        memory_(memory),
        options_(options),
        stream_(
            TaskStreamOptions{.lazy = options.lazy,
                              .memory = &memory,
                              .queue = queue,
                              .most_launches = options.bounds_launches ? MostLaunches(kind) : 0}) {}

  absl::Status Run(const Op& op) override {
    RETURN_IF_ERROR(ValidateOp(op));
    if (options_.prepared_only) RETURN_IF_ERROR(prepared_.Check(op));
    ASSIGN_OR_RETURN(Held moved, Translation(memory_)(op));
    if (recorded_ != nullptr) {
      recorded_->push_back(std::move(moved));
    } else {
      RETURN_IF_ERROR(stream_.MakeRoom(1));
      stream_.Push([this, moved = std::move(moved)] { return cpu_->Run(moved.Whole()); });
    }
    return absl::OkStatus();
  }

  absl::Status Prepare(const Op& op) override {
    RETURN_IF_ERROR(ValidateOp(op));
    if (recorded_ != nullptr) return NotWhileRecording("making room");
    if (options_.prepared_only) prepared_.Add(op);
    return absl::OkStatus();
  }

  absl::StatusOr<Buffer> Allocate(std::size_t bytes, MemoryKind kind) override {
    if (prepared_.any_used()) {
      return absl::FailedPreconditionError(
          "a device that computes makes memory only in the order of its work: it would wait for "
          "its peers");
    }
    return Allocated(bytes, kind);
  }

  absl::StatusOr<Buffer> AllocateInOrder(std::size_t bytes, MemoryKind kind) override {
    ASSIGN_OR_RETURN(Buffer buffer, Allocated(bytes, kind));
    const auto held = std::make_shared<Buffer>(std::move(buffer));
    return Buffer(held->data(), bytes, [this, held](std::byte* /*data*/) mutable {
      stream_.Push([held = std::move(held)] { return absl::OkStatus(); });
    });
  }

  // The CPU backend belongs to the stream's thread.
  absl::StatusOr<Buffer> AllocateHost(std::size_t bytes) override {
    ASSIGN_OR_RETURN(const std::unique_ptr<Backend> host, CreateCpuBackend({}));
    return host->AllocateHost(bytes);
  }

  absl::Status CopyFromHost(std::span<const std::byte> source, std::byte* destination) override {
    return EnqueueCopy(destination, source.size(), [source](std::byte* twin) {
      std::memcpy(twin, source.data(), source.size());
    });
  }
  absl::Status CopyToHost(const std::byte* source, std::span<std::byte> destination) override {
    return EnqueueCopy(source, destination.size(), [destination](const std::byte* twin) {
      std::memcpy(destination.data(), twin, destination.size());
    });
  }

  absl::Status Synchronize() override {
    return recorded_ != nullptr ? NotWhileRecording("waiting for the device") : stream_.Drain();
  }

  absl::StatusOr<std::unique_ptr<Recording>> Record(
      absl::FunctionRef<absl::Status()> ops) override {
    if (recorded_ != nullptr) return NotWhileRecording("a recording");
    const auto recorded = std::make_shared<Ops>();
    recorded_ = recorded.get();
    const absl::Status given = ops();
    recorded_ = nullptr;
    RETURN_IF_ERROR(given);
    return std::make_unique<DiscreteRecording>(*this, recorded);
  }

  Stream* stream() override { return &stream_; }
  Recorder* recorder() override { return this; }
  bool memory_is_host() const override { return false; }
  std::string description() const override { return cpu_->description(); }

 private:
  absl::StatusOr<Buffer> Allocated(std::size_t bytes, MemoryKind kind) {
    if (recorded_ != nullptr) return NotWhileRecording("making memory");
    ASSIGN_OR_RETURN(std::byte* const data, memory_.Allocate(bytes));
    if (kind != MemoryKind::kWeights && kind != MemoryKind::kOptimizer)
      std::memset(memory_.Twin(data), kSpoiled, bytes);
    const std::int64_t counted = AllocatedBytes(static_cast<std::int64_t>(bytes));
    MemoryLedger* const ledger = options_.ledger;
    if (ledger != nullptr) ledger->Add(kind, counted);
    return Buffer(data, bytes, [&memory = memory_, ledger, kind, counted](std::byte* p) {
      memory.Free(p);
      if (ledger != nullptr) ledger->Add(kind, -counted);
    });
  }

  // Calls copy(twin) on the stream, with the twin of `device`.
  template <class Copy>
  absl::Status EnqueueCopy(const std::byte* device, std::size_t bytes, const Copy& copy) {
    if (recorded_ != nullptr) return NotWhileRecording("a copy");
    if (bytes == 0) return absl::OkStatus();
    std::byte* const twin = memory_.Twin(device);
    if (twin == nullptr) return NotOurs(device);
    RETURN_IF_ERROR(stream_.MakeRoom(1));
    stream_.Push([copy, twin] {
      copy(twin);
      return absl::OkStatus();
    });
    return absl::OkStatus();
  }

  class DiscreteRecording final : public Recording {
   public:
    DiscreteRecording(DiscreteBackend& backend, std::shared_ptr<const Ops> ops)
        : backend_(backend), ops_(std::move(ops)) {}

    absl::Status Replay() override {
      RETURN_IF_ERROR(backend_.stream_.MakeRoom(std::ssize(*ops_)));
      backend_.stream_.Push([&cpu = *backend_.cpu_, ops = ops_] {
        for (const Held& op : *ops) RETURN_IF_ERROR(cpu.Run(op.Whole()));
        return absl::OkStatus();
      });
      if (backend_.options_.replays != nullptr) ++*backend_.options_.replays;
      return absl::OkStatus();
    }

   private:
    DiscreteBackend& backend_;
    const std::shared_ptr<const Ops> ops_;  // shared with replays that are under way
  };

  const std::unique_ptr<Backend> cpu_;  // of the stream's thread
  DeviceMemory& memory_;
  const DiscreteOptions options_;
  PreparedOps prepared_;
  Ops* recorded_ = nullptr;  // null: ops are done, not recorded
  TaskStream stream_;        // last: what it runs uses everything above
};

class DiscreteBackends final : public BackendFactory {
 public:
  explicit DiscreteBackends(const DiscreteOptions& options) : options_(options) {
    if (options.queue_capacity > 0) queue_.emplace(options.queue_capacity, options.queue_patience);
    if (options.shared_bytes > 0 && memory_.ReserveRegion(options.shared_bytes).ok())
      peer_memory_.emplace(memory_, options.peer_copies);
  }

  absl::StatusOr<std::unique_ptr<Backend>> CreateCompute() override {
    return Create(options_.threads, StreamKind::kCompute);
  }
  absl::StatusOr<std::unique_ptr<MemoryBackend>> CreateMemory(StreamKind kind) override {
    return Create(/*threads=*/1, kind);
  }
  bool memory_is_host() const override { return false; }
  PeerMemory* peer_memory() override { return peer_memory_.has_value() ? &*peer_memory_ : nullptr; }

 private:
  absl::StatusOr<std::unique_ptr<Backend>> Create(int threads, StreamKind kind) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> cpu, CreateCpuBackend({.threads = threads}));
    return std::make_unique<DiscreteBackend>(
        std::move(cpu), memory_, queue_.has_value() ? &*queue_ : nullptr, kind, options_);
  }

  const DiscreteOptions options_;
  DeviceMemory memory_;
  std::optional<DiscretePeerMemory> peer_memory_;  // none: nobody else can open the memory
  std::optional<BoundedQueue> queue_;              // none: queues take any amount
};

}  // namespace

std::unique_ptr<BackendFactory> CreateDiscreteBackends(const DiscreteOptions& options) {
  return std::make_unique<DiscreteBackends>(options);
}

}  // namespace takt::backend
