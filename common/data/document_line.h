// SPDX-License-Identifier: Apache-2.0
// Reads a document from a line of JSON: token ids, or texts that become some. docs/data.md has the
// forms.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace takt::data {

// A document as a model is trained on it.
struct TrainingDocument {
  std::vector<std::int32_t> tokens;
  // For each token, what comes next, or kIgnoredTarget. The last token has no target.
  std::vector<std::int32_t> targets;

  // Appends tokens. scored: they are to be predicted.
  void Append(const std::vector<std::int32_t>& ids, bool scored);
};

struct DocumentLine {
  bool has_texts = false;
  TrainingDocument document;       // if it has ids
  std::string prompt, completion;  // if it has texts
};

// line: UTF-8. Errors: kInvalidArgument, a clause about the line: it is no JSON object, has none of
// the forms, or numbers that are no ids.
absl::StatusOr<DocumentLine> ParseDocumentLine(std::string_view line);

}  // namespace takt::data
