// SPDX-License-Identifier: Apache-2.0
// Keeps how far a run of `takt data tokenize` came, in a hidden file beside its output, so that a
// later run can continue after one that was killed.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "cli/data/document_encoder.h"
#include "cli/data/text_input.h"

namespace takt::cli {

struct TokenizeState {
  std::string job;  // a hash of the inputs, the tokenizer and the options
  InputPlace next;  // the text before it is in the output
  DocumentCounts counts;

  bool operator==(const TokenizeState&) const = default;
};

// Returns the path of the state for this output.
std::string TokenizeStatePath(const std::string& out);

// Returns nullopt if there is none, or if it cannot be read: a run begins then.
std::optional<TokenizeState> ReadTokenizeState(const std::string& path);

// Replaces the file as a whole. Errors: what the file system reports.
absl::Status WriteTokenizeState(const std::string& path, const TokenizeState& state);

}  // namespace takt::cli
