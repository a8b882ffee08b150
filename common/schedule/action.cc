// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/action.h"

#include <charconv>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/schedule/schedule.h"

namespace takt::schedule {
namespace {

// For error messages: input may be megabytes of anything.
std::string Excerpt(std::string_view text) {
  constexpr std::size_t kLongest = 40;
  std::string shown =
      absl::CHexEscape(absl::string_view(text.data(), std::min(text.size(), kLongest)));
  if (text.size() > kLongest) shown += "...";
  return shown;
}

absl::Status NotAnAction(std::string_view text, std::string rule) {
  return InvalidField({.field = "action",
                       .value = Excerpt(text),
                       .rule = std::move(rule),
                       .fix = "write stage, kind, microbatch, e.g. 2F0, 2B0, 2I0 or 2W0"});
}

// A number without sign or leading zeros from the front of `text`, which is cut. Larger ones than
// any schedule may have: none.
std::optional<std::int32_t> TakeNumber(std::string_view& text) {
  std::int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::size_t length = static_cast<std::size_t>(end - text.data());
  if (error != std::errc() || text[0] == '-' || (text[0] == '0' && length > 1)) return std::nullopt;
  if (value >= kMaxActions) return std::nullopt;
  text.remove_prefix(length);
  return value;
}

std::optional<ActionKind> KindOf(char letter) {
  switch (letter) {
    case 'F':
      return ActionKind::kForward;
    case 'I':
      return ActionKind::kInputGrad;
    case 'W':
      return ActionKind::kWeightGrad;
    case 'B':
      return ActionKind::kBackward;
    default:
      return std::nullopt;
  }
}

}  // namespace

char Letter(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return 'F';
    case ActionKind::kInputGrad:
      return 'I';
    case ActionKind::kWeightGrad:
      return 'W';
    case ActionKind::kBackward:
      return 'B';
  }
  return '?';
}

std::string Action::ToString() const {
  const char letter[] = {Letter(kind), '\0'};
  return absl::StrCat(stage.value(), letter, microbatch.value());
}

absl::StatusOr<Action> Action::Parse(std::string_view text) {
  for (const std::string_view word : {"SEND", "RECV", "UNSHARD", "RESHARD", "REDUCE"}) {
    if (text.find(word) != text.npos) {
      return NotAnAction(text, "compute actions only: communication is derived from them");
    }
  }
  if (text.find("OVERLAP") != text.npos) {
    return NotAnAction(text, "compute actions only, one a cell: overlapped pairs are not one");
  }
  std::string_view rest = text;
  const std::optional<std::int32_t> stage = TakeNumber(rest);
  if (!stage.has_value()) return NotAnAction(text, "begins with a stage number below 16777216");
  const std::optional<ActionKind> kind = rest.empty() ? std::nullopt : KindOf(rest[0]);
  if (!kind.has_value()) return NotAnAction(text, "the stage is followed by F, I, W or B");
  rest.remove_prefix(1);
  const std::optional<std::int32_t> microbatch = TakeNumber(rest);
  if (!microbatch.has_value() || !rest.empty()) {
    return NotAnAction(text, "ends with a microbatch number below 16777216");
  }
  return Action{StageId(*stage), *kind, MicrobatchId(*microbatch)};
}

}  // namespace takt::schedule
