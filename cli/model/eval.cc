// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "cli/base/one_of.h"
#include "cli/data/format_option.h"
#include "cli/model/commands.h"
#include "cli/model/evaluate_here.h"
#include "cli/model/evaluate_on_cluster.h"
#include "cli/model/score.h"
#include "common/base/status.h"
#include "common/data/token_file.h"

namespace takt::cli {
namespace {

struct EvalOptions {
  EvaluateOptions here;
  int batches = 0;  // 0: not given
};

// A job file is a file, and a model is a directory. What is not there may be either, so its name
// decides.
bool IsJob(const std::string& what) {
  std::error_code error;
  const std::filesystem::path path = what;
  if (std::filesystem::exists(path, error)) return std::filesystem::is_regular_file(path, error);
  const std::string extension = path.extension().string();
  return what == "-" || extension == ".yaml" || extension == ".yml" || extension == ".json";
}

absl::Status Refuse(const char* option, bool is_job) {
  return InvalidField({.field = option,
                       .rule = is_job ? "is of `takt eval CHECKPOINT`; a job says it in its file"
                                      : "is of `takt eval JOB.yaml`",
                       .fix = "leave it out"});
}

absl::StatusOr<ClusterEvaluation> ClusterOptions(const EvalOptions& options) {
  const EvaluateOptions& given = options.here;
  if (given.context > 0) return Refuse("--context", true);
  if (given.max_windows > 0) return Refuse("--windows", true);
  if (given.model.threads > 0) return Refuse("--threads", true);
  if (given.documents.has_value()) return Refuse("--documents", true);
  if (given.document_end.has_value()) return Refuse("--document-end", true);
  if (given.data.empty() == given.format.has_value()) {
    return InvalidField({.field = given.data.empty() ? "--data" : "--format",
                         .rule = "is missing: the two come together",
                         .fix = "give both, or neither to score data.validation of the job"});
  }
  return ClusterEvaluation{.job = given.model.checkpoint,
                           .step = given.model.step,
                           .data = given.data,
                           .format = given.format.has_value() ? data::NameOf(*given.format) : "",
                           .batches = options.batches};
}

absl::StatusOr<Score> ScoreOf(const Context& context, const EvalOptions& options) {
  if (IsJob(options.here.model.checkpoint)) {
    ASSIGN_OR_RETURN(const ClusterEvaluation job, ClusterOptions(options));
    return EvaluateOnCluster(context, job);
  }
  if (options.batches > 0) return Refuse("--batches", false);
  return EvaluateHere(context, options.here);
}

absl::StatusOr<ExitCode> Eval(const Context& context, const EvalOptions& options) {
  ASSIGN_OR_RETURN(const Score score, ScoreOf(context, options));
  PrintScore(context, score);
  return ExitCode::kDone;
}

void Declare(CLI::App& app, EvalOptions& options) {
  EvaluateOptions& here = options.here;
  app.add_option("WHAT", here.model.checkpoint,
                 "Directory of checkpoints or Hugging Face folder, which is evaluated on this "
                 "machine; or JOB.yaml, whose newest checkpoint is evaluated by a job")
      ->type_name("")
      ->required();
  app.add_option("--data", here.data,
                 "File, directory of files, or pattern in quotes; default for a job: its "
                 "data.validation")
      ->type_name("FILE");
  AddFormat(app, here.format, "What FILE is, as data.train.format of a job");
  app.add_option("--context", here.context,
                 "Tokens of a window; default: the length of rows, else the model's positions, at "
                 "most 1024")
      ->type_name("T")
      ->check(CLI::PositiveNumber);
  app.add_option("--windows", here.max_windows, "Score only the first windows; default: all")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  app.add_option("--documents", here.documents,
                 "Whether tokens see other documents of their window; default: as the job had it "
                 "that trained CHECKPOINT")
      ->transform(OneOf<config::Documents>(
          {{"join", config::Documents::kJoin}, {"separate", config::Documents::kSeparate}}))
      ->type_name("");
  app.add_option("--document-end", here.document_end,
                 "Token that ends documents, which are then separate; default: that of the job, "
                 "else eos_token_id of config.json")
      ->type_name("ID")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--batches", options.batches,
                 "For a job: score so many global batches; default: data.validation.batches")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  AddModelOptions(app, here.model);
}

}  // namespace

void AddEval(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand<EvalOptions>(
      app, context, "eval", "Say how well a model predicts a set of tokens", Declare, Eval);
  command->footer(
      "The loss is the mean over all scored tokens, in nats. The tokens after the last whole "
      "window are left out.\nBits per byte are known for files of bytes and of "
      "`takt data tokenize`. With -o json: {\"loss\",\n\"perplexity\", \"bits_per_byte\", "
      "\"tokens\", \"windows\", \"context\"}.\n\nA job runs on the workers with the mesh and the "
      "schedule of JOB.yaml, after all jobs of higher priority. It only\ngoes forward, and it is "
      "deleted at its end. --data is then a path of the workers, as in the file.\n\nExit status: 1 "
      "if the model cannot run or Ctrl-C ended it, 2 for wrong input, 4 if there is no such "
      "checkpoint.\n\nExamples:\n"
      "  takt eval checkpoints --data valid.bin --format uint16 --context 1024\n"
      "  takt eval my-model --data 'fineweb/*_val_*.bin' --format llmc --windows 500\n"
      "  takt eval my-model --data valid.bin --format uint16 --documents separate\n"
      "  takt -o json eval job.yaml --batches 20");
}

}  // namespace takt::cli
