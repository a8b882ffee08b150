// SPDX-License-Identifier: Apache-2.0
// The rules that values of job specs must keep, for the functions that read their sections.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/bounded_text.h"
#include "common/base/field_rules.h"

namespace takt::config {

// Returns a text in a form that can be printed: its beginning and "..." if it is long.
inline std::string Shown(const std::string& text) {
  return absl::Utf8SafeCHexEscape(Shortened(text, 100));
}

// The rules of job specs. Every function returns whether its rule holds.
class SpecRules final : public FieldRules {
 public:
  bool AtLeast(const char* field, std::int64_t value, std::int64_t least) {
    return Check(value >= least, {.field = field,
                                  .value = value == 0 ? "0 or missing" : absl::StrCat(value),
                                  .rule = absl::StrCat("must be ", least, " or more"),
                                  .fix = value == 0 ? "set it" : "raise it"});
  }
  // Checks that this version supports the value. `supported` lists the supported values for people.
  bool Supported(const std::string& field, const std::string& value, bool is_supported,
                 const char* supported) {
    return Check(is_supported, {.field = field,
                                .value = value,
                                .rule = "is not supported by this version",
                                .fix = absl::StrCat("use ", supported)});
  }
  // Checks that `path` is there and can be the name of a file.
  void Path(const std::string& field, const std::string& path, const char* fix) {
    Check(!path.empty(), {.field = field, .rule = "is missing", .fix = fix});
    Check(path.find('\0') == std::string::npos,
          {.field = field, .value = Shown(path), .rule = "must be a path", .fix = "correct it"});
  }
};

}  // namespace takt::config
