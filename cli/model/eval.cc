// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "cli/data/format_option.h"
#include "cli/model/commands.h"
#include "cli/model/evaluate_here.h"
#include "cli/model/score.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

absl::StatusOr<ExitCode> Eval(const Context& context, const EvaluateOptions& options) {
  ASSIGN_OR_RETURN(const Score score, EvaluateHere(context, options));
  PrintScore(context, score);
  return ExitCode::kDone;
}

}  // namespace

void AddEval(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand<EvaluateOptions>(
      app, context, "eval", "Say how well a model predicts a set of tokens",
      [](CLI::App& app, EvaluateOptions& options) {
        app.add_option("CHECKPOINT", options.model.checkpoint,
                       "Directory of checkpoints, or a Hugging Face folder")
            ->type_name("")
            ->required();
        app.add_option("--data", options.data, "File, directory of files, or pattern in quotes")
            ->type_name("FILE");
        AddFormat(app, options.format, "What FILE is, as data.train.format of a job");
        app.add_option("--context", options.context,
                       "Tokens of a window; default: the length of rows, else the model's "
                       "positions, at most 1024")
            ->type_name("T")
            ->check(CLI::PositiveNumber);
        app.add_option("--windows", options.max_windows,
                       "Score only the first windows; default: all")
            ->type_name("N")
            ->check(CLI::PositiveNumber);
        AddModelOptions(app, options.model);
      },
      Eval);
  command->footer(
      "The loss is the mean over all scored tokens, in nats, of a model in f32. The tokens after "
      "the last whole window\nare left out. Bits per byte are known for files of bytes and of "
      "`takt data tokenize`. With -o json: {\"loss\",\n\"perplexity\", \"bits_per_byte\", "
      "\"tokens\", \"windows\", \"context\"}.\nExit status: 1 if the model cannot run or Ctrl-C "
      "ended it, 2 for wrong input, 4 if there is no such checkpoint.\n\nExamples:\n"
      "  takt eval checkpoints --data valid.bin --format uint16 --context 1024\n"
      "  takt eval my-model --data 'fineweb/*_val_*.bin' --format llmc --windows 500\n"
      "  takt -o json eval checkpoints --step 100 --data kjv.txt --format bytes --context 128");
}

}  // namespace takt::cli
