// SPDX-License-Identifier: Apache-2.0
#include "cli/model/evaluate_here.h"

#include <signal.h>

#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/base/signals.h"
#include "cli/model/model_child.h"
#include "common/base/status.h"
#include "common/data/corpus.h"

namespace takt::cli {
namespace {

absl::StatusOr<data::Corpus> OpenData(const EvaluateOptions& options) {
  if (options.data.empty()) {
    return InvalidField({.field = "--data",
                         .rule = "is missing, and a checkpoint does not say what to score",
                         .fix = "name a token file"});
  }
  if (!options.format.has_value()) {
    return InvalidField({.field = "--format",
                         .rule = "is missing",
                         .fix = "say what the token file is, as data.train.format of a job does"});
  }
  return data::Corpus::Open({.field = "--data",
                             .path = std::filesystem::absolute(options.data).string(),
                             .data_root = "/",
                             .format = *options.format});
}

v1::LocalModelRequest MakeRequest(const EvaluateOptions& options, const std::string& folder,
                                  const data::Corpus& corpus) {
  v1::LocalModelRequest request;
  request.set_folder(folder);
  request.set_threads(options.model.threads);
  v1::EvaluateModel& work = *request.mutable_evaluate();
  work.set_data(corpus.path());
  work.set_format(static_cast<v1::DataFormat>(corpus.format()));
  work.set_context(options.context);
  work.set_max_windows(options.max_windows);
  return request;
}

// Shows progress on a line of its own, which the next one replaces.
void ShowProgress(const Context& context, const std::string& text) {
  if (context.terminal.err_is_tty) context.terminal.err << "\r\033[K" << text << std::flush;
}

}  // namespace

absl::StatusOr<Score> EvaluateHere(const Context& context, const EvaluateOptions& options) {
  ASSIGN_OR_RETURN(const std::string folder, ModelFolder(options.model));
  ASSIGN_OR_RETURN(const data::Corpus corpus, OpenData(options));
  ASSIGN_OR_RETURN(
      const std::unique_ptr<ModelChild> child,
      ModelChild::Start(context.program_directory, MakeRequest(options, folder, corpus)));
  const SignalThread signals({SIGINT, SIGTERM, SIGHUP}, [&](int) { child->Kill(); });
  while (true) {
    const absl::StatusOr<v1::LocalModelAnswer> answer = child->Next();
    if (!answer.ok() || answer->has_evaluated()) ShowProgress(context, "");
    if (!answer.ok()) return answer.status();
    if (answer->has_progress()) {
      ShowProgress(context, absl::StrCat("window ", answer->progress().windows_done(), " of ",
                                         answer->progress().windows()));
    }
    if (!answer->has_evaluated()) continue;
    const v1::EvaluatedModel& evaluated = answer->evaluated();
    return Score{.loss = evaluated.loss(),
                 .tokens = evaluated.tokens(),
                 .windows = evaluated.windows(),
                 .context = evaluated.context(),
                 .bytes_per_token = BytesPerToken(corpus)};
  }
}

}  // namespace takt::cli
