// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt {

// Collects the rules that the fields of an input break, so that all errors are reported at once.
class FieldRules {
 public:
  // Keeps the error if the rule does not hold. Returns whether it holds.
  bool Check(bool holds, FieldError error) {
    if (!holds) errors_.push_back(std::move(error));
    return holds;
  }
  bool Between(const char* field, std::int64_t value, std::int64_t least, std::int64_t most) {
    return Check(value >= least && value <= most,
                 {.field = field,
                  .value = value == 0 ? "0 or missing" : absl::StrCat(value),
                  .rule = absl::StrCat("must be between ", least, " and ", most),
                  .fix = value == 0      ? "set it"
                         : value < least ? "raise it"
                                         : "lower it"});
  }

  bool ok() const { return errors_.empty(); }
  // Returns kInvalidArgument with all errors (InvalidFields), or OK if there is none.
  absl::Status status() const { return ok() ? absl::OkStatus() : InvalidFields(errors_); }
  std::vector<FieldError> Take() { return std::move(errors_); }

 private:
  std::vector<FieldError> errors_;
};

}  // namespace takt
