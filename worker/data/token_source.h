// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "common/config/job_spec.h"
#include "common/data/corpus.h"
#include "common/data/mixture.h"
#include "common/data/window_order.h"

namespace takt::worker_data {

struct TokenSourceOptions {
  std::string field = "data.train";     // of the job spec, for errors
  std::vector<config::Corpus> corpora;  // paths under data_root
  std::string data_root;
  int context = 1;
  int vocab = 0;
  data::BatchShape shape;
  bool shuffle = false;
  std::uint64_t seed = 0;
  config::Documents documents = config::Documents::kJoin;  // as the job says
  bool separate_documents = false;
  std::optional<int> document_end;  // the token that ends documents
  // This many steps must find windows of their own before any window is read again.
  std::int64_t min_steps = 1;
};

// Returns the options for what the job trains on, and for what it validates on, in file order.
// ValidationTokens may only be called for a job that validates. A job that only evaluates has them
// in the place of the others, which are not read then.
TokenSourceOptions TrainingTokens(const config::JobSpec& job, std::string data_root, int dp_size);
TokenSourceOptions ValidationTokens(const config::JobSpec& job, std::string data_root, int dp_size);

// A job's tokens. It has no state: any (step, rank, microbatch) finds its own. Open maps the files
// into memory and reads them once; they must not change while the source lives. Thread-safe.
// Allocates nothing after Open.
class TokenSource {
 public:
  // Errors, all with a FieldError of options.field: kInvalidArgument (a path is outside the data
  // root; a file is empty, too short or malformed; a token is not in the vocabulary),
  // kFailedPrecondition (a file is not there, or cannot be read here).
  static absl::StatusOr<std::unique_ptr<TokenSource>> Open(const TokenSourceOptions& options);
  // Checks the same, except the token ids, without reading the files through. Errors: as Open.
  static absl::Status CheckFiles(const TokenSourceOptions& options);
  // Returns what people should know of the files: that documents are joined whose ends are known,
  // although the job does not say that they should be. Errors: as Open.
  static absl::StatusOr<std::vector<std::string>> Notes(const TokenSourceOptions& options);

  // Reads the microbatch's sequences row by row. tokens, targets, starts: [microbatch, context].
  // starts: for each token the position in its sequence at which its document begins; empty if
  // documents are joined.
  void Read(StepId step, DpRank dp_rank, MicrobatchId microbatch, std::span<std::int32_t> tokens,
            std::span<std::int32_t> targets, std::span<std::int32_t> starts = {}) const;

  // Counts the scored targets (those that are not -100) of the whole global batch.
  std::int64_t CountScored(StepId step) const;

  // Returns how many bytes of text a token of its files stands for, as data::BytesPerToken does; or
  // nullopt for a mixture.
  absl::StatusOr<std::optional<double>> BytesPerToken() const;

 private:
  TokenSource(const TokenSourceOptions& options, std::vector<data::Corpus> corpora,
              data::Mixture mixture);
  // Counts the scored targets of each window; empty: all are.
  std::vector<std::int32_t> ScoredByWindow(const data::Corpus& corpus) const;

  const data::BatchShape shape_;
  const int context_;
  const bool separates_documents_;
  const std::int32_t document_end_;  // -1: files say where documents begin
  const std::vector<data::Corpus> corpora_;
  const data::Mixture mixture_;
  // The number of scored targets of each window, by corpus. An empty list means that all targets
  // are scored.
  std::vector<std::vector<std::int32_t>> scored_;
};

}  // namespace takt::worker_data
