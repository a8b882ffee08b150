// SPDX-License-Identifier: Apache-2.0
// A corpus: one or many token files of one kind, read as windows of T tokens and their targets.
//
// Streams: the files lie end to end, and window i is tokens [i*T, (i+1)*T) of the whole; its
// targets are the same shifted by one, so n tokens make (n-1)/T windows, however they are cut into
// files. Rows: window i is row i of all files, in their order; T must be their length.
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

// Files are mapped into memory and must not change while it lives. Move-only; immutable: safe from
// any thread.
class Corpus {
 public:
  // Errors: kInvalidArgument (FieldError): whatever is wrong with the path or a file, files of
  // different kinds.
  static absl::StatusOr<Corpus> Open(CorpusPath path);

  struct Shard {
    std::string path;
    std::int64_t bytes = 0;  // with the index, if it has one
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
  // Targets that are not -100, in rows; none in streams. Reads every file once.
  std::optional<std::int64_t> num_scored() const;

  // Largest token id or target; -1 if there is none. Reads every file once.
  std::int64_t LargestId() const;

  std::int64_t NumWindows(int context) const;

  // At least `min_windows` (what one step takes) of `context` tokens each.
  // Errors: kInvalidArgument (FieldError).
  absl::Status CheckWindows(int context, std::int64_t min_windows) const;

  // Reads every file once. Errors: kInvalidArgument (FieldError) with the first token id that is
  // not in 0 .. vocab-1, and where it is.
  absl::Status CheckVocab(int vocab) const;

  // tokens, targets: [T], filled.  Allocates nothing.
  // Precondition: 0 <= window < NumWindows(T); CheckVocab was passed.
  void ReadWindow(std::int64_t window, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) const;

 private:
  explicit Corpus(CorpusPath path) : path_(std::move(path)) {}
  absl::Status Add(const CorpusFile& file);
  absl::StatusOr<std::span<const std::byte>> Map(const std::string& path);
  absl::Status Bad(const Shard& shard, std::string rule, std::string fix) const;
  // Token `begin` of the whole and those after it.
  void ReadStream(std::int64_t begin, std::span<std::int32_t> out) const;
  const Shard& ShardOf(std::int64_t token) const;

  CorpusPath path_;
  std::vector<MappedFile> mapped_;
  std::vector<Shard> shards_;  // of mapped_
  std::int64_t num_tokens_ = 0;
};

}  // namespace takt::data
