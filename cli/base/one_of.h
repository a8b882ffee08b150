// SPDX-License-Identifier: Apache-2.0
// Options whose value is the name of an enumerator.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace takt::cli {

// For CLI::Option::transform: turns the name of an enumerator into its number, which CLI11 reads.
// Help and completion show the names, and the error of another text lists them.
template <class Enum>
CLI::Validator OneOf(std::vector<std::pair<std::string, Enum>> values) {
  std::string names;
  for (const auto& [name, value] : values) absl::StrAppend(&names, names.empty() ? "" : ",", name);
  names = absl::StrCat("{", names, "}");
  const auto replace = [values = std::move(values), names](std::string& text) -> std::string {
    for (const auto& [name, value] : values) {
      if (name != text) continue;
      text = absl::StrCat(static_cast<int>(value));
      return "";
    }
    return absl::StrCat(text, " not in ", names);
  };
  return {replace, names};
}

}  // namespace takt::cli
