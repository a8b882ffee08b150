// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/discrete/prepared_ops.h"

#include <cstdint>
#include <initializer_list>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "worker/backend/discrete/op_pointers.h"

namespace takt::backend {
namespace {

// All that Backend::Prepare counts, as text.
class Likeness {
 public:
  std::string operator()(const Op& op) {
    absl::StrAppend(&text_, "op ", op.index());
    std::visit([this](auto copy) { Add(copy); }, op);
    return std::move(text_);
  }

 private:
  template <class O>
  void Add(O& o) {
    if constexpr (requires { o.m, o.n, o.k; }) Sizes({o.m, o.n, o.k});
    if constexpr (requires { o.a_stride; }) Sizes({o.a_stride});
    if constexpr (requires { o.b_stride; }) Sizes({o.b_stride});
    if constexpr (requires { o.c_stride; }) Sizes({o.c_stride});
    if constexpr (requires { o.rows; }) Sizes({o.rows});
    if constexpr (requires { o.columns; }) Sizes({o.columns});
    if constexpr (requires { o.count; }) Sizes({o.count});
    if constexpr (requires { o.vocab; }) Sizes({o.vocab});
    if constexpr (requires { o.batch, o.context; }) Sizes({o.batch, o.context});
    if constexpr (requires { o.heads, o.head_size; }) Sizes({o.heads, o.head_size});
    if constexpr (requires { o.accumulate; }) Sizes({o.accumulate ? 1 : 0});
    if constexpr (requires { o.shape; }) {
      const AttentionShape& s = o.shape;
      Sizes({s.batch, s.context, s.heads, s.kv_heads, s.head_size, s.q_stride, s.kv_stride,
             s.out_stride});
    }
    ForEachPointer(o, [this](auto& field) { this->Pointer(field); });
  }
  void Sizes(std::initializer_list<std::int64_t> sizes) {
    for (const std::int64_t size : sizes) absl::StrAppend(&text_, " ", size);
  }
  void Pointer(const void* pointer) {
    constexpr std::uintptr_t kVector = 16;  // no kernel asks for more
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    text_ += pointer == nullptr ? " null" : absl::StrCat(" at ", address % kVector);
  }
  void Pointer(const Operand& operand) { Pointer(operand.f32), Pointer(operand.bf16); }
  void Pointer(const Output& output) { Pointer(output.f32), Pointer(output.bf16); }

  std::string text_;
};

bool NeedsNothing(const Op& op) {
  return std::holds_alternative<Fill>(op) || std::holds_alternative<Copy>(op) ||
         std::holds_alternative<Add>(op) || std::holds_alternative<PackBf16>(op);
}

}  // namespace

void PreparedOps::Add(const Op& op) { likes_.insert(Likeness()(op)); }

absl::Status PreparedOps::Check(const Op& op) const {
  if (NeedsNothing(op)) return absl::OkStatus();
  const std::string like = Likeness()(op);
  if (likes_.contains(like)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the backend was not prepared for \"", like, "\""));
}

}  // namespace takt::backend
