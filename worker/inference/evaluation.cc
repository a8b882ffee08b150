// SPDX-License-Identifier: Apache-2.0
#include "worker/inference/evaluation.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/llama.h"
#include "worker/inference/pass.h"

namespace takt::inference {
namespace {

// Reads the windows of a corpus. With documents apart, `starts` says where each token's begins.
struct WindowReader {
  const data::Corpus& corpus;
  bool separates = false;
  std::int32_t end = -1;  // the token that ends documents; -1: rows say where they begin

  void Read(std::int64_t window, std::span<std::int32_t> tokens, std::span<std::int32_t> targets,
            std::span<std::int32_t> starts) const {
    if (separates) {
      corpus.ReadSeparated(window, end, tokens, targets, starts);
    } else {
      corpus.ReadWindow(window, tokens, targets);
    }
  }
};

// Errors: kInvalidArgument (FieldError of --document-end).
absl::StatusOr<WindowReader> MakeReader(const data::Corpus& corpus,
                                        const EvaluatedDocuments& documents,
                                        const model::ModelConfig& config) {
  WindowReader reader{.corpus = corpus};
  const bool separates_unstated = documents.end.has_value() || corpus.says_documents();
  reader.separates = documents.mode == config::Documents::kSeparate ||
                     (documents.mode == config::Documents::kUnstated && separates_unstated);
  if (!reader.separates || corpus.says_documents()) return reader;
  reader.end = documents.end.value_or(config.end_token.value_or(-1));
  if (reader.end >= 0 && reader.end < config.vocab) return reader;
  FieldError error{.field = "--document-end",
                   .rule =
                       "is missing: documents are separate, and neither the data nor "
                       "config.json says which token ends them",
                   .fix = "give the token that ends documents, or --documents join"};
  if (documents.end.has_value() || config.end_token.has_value()) {
    error.value = absl::StrCat(reader.end);
    error.rule =
        absl::StrCat("must be of the model's vocabulary, which has ", config.vocab, " ids");
  }
  return InvalidField(std::move(error));
}

}  // namespace

absl::StatusOr<Evaluation> Evaluate(const LocalModel& model, const data::Corpus& corpus,
                                    const EvaluationOptions& options) {
  model::ModelConfig config = model.config();
  if (options.context < 1 || options.context > config.positions) {
    return InvalidField(
        {.field = "--context",
         .value = absl::StrCat(options.context),
         .rule = absl::StrCat("must be 1 to the positions of the model, ", config.positions),
         .fix = "give a shorter context"});
  }
  config.context = options.context;
  RETURN_IF_ERROR(corpus.CheckWindows(config.context, 1));
  RETURN_IF_ERROR(corpus.CheckVocab(config.vocab));
  RETURN_IF_ERROR(corpus.CheckDocuments());
  ASSIGN_OR_RETURN(const WindowReader reader, MakeReader(corpus, options.documents, config));
  const std::vector<float> rotary_table = model::RotaryTable(config);
  ASSIGN_OR_RETURN(
      const std::unique_ptr<Pass> pass,
      Pass::Create(model, {.rows = config.context, .rotary_table = rotary_table.data()}));
  Evaluation result{.windows = corpus.NumWindows(config.context)};
  if (options.max_windows > 0) result.windows = std::min(result.windows, options.max_windows);
  const auto length = static_cast<std::size_t>(config.context);
  std::vector<std::int32_t> tokens(length), targets(length), starts(length);
  double sum = 0;
  for (std::int64_t window = 0; window < result.windows; ++window) {
    reader.Read(window, tokens, targets, starts);
    double loss = 0;
    RETURN_IF_ERROR(pass->Run({.tokens = tokens.data(),
                               .targets = targets.data(),
                               .starts = reader.separates ? starts.data() : nullptr},
                              &loss));
    sum += loss;
    result.tokens += std::ssize(targets) - std::ranges::count(targets, backend::kIgnoredTarget);
    if (options.on_window) options.on_window(window + 1, result.windows);
  }
  if (result.tokens == 0) {
    return InvalidField({.field = "--data",
                         .value = corpus.path(),
                         .rule = "scores no token: all targets are masked",
                         .fix = "give rows with targets"});
  }
  result.loss = sum / static_cast<double>(result.tokens);
  return result;
}

}  // namespace takt::inference
