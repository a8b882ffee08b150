// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "cli/base/report.h"
#include "cli/base/text.h"
#include "cli/checkpoint/commands.h"
#include "cli/checkpoint/steps.h"
#include "common/base/status.h"
#include "common/checkpoint/hf_export.h"

namespace takt::cli {
namespace {

using checkpoint::FloatFormat;

// The values of --dtype. Empty: auto.
using Dtype = std::optional<FloatFormat>;

struct CommandOptions {
  CheckpointOptions from;
  std::string out;
  std::string dtype = "auto";
  std::uint64_t max_shard_bytes = 5'000'000'000;
};

const std::map<std::string, Dtype>& Dtypes() {
  static const auto* const dtypes = new std::map<std::string, Dtype>{{"auto", std::nullopt},
                                                                     {"f32", FloatFormat::kF32},
                                                                     {"bf16", FloatFormat::kBf16},
                                                                     {"f16", FloatFormat::kF16}};
  return *dtypes;
}

absl::Status Damaged(absl::string_view reason) {
  return absl::DataLossError(absl::StrCat(reason, kDamagedStepFix));
}

// Exports the newest finished step or the requested one. If it is damaged, this is an error: the
// command does not pass over it.
absl::StatusOr<ExitCode> Run(const Context& context, const CommandOptions& options) {
  ASSIGN_OR_RETURN(const auto steps, FinishedSteps(options.from));
  const checkpoint::ListedStep& step = steps.front();
  if (!step.manifest.has_value()) return Damaged(step.reason);
  const absl::StatusOr<checkpoint::Export> exported = checkpoint::ExportHuggingFace(
      {.step_directory = PathOf(options.from, step),
       .out = options.out,
       .format = Dtypes().at(options.dtype),
       .max_shard_bytes =
           static_cast<std::int64_t>(std::min<std::uint64_t>(options.max_shard_bytes, INT64_MAX))});
  if (absl::IsDataLoss(exported.status())) return Damaged(exported.status().message());
  RETURN_IF_ERROR(exported.status());
  if (context.json()) {
    PrintJson(context, {{"step", exported->step.value()},
                        {"folder", options.out},
                        {"dtype", std::string(checkpoint::TorchDtypeOf(exported->format))},
                        {"tensor_bytes", exported->tensor_bytes},
                        {"files", exported->files}});
  } else {
    context.terminal.out << "step " << exported->step << " to " << options.out << ": "
                         << FormatBytes(static_cast<double>(exported->tensor_bytes)) << " of "
                         << checkpoint::TorchDtypeOf(exported->format) << " in "
                         << absl::StrJoin(exported->files, ", ") << std::endl;
  }
  return ExitCode::kDone;
}

}  // namespace

void AddCheckpointExport(CLI::App& checkpoint, Context& context) {
  AddCommand<CommandOptions>(
      checkpoint, context, "export", "Write a checkpoint as a Hugging Face folder",
      [](CLI::App& app, CommandOptions& options) {
        AddDirectory(app, options.from);
        app.add_option("OUT", options.out, "Folder to make; it must be empty or not exist")
            ->type_name("")
            ->required();
        AddStep(app, options.from, "the newest");
        app.add_option(
               "--dtype", options.dtype,
               "Dtype of the weights; auto: that of the folder that the run started from, else f32")
            ->check(CLI::IsMember({"auto", "f32", "bf16", "f16"}))
            ->capture_default_str()
            ->type_name("");
        app.add_option("--max-shard-size", options.max_shard_bytes,
                       "Larger models are divided into files of at most this; default: 5GB")
            ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true).description(""))
            ->check(CLI::PositiveNumber)
            ->type_name("SIZE");
      },
      Run)
      ->footer(
          "The command verifies the checkpoint first (exit status 1 if it is damaged, 4 if there "
          "is none). OUT "
          "appears whole\nor not at all. Tokenizer files are not part of a checkpoint: copy them "
          "beside it.\n\nExamples:\n"
          "  takt checkpoint export checkpoints my-model\n"
          "  takt checkpoint export checkpoints my-model --step 100 --dtype bf16 --max-shard-size "
          "2GB");
}

}  // namespace takt::cli
