// SPDX-License-Identifier: Apache-2.0
// Writes token files, with Megatron's index where it is wanted. It is the counterpart of
// token_file.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_descriptor.h"
#include "common/data/token_values.h"

namespace takt::data {

struct TokenWriterOptions {
  std::string field = "--out";       // for errors
  std::string path;                  // of the tokens; with an index it ends with ".bin"
  TokenType type = TokenType::kU16;  // kU16, kU32 or kI32
  bool has_index = false;            // Megatron's, in PREFIX.idx
};

// The files grow under hidden names beside the final ones, which corpora leave out:
// .NAME.partial, and .NAME.lengths for an index. Publish gives them their names; the token file
// comes last, so that nobody sees one without the others. Without Publish the hidden files stay,
// and a later writer can continue them. A writer holds a lock on them for its life, so that nobody
// else writes the same output, and a file that has its name already stays as it is. Move-only; one
// caller at a time.
class TokenWriter {
 public:
  // Goes on after the first `tokens` tokens and `documents` documents of the hidden files, and cuts
  // off what follows them; with 0 and 0 it begins. Errors: kFailedPrecondition (FieldError): the
  // files cannot be written, another process writes them, or the output is there; kDataLoss: the
  // hidden files are shorter.
  static absl::StatusOr<TokenWriter> Open(TokenWriterOptions options, std::int64_t tokens,
                                          std::int64_t documents);

  // Appends documents that lie end to end. lengths: the tokens of each. Precondition: every id fits
  // the type. Errors, also of the methods below: kFailedPrecondition (FieldError), e.g. the disk is
  // full.
  absl::Status Append(std::span<const std::int32_t> ids, std::span<const std::int32_t> lengths);

  // Returns when everything that was appended would survive a crash of the machine.
  absl::Status Sync();

  // Writes the index and, as FILE.json, `origin`, and gives all files their names. The object is
  // done then.
  absl::Status Publish(std::string_view origin);

 private:
  explicit TokenWriter(TokenWriterOptions options) : options_(std::move(options)) {}
  std::string Hidden(std::string_view suffix) const;
  std::string IndexPath() const;
  absl::StatusOr<FileDescriptor> OpenAt(const std::string& path, std::int64_t size) const;
  absl::StatusOr<FileDescriptor> OpenLocked(const std::string& path) const;
  absl::Status CheckAbsent() const;
  absl::Status Write(const FileDescriptor& file, std::span<const std::byte> bytes) const;
  absl::Status WriteWhole(const std::string& path, std::string_view text) const;
  absl::Status WriteIndex() const;
  absl::Status Rename(const std::string& from, const std::string& to) const;
  absl::Status SyncDirectory() const;
  absl::Status Failed(int error_number, const std::string& path) const;

  TokenWriterOptions options_;
  FileDescriptor tokens_, lengths_;
  std::string buffer_;
};

}  // namespace takt::data
