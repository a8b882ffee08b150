// SPDX-License-Identifier: Apache-2.0
// The input of `takt data tokenize`: files, cut into units of whole documents that threads can work
// on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mapped_file.h"

namespace takt::cli {

enum class DocumentKind {
  kJsonl,  // a JSON object a line, with the text in one of its fields
  kLines,  // a document a line
  kFiles   // a document a file
};

struct InputFile {
  std::string path;
  std::int64_t bytes = 0;
  std::int64_t modified_nanos = 0;  // since 1970
};

// Returns the files that the names stand for: a file itself, or all files of a directory and of
// those below it, in the order of their paths' bytes, without hidden ones. Errors:
// kFailedPrecondition (FieldError): a name is no file or directory, or there are no files.
absl::StatusOr<std::vector<InputFile>> FindInputFiles(const std::vector<std::string>& names);

// The next byte to read.
struct InputPlace {
  std::int64_t file = 0;  // index of the file
  std::int64_t offset = 0;

  bool operator==(const InputPlace&) const = default;
};

// Has whole documents of one file.
struct TextPart {
  std::string path;
  std::shared_ptr<const MappedFile> file;  // parts of other units are in it, too
  std::size_t begin = 0, end = 0;          // bytes of the file

  std::string_view whole() const {
    return {reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()};
  }
  std::string_view text() const { return whole().substr(begin, end - begin); }
};

struct TextUnit {
  std::vector<TextPart> parts;
  std::int64_t bytes = 0;
  InputPlace next;  // after the unit
};

// Units are the same for the same files, wherever the reading begins. One caller at a time.
class TextInput {
 public:
  TextInput(std::vector<InputFile> files, DocumentKind kind, InputPlace from)
      : files_(std::move(files)), kind_(kind), place_(from) {}

  // Returns nullopt at the end. Errors: kFailedPrecondition (FieldError): a file cannot be read, or
  // has changed.
  absl::StatusOr<std::optional<TextUnit>> Next();

 private:
  absl::Status OpenFile();

  const std::vector<InputFile> files_;
  const DocumentKind kind_;
  InputPlace place_;
  std::shared_ptr<const MappedFile> file_;  // the one at place_; empty: it is not open yet
};

}  // namespace takt::cli
