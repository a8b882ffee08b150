// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/matmul.h"

#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/backend/cuda/device.h"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {
namespace {

constexpr auto IsNumberOf(GemmEpilogue ours, cublasLtEpilogue_t theirs) {
  return static_cast<std::int32_t>(ours) == static_cast<std::int32_t>(theirs);
}
static_assert(IsNumberOf(GemmEpilogue::kDefault, CUBLASLT_EPILOGUE_DEFAULT));
static_assert(IsNumberOf(GemmEpilogue::kBias, CUBLASLT_EPILOGUE_BIAS));
static_assert(IsNumberOf(GemmEpilogue::kGeluAux, CUBLASLT_EPILOGUE_GELU_AUX));
static_assert(IsNumberOf(GemmEpilogue::kGeluAuxBias, CUBLASLT_EPILOGUE_GELU_AUX_BIAS));
static_assert(IsNumberOf(GemmEpilogue::kDGelu, CUBLASLT_EPILOGUE_DGELU));
static_assert(IsNumberOf(GemmEpilogue::kBGradA, CUBLASLT_EPILOGUE_BGRADA));
constexpr auto IsNumberOf(GemmScales ours, cublasLtMatmulMatrixScale_t theirs) {
  return static_cast<std::int32_t>(ours) == static_cast<std::int32_t>(theirs);
}
static_assert(IsNumberOf(GemmScales::kOne, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F));
static_assert(IsNumberOf(GemmScales::kVectors, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F));
static_assert(IsNumberOf(GemmScales::kSquares, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F));

std::int32_t TypeOf(ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return CUDA_R_32F;
    case ElementType::kBf16:
      return CUDA_R_16BF;
    case ElementType::kE4m3:
      return CUDA_R_8F_E4M3;
    case ElementType::kE5m2:
      return CUDA_R_8F_E5M2;
  }
  return CUDA_R_32F;
}

// Returns a pointer with the common alignment of all pointers of the gemm. It is never read: the
// library derives from it which kernels may be chosen. So the choice does not depend on where the
// first op's tensors lie.
void* AnyPointer(const Gemm& gemm) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(gemm.alignment));
}

template <class T>
absl::Status Set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                 const T& value) {
  return ToStatus(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof(value)),
                  "describing a product");
}

absl::Status SetPointers(cublasLtMatmulDesc_t desc, const Gemm& gemm, const GemmPointers& p) {
  if (gemm.has_vector()) RETURN_IF_ERROR(Set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.vector));
  if (gemm.has_scales) {
    RETURN_IF_ERROR(Set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.a_scales));
    RETURN_IF_ERROR(Set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.b_scales));
  }
  if (gemm.aux_stride == 0) return absl::OkStatus();
  return Set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.aux);
}

// The size of a bias as the library wants it, or of sums.
std::int64_t VectorBytes(const Product& product) {
  return product.shape.n * static_cast<std::int64_t>(sizeof(float));
}

BiasGrad ColumnSumsOf(const Product& product) {
  return {.d_output = product.summed,
          .d_bias = product.column_sums,
          .rows = product.summed_rows,
          .columns = product.shape.n,
          .accumulate = product.shape.addend == Addend::kOutput};
}

}  // namespace

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
    : options_(options),
      a_(*options.arena),
      b_(*options.arena),
      vector_(*options.arena),
      waiting_vector_(*options.arena),
      workspace_(*options.arena) {}

absl::StatusOr<std::unique_ptr<Matmuls>> Matmuls::Create(const MatmulOptions& options) {
  auto matmuls = std::unique_ptr<Matmuls>(new Matmuls(options));
  cublasLtHandle_t handle = nullptr;
  RETURN_IF_ERROR(ToStatus(cublasLtCreate(&handle), "opening the library"));
  matmuls->handle_.reset(handle);
  return matmuls;
}

absl::Status Matmuls::ForProducts(const Matmul& op, Operands /*operands*/, Use use) {
  return use(ProductOf(op, options_.tf32));
}

absl::Status Matmuls::ForProducts(const MatmulBf16& op, Operands operands, Use use) {
  if (op.a_fp8.rounds()) {
    ASSIGN_OR_RETURN(const Fp8Codes a, PlaceFp8({.input = op.a,
                                                 .operand = op.a_fp8.operand,
                                                 .scales = ScalesOf(op.a_fp8),
                                                 .e5m2 = op.a_fp8.is_e5m2(),
                                                 .rows = op.m,
                                                 .columns = op.k,
                                                 .input_stride = op.a_stride},
                                                a_, operands));
    return use(Fp8ProductOf(op, a));
  }
  ASSIGN_OR_RETURN(const RoundedOperand a, Place(op.a, op.m, op.k, op.a_stride, a_, operands));
  return use(ProductOf(op, a));
}

absl::Status Matmuls::ForProducts(const MatmulTransposedBf16& op, Operands operands, Use use) {
  if (op.a_fp8.rounds()) {
    const auto place = [&](const Operand& input, const Fp8& fp8, std::int64_t columns,
                           std::int64_t stride, Scratch& scratch) {
      return PlaceFp8({.input = input,
                       .operand = fp8.operand,
                       .sums_rows = true,
                       .scales = ScalesOf(fp8),
                       .e5m2 = fp8.is_e5m2(),
                       .rows = op.k,
                       .columns = columns,
                       .input_stride = stride},
                      scratch, operands);
    };
    ASSIGN_OR_RETURN(const Fp8Codes a, place(op.a, op.a_fp8, op.m, op.a_stride, a_));
    ASSIGN_OR_RETURN(const Fp8Codes b, place(op.b, op.b_fp8, op.n, op.b_stride, b_));
    return use(Fp8ProductOf(op, a, b));
  }
  ASSIGN_OR_RETURN(const RoundedOperand a, Place(op.a, op.k, op.m, op.a_stride, a_, operands));
  ASSIGN_OR_RETURN(const RoundedOperand b, Place(op.b, op.k, op.n, op.b_stride, b_, operands));
  for (const Product& product : CutToVectors(ProductOf(op, a, b))) RETURN_IF_ERROR(use(product));
  return absl::OkStatus();
}

absl::StatusOr<RoundedOperand> Matmuls::Place(const Operand& operand, std::int64_t rows,
                                              std::int64_t columns, std::int64_t stride,
                                              Scratch& scratch, Operands operands) {
  RoundedOperand place = WhereRounded(operand, columns, stride);
  if (place.data != nullptr || operands == Operands::kPlaced) return place;
  constexpr std::int64_t kElement = sizeof(Bf16);
  ASSIGN_OR_RETURN(std::byte* const data, scratch.AtLeast(rows * place.stride * kElement));
  auto* const rounded = reinterpret_cast<Bf16*>(data);
  place.data = rounded;
  if (operands == Operands::kAllocated) return place;
  Launch(RoundBf16{.input = operand,
                   .rounded = rounded,
                   .rows = rows,
                   .columns = columns,
                   .input_stride = stride,
                   .rounded_stride = place.stride},
         {.stream = options_.stream});
  RETURN_IF_ERROR(ToStatus(cudaGetLastError(), "rounding an operand to bf16"));
  return place;
}

// Scratch holds, in this order, the scratch for finding the scales, the codes, and the scales.
absl::StatusOr<Fp8Codes> Matmuls::PlaceFp8(QuantizeFp8 op, Scratch& scratch,
                                           Operands operands) const {
  const std::int64_t rows = op.sums_rows ? op.columns : op.rows;
  Fp8Codes place{.stride = Fp8Stride(op.sums_rows ? op.rows : op.columns, op.scales)};
  if (operands == Operands::kPlaced) return place;
  const std::int64_t scales_at = kFp8ScratchBytes + rows * place.stride;
  const std::int64_t num_scales = NumFp8Scales(rows, place.stride, op.scales);
  ASSIGN_OR_RETURN(
      std::byte* const data,
      scratch.AtLeast(scales_at + num_scales * static_cast<std::int64_t>(sizeof(float))));
  op.output = reinterpret_cast<std::uint8_t*>(data + kFp8ScratchBytes);
  op.inverse_scales = reinterpret_cast<float*>(data + scales_at);
  place.codes = op.output;
  place.inverse_scales = op.inverse_scales;
  if (operands == Operands::kAllocated) return place;
  Launch(op, {.stream = options_.stream, .scratch = data, .fp8_counts = options_.fp8_counts});
  RETURN_IF_ERROR(ToStatus(cudaGetLastError(), "rounding an operand to FP8"));
  return place;
}

absl::Status Matmuls::MakeRoom(const Product& product) {
  ASSIGN_OR_RETURN(Prepared* const prepared, PreparedFor(product.shape));
  const Described& described = prepared->described;
  const KernelPlan& plan = prepared->plan;
  RETURN_IF_ERROR(workspace_.AtLeast(plan.workspace_bytes).status());
  const bool has_vector = described.gemm.has_vector();
  if (has_vector && PointersOf(product, described.gemm).vector == nullptr)
    RETURN_IF_ERROR(VectorOf(product, described.gemm).status());
  if (RemainderOf(product, described.gemm).column_sums)
    RETURN_IF_ERROR(vector_.AtLeast(ScratchBytes(ColumnSumsOf(product))).status());
  return prepared->launched ? absl::OkStatus() : LaunchOnce(product.shape, *prepared);
}

absl::Status Matmuls::Multiply(const Product& product) {
  ASSIGN_OR_RETURN(const Prepared* const prepared, PreparedFor(product.shape));
  const absl::Status status = Enqueue(product, *prepared);
  return status.ok() ? status
                     : absl::Status(status.code(),
                                    absl::StrCat(ToString(product.shape), ": ", status.message()));
}

absl::StatusOr<Matmuls::Prepared*> Matmuls::PreparedFor(const ProductShape& shape) {
  if (const auto it = prepared_.find(shape); it != prepared_.end()) return it->second.get();
  const std::string name = ToString(shape);
  ASSIGN_OR_RETURN(const KernelPlan plan, options_.plans->Get(name, [&] { return Choose(shape); }));
  ASSIGN_OR_RETURN(Described described, Describe(GemmOf(shape, plan.fused_epilogue)));
  // Only what runs has the target, and no choice, so a job on one rank and on several has the same
  // plan.
  if (options_.sm_target > 0) {
    RETURN_IF_ERROR(Set(described.desc.get(), CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET,
                        static_cast<std::int32_t>(options_.sm_target)));
  }
  auto prepared = std::make_unique<Prepared>(Prepared{std::move(described), plan});
  if (const absl::Status status = Check(*prepared); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat("the kernel plan's algorithm for ", name, ": ",
                                                    status.message()));
  }
  return prepared_.emplace(shape, std::move(prepared)).first->second.get();
}

absl::StatusOr<Matmuls::Described> Matmuls::Describe(const Gemm& gemm) {
  Described described{.gemm = gemm};
  const auto layout = [](const GemmMatrix& matrix, Layout& out) {
    cublasLtMatrixLayout_t made = nullptr;
    const cublasStatus_t error =
        cublasLtMatrixLayoutCreate(&made, static_cast<cudaDataType_t>(TypeOf(matrix.type)),
                                   static_cast<std::uint64_t>(matrix.rows),
                                   static_cast<std::uint64_t>(matrix.columns), matrix.stride);
    out.reset(made);
    return ToStatus(error, "describing a matrix");
  };
  RETURN_IF_ERROR(layout(gemm.a, described.a));
  RETURN_IF_ERROR(layout(gemm.b, described.b));
  RETURN_IF_ERROR(layout(gemm.d, described.d));

  const auto compute = gemm.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  cublasLtMatmulDesc_t desc = nullptr;
  RETURN_IF_ERROR(
      ToStatus(cublasLtMatmulDescCreate(&desc, compute, CUDA_R_32F), "describing a product"));
  described.desc.reset(desc);
  const auto operation = [](bool transposed) {
    return static_cast<std::int32_t>(transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  };
  RETURN_IF_ERROR(Set(desc, CUBLASLT_MATMUL_DESC_TRANSA, operation(gemm.a_transposed)));
  RETURN_IF_ERROR(Set(desc, CUBLASLT_MATMUL_DESC_TRANSB, operation(gemm.b_transposed)));
  RETURN_IF_ERROR(
      Set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::int32_t>(gemm.epilogue)));
  if (gemm.has_vector())
    RETURN_IF_ERROR(Set(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, TypeOf(gemm.d.type)));
  if (gemm.aux_stride != 0)
    RETURN_IF_ERROR(Set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, gemm.aux_stride));
  if (gemm.has_scales) {
    RETURN_IF_ERROR(Set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, gemm.a_scales));
    RETURN_IF_ERROR(Set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, gemm.b_scales));
  }
  const auto* const number = static_cast<const float*>(AnyPointer(gemm));
  RETURN_IF_ERROR(SetPointers(desc, gemm,
                              {.aux = AnyPointer(gemm),
                               .vector = AnyPointer(gemm),
                               .a_scales = number,
                               .b_scales = number}));
  return described;
}

// Checks a plan, which may come from another rank or from a file.
absl::Status Matmuls::Check(const Prepared& prepared) const {
  const Described& d = prepared.described;
  const auto algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(prepared.plan.algorithm);
  cublasLtMatmulHeuristicResult_t result{};
  RETURN_IF_ERROR(
      ToStatus(cublasLtMatmulAlgoCheck(handle_.get(), d.desc.get(), d.a.get(), d.b.get(), d.d.get(),
                                       d.d.get(), &algorithm, &result),
               "checking an algorithm"));
  if (static_cast<std::int64_t>(result.workspaceSize) <= prepared.plan.workspace_bytes)
    return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("it needs a workspace of ",
                                                    result.workspaceSize, " bytes, the plan says ",
                                                    prepared.plan.workspace_bytes));
}

absl::Status Matmuls::Enqueue(const Product& product, const Prepared& prepared) {
  const Described& described = prepared.described;
  const KernelPlan& plan = prepared.plan;
  const Gemm& gemm = described.gemm;
  Launch(waiting_sums_.Before(product, gemm), {.stream = options_.stream});
  GemmPointers p = PointersOf(product, gemm);
  if (gemm.has_vector() && p.vector == nullptr) {
    ASSIGN_OR_RETURN(std::byte* const vector, VectorOf(product, gemm));
    if (product.bias != nullptr) RETURN_IF_ERROR(RoundBias(product, vector));
    p.vector = vector;
  }
  RETURN_IF_ERROR(SetPointers(described.desc.get(), gemm, p));
  ASSIGN_OR_RETURN(std::byte* const workspace, workspace_.AtLeast(plan.workspace_bytes));
  const auto algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(plan.algorithm);
  const float one = 1;
  RETURN_IF_ERROR(
      ToStatus(cublasLtMatmul(handle_.get(), described.desc.get(), &one, p.a, described.a.get(),
                              p.b, described.b.get(), &p.beta, p.c, described.d.get(), p.d,
                              described.d.get(), &algorithm, workspace,
                              static_cast<std::size_t>(plan.workspace_bytes), options_.stream),
               "enqueueing a product"));
  return Finish(product, gemm, p.vector);
}

// Returns memory for a bias as the library wants it, or for sums.
absl::StatusOr<std::byte*> Matmuls::VectorOf(const Product& product, const Gemm& gemm) {
  Scratch& scratch = WaitingSums::Waits(product, gemm) ? waiting_vector_ : vector_;
  return scratch.AtLeast(VectorBytes(product));
}

absl::Status Matmuls::RoundBias(const Product& product, std::byte* vector) const {
  Launch(RoundBf16{.input = product.bias,
                   .rounded = reinterpret_cast<Bf16*>(vector),
                   .rows = 1,
                   .columns = product.shape.n},
         {.stream = options_.stream});
  return ToStatus(cudaGetLastError(), "rounding a bias to bf16");
}

absl::Status Matmuls::Finish(const Product& product, const Gemm& gemm, const void* vector) {
  const ProductShape& s = product.shape;
  const Remainder left = RemainderOf(product, gemm);
  const auto output = [&s](void* data) {
    return s.bf16_c ? Output(static_cast<Bf16*>(data)) : Output(static_cast<float*>(data));
  };
  const Output c = output(product.c);
  LaunchContext context{.stream = options_.stream, .block_counts = options_.block_counts};
  if (left.bias) {
    const Output x = left.gelu ? Output(product.inner) : c;  // both are dense then
    Launch(AddBias{.x = x, .bias = product.bias, .rows = s.m, .columns = s.n, .stride = s.c_stride},
           context);
  }
  if (left.gelu)
    Launch(GeluForward{.input = product.inner, .output = c, .count = s.m * s.n}, context);
  if (left.gelu_grad) {
    Launch(GeluBackward{.input = product.inner, .d_output = c, .d_input = c, .count = s.m * s.n},
           context);
  }
  Launch(waiting_sums_.After(product, gemm, vector), context);
  if (left.column_sums) {
    const BiasGrad sums = ColumnSumsOf(product);
    ASSIGN_OR_RETURN(context.scratch, vector_.AtLeast(ScratchBytes(sums)));
    Launch(sums, context);
  }
  return ToStatus(cudaGetLastError(), "finishing a product");
}

}  // namespace takt::backend::cuda
