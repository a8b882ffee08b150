// SPDX-License-Identifier: Apache-2.0
// Runs the regular expressions of pre-tokenizers, which cut a text into the pieces that are merged.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct pcre2_real_code_8;
struct pcre2_real_jit_stack_8;
struct pcre2_real_match_context_8;
struct pcre2_real_match_data_8;

namespace takt::tokenizer {

// Has a compiled expression. Move-only; immutable: safe from any thread.
class Pattern {
 public:
  // Compiles an expression that was written for Oniguruma, the engine of `tokenizers`. What PCRE2
  // reads as something else is refused, and \s means the property White_Space in both.
  // Errors: kInvalidArgument, a clause about the expression.
  static absl::StatusOr<Pattern> Compile(std::string_view expression);
  // Compiles a text that matches itself.
  static absl::StatusOr<Pattern> CompileLiteral(std::string_view text);

  const pcre2_real_code_8* code() const { return code_.get(); }

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  Pattern() = default;
  static absl::StatusOr<Pattern> CompileWith(std::string_view expression, unsigned options);

  std::unique_ptr<pcre2_real_code_8, Free> code_;
};

// Cuts texts by one pattern after the other: a match is a piece, and so is what lies between two
// matches. Each pattern cuts the pieces of the one before. It borrows the patterns. One caller at a
// time.
class Splitter {
 public:
  using Visit = absl::FunctionRef<absl::Status(std::string_view piece)>;

  explicit Splitter(const std::vector<Pattern>& patterns);

  // Calls `visit` on each piece, none of which is empty, in their order. Precondition: `text` is
  // UTF-8. Errors: those of `visit`; kInvalidArgument: an expression takes too long on the text.
  absl::Status Split(std::string_view text, Visit visit);

 private:
  struct Free {
    void operator()(pcre2_real_match_data_8* data) const;
    void operator()(pcre2_real_match_context_8* context) const;
    void operator()(pcre2_real_jit_stack_8* stack) const;
  };
  absl::Status SplitFrom(std::size_t level, std::string_view text, Visit visit);

  const std::vector<Pattern>& patterns_;
  std::unique_ptr<pcre2_real_jit_stack_8, Free> stack_;
  std::unique_ptr<pcre2_real_match_context_8, Free> context_;
  std::vector<std::unique_ptr<pcre2_real_match_data_8, Free>> data_;  // for each pattern
};

}  // namespace takt::tokenizer
