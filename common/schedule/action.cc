// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/action.h"

#include <charconv>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/schedule/schedule.h"

namespace takt::schedule {
namespace {

// Shortens text for error messages, because input may be megabytes of anything.
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

absl::Status NotAPair(std::string_view text) {
  return InvalidField({.field = "action",
                       .value = Excerpt(text),
                       .rule = "an overlapped pair is one F and one B",
                       .fix = "write (0F3;3B5)OVERLAP_F_B, or the two as cells of their own"});
}

// Takes a number without a sign or leading zeros from the front of `text`. None: there is no such
// number, or it is larger than any that a schedule may have.
std::optional<std::int32_t> TakeNumber(std::string_view& text) {
  std::int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::size_t length = static_cast<std::size_t>(end - text.data());
  if (error != std::errc() || text[0] == '-' || (text[0] == '0' && length > 1)) return std::nullopt;
  if (value >= kMaxActions) return std::nullopt;
  text.remove_prefix(length);
  return value;
}

constexpr std::string_view kLetters = "?FIWBST";  // by ActionKind

std::optional<ActionKind> KindOf(char letter) {
  const std::size_t kind = kLetters.find(letter, 1);
  return kind == kLetters.npos ? std::nullopt : std::optional(static_cast<ActionKind>(kind));
}

}  // namespace

char Letter(ActionKind kind) { return kLetters[static_cast<std::size_t>(kind)]; }

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
  std::string_view rest = text;
  const std::optional<std::int32_t> stage = TakeNumber(rest);
  if (!stage.has_value()) return NotAnAction(text, "begins with a stage number below 16777216");
  const std::optional<ActionKind> kind = rest.empty() ? std::nullopt : KindOf(rest[0]);
  if (!kind.has_value()) return NotAnAction(text, "the stage is followed by F, I, W, B, S or T");
  rest.remove_prefix(1);
  const std::optional<std::int32_t> microbatch = TakeNumber(rest);
  if (!microbatch.has_value() || !rest.empty()) {
    return NotAnAction(text, "ends with a microbatch number below 16777216");
  }
  return Action{StageId(*stage), *kind, MicrobatchId(*microbatch)};
}

absl::StatusOr<std::vector<Action>> ParseCell(std::string_view text) {
  constexpr std::string_view kEnd = ")OVERLAP_F_B";
  if (!text.starts_with('(')) {
    ASSIGN_OR_RETURN(const Action action, Action::Parse(text));
    return std::vector<Action>{action};
  }
  const std::size_t separator = text.find(';');
  if (!text.ends_with(kEnd) || separator == text.npos) return NotAPair(text);
  absl::StatusOr<Action> forward = Action::Parse(text.substr(1, separator - 1));
  absl::StatusOr<Action> backward =
      Action::Parse(text.substr(separator + 1, text.size() - kEnd.size() - separator - 1));
  if (!forward.ok() || !backward.ok()) return NotAPair(text);
  if (forward->kind == ActionKind::kBackward) std::swap(forward, backward);
  if (forward->kind != ActionKind::kForward || backward->kind != ActionKind::kBackward) {
    return NotAPair(text);
  }
  forward->joins_next = true;
  return std::vector<Action>{*forward, *backward};
}

}  // namespace takt::schedule
