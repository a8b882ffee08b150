// SPDX-License-Identifier: Apache-2.0
#include "cli/model/score.h"

#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/base/plain_nan.h"
#include "cli/base/report.h"
#include "cli/base/text.h"
#include "common/base/counted.h"

namespace takt::cli {

double Score::Perplexity() const { return std::exp(loss); }

std::optional<double> Score::BitsPerByte() const {
  if (!bytes_per_token.has_value()) return std::nullopt;
  return loss / std::numbers::ln2 / *bytes_per_token;
}

void PrintScore(const Context& context, const Score& score) {
  const std::optional<double> bits = score.BitsPerByte();
  if (context.json()) {
    PrintJson(context, {{"loss", score.loss},
                        {"perplexity", score.Perplexity()},
                        {"bits_per_byte", bits.has_value() ? Json(*bits) : Json(nullptr)},
                        {"tokens", score.tokens},
                        {"windows", score.windows},
                        {"context", score.context}});
    return;
  }
  Table table({"loss", absl::StrFormat("%.5f nats a token", PlainNan(score.loss))});
  table.Add({"perplexity", absl::StrFormat("%.4g", PlainNan(score.Perplexity()))});
  table.Add(
      {"bits per byte",
       bits.has_value()
           ? absl::StrFormat("%.4f", PlainNan(*bits))
           : "unknown: no file beside the tokens says how many bytes of text these tokens are"});
  table.Add({"tokens", absl::StrCat(score.tokens, " in ", Counted(score.windows, "window"), " of ",
                                    score.context)});
  context.terminal.out << table.ToString() << std::flush;
}

}  // namespace takt::cli
