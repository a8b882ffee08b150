// SPDX-License-Identifier: Apache-2.0
#include "common/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/tokenizer/utf8.h"

namespace takt::tokenizer {
namespace {

constexpr std::size_t kJitStackBytes = 64 << 10, kMaxJitStackBytes = 16 << 20;
constexpr std::size_t kMaxExpressionBytes = 64 << 10;

absl::Status Refuse(std::string_view what) { return absl::InvalidArgumentError(std::string(what)); }

std::string MessageOf(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// Returns the expression as PCRE2 must read it.
absl::StatusOr<std::string> Translate(std::string_view expression) {
  std::string translated;
  bool in_class = false;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    const char next = i + 1 < expression.size() ? expression[i + 1] : '\0';
    if (c == '\\') {
      ++i;
      // PCRE2's own \s has U+180E too.
      if (next == 's' || next == 'S') {
        absl::StrAppend(&translated, next == 's' ? "\\p" : "\\P", "{White_Space}");
        continue;
      }
      if (next == 'h' || next == 'H') return Refuse("uses \\h, a hexadecimal digit");
      translated += c;
      if (i < expression.size()) translated += next;
      continue;
    }
    if (in_class && c == '[' && next != ':') return Refuse("has a class in a class");
    if (in_class && c == '&' && next == '&') return Refuse("intersects classes by &&");
    if (in_class && c == '[') {  // [:alpha:] ends with :], which does not end the class
      const std::size_t end = expression.find(":]", i);
      if (end == std::string_view::npos) return Refuse("has a class in a class");
      translated.append(expression.substr(i, end + 2 - i));
      i = end + 1;
      continue;
    }
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    translated += c;
  }
  return translated;
}

}  // namespace

void Pattern::Free::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

absl::StatusOr<Pattern> Pattern::CompileWith(std::string_view expression, unsigned options) {
  if (expression.size() > kMaxExpressionBytes) return Refuse("is longer than 64 KiB");
  int error = 0;
  PCRE2_SIZE offset = 0;
  Pattern pattern;
  pattern.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()),
                                    expression.size(), PCRE2_UTF | options, &error, &offset,
                                    nullptr));
  if (pattern.code_ == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("does not compile at its byte ", offset, ": ", MessageOf(error)));
  }
  // Without a just-in-time compiler the expression is interpreted, which is only slower.
  (void)pcre2_jit_compile(pattern.code_.get(), PCRE2_JIT_COMPLETE);
  return pattern;
}

absl::StatusOr<Pattern> Pattern::Compile(std::string_view expression) {
  ASSIGN_OR_RETURN(const std::string translated, Translate(expression));
  return CompileWith(translated, PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C);
}

absl::StatusOr<Pattern> Pattern::CompileLiteral(std::string_view text) {
  if (text.empty()) return Refuse("is empty");
  return CompileWith(text, PCRE2_LITERAL);
}

void Splitter::Free::operator()(pcre2_real_match_data_8* data) const {
  pcre2_match_data_free(data);
}
void Splitter::Free::operator()(pcre2_real_match_context_8* context) const {
  pcre2_match_context_free(context);
}
void Splitter::Free::operator()(pcre2_real_jit_stack_8* stack) const {
  pcre2_jit_stack_free(stack);
}

Splitter::Splitter(const std::vector<Pattern>& patterns)
    : patterns_(patterns),
      stack_(pcre2_jit_stack_create(kJitStackBytes, kMaxJitStackBytes, nullptr)),
      context_(pcre2_match_context_create(nullptr)) {
  TAKT_CHECK(context_ != nullptr);
  if (stack_ != nullptr) pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
  for (const Pattern& pattern : patterns) {
    data_.emplace_back(pcre2_match_data_create_from_pattern(pattern.code(), nullptr));
    TAKT_CHECK(data_.back() != nullptr);
  }
}

absl::Status Splitter::Split(std::string_view text, Visit visit) {
  return SplitFrom(0, text, visit);
}

absl::Status Splitter::SplitFrom(std::size_t level, std::string_view text, Visit visit) {
  if (text.empty()) return absl::OkStatus();
  if (level == patterns_.size()) return visit(text);
  std::size_t from = 0;  // where the search begins
  std::size_t done = 0;  // the end of the last piece
  std::optional<std::size_t> last_match_end;
  while (from <= text.size()) {
    const int result =
        pcre2_match(patterns_[level].code(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                    from, PCRE2_NO_UTF_CHECK, data_[level].get(), context_.get());
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the regular expression fails: ", MessageOf(result)));
    }
    const PCRE2_SIZE* const range = pcre2_get_ovector_pointer(data_[level].get());
    const std::size_t begin = range[0], end = range[1];
    if (begin < done || end < begin) return Refuse("the regular expression matches backwards");
    // An empty match divides two pieces, but not directly after a match.
    if (begin == end && last_match_end == end) {
      from = from < text.size() ? from + CharLength(text[from]) : from + 1;
      continue;
    }
    RETURN_IF_ERROR(SplitFrom(level + 1, text.substr(done, begin - done), visit));
    RETURN_IF_ERROR(SplitFrom(level + 1, text.substr(begin, end - begin), visit));
    from = done = end;
    last_match_end = end;
  }
  return SplitFrom(level + 1, text.substr(done), visit);
}

}  // namespace takt::tokenizer
