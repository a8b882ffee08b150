// SPDX-License-Identifier: Apache-2.0
// Products of matrices by cuBLASLt: descriptors and algorithms are made once a shape.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/cuda/plan_cache.h"
#include "worker/backend/cuda/product.h"
#include "worker/backend/cuda/scratch.h"
#include "worker/backend/ops.h"

namespace takt::backend::cuda {

// kFailedPrecondition: the library has no such kernel. kInternal: device fault.
absl::Status ToStatus(cublasStatus_t error, std::string_view what);

// "13.0.2", of the library that was found.
std::string CublasLtVersion();

struct MatmulOptions {
  cudaStream_t stream = nullptr;
  Arena* arena = nullptr;  // both borrowed, outlive the products
  PlanCache* plans = nullptr;
  bool tf32 = false;  // of products in f32
  bool tune = false;  // see CudaOptions
};

// Thread: its backend's.
class Matmuls {
 public:
  static absl::StatusOr<std::unique_ptr<Matmuls>> Create(const MatmulOptions& options);

  // Enqueued on return. Errors: kFailedPrecondition (a frozen plan lacks the shape, or holds an
  // algorithm that the library refuses), kInternal (device fault).
  absl::Status Run(const Matmul& op);
  absl::Status Run(const MatmulBf16& op);
  absl::Status Run(const MatmulTransposedBf16& op);

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

  // What cuBLASLt is told of a shape; two ways if there is a bias to fuse.
  struct Described {
    Desc fused, plain;  // `fused` adds the bias; without a bias only `plain` is there
    Layout a, b, c;
    const Desc& desc(bool with_bias) const { return with_bias ? fused : plain; }
  };
  struct Prepared {
    Described described;
    KernelPlan plan;
  };
  struct Candidate {
    KernelPlan plan;
    float milliseconds = 0;
  };

  explicit Matmuls(const MatmulOptions& options);

  absl::StatusOr<RoundedOperand> Rounded(const Operand& operand, std::int64_t rows,
                                         std::int64_t columns, Scratch& scratch);
  absl::Status Multiply(const Product& product);
  absl::Status Enqueue(const Product& product, const Described& described, const KernelPlan& plan);

  absl::StatusOr<const Prepared*> Prepare(const Product& product);
  absl::StatusOr<Described> Describe(const Product& product) const;
  static absl::Status SetBias(const Product& product, const Desc& desc);
  absl::Status Check(const ProductShape& shape, const Prepared& prepared) const;

  absl::StatusOr<KernelPlan> Choose(const ProductShape& shape, const Described& described);
  std::vector<Candidate> Candidates(const ProductShape& shape, const Described& described) const;
  absl::Status Time(const Product& product, const Described& described, Candidate& candidate);

  const MatmulOptions options_;
  Handle handle_;
  Scratch a_, b_;  // rounded operands
  Scratch workspace_;
  // Pointers to elements are handed out: they stay where they are.
  absl::flat_hash_map<ProductShape, std::unique_ptr<Prepared>> prepared_;
};

}  // namespace takt::backend::cuda
