// SPDX-License-Identifier: Apache-2.0
#include "worker/inference/evaluation.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/llama.h"
#include "worker/inference/pass.h"

namespace takt::inference {

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
  const std::vector<float> rotary_table = model::RotaryTable(config);
  ASSIGN_OR_RETURN(
      const std::unique_ptr<Pass> pass,
      Pass::Create(model, {.rows = config.context, .rotary_table = rotary_table.data()}));
  Evaluation result{.windows = corpus.NumWindows(config.context)};
  if (options.max_windows > 0) result.windows = std::min(result.windows, options.max_windows);
  const auto length = static_cast<std::size_t>(config.context);
  std::vector<std::int32_t> tokens(length), targets(length);
  double sum = 0;
  for (std::int64_t window = 0; window < result.windows; ++window) {
    corpus.ReadWindow(window, tokens, targets);
    double loss = 0;
    RETURN_IF_ERROR(pass->Run({.tokens = tokens.data(), .targets = targets.data()}, &loss));
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
