// SPDX-License-Identifier: Apache-2.0
// An action says what a rank computes, on which stage, for which microbatch. It prints as stage,
// kind, microbatch ("2F0", "0I3") and parses back. Logs, traces and goldens use the same text.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/id.h"

namespace takt::schedule {

// Zero-bubble papers write B for our I. The numbers are stored, so they must not change.
enum class ActionKind : std::uint8_t {
  kForward = 1,     // F
  kInputGrad = 2,   // I: gradient of the inputs
  kWeightGrad = 3,  // W: gradient of the weights
  kBackward = 4,    // B: I and W at once
  // A rank's part of the vocabulary, under a schedule that spreads it. The stage is one past the
  // last: "4S0", "4T0" where there are stages 0 to 3.
  kVocabularyForward = 5,   // S: the logits, and what each block adds to the softmax
  kVocabularyBackward = 6,  // T: the loss, and the gradients of the head
};

// 'F', 'I', 'W', 'B', 'S' or 'T'.
char Letter(ActionKind kind);

// Returns whether it is S or T, which are of a rank and a microbatch instead of a stage and one.
constexpr bool IsOfVocabulary(ActionKind kind) {
  return kind == ActionKind::kVocabularyForward || kind == ActionKind::kVocabularyBackward;
}

struct Action {
  StageId stage;
  ActionKind kind = ActionKind::kForward;
  MicrobatchId microbatch;
  // Set on an F that runs as one with the B after it in its row, O(F,B). The two begin when the
  // inputs of both are there, their layers take turns, and both results appear at the end.
  bool joins_next = false;

  std::string ToString() const;
  // kInvalidArgument: it is no compute action; the error says what was expected. Blanks around the
  // text are not accepted.
  static absl::StatusOr<Action> Parse(std::string_view text);

  auto operator<=>(const Action&) const = default;
};

// One cell of the text form: an action, or an overlapped pair "(0F3;3B5)OVERLAP_F_B" of one F and
// one B, which may be written in either order. The F comes first in the result and joins the B.
// kInvalidArgument: it is neither; the error says what was expected.
absl::StatusOr<std::vector<Action>> ParseCell(std::string_view text);

}  // namespace takt::schedule
