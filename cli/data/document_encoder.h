// SPDX-License-Identifier: Apache-2.0
// Turns units of text into tokens, one document after the other.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/data/text_input.h"
#include "common/tokenizer/tokenizer.h"

namespace takt::cli {

struct DocumentOptions {
  DocumentKind kind = DocumentKind::kFiles;
  std::string text_field = "text";  // of kJsonl
  // They come before and after each document; nullopt: nothing does.
  std::optional<std::int32_t> begin_of_document, end_of_document;
  bool special_tokens = false;  // EncodeOptions
};

// What is kept about documents after their text is gone.
struct DocumentCounts {
  std::int64_t documents = 0;
  std::int64_t tokens = 0;       // with those that begin and end documents
  std::int64_t bytes = 0;        // of the documents' UTF-8
  std::int64_t replaced = 0;     // U+FFFD for bytes that were not UTF-8
  std::int64_t input_bytes = 0;  // of the files

  DocumentCounts& operator+=(const DocumentCounts& other);
  bool operator==(const DocumentCounts&) const = default;
};

struct EncodedUnit {
  std::vector<std::int32_t> ids;      // of all documents, end to end
  std::vector<std::int32_t> lengths;  // of each document
  DocumentCounts counts;
  InputPlace next;  // after the unit
};

// Borrows the tokenizer. One caller at a time.
class DocumentEncoder {
 public:
  DocumentEncoder(const tokenizer::Tokenizer& tokenizer, const DocumentOptions& options)
      : options_(options), encoder_(tokenizer.NewEncoder({options.special_tokens})) {}

  // Leaves out documents without text. Errors: kInvalidArgument (FieldError, with file and line):
  // a line is not as it must be, or a document is too long.
  absl::StatusOr<EncodedUnit> Encode(const TextUnit& unit);

 private:
  absl::Status EncodePart(const TextPart& part, EncodedUnit& out);
  absl::Status EncodeLine(const TextPart& part, std::string_view line, EncodedUnit& out);
  absl::Status EncodeDocument(std::string_view bytes, EncodedUnit& out);

  const DocumentOptions options_;
  const std::unique_ptr<tokenizer::Encoder> encoder_;
  std::string clean_;
};

}  // namespace takt::cli
