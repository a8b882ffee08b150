// SPDX-License-Identifier: Apache-2.0
// Chooses the algorithm that multiplies a shape: the library's first guess, or the fastest of a
// few, timed once.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/backend/cuda/device.h"
#include "worker/backend/cuda/matmul.h"
#include "worker/backend/cuda/region.h"

namespace takt::backend::cuda {
namespace {

constexpr int kMostCandidates = 12;
constexpr std::int64_t kMostWorkspaceBytes = std::int64_t{32} << 20;
static_assert(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE == kReduceInComputeType &&
              CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE == kReduceInOutputType);
// A later guess must be this much faster than an earlier one, because timings differ by as much
// from run to run.
constexpr float kGain = 0.98F;

// Returns how many scales the operand with more scales has.
std::int64_t NumScales(const ProductShape& s) {
  return std::max(NumFp8Scales(s.m, s.a_stride, s.a_scales),
                  NumFp8Scales(s.n, s.b_stride, s.b_scales));
}

// Holds operands of random numbers beside the arena while a choice is timed, or while a kernel is
// launched to load it. Zeros would multiply faster than real data (fewer bits change, so the clock
// stays higher).
class RandomOperands {
 public:
  // overlap: all operands begin at one place, which takes least memory; results mean nothing then.
  // kResourceExhausted: too little memory is free, which is no error of the job.
  absl::StatusOr<Product> Make(const ProductShape& s, bool overlap, cudaStream_t stream) {
    const std::int64_t element = s.fp8 ? 1 : s.bf16 ? 2 : 4, c_element = s.bf16_c ? 2 : 4;
    std::int64_t size = 0;
    const auto take = [&size, overlap](std::int64_t bytes) -> std::int64_t {
      const std::int64_t taken = (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
      const std::int64_t offset = overlap ? 0 : size;
      size = std::max(size, offset + taken);
      return offset;
    };
    const std::int64_t a = take((s.a_transposed ? s.k : s.m) * s.a_stride * element);
    const std::int64_t b = take((s.b_transposed ? s.n : s.k) * s.b_stride * element);
    const std::int64_t c = take(s.m * s.c_stride * c_element), inner = take(s.m * s.n * c_element);
    const std::int64_t other = s.addend == Addend::kOther ? take(s.m * s.c_stride * c_element) : c;
    const std::int64_t bias = take(s.n * 4), sums = take(s.n * 4);
    const std::int64_t scales = take(s.fp8 ? 4 * NumScales(s) : 0);
    RETURN_IF_ERROR(region_.Allocate(size, "allocating operands to time"));
    RETURN_IF_ERROR(FillRandom(size, s, stream));
    std::byte* const base = region_.data();
    const auto floats = [base](std::int64_t at) { return reinterpret_cast<float*>(base + at); };
    const auto halves = [base](std::int64_t at) { return reinterpret_cast<Bf16*>(base + at); };
    Product product{.shape = s, .a = base + a, .b = base + b, .c = base + c};
    switch (s.epilogue) {
      case Epilogue::kNone:
        break;
      case Epilogue::kBiasGelu:
        product.inner = halves(inner);
        [[fallthrough]];
      case Epilogue::kBias:
        product.bias = floats(bias);
        break;
      case Epilogue::kGelu:
      case Epilogue::kGeluGrad:
        product.inner = halves(inner);
        break;
      case Epilogue::kColumnSums:
        product.column_sums = floats(sums);
        product.summed = halves(b);
        product.summed_rows = s.k;
        break;
    }
    if (s.addend != Addend::kNone) product.addend = floats(other);
    if (s.fp8) product.a_inverse_scales = product.b_inverse_scales = floats(scales);
    return product;
  }

 private:
  // Fills the memory with a pattern from the host, which it doubles until the memory is full.
  absl::Status FillRandom(std::int64_t bytes, const ProductShape& s, cudaStream_t stream) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    std::vector<std::uint32_t> pattern(std::size_t{1} << 16);
    const auto bits = [&] {
      const float value = normal(generator);
      std::uint32_t word = 0;
      std::memcpy(&word, &value, sizeof(word));
      return word;
    };
    constexpr std::uint32_t kNumbersOfFp8 = 0xf7f7f7f7U;  // no NaN or infinity of either format
    for (std::uint32_t& word : pattern) {
      word = s.bf16 ? (bits() & 0xffff0000U) | bits() >> 16 : bits();
      if (s.fp8) word = static_cast<std::uint32_t>(generator()) & kNumbersOfFp8;
    }
    std::byte* const base = region_.data();
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

  Region region_;
};

// Measures time by two events of one stream.
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

absl::StatusOr<Matmuls::Preference> Matmuls::Prefer(const Gemm& gemm) {
  cublasLtMatmulPreference_t made = nullptr;
  RETURN_IF_ERROR(ToStatus(cublasLtMatmulPreferenceCreate(&made), "asking for algorithms"));
  Preference preference(made);
  const auto prefer = [made](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    return ToStatus(cublasLtMatmulPreferenceSetAttribute(made, attribute, &value, sizeof(value)),
                    "asking for algorithms");
  };
  RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                         static_cast<std::uint64_t>(kMostWorkspaceBytes)));
  RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, ReductionSchemes(gemm)));
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    RETURN_IF_ERROR(prefer(attribute, static_cast<std::uint32_t>(gemm.alignment)));
  }
  return preference;
}

// Returns the library's guesses, best first; none if it has no kernel that does the epilogue.
absl::StatusOr<std::vector<KernelPlan>> Matmuls::Candidates(const ProductShape& shape,
                                                            bool fused) const {
  const Gemm gemm = GemmOf(shape, fused);
  ASSIGN_OR_RETURN(const Described d, Describe(gemm));
  ASSIGN_OR_RETURN(const Preference preference, Prefer(gemm));
  std::array<cublasLtMatmulHeuristicResult_t, kMostCandidates> results;
  int found = 0;
  const cublasStatus_t error = cublasLtMatmulAlgoGetHeuristic(
      handle_.get(), d.desc.get(), d.a.get(), d.b.get(), d.d.get(), d.d.get(), preference.get(),
      kMostCandidates, results.data(), &found);
  std::vector<KernelPlan> candidates;
  const absl::Status status = ToStatus(error, "asking for algorithms");
  if (absl::IsFailedPrecondition(status)) return candidates;
  RETURN_IF_ERROR(status);
  for (const auto& result : std::span(results).first(static_cast<std::size_t>(found))) {
    if (result.state != CUBLAS_STATUS_SUCCESS) continue;
    KernelPlan& plan = candidates.emplace_back();
    plan.fused_epilogue = fused;
    plan.workspace_bytes = static_cast<std::int64_t>(result.workspaceSize);
    std::memcpy(plan.algorithm.data(), &result.algo, sizeof(result.algo));
  }
  return candidates;
}

absl::StatusOr<float> Matmuls::Milliseconds(const Product& product, const Prepared& prepared) {
  constexpr int kRounds = 4;
  Stopwatch watch(options_.stream);
  float best = std::numeric_limits<float>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    ASSIGN_OR_RETURN(const float milliseconds,
                     watch.Milliseconds([&] { return Enqueue(product, prepared); }));
    if (round > 0) best = std::min(best, milliseconds);  // the first one loads the kernel
  }
  return best;
}

absl::StatusOr<KernelPlan> Matmuls::Fastest(const ProductShape& shape,
                                            const std::vector<KernelPlan>& candidates) {
  RandomOperands operands;
  absl::StatusOr<Product> product = operands.Make(shape, /*overlap=*/false, options_.stream);
  if (absl::IsResourceExhausted(product.status()))
    product = operands.Make(shape, /*overlap=*/true, options_.stream);
  if (absl::IsResourceExhausted(product.status())) {
    options_.plans->Warn(absl::StrCat(
        "no kernel was timed for ", ToString(shape),
        ", since too little memory of the GPU is free: it may not be the fastest one"));
    return candidates.front();
  }
  RETURN_IF_ERROR(product.status());
  const KernelPlan* best = &candidates.front();
  float least = std::numeric_limits<float>::infinity();
  for (const KernelPlan& candidate : candidates) {
    ASSIGN_OR_RETURN(Described described, Describe(GemmOf(shape, candidate.fused_epilogue)));
    const absl::StatusOr<float> milliseconds =
        Milliseconds(*product, {std::move(described), candidate});
    // The library may refuse its own guess.
    if (absl::IsFailedPrecondition(milliseconds.status())) continue;
    RETURN_IF_ERROR(milliseconds.status());
    if (*milliseconds >= kGain * least) continue;
    best = &candidate;
    least = *milliseconds;
  }
  // A backend that chooses for a whole job computes nothing after it, and the stream has nothing
  // left to do.
  workspace_.Release();
  vector_.Release();
  return *best;
}

// A kernel of the library is loaded when it is first launched. That takes locks of the context, and
// may wait behind a kernel that waits for another rank.
absl::Status Matmuls::LaunchOnce(const ProductShape& shape, Prepared& prepared) {
  RandomOperands operands;
  const absl::StatusOr<Product> product = operands.Make(shape, /*overlap=*/true, options_.stream);
  if (absl::IsResourceExhausted(product.status())) {
    options_.plans->Warn(absl::StrCat("the kernel of ", ToString(shape),
                                      " is not loaded before step 1, since too little memory of "
                                      "the GPU is free"));
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(product.status());
  RETURN_IF_ERROR(Enqueue(*product, prepared));
  RETURN_IF_ERROR(ToStatus(cudaStreamSynchronize(options_.stream), "loading a kernel"));
  prepared.launched = true;
  return absl::OkStatus();
}

absl::StatusOr<KernelPlan> Matmuls::Choose(const ProductShape& shape) {
  std::vector<bool> variants = GemmVariants(shape, options_.plans->target().compute_capability);
  if (options_.fused_epilogues.has_value() && variants.size() > 1)
    variants = {*options_.fused_epilogues};
  const bool tune = options_.tune && options_.plans->may_time();
  std::vector<KernelPlan> candidates;
  for (const bool fused : variants) {
    if (!tune && !candidates.empty()) break;
    ASSIGN_OR_RETURN(const std::vector<KernelPlan> more, Candidates(shape, fused));
    candidates.insert(candidates.end(), more.begin(), more.end());
  }
  if (candidates.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("cuBLASLt ", CublasLtVersion(), " has no algorithm for ", ToString(shape)));
  }
  if (!tune) return candidates.front();
  return Fastest(shape, candidates);
}

}  // namespace takt::backend::cuda
