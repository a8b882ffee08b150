// SPDX-License-Identifier: Apache-2.0
// Computes ops whose tensors come in bf16 by kernels that know these tensors in f32 alone. The
// kernels work on f32 copies (twins), which are rounded afterwards. This is slower than f32; other
// backends are tested against it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/backend/cpu/kernels.h"
#include "worker/backend/cpu/thread_team.h"
#include "worker/backend/op_fields.h"
#include "worker/backend/ops.h"

namespace takt::backend {

// Serves one op.
class Widening {
 public:
  // Borrows both.
  Widening(ThreadTeam& team, const Kernels& kernels) : team_(team), kernels_(kernels) {}

  // Returns the op with twins in place of tensors in bf16.
  template <class O>
  O Widen(O op) {
    WidenFields visitor{{}, *this};
    DescribeFields(op, visitor);
    return op;
  }
  // Call it after the op: it rounds the twins of outputs into these.
  void Round();

 private:
  struct Twin {
    std::unique_ptr<float[]> data;  // strides as the tensor's
    Bf16* output;
    Extent extent;
  };

  struct WidenFields : IgnoreFields {
    using IgnoreFields::Tensor;
    template <class T>
    void Tensor(const char* /*name*/, T& tensor, const Extent& extent) {
      widening.Widen(tensor, extent);
    }
    using IgnoreFields::Optional;
    template <class T>
    void Optional(T& tensor, const Extent& extent) {
      widening.Widen(tensor, extent);
    }
    Widening& widening;
  };

  void Widen(Operand& tensor, const Extent& extent);
  void Widen(Output& tensor, const Extent& extent);
  std::unique_ptr<float[]> Widened(const Bf16* tensor, const Extent& extent);

  ThreadTeam& team_;
  const Kernels& kernels_;
  std::vector<Twin> twins_;
};

}  // namespace takt::backend
