// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "common/config/job_spec.h"
#include "common/data/corpus.h"
#include "common/data/mixture.h"
#include "common/data/window_order.h"

namespace takt::data {

struct TokenSourceOptions {
  std::string field = "data.train";     // of the job spec, for errors
  std::vector<config::Corpus> corpora;  // paths under data_root
  std::string data_root;
  int context = 1;
  int vocab = 0;
  BatchShape shape;
  bool shuffle = false;
  std::uint64_t seed = 0;
  // Steps that must find windows of their own, before any is read again.
  std::int64_t min_steps = 1;
};

// What the job trains on, and what it validates on (in file order; precondition: it does).
TokenSourceOptions TrainingTokens(const config::JobSpec& job, std::string data_root, int dp_size);
TokenSourceOptions ValidationTokens(const config::JobSpec& job, std::string data_root, int dp_size);

// A job's tokens: any (step, rank, microbatch) finds its own, without state. Files are mapped into
// memory and read through once, at Open; they must not change while the source lives. Thread-safe,
// allocates nothing after Open.
class TokenSource {
 public:
  // Errors: kInvalidArgument (FieldError of options.field): a path outside the data root, a file
  // that is missing, empty, too short or malformed, a token that the vocabulary lacks.
  static absl::StatusOr<std::unique_ptr<TokenSource>> Open(const TokenSourceOptions& options);

  // The microbatch's sequences row by row.  tokens, targets: [microbatch, context].
  void Read(StepId step, DpRank dp_rank, MicrobatchId microbatch, std::span<std::int32_t> tokens,
            std::span<std::int32_t> targets) const;

  // Scored targets (not -100) of the whole global batch.
  std::int64_t CountScored(StepId step) const;

 private:
  TokenSource(const TokenSourceOptions& options, std::vector<Corpus> corpora, Mixture mixture);

  const BatchShape shape_;
  const int context_;
  const std::vector<Corpus> corpora_;
  const Mixture mixture_;
  // Scored targets of each window of each corpus; empty: all of them.
  std::vector<std::vector<std::int32_t>> scored_;
};

}  // namespace takt::data
