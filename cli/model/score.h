// SPDX-License-Identifier: Apache-2.0
// The result of an evaluation.
#pragma once

#include <cstdint>
#include <optional>

#include "cli/base/context.h"

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

// Prints the score: a table, or with `-o json` {"loss", "perplexity", "bits_per_byte", "tokens",
// "windows", "context"}.
void PrintScore(const Context& context, const Score& score);

}  // namespace takt::cli
