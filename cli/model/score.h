// SPDX-License-Identifier: Apache-2.0
// Has what an evaluation found out about a model.
#pragma once

#include <cstdint>
#include <optional>

#include "cli/base/context.h"
#include "common/data/corpus.h"

namespace takt::cli {

struct Score {
  double loss = 0;          // nats, the mean over scored tokens
  std::int64_t tokens = 0;  // scored
  std::int64_t windows = 0;
  int context = 0;                        // tokens of a window
  std::optional<double> bytes_per_token;  // of the text; nullopt: not known

  double Perplexity() const;  // infinite where it is above the range of numbers
  std::optional<double> BitsPerByte() const;
};

// Returns how many bytes of text a token of the corpus stands for: one in files of bytes, else what
// the files say that `takt data tokenize` leaves beside tokens. nullopt: a file has none, or one of
// other tokens.
std::optional<double> BytesPerToken(const data::Corpus& corpus);

// Prints the score: a table, or with `-o json` {"loss", "perplexity", "bits_per_byte", "tokens",
// "windows", "context"}.
void PrintScore(const Context& context, const Score& score);

}  // namespace takt::cli
