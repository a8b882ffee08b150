// SPDX-License-Identifier: Apache-2.0
// Launches ops on one stream.
#include "worker/backend/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status.h"
#include "worker/backend/cuda/attention.h"
#include "worker/backend/cuda/attention_choice.h"
#include "worker/backend/cuda/capture.h"
#include "worker/backend/cuda/cudnn_shape.h"
#include "worker/backend/cuda/device.h"
#include "worker/backend/cuda/device_memory.h"
#include "worker/backend/cuda/fp8_tally.h"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/cuda/kernels/muon.h"
#include "worker/backend/cuda/matmul.h"
#include "worker/backend/cuda/peer_memory.h"
#include "worker/backend/cuda/product.h"
#include "worker/backend/cuda/scratch.h"
#include "worker/backend/cuda/stream.h"
#include "worker/backend/validate.h"

namespace takt::backend::cuda {
namespace {

template <class O>
concept AttentionOp = std::is_same_v<O, AttentionForward> || std::is_same_v<O, AttentionBackward>;

// A product may round two operands and a bias, be cut into two products with a sum over splits
// each, and be finished by three kernels of ours.
constexpr std::int64_t kMostLaunchesOfProduct = 10;

// Returns the most launches that an op may take. For MuonUpdate it counts only those before the
// first product.
std::int64_t MostLaunchesOf(const Op& op) {
  return std::visit(
      []<class O>(const O& o) -> std::int64_t {
        if constexpr (ProductOp<O>) {
          return kMostLaunchesOfProduct;
        } else if constexpr (std::is_same_v<O, AttentionBackward>) {
          constexpr std::int64_t kLaunchesOfPart = 4;
          const std::int64_t at_a_time = SequencesAtATime(o.shape);
          return (o.shape.batch + at_a_time - 1) / at_a_time * kLaunchesOfPart;
        } else if constexpr (std::is_same_v<O, ExpertMatmul>) {
          return 0;  // Execute admits them part by part
        } else if constexpr (std::is_same_v<O, ExpertMatmulTransposed>) {
          return o.rows.experts / kMostExpertsOfLaunch + 1;
        } else if constexpr (UpdateOp<O>) {
          return std::ssize(o.tensors) / kTensorsOfUpdate + 2;  // and a copy of counts
        } else {
          return 4;
        }
      },
      op);
}

// Calls `use` for one of each kind of the update's products.
absl::Status ForMuonProducts(const MuonUpdate& op,
                             absl::FunctionRef<absl::Status(const Matmul&)> use) {
  for (const int iteration : {0, 1}) {
    for (const Matmul& product : MuonProducts(op, iteration)) RETURN_IF_ERROR(use(product));
  }
  return absl::OkStatus();
}

// Returns whether the op runs about once a step.
bool IsUpdate(const Op& op) {
  return std::visit([]<class O>(const O& /*op*/) { return UpdateOp<O>; }, op);
}

// What the backends of one device share.
struct Shared {
  int device;
  DeviceMemory& memory;
  Arena& arena;
  PlanCache& plans;
  DeviceClock& clock;
  std::int64_t shared_bytes;  // of a block of threads
  int sm_target;
  bool tf32, any_order_attention, tune;
  std::optional<bool> fused_epilogues;
  Fp8Counters* fp8_counters;
  std::string description;
};

// The common part of both kinds of backends: a stream, memory and copies.  Interface: MemoryBackend
// or Backend.
template <class Interface>
class DeviceQueue : public Interface {
 public:
  absl::StatusOr<Buffer> Allocate(std::size_t bytes, MemoryKind kind) override {
    RETURN_IF_ERROR(Use());
    ASSIGN_OR_RETURN(std::byte* const data,
                     shared_.arena.Allocate(static_cast<std::int64_t>(bytes), kind));
    Buffer buffer(data, bytes, [arena = &shared_.arena](std::byte* p) { arena->Free(p); });
    // Any stream may still use what was freed here, and any may use it next. Buffers are made
    // before step 1, so waiting for the device is cheap enough.
    RETURN_IF_ERROR(WaitForDevice());
    if (bytes > 0) {
      RETURN_IF_ERROR(
          ToStatus(cudaMemsetAsync(data, 0, bytes, stream_->get()), "zeroing a buffer"));
    }
    RETURN_IF_ERROR(Synchronize());
    return buffer;
  }

  absl::StatusOr<Buffer> AllocateHost(std::size_t bytes) override {
    RETURN_IF_ERROR(Use());
    void* data = nullptr;
    const std::size_t size = std::max<std::size_t>(bytes, 1);
    RETURN_IF_ERROR(ToStatus(cudaHostAlloc(&data, size, cudaHostAllocPortable),
                             absl::StrCat("pinning ", bytes, " bytes of the host")));
    std::memset(data, 0, size);
    // A thread that never chose a device would initialise the first one.
    return Buffer(static_cast<std::byte*>(data), bytes, [device = shared_.device](std::byte* p) {
      static_cast<void>(cudaSetDevice(device));
      static_cast<void>(cudaFreeHost(p));
    });
  }

  // The driver stages memory that is not pinned.
  absl::Status CopyFromHost(std::span<const std::byte> source, std::byte* destination) override {
    return Copied(destination, source.data(), source.size(), cudaMemcpyHostToDevice);
  }
  absl::Status CopyToHost(const std::byte* source, std::span<std::byte> destination) override {
    return Copied(destination.data(), source, destination.size(), cudaMemcpyDeviceToHost);
  }

  absl::Status Synchronize() override {
    RETURN_IF_ERROR(Use());
    return ToStatus(cudaStreamSynchronize(stream_->get()), "waiting for the device");
  }

  Stream* stream() override { return stream_.get(); }
  bool memory_is_host() const override { return false; }

 protected:
  // shared: borrowed.
  DeviceQueue(const Shared& shared, std::unique_ptr<CudaStream> stream)
      : shared_(shared), stream_(std::move(stream)) {}

  // Call it before giving the stream launches. A capture gives it none.
  absl::Status Admit(std::int64_t launches) {
    return Captures() ? absl::OkStatus() : stream_->MakeRoom(launches);
  }

  // The device is a property of the calling thread.
  absl::Status Use() { return ToStatus(cudaSetDevice(shared_.device), "choosing the device"); }

  const Shared& shared_;
  const std::unique_ptr<CudaStream> stream_;

 private:
  absl::Status Copied(void* destination, const void* source, std::size_t bytes,
                      cudaMemcpyKind kind) {
    if (bytes == 0) return absl::OkStatus();
    RETURN_IF_ERROR(Use());
    RETURN_IF_ERROR(Admit(1));
    return ToStatus(cudaMemcpyAsync(destination, source, bytes, kind, stream_->get()),
                    absl::StrCat("copying ", bytes, " bytes"));
  }
};

class CudaMemory final : public DeviceQueue<MemoryBackend> {
 public:
  CudaMemory(const Shared& shared, std::unique_ptr<CudaStream> stream)
      : DeviceQueue(shared, std::move(stream)) {}
  ~CudaMemory() override { static_cast<void>(Synchronize()); }

  absl::Status Run(const Copy& op) override { return Enqueue(op); }
  absl::Status Run(const Add& op) override { return Enqueue(op); }
  absl::Status Run(const PackBf16& op) override {
    if (op.fp8 != Fp8Scaling::kNone)
      return absl::InvalidArgumentError("PackBf16: this lane does not round to FP8");
    return Enqueue(op);
  }

 private:
  template <class O>
  absl::Status Enqueue(const O& op) {
    RETURN_IF_ERROR(ValidateOp(op));
    RETURN_IF_ERROR(Use());
    RETURN_IF_ERROR(Admit(1));
    Launch(op, {.stream = stream_->get()});
    return ToStatus(cudaGetLastError(), "enqueueing an op");
  }
};

class CudaBackend final : public DeviceQueue<Backend>, public Recorder {
 public:
  static absl::StatusOr<std::unique_ptr<CudaBackend>> Create(const Shared& shared) {
    std::unique_ptr<CudaStream> own_stream;
    {
      const NoCapture none;
      ASSIGN_OR_RETURN(own_stream,
                       CudaStream::Create(shared.device, StreamKind::kCompute, shared.clock));
    }
    const cudaStream_t stream = own_stream->get();
    auto backend = std::unique_ptr<CudaBackend>(new CudaBackend(shared, std::move(own_stream)));
    backend->scratch_ = std::make_unique<Scratch>(shared.arena);
    // These wait for the device, which is a NoCapture of its own.
    RETURN_IF_ERROR(backend->CreateBlockCounts());
    ASSIGN_OR_RETURN(backend->fp8_tally_,
                     Fp8Tally::Create(shared.arena, stream, shared.fp8_counters));
    // It ends before the backend, whose end is a NoCapture, too.
    const NoCapture none;
    ASSIGN_OR_RETURN(backend->matmuls_,
                     Matmuls::Create({.stream = stream,
                                      .arena = &shared.arena,
                                      .plans = &shared.plans,
                                      .sm_target = shared.sm_target,
                                      .tf32 = shared.tf32,
                                      .tune = shared.tune,
                                      .fused_epilogues = shared.fused_epilogues,
                                      .fp8_counts = backend->fp8_tally_->counts(),
                                      .block_counts = backend->block_counts_}));
    ASSIGN_OR_RETURN(
        backend->cudnn_attention_,
        CreateCudnnAttention(
            {.stream = stream, .arena = &shared.arena, .any_order = shared.any_order_attention}));
    backend->attention_choices_.emplace(shared.plans, backend->cudnn_attention_.get());
    return backend;
  }

  // Scratch memory goes back to the arena here, so nothing may still use it.
  ~CudaBackend() override {
    static_cast<void>(Synchronize());
    const NoCapture none;
    if (fp8_tally_ != nullptr) fp8_tally_->Finish();
    fp8_tally_ = nullptr;
    attention_choices_.reset();
    cudnn_attention_ = nullptr;
    matmuls_ = nullptr;
  }

  absl::Status Run(const Op& op) override {
    RETURN_IF_ERROR(ValidateOp(op));
    RETURN_IF_ERROR(Use());
    RETURN_IF_ERROR(Admit(MostLaunchesOf(op)));
    if (IsUpdate(op) && !Captures()) RETURN_IF_ERROR(fp8_tally_->Report());
    return std::visit([this](const auto& o) { return Execute(o); }, op);
  }

  absl::Status Prepare(const Op& op) override {
    RETURN_IF_ERROR(ValidateOp(op));
    RETURN_IF_ERROR(Use());
    return std::visit([this](const auto& o) { return MakeRoom(o); }, op);
  }

  absl::StatusOr<Buffer> AllocateInOrder(std::size_t bytes, MemoryKind kind) override {
    if (Captures())
      return absl::FailedPreconditionError("memory in the order of work cannot be recorded");
    RETURN_IF_ERROR(Use());
    return shared_.memory.AllocateInOrder(bytes, kind, stream_->get());
  }

  // Chooses the kernel that Run would choose, and runs nothing.
  absl::Status Choose(const Op& op) {
    RETURN_IF_ERROR(Use());
    return std::visit([this](const auto& o) { return Plan(o); }, op);
  }

  absl::StatusOr<std::unique_ptr<Recording>> Record(
      absl::FunctionRef<absl::Status()> ops) override {
    auto recording = Capture(shared_.device, *stream_, shared_.arena, ops);
    if (!recording.ok()) matmuls_->DropWaitingSums();
    return recording;
  }

  Recorder* recorder() override { return this; }
  std::string description() const override { return shared_.description; }

 private:
  CudaBackend(const Shared& shared, std::unique_ptr<CudaStream> stream)
      : DeviceQueue(shared, std::move(stream)), block_counts_memory_(shared.arena) {}

  absl::Status Execute(const ProductOp auto& op) { return matmuls_->Run(op); }
  absl::Status Execute(const AttentionOp auto& op) {
    ASSIGN_OR_RETURN(Attention* const cudnn, CudnnFor(op));
    return cudnn != nullptr ? cudnn->Run(op) : Enqueue(op, "enqueueing attention");
  }
  // The launches are admitted in parts, so that no more are outstanding than the stream may have,
  // however many experts there are.
  absl::Status Execute(const ExpertMatmul& op) {
    for (std::int64_t first = 0; first < op.rows.experts; first += kMostExpertsOfLaunch) {
      const std::int64_t end = std::min(op.rows.experts, first + kMostExpertsOfLaunch);
      RETURN_IF_ERROR(Admit(op.to_tokens ? end - first : 1));
      Launch(op, first, end, {.stream = stream_->get()});
    }
    return ToStatus(cudaGetLastError(), "enqueueing products of experts");
  }
  absl::Status Execute(const MuonUpdate& op) {
    ASSIGN_OR_RETURN(std::byte* const scratch, scratch_->AtLeast(ScratchBytes(op)));
    const auto multiply = [this](const Matmul& product) -> absl::Status {
      RETURN_IF_ERROR(Admit(kMostLaunchesOfProduct + 1));  // a part of the update follows
      return matmuls_->Run(product);
    };
    RETURN_IF_ERROR(UpdateByMuon(op, Context(scratch), multiply));
    return ToStatus(cudaGetLastError(), "enqueueing an update");
  }
  absl::Status Execute(const EmbeddingBackward& op) {
    if (op.batch * op.context > kMaxEmbeddingRows) {
      return absl::InvalidArgumentError(absl::StrCat("EmbeddingBackward: batch * context is ",
                                                     op.batch * op.context, ", must be at most ",
                                                     kMaxEmbeddingRows, " on a GPU"));
    }
    return Enqueue(op);
  }
  absl::Status Execute(const auto& own_op) { return Enqueue(own_op); }

  absl::Status MakeRoom(const ProductOp auto& op) { return matmuls_->Prepare(op); }
  absl::Status MakeRoom(const AttentionOp auto& op) {
    ASSIGN_OR_RETURN(Attention* const cudnn, CudnnFor(op));
    return cudnn != nullptr ? cudnn->Prepare(op) : MakeScratch(op);
  }
  absl::Status MakeRoom(const MuonUpdate& op) {
    RETURN_IF_ERROR(
        ForMuonProducts(op, [this](const Matmul& product) { return matmuls_->Prepare(product); }));
    return MakeScratch(op);
  }
  absl::Status MakeRoom(const auto& own_op) { return MakeScratch(own_op); }

  absl::Status Plan(const ProductOp auto& op) { return matmuls_->Plan(op); }
  absl::Status Plan(const AttentionOp auto& op) {
    return attention_choices_->ByLibrary(op).status();
  }
  absl::Status Plan(const MuonUpdate& op) {
    return ForMuonProducts(op, [this](const Matmul& product) { return matmuls_->Plan(product); });
  }
  absl::Status Plan(const auto& /*other_op*/) { return absl::OkStatus(); }

  // Launches on the stream count in turns, so one array serves all of them, recorded or not.
  absl::Status CreateBlockCounts() {
    ASSIGN_OR_RETURN(
        std::byte* const counts,
        block_counts_memory_.Zeros(kBlockCounts * sizeof(std::uint32_t), stream_->get()));
    block_counts_ = reinterpret_cast<std::uint32_t*>(counts);
    return absl::OkStatus();
  }
  LaunchContext Context(std::byte* scratch) const {
    return {.stream = stream_->get(),
            .scratch = scratch,
            .shared_bytes = shared_.shared_bytes,
            .fp8_counts = fp8_tally_->counts(),
            .block_counts = block_counts_};
  }
  absl::Status MakeScratch(const auto& own_op) {
    return scratch_->AtLeast(ScratchBytes(own_op)).status();
  }
  absl::Status Enqueue(const auto& own_op, const char* what = "enqueueing an op") {
    ASSIGN_OR_RETURN(std::byte* const scratch, scratch_->AtLeast(ScratchBytes(own_op)));
    Launch(own_op, Context(scratch));
    return ToStatus(cudaGetLastError(), what);
  }

  // Null: our own kernels compute it.
  absl::StatusOr<Attention*> CudnnFor(const AttentionOp auto& op) {
    ASSIGN_OR_RETURN(const bool by_library, attention_choices_->ByLibrary(op));
    if (by_library) return cudnn_attention_.get();
    if (op.shape.head_size <= kMaxHeadSize) return nullptr;
    return absl::InvalidArgumentError(absl::StrCat("attention: head_size is ", op.shape.head_size,
                                                   ", must be at most ", kMaxHeadSize,
                                                   " on a GPU"));
  }

  Scratch block_counts_memory_;
  std::uint32_t* block_counts_ = nullptr;  // of LaunchContext
  std::unique_ptr<Scratch> scratch_;
  std::unique_ptr<Fp8Tally> fp8_tally_;
  std::unique_ptr<Matmuls> matmuls_;
  std::unique_ptr<Attention> cudnn_attention_;  // null: not built in
  std::optional<AttentionChoices> attention_choices_;
};

class DeviceImpl final : public CudaDevice {
 public:
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Open(const CudaOptions& options) {
    ASSIGN_OR_RETURN(const std::vector<Device> devices, ListDevices());
    if (options.device < 0 || options.device >= std::ssize(devices)) {
      return absl::InvalidArgumentError(
          absl::StrCat("device is ", options.device, ", this machine has ", devices.size()));
    }
    cudaDeviceProp properties;
    RETURN_IF_ERROR(ToStatus(cudaGetDeviceProperties(&properties, options.device),
                             "reading the device's properties"));
    PlanTarget target{.compute_capability = absl::StrCat(properties.major, ".", properties.minor),
                      .sm_count = properties.multiProcessorCount,
                      .cublaslt = CublasLtVersion(),
                      .cudnn = CudnnVersion()};
    auto device = std::unique_ptr<DeviceImpl>(new DeviceImpl(options, std::move(target)));
    RETURN_IF_ERROR(device->memory_.KeepPool());
    ASSIGN_OR_RETURN(device->arena_,
                     Arena::Create(device->memory_, {.predicted = options.predicted,
                                                     .beside_bytes = options.beside_bytes,
                                                     .ledger = options.ledger}));
    device->peer_memory_ = CreateCudaPeerMemory(options.device, *device->arena_);
    ASSIGN_OR_RETURN(device->clock_, DeviceClock::Create(options.device));
    device->shared_ = std::unique_ptr<Shared>(new Shared{
        .device = options.device,
        .memory = device->memory_,
        .arena = *device->arena_,
        .plans = device->plans_,
        .clock = *device->clock_,
        .shared_bytes = static_cast<std::int64_t>(properties.sharedMemPerBlockOptin),
        .sm_target = SmTarget(properties.multiProcessorCount, options.sms_for_communication),
        .tf32 = options.tf32,
        .any_order_attention = options.any_order_attention,
        .tune = options.tune,
        .fused_epilogues = options.fused_epilogues,
        .fp8_counters = options.fp8_counters,
        .description = Description(device->plans_.target(), options.tf32)});
    return device;
  }

  absl::StatusOr<std::unique_ptr<Backend>> CreateCompute() override {
    return CudaBackend::Create(*shared_);
  }
  absl::StatusOr<std::unique_ptr<MemoryBackend>> CreateMemory(StreamKind kind) override {
    const NoCapture none;
    ASSIGN_OR_RETURN(auto stream, CudaStream::Create(device_, kind, *clock_));
    return std::make_unique<CudaMemory>(*shared_, std::move(stream));
  }
  bool memory_is_host() const override { return false; }
  PeerMemory* peer_memory() override { return peer_memory_.get(); }
  // An error of any kernel stays with the process: each later call repeats it.
  absl::Status status() override {
    RETURN_IF_ERROR(ToStatus(cudaSetDevice(device_), "looking at the device"));
    const cudaError_t error = cudaStreamQuery(nullptr);
    return error == cudaErrorNotReady ? absl::OkStatus() : ToStatus(error, "looking at the device");
  }

  PlanCache& plans() override { return plans_; }
  absl::Status Choose(const Op& op) override {
    absl::MutexLock lock(&chooser_mutex_);
    if (chooser_ == nullptr) {
      ASSIGN_OR_RETURN(chooser_, CudaBackend::Create(*shared_));
    }
    return chooser_->Choose(op);
  }
  void EndChoices() override {
    absl::MutexLock lock(&chooser_mutex_);
    chooser_ = nullptr;
  }
  const Arena& arena() const override { return *arena_; }

 private:
  DeviceImpl(const CudaOptions& options, PlanTarget target)
      : device_(options.device),
        memory_(options.device, options.ledger),
        plans_(std::move(target)) {}

  static std::string Description(const PlanTarget& target, bool tf32) {
    return absl::StrCat("cuda ", ToString(target), tf32 ? ", tf32" : "");
  }

  const int device_;
  DeviceMemory memory_;
  PlanCache plans_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<PeerMemory> peer_memory_;
  std::unique_ptr<DeviceClock> clock_;
  std::unique_ptr<Shared> shared_;
  absl::Mutex chooser_mutex_;
  // Belongs to no lane: choices made ahead are timed on its stream. Null: none was made yet.
  std::unique_ptr<CudaBackend> chooser_ ABSL_GUARDED_BY(chooser_mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDevice>> OpenDevice(const CudaOptions& options) {
  return DeviceImpl::Open(options);
}

}  // namespace takt::backend::cuda
