// SPDX-License-Identifier: Apache-2.0
// Multiplies matrices by cuBLASLt. Descriptors and algorithms are made once a shape.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/cuda/gemm.h"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/cuda/product.h"
#include "worker/backend/cuda/scratch.h"
#include "worker/backend/ops.h"
#include "worker/backend/plan_cache.h"

namespace takt::backend::cuda {

// kFailedPrecondition: the library has no such kernel. kInternal: device fault.
absl::Status ToStatus(cublasStatus_t error, std::string_view what);

// Returns the version of the library that was found, as "13.0.2".
std::string CublasLtVersion();

struct MatmulOptions {
  cudaStream_t stream = nullptr;
  Arena* arena = nullptr;  // both borrowed, outlive the products
  PlanCache* plans = nullptr;
  int sm_target = 0;  // how many multiprocessors a product may fill; 0: all
  bool tf32 = false;  // of products in f32
  bool tune = false;  // this and the next: see CudaOptions
  std::optional<bool> fused_epilogues;
  std::uint64_t* fp8_counts = nullptr;  // these two: of LaunchContext
  std::uint32_t* block_counts = nullptr;
};

// Belongs to one stream and shares its handle and its workspace with no other stream: the library
// demands this for the same bits on every run.
// Thread: its backend's.
class Matmuls {
 public:
  static absl::StatusOr<std::unique_ptr<Matmuls>> Create(const MatmulOptions& options);

  // The op is enqueued on return. Errors: kFailedPrecondition (a frozen plan lacks the shape, or
  // holds an algorithm that the library refuses), kInternal (device fault).
  absl::Status Run(const ProductOp auto& op) {
    return ForProducts(op, Operands::kRounded, [&](const Product& p) { return Multiply(p); });
  }

  // Does what Backend::Prepare does.
  absl::Status Prepare(const ProductOp auto& op) {
    return ForProducts(op, Operands::kAllocated, [&](const Product& p) { return MakeRoom(p); });
  }

  // Forgets the sums that wait to be added. Call it where ops were recorded in vain.
  void DropWaitingSums() { waiting_sums_.Drop(); }

  // Chooses how Run would compute `op`, and computes nothing. Only the alignment of its pointers
  // matters, and which of them are null.
  absl::Status Plan(const ProductOp auto& op) {
    return ForProducts(op, Operands::kPlaced,
                       [&](const Product& p) { return PreparedFor(p.shape).status(); });
  }

 private:
  template <auto destroy>
  struct Destroy {
    template <class T>
    void operator()(T* p) const {
      static_cast<void>(destroy(p));
    }
  };
  using Handle = std::unique_ptr<cublasLtContext, Destroy<cublasLtDestroy>>;
  using Desc = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy<cublasLtMatmulDescDestroy>>;
  using Layout =
      std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy<cublasLtMatrixLayoutDestroy>>;
  using Preference =
      std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy<cublasLtMatmulPreferenceDestroy>>;

  // A gemm as it is described to the library.
  struct Described {
    Gemm gemm;
    Desc desc;
    Layout a, b, d;
  };
  struct Prepared {
    Described described;
    KernelPlan plan;
    bool launched = false;  // so that its kernel is loaded
  };

  explicit Matmuls(const MatmulOptions& options);

  // Operands that a gemm reads in scratch are left alone (their place is null), get memory, or are
  // also rounded into it.
  enum class Operands : std::uint8_t { kPlaced, kAllocated, kRounded };
  // Calls `use` for the products that compute an op.
  using Use = absl::FunctionRef<absl::Status(const Product&)>;
  absl::Status ForProducts(const Matmul& op, Operands operands, Use use);
  absl::Status ForProducts(const MatmulBf16& op, Operands operands, Use use);
  absl::Status ForProducts(const MatmulTransposedBf16& op, Operands operands, Use use);
  // Returns where a gemm reads the operand [rows,columns].
  absl::StatusOr<RoundedOperand> Place(const Operand& operand, std::int64_t rows,
                                       std::int64_t columns, std::int64_t stride, Scratch& scratch,
                                       Operands operands);
  // Returns where a gemm reads an operand in FP8. op: without its outputs.
  absl::StatusOr<Fp8Codes> PlaceFp8(QuantizeFp8 op, Scratch& scratch, Operands operands) const;
  absl::Status Multiply(const Product& product);
  absl::Status MakeRoom(const Product& product);
  absl::Status LaunchOnce(const ProductShape& shape, Prepared& prepared);
  absl::StatusOr<Prepared*> PreparedFor(const ProductShape& shape);
  static absl::StatusOr<Described> Describe(const Gemm& gemm);
  absl::Status Check(const Prepared& prepared) const;

  absl::Status Enqueue(const Product& product, const Prepared& prepared);
  absl::StatusOr<std::byte*> VectorOf(const Product& product, const Gemm& gemm);
  absl::Status RoundBias(const Product& product, std::byte* vector) const;
  absl::Status Finish(const Product& product, const Gemm& gemm, const void* vector);

  absl::StatusOr<KernelPlan> Choose(const ProductShape& shape);
  absl::StatusOr<std::vector<KernelPlan>> Candidates(const ProductShape& shape, bool fused) const;
  static absl::StatusOr<Preference> Prefer(const Gemm& gemm);
  absl::StatusOr<KernelPlan> Fastest(const ProductShape& shape,
                                     const std::vector<KernelPlan>& candidates);
  absl::StatusOr<float> Milliseconds(const Product& product, const Prepared& prepared);

  const MatmulOptions options_;
  Handle handle_;
  Scratch a_, b_;   // rounded operands; one in FP8 has its scales behind it
  Scratch vector_;  // a rounded bias, or sums that are to be added
  Scratch waiting_vector_;
  WaitingSums waiting_sums_;  // in waiting_vector_
  Scratch workspace_;
  // Pointers to the elements are handed out, so the elements must not move.
  absl::flat_hash_map<ProductShape, std::unique_ptr<Prepared>> prepared_;
};

}  // namespace takt::backend::cuda
