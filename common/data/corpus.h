// SPDX-License-Identifier: Apache-2.0
// A corpus: one or more token files of one kind, read as windows of T tokens and their targets.
//
// In a stream the files lie end to end, and window i is tokens [i*T, (i+1)*T) of the whole. Its
// targets are the same shifted by one, so n tokens make (n-1)/T windows, however they are cut into
// files. In a corpus of rows, window i is row i of all files, in their order, and T must be the
// length of the rows.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mapped_file.h"
#include "common/data/corpus_files.h"
#include "common/data/token_file.h"

namespace takt::data {

struct DocumentCount {
  std::int64_t documents = 0;
  std::int64_t padding = 0;  // tokens: those of last documents of rows that RowPacker fills up with
};

// Maps the files into memory; they must not change while the object exists. Move-only; immutable:
// safe from any thread.
class Corpus {
 public:
  // Errors, all with a FieldError: kInvalidArgument (the path or a file is wrong, or files are of
  // different kinds), kFailedPrecondition (a file is not there, or cannot be read here).
  static absl::StatusOr<Corpus> Open(CorpusPath path);

  struct Shard {
    std::string path;
    std::int64_t bytes = 0;  // includes the index, if there is one
    TokenFile file;
    std::int64_t begin = 0;  // tokens in the shards before it
  };
  const std::vector<Shard>& shards() const { return shards_; }
  const std::string& path() const { return path_.path; }
  config::DataFormat format() const { return path_.format; }
  TokenType token_type() const { return shards_.front().file.tokens.type(); }
  std::int64_t row_length() const { return shards_.front().file.row_length; }  // 0: a stream
  std::int64_t num_tokens() const { return num_tokens_; }
  std::optional<std::int64_t> num_documents() const;
  // Returns whether its rows say where documents begin.
  bool says_documents() const { return SaysDocuments(shards_.front().file); }
  // The number of targets in rows that are not -100; empty for streams. Reads every file once.
  std::optional<std::int64_t> num_scored() const;

  // The largest token id or target; -1 if there is none. Reads every file once.
  std::int64_t LargestId() const;

  std::int64_t NumWindows(int context) const;

  // Checks that there are at least `min_windows` (what one step takes) of `context` tokens each.
  // Errors: kInvalidArgument (FieldError).
  absl::Status CheckWindows(int context, std::int64_t min_windows) const;

  // Checks every token id; reads every file once. kInvalidArgument (FieldError): names the first id
  // that is not in 0 .. vocab-1, and its place.
  absl::Status CheckVocab(int vocab) const;

  // Checks what rows say of their documents; reads every file once. kInvalidArgument (FieldError):
  // names the first row that is wrong, and the position.
  absl::Status CheckDocuments() const;

  // Counts documents: of rows that say where they begin, those of each row without its padding; of
  // other files, those that end with the token `end`, and what comes after the last one. Reads
  // every file once. Precondition: CheckDocuments was passed.
  DocumentCount CountDocuments(std::int32_t end) const;

  // Fills `tokens` and `targets`, each [T]. Allocates nothing.
  // Precondition: 0 <= window < NumWindows(T); CheckVocab was passed.
  void ReadWindow(std::int64_t window, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) const;

  // Fills `tokens`, `targets` and `starts`, each [T], with documents apart (documents.h). Targets
  // that are of another document than their token become kIgnoredTarget. end: the token that ends
  // documents; -1: rows say where they begin, which then counts alone. Allocates nothing.
  // Precondition: as above, and CheckDocuments was passed.
  void ReadSeparated(std::int64_t window, std::int32_t end, std::span<std::int32_t> tokens,
                     std::span<std::int32_t> targets, std::span<std::int32_t> starts) const;

 private:
  explicit Corpus(CorpusPath path) : path_(std::move(path)) {}
  static bool SaysDocuments(const TokenFile& file) {
    return file.documents.size() > 0 || file.positions.size() > 0;
  }
  absl::Status Add(const CorpusFile& file);
  absl::Status CheckDocuments(const Shard& shard) const;
  absl::StatusOr<std::span<const std::byte>> Map(const std::string& path);
  absl::Status Bad(const Shard& shard, std::string rule, std::string fix) const;
  // Reads token `begin` of the whole and those after it.
  void ReadStream(std::int64_t begin, std::span<std::int32_t> out) const;
  const Shard& ShardOf(std::int64_t token) const;

  CorpusPath path_;
  std::vector<MappedFile> mapped_;
  std::vector<Shard> shards_;  // views of mapped_
  std::int64_t num_tokens_ = 0;
};

}  // namespace takt::data
