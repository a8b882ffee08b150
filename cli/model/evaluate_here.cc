// SPDX-License-Identifier: Apache-2.0
#include "cli/model/evaluate_here.h"

#include <signal.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "cli/base/input_file.h"
#include "cli/base/report.h"
#include "cli/base/signals.h"
#include "cli/model/model_child.h"
#include "common/base/status.h"
#include "common/checkpoint/layout.h"
#include "common/checkpoint/manifest.h"
#include "common/data/corpus.h"
#include "common/data/token_origin.h"
#include "nlohmann/json.hpp"

namespace takt::cli {
namespace {

using nlohmann::json;

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

// Returns the part at `key`, or null if there is none.
json PartOf(const json& object, const char* key) {
  const auto it = object.is_object() ? object.find(key) : object.end();
  return it != object.end() ? *it : json();
}

// What becomes of documents in a window, as a job says it.
struct Documents {
  config::Documents mode = config::Documents::kUnstated;
  std::optional<int> end;
};

// Returns what the job says that wrote the step of a checkpoint. A folder of Hugging Face knows no
// job. Errors: those of ParseManifest, kInvalidArgument (the file cannot be read).
absl::StatusOr<Documents> DocumentsOfTraining(const std::string& folder) {
  Documents documents;
  const std::string path = absl::StrCat(folder, "/", checkpoint::kManifestFile);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return documents;
  ASSIGN_OR_RETURN(const std::string text, ReadInputFile(path, "CHECKPOINT", std::size_t{1} << 30));
  ASSIGN_OR_RETURN(const checkpoint::Manifest manifest, checkpoint::ParseManifest(text, path));
  const json job = json::parse(manifest.job_spec, nullptr, /*allow_exceptions=*/false);
  const json data = PartOf(job, "data");
  const json mode = PartOf(data, "documents"), end = PartOf(data, "document_end");
  if (mode == "join") documents.mode = config::Documents::kJoin;
  if (mode == "separate") documents.mode = config::Documents::kSeparate;
  if (end.is_number_integer()) documents.end = end.get<int>();
  return documents;
}

// Errors: kInvalidArgument (FieldError), those of DocumentsOfTraining.
absl::StatusOr<Documents> DocumentsOf(const EvaluateOptions& options, const std::string& folder) {
  ASSIGN_OR_RETURN(Documents documents, DocumentsOfTraining(folder));
  if (options.document_end.has_value()) {
    documents = {.mode = config::Documents::kSeparate, .end = options.document_end};
  }
  if (!options.documents.has_value()) return documents;
  documents.mode = *options.documents;
  if (documents.mode == config::Documents::kSeparate) return documents;
  documents.end.reset();
  if (!options.document_end.has_value()) return documents;
  return InvalidField({.field = "--document-end",
                       .value = absl::StrCat(*options.document_end),
                       .rule = "has no effect beside --documents join, which tells none apart",
                       .fix = "leave it out, or say --documents separate"});
}

v1::LocalModelRequest MakeRequest(const EvaluateOptions& options, const std::string& folder,
                                  const data::Corpus& corpus, const Documents& documents) {
  v1::LocalModelRequest request;
  request.set_folder(folder);
  request.set_threads(options.model.threads);
  v1::EvaluateModel& work = *request.mutable_evaluate();
  work.set_data(corpus.path());
  work.set_format(static_cast<v1::DataFormat>(corpus.format()));
  work.set_context(options.context);
  work.set_max_windows(options.max_windows);
  work.set_documents(static_cast<v1::DocumentsMode>(documents.mode));
  if (documents.end.has_value()) work.set_document_end(*documents.end);
  return request;
}

// Shows progress on a line of its own, which the next one replaces.
void ShowProgress(const Context& context, const std::string& text) {
  if (context.terminal.err_is_tty) context.terminal.err << "\r\033[K" << text << std::flush;
}

}  // namespace

absl::StatusOr<Score> EvaluateHere(const Context& context, const EvaluateOptions& options) {
  ASSIGN_OR_RETURN(const std::string folder, ModelFolder(context, options.model));
  ASSIGN_OR_RETURN(const data::Corpus corpus, OpenData(options));
  ASSIGN_OR_RETURN(const Documents documents, DocumentsOf(options, folder));
  ASSIGN_OR_RETURN(const std::unique_ptr<ModelChild> child,
                   ModelChild::Start(context.program_directory,
                                     MakeRequest(options, folder, corpus, documents)));
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
    const absl::StatusOr<std::optional<double>> bytes_per_token = data::BytesPerToken(corpus);
    if (!bytes_per_token.ok())
      Say(context, absl::StrCat("warning: ", bytes_per_token.status().message()));
    return Score{.loss = evaluated.loss(),
                 .tokens = evaluated.tokens(),
                 .windows = evaluated.windows(),
                 .context = evaluated.context(),
                 .bytes_per_token = bytes_per_token.value_or(std::nullopt)};
  }
}

}  // namespace takt::cli
