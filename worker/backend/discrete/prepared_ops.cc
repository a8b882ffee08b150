// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/discrete/prepared_ops.h"

#include <concepts>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "worker/backend/op_fields.h"

namespace takt::backend {
namespace {

// Writes as text the properties that make ops alike for Backend::Prepare.
class Likeness : public IgnoreFields {
 public:
  std::string operator()(const Op& op) {
    absl::StrAppend(&text_, "op ", op.index());
    std::visit([this](auto copy) { DescribeFields(copy, *this); }, op);
    return std::move(text_);
  }

  void Size(const char* /*name*/, std::int64_t size, std::int64_t /*least*/ = 1) {
    absl::StrAppend(&text_, " ", size);
  }
  void SizeOrNone(const char* name, std::int64_t size) { Size(name, size); }
  void Stride(const char* name, std::int64_t stride, std::int64_t /*columns*/) {
    Size(name, stride);
  }
  void Flag(bool flag) { Size("", flag ? 1 : 0); }
  void Tensor(const char* /*name*/, const auto& field, const auto&... /*extent*/) {
    Pointer(field);
  }
  void Optional(const auto& field, const auto&... /*extent*/) { Pointer(field); }

 private:
  void Pointer(const void* pointer) {
    constexpr std::uintptr_t kVector = 16;  // no kernel needs more
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    text_ += pointer == nullptr ? " null" : absl::StrCat(" at ", address % kVector);
  }
  void Pointer(const Operand& operand) { Pointer(operand.f32), Pointer(operand.bf16); }

  std::string text_;
};

// Data may say how many rows these have, so nobody can prepare a device for them.
template <class O>
concept OfExpertRows = requires(const O& op) {
  { op.rows } -> std::same_as<const ExpertRows&>;
}
&&!std::is_same_v<O, RouteTokensBackward>;

bool NeedsNothing(const Op& op) {
  return std::holds_alternative<Fill>(op) || std::holds_alternative<Copy>(op) ||
         std::holds_alternative<Add>(op) || std::holds_alternative<PackBf16>(op) ||
         std::visit([]<class O>(const O&) { return OfExpertRows<O>; }, op);
}

}  // namespace

void PreparedOps::Add(const Op& op) { likes_.insert(Likeness()(op)); }

absl::Status PreparedOps::Check(const Op& op) {
  if (NeedsNothing(op)) return absl::OkStatus();
  const std::string like = Likeness()(op);
  if (!likes_.contains(like)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the backend was not prepared for \"", like, "\""));
  }
  any_used_ = true;
  return absl::OkStatus();
}

}  // namespace takt::backend
