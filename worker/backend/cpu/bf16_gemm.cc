// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cpu/bf16_gemm.h"

#include <algorithm>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/backend/cpu/matmul.h"
#include "worker/backend/cpu/onednn_matmul.h"

namespace takt::backend {
namespace {

absl::Status Failed(const Bf16Block& block, const std::string& reason) {
  return absl::InternalError(absl::StrCat("oneDNN's bf16 product of ", block.m, " x ", block.n,
                                          " x ", block.k, " failed: ", reason));
}

// Multiplies by oneDNN's bf16 kernels.
class NativeGemm final : public Bf16Gemm {
 public:
  absl::Status Run(const Bf16Block& block, const Bf16* a, const Bf16* b, float* c) override {
    UseOneOpenMpThread();
    try {
      Multiply(Find(block), a, b, c);
      return absl::OkStatus();
    } catch (const dnnl::error& error) {
      return Failed(block, error.what());
    }
  }

 private:
  using Memory = dnnl::memory;
  struct Product {
    dnnl::matmul matmul;
    Memory a, b, c, workspace;
    std::size_t workspace_bytes = 0;
  };

  void Multiply(Product& product, const Bf16* a, const Bf16* b, float* c) {
    // oneDNN's memory objects take no const pointers, but it only reads its sources.
    product.a.set_data_handle(const_cast<Bf16*>(a));
    product.b.set_data_handle(const_cast<Bf16*>(b));
    product.c.set_data_handle(c);
    workspace_.resize(std::max(workspace_.size(), product.workspace_bytes));
    product.workspace.set_data_handle(workspace_.data());
    product.matmul.execute(stream_, {{DNNL_ARG_SRC, product.a},
                                     {DNNL_ARG_WEIGHTS, product.b},
                                     {DNNL_ARG_DST, product.c},
                                     {DNNL_ARG_SCRATCHPAD, product.workspace}});
    stream_.wait();
  }

  static Memory::desc Describe(std::int64_t rows, std::int64_t columns, std::int64_t stride,
                               bool transposed, Memory::data_type type) {
    return {{rows, columns}, type, transposed ? Memory::dims{1, stride} : Memory::dims{stride, 1}};
  }

  Product& Find(const Bf16Block& block) {
    const auto known = products_.find(block);
    return known != products_.end() ? known->second
                                    : products_.emplace(block, Generate(block)).first->second;
  }

  Product Generate(const Bf16Block& block) const {
    constexpr auto kBf16 = Memory::data_type::bf16;
    const Memory::desc a = Describe(block.m, block.k, block.a_stride, block.a_transposed, kBf16);
    const Memory::desc b =
        block.b_packed ? Memory::desc({block.k, block.n}, kBf16, Memory::format_tag::BA16a64b2a)
                       : Describe(block.k, block.n, block.b_stride, false, kBf16);
    const Memory::desc c =
        Describe(block.m, block.n, block.c_stride, false, Memory::data_type::f32);
    dnnl::primitive_attr attributes;
    // The library's own scratchpad would belong to the thread that generated the kernel.
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (block.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0F);
      attributes.set_post_ops(sum);
    }
    const dnnl::matmul::primitive_desc description = DescribeMatmul(engine_, a, b, c, attributes);
    const Memory::desc workspace = description.scratchpad_desc();
    return {.matmul = dnnl::matmul(description),
            .a = Memory(a, engine_, nullptr),
            .b = Memory(b, engine_, nullptr),
            .c = Memory(c, engine_, nullptr),
            .workspace = Memory(workspace, engine_, nullptr),
            .workspace_bytes = workspace.get_size()};
  }

  const dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::map<Bf16Block, Product> products_;
  std::vector<std::byte> workspace_;
};

// Multiplies the same values as f32. Products of two bf16 values are exact in f32, so only the
// order of the sums may differ.
class GemmInF32 final : public Bf16Gemm {
 public:
  absl::Status Run(const Bf16Block& block, const Bf16* a, const Bf16* b, float* c) override {
    UseOneOpenMpThread();
    const std::int64_t a_rows = block.a_transposed ? block.k : block.m;
    const std::int64_t a_columns = block.a_transposed ? block.m : block.k;
    Widen(a, a_rows, a_columns, block.a_stride, a_);
    if (block.b_packed) {
      WidenPanels(b, block.k, block.n);
    } else {
      Widen(b, block.k, block.n, block.b_stride, b_);
    }
    const dnnl_status_t status = dnnl_sgemm(block.a_transposed ? 'T' : 'N', 'N', block.m, block.n,
                                            block.k, 1.0F, a_.data(), a_columns, b_.data(), block.n,
                                            block.accumulate ? 1.0F : 0.0F, c, block.c_stride);
    return status == dnnl_success
               ? absl::OkStatus()
               : Failed(block, absl::StrCat("status ", static_cast<int>(status)));
  }

 private:
  static void Widen(const Bf16* from, std::int64_t rows, std::int64_t columns, std::int64_t stride,
                    std::vector<float>& to) {
    to.resize(static_cast<std::size_t>(rows * columns));
    for (std::int64_t r = 0; r < rows; ++r) {
      std::transform(from + r * stride, from + r * stride + columns, to.begin() + r * columns,
                     ToFloat);
    }
  }

  void WidenPanels(const Bf16* from, std::int64_t k, std::int64_t n) {
    b_.resize(static_cast<std::size_t>(k * n));
    const std::int64_t depth = (k + kBf16PanelDepth - 1) / kBf16PanelDepth * kBf16PanelDepth;
    for (std::int64_t column = 0; column < n; column += kBf16PanelColumns) {
      const std::int64_t columns = std::min(kBf16PanelColumns, n - column);
      for (std::int64_t row = 0; row < k; row += 2) {
        const Bf16* const pairs = from + column * depth + row * kBf16PanelColumns;
        float* const to = b_.data() + row * n + column;
        for (std::int64_t c = 0; c < columns; ++c) to[c] = ToFloat(pairs[2 * c]);
        if (row + 1 == k) continue;
        for (std::int64_t c = 0; c < columns; ++c) to[n + c] = ToFloat(pairs[2 * c + 1]);
      }
    }
  }

  std::vector<float> a_, b_;
};

}  // namespace

std::unique_ptr<Bf16Gemm> CreateBf16Gemm(bool native) {
  if (native) return std::make_unique<NativeGemm>();
  return std::make_unique<GemmInF32>();
}

}  // namespace takt::backend
