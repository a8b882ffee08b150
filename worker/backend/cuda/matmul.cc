// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/matmul.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/backend/cuda/device.h"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {

absl::Status ToStatus(cublasStatus_t error, std::string_view what) {
  if (error == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string message =
      absl::StrCat(std::string(what), ": cuBLASLt: ", cublasLtGetStatusString(error));
  switch (error) {
    case CUBLAS_STATUS_ALLOC_FAILED:
      return absl::ResourceExhaustedError(message);
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
    case CUBLAS_STATUS_INVALID_VALUE:
      return absl::FailedPreconditionError(message);
    default:
      return absl::InternalError(message);
  }
}

std::string CublasLtVersion() {
  const std::size_t version = cublasLtGetVersion();  // 130002 is 13.0.2
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

Matmuls::Matmuls(const MatmulOptions& options)
    : options_(options), a_(*options.arena), b_(*options.arena), workspace_(*options.arena) {}

absl::StatusOr<std::unique_ptr<Matmuls>> Matmuls::Create(const MatmulOptions& options) {
  auto matmuls = std::unique_ptr<Matmuls>(new Matmuls(options));
  cublasLtHandle_t handle = nullptr;
  RETURN_IF_ERROR(ToStatus(cublasLtCreate(&handle), "opening the library"));
  matmuls->handle_.reset(handle);
  return matmuls;
}

absl::Status Matmuls::Run(const Matmul& op) { return Multiply(ProductOf(op, options_.tf32)); }

absl::Status Matmuls::Run(const MatmulBf16& op) {
  if (op.c.bf16 != nullptr || op.a_stride != 0 || op.c_stride != 0) {
    return absl::UnimplementedError("MatmulBf16: c in bf16 and strides have no kernels yet");
  }
  ASSIGN_OR_RETURN(const RoundedOperand a, Rounded(op.a, op.m, op.k, a_));
  return Multiply(ProductOf(op, a));
}

absl::Status Matmuls::Run(const MatmulTransposedBf16& op) {
  if (op.a_stride != 0 || op.b_stride != 0 || op.column_sums != nullptr) {
    return absl::UnimplementedError(
        "MatmulTransposedBf16: strides and column sums have no kernels yet");
  }
  ASSIGN_OR_RETURN(const RoundedOperand a, Rounded(op.a, op.k, op.m, a_));
  ASSIGN_OR_RETURN(const RoundedOperand b, Rounded(op.b, op.k, op.n, b_));
  return Multiply(ProductOf(op, a, b));
}

// The operand in bf16, [rows,columns], with rows that tensor cores can load (16 bytes): where it
// is, or in `scratch`. Whether it came in f32 or rounded, its rows are as far apart: so the same
// kernel multiplies it.
absl::StatusOr<RoundedOperand> Matmuls::Rounded(const Operand& operand, std::int64_t rows,
                                                std::int64_t columns, Scratch& scratch) {
  const std::int64_t stride = PackedBf16Stride(columns);
  if (operand.bf16 != nullptr && stride == columns) return RoundedOperand{operand.bf16, stride};
  constexpr std::int64_t kElement = sizeof(Bf16);
  ASSIGN_OR_RETURN(std::byte* const data,
                   scratch.AtLeast(PackedBf16Elements(rows, columns) * kElement));
  auto* const rounded = reinterpret_cast<Bf16*>(data);
  const LaunchContext context{.stream = options_.stream};
  if (operand.bf16 != nullptr) {
    const auto width = static_cast<std::size_t>(columns * kElement);
    const auto pitch = static_cast<std::size_t>(stride * kElement);
    RETURN_IF_ERROR(ToStatus(
        cudaMemcpy2DAsync(rounded, pitch, operand.bf16, width, width,
                          static_cast<std::size_t>(rows), cudaMemcpyDefault, options_.stream),
        "copying an operand"));
  } else if (stride == columns) {
    Launch(RoundBf16{.input = operand.f32, .rounded = rounded, .count = rows * columns}, context);
  } else {
    Launch(PackBf16{.b = operand.f32, .packed = rounded, .k = rows, .n = columns}, context);
  }
  RETURN_IF_ERROR(ToStatus(cudaGetLastError(), "rounding an operand to bf16"));
  return RoundedOperand{rounded, stride};
}

absl::Status Matmuls::Multiply(const Product& product) {
  ASSIGN_OR_RETURN(const Prepared* const prepared, Prepare(product));
  const absl::Status status = Enqueue(product, prepared->described, prepared->plan);
  return status.ok() ? status
                     : absl::Status(status.code(),
                                    absl::StrCat(ToString(product.shape), ": ", status.message()));
}

absl::StatusOr<const Matmuls::Prepared*> Matmuls::Prepare(const Product& product) {
  const ProductShape& shape = product.shape;
  if (const auto it = prepared_.find(shape); it != prepared_.end()) return it->second.get();
  ASSIGN_OR_RETURN(Described described, Describe(product));
  ASSIGN_OR_RETURN(const KernelPlan plan,
                   options_.plans->Get(ToString(shape), [&] { return Choose(shape, described); }));
  auto prepared = std::make_unique<Prepared>(Prepared{std::move(described), plan});
  RETURN_IF_ERROR(Check(shape, *prepared));
  return prepared_.emplace(shape, std::move(prepared)).first->second.get();
}

absl::Status Matmuls::SetBias(const Product& product, const Desc& desc) {
  return ToStatus(cublasLtMatmulDescSetAttribute(desc.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                 &product.bias, sizeof(product.bias)),
                  "setting the bias");
}

// cuBLASLt's matrices are stored by columns. What we store by rows is to it the transposed matrix,
// so it computes c^T = b^T a^T: our b is its first operand, our n its rows, and our bias, one
// number a column, its bias of one number a row.
absl::StatusOr<Matmuls::Described> Matmuls::Describe(const Product& product) const {
  const ProductShape& s = product.shape;
  const cudaDataType_t type = s.bf16 ? CUDA_R_16BF : CUDA_R_32F;
  const auto layout = [](cudaDataType_t of, std::int64_t stored_rows, std::int64_t stored_columns,
                         std::int64_t stride, Layout& out) {
    cublasLtMatrixLayout_t made = nullptr;
    const cublasStatus_t error =
        cublasLtMatrixLayoutCreate(&made, of, static_cast<std::uint64_t>(stored_columns),
                                   static_cast<std::uint64_t>(stored_rows), stride);
    out.reset(made);
    return ToStatus(error, "describing a matrix");
  };
  const auto desc = [&](bool fused, Desc& out) -> absl::Status {
    cublasLtMatmulDesc_t made = nullptr;
    const cublasComputeType_t compute = s.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    RETURN_IF_ERROR(
        ToStatus(cublasLtMatmulDescCreate(&made, compute, CUDA_R_32F), "describing a product"));
    out.reset(made);
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, std::int32_t value) {
      return ToStatus(cublasLtMatmulDescSetAttribute(made, attribute, &value, sizeof(value)),
                      "describing a product");
    };
    RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSA, s.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
    RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSB, s.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
    if (!fused) return absl::OkStatus();
    RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F));
    RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
    return SetBias(product, out);  // each product sets its own; the heuristic wants to see one
  };
  Described described;
  RETURN_IF_ERROR(desc(false, described.plain));
  if (s.bias) RETURN_IF_ERROR(desc(true, described.fused));
  RETURN_IF_ERROR(layout(type, s.a_transposed ? s.k : s.m, s.a_transposed ? s.m : s.k, s.a_stride,
                         described.a));
  RETURN_IF_ERROR(layout(type, s.b_transposed ? s.n : s.k, s.b_transposed ? s.k : s.n, s.b_stride,
                         described.b));
  RETURN_IF_ERROR(layout(CUDA_R_32F, s.m, s.n, s.n, described.c));
  return described;
}

absl::Status Matmuls::Check(const ProductShape& shape, const Prepared& prepared) const {
  const Described& d = prepared.described;
  cublasLtMatmulAlgo_t algorithm;
  static_assert(sizeof(algorithm) == sizeof(prepared.plan.algorithm));
  std::memcpy(&algorithm, prepared.plan.algorithm.data(), sizeof(algorithm));
  cublasLtMatmulHeuristicResult_t result;
  const cublasStatus_t error = cublasLtMatmulAlgoCheck(
      handle_.get(), d.desc(shape.bias && prepared.plan.fused_epilogue).get(), d.b.get(), d.a.get(),
      d.c.get(), d.c.get(), &algorithm, &result);
  return ToStatus(error, absl::StrCat("the kernel plan's algorithm for ", ToString(shape)));
}

absl::Status Matmuls::Enqueue(const Product& product, const Described& described,
                              const KernelPlan& plan) {
  const ProductShape& shape = product.shape;
  const bool fused = shape.bias && plan.fused_epilogue;
  const Desc& desc = described.desc(fused);
  if (fused) {
    RETURN_IF_ERROR(
        ToStatus(cublasLtMatmulDescSetAttribute(desc.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                &product.bias, sizeof(product.bias)),
                 "setting the bias"));
  }
  ASSIGN_OR_RETURN(std::byte* const workspace, workspace_.AtLeast(plan.workspace_bytes));
  cublasLtMatmulAlgo_t algorithm;
  std::memcpy(&algorithm, plan.algorithm.data(), sizeof(algorithm));
  const bool adds = shape.addend != Addend::kNone;
  const float one = 1, beta = adds ? 1 : 0;
  const float* const addend = adds ? product.addend : product.c;
  RETURN_IF_ERROR(
      ToStatus(cublasLtMatmul(handle_.get(), desc.get(), &one, product.b, described.b.get(),
                              product.a, described.a.get(), &beta, addend, described.c.get(),
                              product.c, described.c.get(), &algorithm, workspace,
                              static_cast<std::size_t>(plan.workspace_bytes), options_.stream),
               "enqueueing a product"));
  if (!shape.bias || fused) return absl::OkStatus();
  Launch(AddBias{.x = product.c, .bias = product.bias, .rows = shape.m, .columns = shape.n},
         {.stream = options_.stream});
  return ToStatus(cudaGetLastError(), "adding the bias");
}

}  // namespace takt::backend::cuda
