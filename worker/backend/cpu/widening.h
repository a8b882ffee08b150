// SPDX-License-Identifier: Apache-2.0
// Ops whose tensors come in bf16, computed by kernels that know these tensors in f32 alone: on
// twins of them, which are rounded afterwards. Slower than f32, and what other backends are held
// to.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/backend/cpu/kernels.h"
#include "worker/backend/cpu/thread_team.h"
#include "worker/backend/op_fields.h"
#include "worker/backend/ops.h"

namespace takt::backend {

// For one op.
class Widening {
 public:
  // Both borrowed.
  Widening(ThreadTeam& team, const Kernels& kernels) : team_(team), kernels_(kernels) {}

  // The op with twins instead of tensors in bf16.
  template <class O>
  O Widen(O op) {
    WidenFields visitor{{}, *this};
    DescribeFields(op, visitor);
    return op;
  }
  // After the op: what it has left in twins of its outputs goes where it belongs.
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
