// SPDX-License-Identifier: Apache-2.0
// Which algorithm multiplies a shape: the first guess, or the fastest of a few, timed once.
#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/backend/cuda/device.h"
#include "worker/backend/cuda/matmul.h"

namespace takt::backend::cuda {
namespace {

constexpr int kMostCandidates = 12;
constexpr std::int64_t kMostWorkspaceBytes = std::int64_t{32} << 20;
// Sums of parts of k are written apart and added in order. Not "in place", where the order is that
// of arrival.
constexpr std::uint32_t kReductions =
    CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
// A later guess must be this much faster than an earlier one: timings differ by as much from run to
// run.
constexpr float kGain = 0.98F;

// Memory beside the arena for the time of a choice: random numbers, since zeros multiply faster
// than they should (fewer bits change, so the clock stays higher).
class RandomOperands {
 public:
  ~RandomOperands() {
    if (data_ != nullptr) static_cast<void>(cudaFree(data_));
  }
  RandomOperands() = default;
  RandomOperands(const RandomOperands&) = delete;
  RandomOperands& operator=(const RandomOperands&) = delete;

  // kResourceExhausted: too little is free, which is no error of the job.
  absl::StatusOr<Product> Make(const ProductShape& shape, cudaStream_t stream) {
    const std::int64_t element = shape.bf16 ? 2 : 4;
    std::int64_t size = 0;
    const auto take = [&size](std::int64_t bytes) {
      const std::int64_t offset = size;
      size += (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
      return offset;
    };
    take((shape.a_transposed ? shape.k : shape.m) * shape.a_stride * element);
    const std::int64_t b =
        take((shape.b_transposed ? shape.n : shape.k) * shape.b_stride * element);
    const std::int64_t c = take(shape.m * shape.n * 4), bias = take(shape.n * 4);
    const std::int64_t other = shape.addend == Addend::kOther ? take(shape.m * shape.n * 4) : c;
    RETURN_IF_ERROR(ToStatus(cudaMalloc(&data_, static_cast<std::size_t>(size)),
                             "allocating operands to time"));
    RETURN_IF_ERROR(FillRandom(size, shape.bf16, stream));
    auto* const base = static_cast<std::byte*>(data_);
    const auto floats = [base](std::int64_t offset) {
      return reinterpret_cast<float*>(base + offset);
    };
    return Product{.shape = shape,
                   .a = base,
                   .b = base + b,
                   .c = floats(c),
                   .bias = floats(bias),
                   .addend = floats(other)};
  }

 private:
  // A pattern from the host, doubled until it fills.
  absl::Status FillRandom(std::int64_t bytes, bool bf16, cudaStream_t stream) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    std::vector<std::uint32_t> pattern(std::size_t{1} << 16);
    const auto bits = [&] {
      const float value = normal(generator);
      std::uint32_t word = 0;
      std::memcpy(&word, &value, sizeof(word));
      return word;
    };
    for (std::uint32_t& word : pattern)
      word = bf16 ? (bits() & 0xffff0000U) | bits() >> 16 : bits();
    auto* const base = static_cast<std::byte*>(data_);
    std::int64_t done = std::min(bytes, std::int64_t{4} * std::ssize(pattern));
    RETURN_IF_ERROR(ToStatus(cudaMemcpyAsync(base, pattern.data(), static_cast<std::size_t>(done),
                                             cudaMemcpyHostToDevice, stream),
                             "filling operands to time"));
    while (done < bytes) {
      const std::int64_t next = std::min(done, bytes - done);
      RETURN_IF_ERROR(ToStatus(cudaMemcpyAsync(base + done, base, static_cast<std::size_t>(next),
                                               cudaMemcpyDeviceToDevice, stream),
                               "filling operands to time"));
      done += next;
    }
    return ToStatus(cudaStreamSynchronize(stream), "filling operands to time");
  }

  void* data_ = nullptr;
};

// Two events of one stream.
class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    static_cast<void>(cudaEventCreate(&begin_));
    static_cast<void>(cudaEventCreate(&end_));
  }
  ~Stopwatch() {
    static_cast<void>(cudaEventDestroy(begin_));
    static_cast<void>(cudaEventDestroy(end_));
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  template <class Body>
  absl::StatusOr<float> Milliseconds(const Body& body) {
    RETURN_IF_ERROR(ToStatus(cudaEventRecord(begin_, stream_), "timing a product"));
    RETURN_IF_ERROR(body());
    RETURN_IF_ERROR(ToStatus(cudaEventRecord(end_, stream_), "timing a product"));
    RETURN_IF_ERROR(ToStatus(cudaEventSynchronize(end_), "timing a product"));
    float milliseconds = 0;
    RETURN_IF_ERROR(
        ToStatus(cudaEventElapsedTime(&milliseconds, begin_, end_), "timing a product"));
    return milliseconds;
  }

 private:
  const cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

std::vector<Matmuls::Candidate> Matmuls::Candidates(const ProductShape& shape,
                                                    const Described& described) const {
  cublasLtMatmulPreference_t preference = nullptr;
  if (cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS) return {};
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy<cublasLtMatmulPreferenceDestroy>>
      owned(preference);
  bool known = true;
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    known &= cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)) ==
             CUBLAS_STATUS_SUCCESS;
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(kMostWorkspaceBytes));
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kReductions);
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    prefer(attribute, static_cast<std::uint32_t>(shape.alignment));
  }
  if (!known) return {};
  std::vector<Candidate> candidates;
  for (const bool fused : {true, false}) {
    if (fused && !shape.bias) continue;
    std::array<cublasLtMatmulHeuristicResult_t, kMostCandidates> results;
    int found = 0;
    static_cast<void>(cublasLtMatmulAlgoGetHeuristic(
        handle_.get(), described.desc(fused).get(), described.b.get(), described.a.get(),
        described.c.get(), described.c.get(), preference, kMostCandidates, results.data(), &found));
    for (int i = 0; i < found; ++i) {
      const cublasLtMatmulHeuristicResult_t& result = results[static_cast<std::size_t>(i)];
      if (result.state != CUBLAS_STATUS_SUCCESS) continue;
      Candidate& candidate = candidates.emplace_back();
      candidate.plan.fused_epilogue = fused;
      candidate.plan.workspace_bytes = static_cast<std::int64_t>(result.workspaceSize);
      std::memcpy(candidate.plan.algorithm.data(), &result.algo, sizeof(result.algo));
    }
  }
  return candidates;
}

absl::Status Matmuls::Time(const Product& product, const Described& described,
                           Candidate& candidate) {
  constexpr int kRounds = 4;
  Stopwatch watch(options_.stream);
  candidate.milliseconds = std::numeric_limits<float>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    ASSIGN_OR_RETURN(const float milliseconds, watch.Milliseconds([&] {
      return Enqueue(product, described, candidate.plan);
    }));
    // The first one loads the kernel.
    if (round > 0) candidate.milliseconds = std::min(candidate.milliseconds, milliseconds);
  }
  return absl::OkStatus();
}

absl::StatusOr<KernelPlan> Matmuls::Choose(const ProductShape& shape, const Described& described) {
  std::vector<Candidate> candidates = Candidates(shape, described);
  if (candidates.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("cuBLASLt ", CublasLtVersion(), " has no algorithm for ", ToString(shape)));
  }
  if (!options_.tune) return candidates.front().plan;
  RandomOperands operands;
  const absl::StatusOr<Product> product = operands.Make(shape, options_.stream);
  if (absl::IsResourceExhausted(product.status())) return candidates.front().plan;
  RETURN_IF_ERROR(product.status());
  const Candidate* best = nullptr;
  for (Candidate& candidate : candidates) {
    const absl::Status status = Time(*product, described, candidate);
    if (absl::IsFailedPrecondition(status)) continue;  // a guess that the library then refuses
    RETURN_IF_ERROR(status);
    if (best == nullptr || candidate.milliseconds < kGain * best->milliseconds) best = &candidate;
  }
  return best != nullptr ? best->plan : candidates.front().plan;
}

}  // namespace takt::backend::cuda
