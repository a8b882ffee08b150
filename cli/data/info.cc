// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <optional>

#include "absl/strings/str_cat.h"
#include "cli/base/report.h"
#include "cli/base/text.h"
#include "cli/data/commands.h"
#include "cli/data/document_text.h"
#include "cli/data/format_option.h"
#include "cli/job/job_input.h"
#include "common/base/counted.h"
#include "common/base/status.h"
#include "common/config/job_spec_serde.h"
#include "common/data/corpus.h"
#include "common/data/token_origin.h"
#include "common/tokenizer/tokenizer_folder.h"

namespace takt::cli {
namespace {

using config::DataFormat;

struct InfoOptions {
  std::string file;
  std::string job;
  std::optional<DataFormat> format;
  int context = 0;  // 0: not given
  int vocab = 0;
  int document_end = -1;  // -1: not given
  std::string tokenizer;  // folder; empty: not given
  int show = 3;           // documents
};

// The demands on the file. 0: there is none.
struct Demands {
  int context = 0;
  int vocab = 0;
  int document_end = -1;     // -1: no token is known to end documents
  std::int64_t windows = 1;  // windows that one step takes
};

absl::StatusOr<Demands> DemandsOf(const InfoOptions& options) {
  Demands demands{
      .context = options.context, .vocab = options.vocab, .document_end = options.document_end};
  if (options.job.empty()) return demands;
  ASSIGN_OR_RETURN(const PreparedJob prepared, PrepareJob({.path = options.job}));
  ASSIGN_OR_RETURN(const config::JobSpec job, config::ToJobSpec(prepared.spec));
  if (job.model.family == model::Family::kEmulated) {
    return InvalidField({.field = "JOB.yaml",
                         .value = options.job,
                         .rule = "has emulated layers, which read no data",
                         .fix = "leave it out"});
  }
  if (demands.context == 0) demands.context = job.model.context;
  if (demands.vocab == 0) demands.vocab = job.model.vocab;
  if (demands.document_end < 0) demands.document_end = job.document_end.value_or(-1);
  demands.windows = job.global_batch;
  return demands;
}

absl::StatusOr<data::Corpus> OpenAs(const InfoOptions& options, DataFormat format) {
  return data::Corpus::Open({.field = "FILE",
                             .path = std::filesystem::absolute(options.file).string(),
                             .data_root = "/",
                             .format = format});
}

// Finds the format that the file itself states, for use without --format. Other formats are
// streams: any file can be read as one.
absl::StatusOr<data::Corpus> Open(const InfoOptions& options) {
  if (options.format.has_value()) return OpenAs(options, *options.format);
  for (const DataFormat format :
       {DataFormat::kSafetensors, DataFormat::kLlmc, DataFormat::kMegatron}) {
    absl::StatusOr<data::Corpus> corpus = OpenAs(options, format);
    if (corpus.ok()) return corpus;
  }
  return InvalidField({.field = "--format",
                       .rule = "is missing, and FILE cannot be read as safetensors, llmc or "
                               "megatron, which would state it",
                       .fix = "say what the file is"});
}

struct Findings {
  std::int64_t bytes = 0;
  std::int64_t largest_id = -1;
  int context = 0;                  // tokens of a window; 0: unknown
  std::optional<absl::Status> fit;  // absent: there were no demands
  std::optional<std::int64_t> num_documents;
  std::int64_t padding = 0;             // tokens
  std::vector<DocumentText> documents;  // with --tokenizer
};

// Returns everything that does not fit, as one status.
absl::Status CheckFit(const data::Corpus& corpus, const Demands& demands) {
  std::vector<FieldError> errors;
  const auto collect = [&errors](const absl::Status& status) {
    for (FieldError& error : FieldErrorsOf(status)) errors.push_back(std::move(error));
  };
  if (demands.context > 0) collect(corpus.CheckWindows(demands.context, demands.windows));
  if (demands.vocab > 0) collect(corpus.CheckVocab(demands.vocab));
  collect(corpus.CheckDocuments());
  return errors.empty() ? absl::OkStatus() : InvalidFields(std::move(errors));
}

Findings Examine(const data::Corpus& corpus, const Demands& demands) {
  Findings findings{.largest_id = corpus.LargestId()};
  for (const data::Corpus::Shard& shard : corpus.shards()) findings.bytes += shard.bytes;
  findings.context = demands.context > 0 ? demands.context : static_cast<int>(corpus.row_length());
  const absl::Status documents = corpus.CheckDocuments();
  if (demands.context > 0 || demands.vocab > 0 || !documents.ok())
    findings.fit = CheckFit(corpus, demands);
  findings.num_documents = corpus.num_documents();
  const bool can_count = documents.ok() && (corpus.says_documents() || demands.document_end >= 0);
  if (can_count) {
    const data::DocumentCount count = corpus.CountDocuments(demands.document_end);
    findings.num_documents = count.documents;
    findings.padding = count.padding;
  }
  return findings;
}

Json NumberOrNull(std::optional<std::int64_t> number) {
  return number.has_value() ? Json(*number) : Json(nullptr);
}

Json ToJson(const data::Corpus& corpus, const InfoOptions& options, const Findings& findings) {
  Json files = Json::array();
  for (const data::Corpus::Shard& shard : corpus.shards()) {
    files.push_back({{"path", shard.path},
                     {"bytes", shard.bytes},
                     {"tokens", shard.file.tokens.size()},
                     {"documents", NumberOrNull(shard.file.num_documents)}});
  }
  const bool has_windows = findings.context > 0;
  Json json = {{"path", options.file},
               {"format", data::NameOf(corpus.format())},
               {"token_type", data::NameOf(corpus.token_type())},
               {"bytes", findings.bytes},
               {"tokens", corpus.num_tokens()},
               {"documents", NumberOrNull(findings.num_documents)},
               {"padding", findings.padding},
               {"scored_targets", NumberOrNull(corpus.num_scored())},
               {"largest_id", findings.largest_id},
               {"context", has_windows ? Json(findings.context) : Json(nullptr)},
               {"windows", has_windows ? Json(corpus.NumWindows(findings.context)) : Json(nullptr)},
               {"files", files}};
  json["fits"] = findings.fit.has_value() ? Json(findings.fit->ok()) : Json(nullptr);
  json["problems"] = ViolationsJson(findings.fit.value_or(absl::OkStatus()));
  if (!options.tokenizer.empty()) {
    json["texts"] = Json::array();
    for (const DocumentText& document : findings.documents) {
      json["texts"].push_back(
          {{"tokens", document.tokens}, {"text", document.text}, {"whole", document.is_whole}});
    }
  }
  return json;
}

std::string ToText(const data::Corpus& corpus, const Findings& findings) {
  const std::size_t num_files = corpus.shards().size();
  Table table({"format", absl::StrCat(data::NameOf(corpus.format()), " (",
                                      std::string(data::NameOf(corpus.token_type())), " tokens)")});
  table.Add(
      {"files", absl::StrCat(num_files, ", ", FormatBytes(static_cast<double>(findings.bytes)))});
  if (num_files > 1) {
    table.Add({"first", corpus.shards().front().path});
    table.Add({"last", corpus.shards().back().path});
  }
  table.Add({"tokens", absl::StrCat(corpus.num_tokens())});
  if (const auto documents = findings.num_documents; documents.has_value()) {
    const std::int64_t mean =
        (corpus.num_tokens() - findings.padding) / std::max<std::int64_t>(1, *documents);
    table.Add({"documents", absl::StrCat(*documents, ", ", Counted(mean, "token"), " on average")});
  }
  if (findings.padding > 0) {
    table.Add({"padding", FormatPercent(static_cast<double>(findings.padding) /
                                        static_cast<double>(corpus.num_tokens()))});
  }
  if (const auto scored = corpus.num_scored(); scored.has_value())
    table.Add({"scored targets", absl::StrCat(*scored)});
  table.Add({"largest id", absl::StrCat(findings.largest_id)});
  if (findings.context > 0) {
    table.Add({"windows", absl::StrCat(corpus.NumWindows(findings.context), " of ",
                                       Counted(findings.context, "token"))});
  }
  if (findings.fit.has_value()) table.Add({"fits", findings.fit->ok() ? "yes" : "no"});
  std::string text = table.ToString();
  for (std::size_t i = 0; i < findings.documents.size(); ++i) {
    const DocumentText& document = findings.documents[i];
    absl::StrAppend(&text, "\ndocument ", i, ", ", Counted(document.tokens, "token"), ":\n",
                    Harmless(document.text), document.is_whole ? "\n" : " ...\n");
  }
  return text;
}

// Decodes the first documents. Says on stderr if the tokens are of another tokenizer.
absl::StatusOr<std::vector<DocumentText>> ReadDocuments(const Context& context,
                                                        const InfoOptions& options,
                                                        const data::Corpus& corpus) {
  ASSIGN_OR_RETURN(const tokenizer::TokenizerFolder folder,
                   tokenizer::OpenTokenizerFolder("--tokenizer", options.tokenizer));
  std::optional<std::int64_t> end = folder.end_of_document;
  const std::string& path = corpus.shards().front().path;
  const auto origin = data::ReadTokenOrigin(path);
  if (!origin.ok()) {
    Say(context, absl::StrCat("warning: ", origin.status().message()));
  } else if (origin->has_value()) {
    end = (*origin)->end_of_document;
    if ((*origin)->tokenizer_hash != folder.hash) {
      Say(context, absl::StrCat("warning: ", data::TokenOriginPath(path),
                                " says that the tokens are of another tokenizer"));
    }
  }
  return FirstDocuments(corpus, *folder.tokenizer, end, options.show);
}

absl::StatusOr<ExitCode> Info(const Context& context, const InfoOptions& options) {
  ASSIGN_OR_RETURN(const Demands demands, DemandsOf(options));
  ASSIGN_OR_RETURN(const data::Corpus corpus, Open(options));
  Findings findings = Examine(corpus, demands);
  if (!options.tokenizer.empty()) {
    ASSIGN_OR_RETURN(findings.documents, ReadDocuments(context, options, corpus));
  }
  const bool fits = !findings.fit.has_value() || findings.fit->ok();
  if (context.json()) {
    PrintJson(context, ToJson(corpus, options, findings));
  } else {
    context.terminal.out << ToText(corpus, findings) << std::flush;
    if (!fits) PrintError(context, *findings.fit);
  }
  return fits ? ExitCode::kDone : ExitCode::kFailed;
}

}  // namespace

void AddDataInfo(CLI::App& data, Context& context) {
  CLI::App* command = AddCommand<InfoOptions>(
      data, context, "info", "Say what a token file holds, and whether it fits a job",
      [](CLI::App& app, InfoOptions& options) {
        app.add_option("FILE", options.file, "File, directory of files, or pattern in quotes")
            ->type_name("")
            ->required();
        app.add_option("JOB", options.job, "Job that it must fit as the only corpus")
            ->type_name("JOB.yaml");
        AddFormat(app, options.format,
                  "As in data.train of a job; default: what the file itself states");
        app.add_option("--context", options.context, "Tokens of a window; default: the job's")
            ->type_name("T")
            ->check(CLI::PositiveNumber);
        app.add_option("--vocab", options.vocab, "Ids must be below it; default: the job's")
            ->type_name("V")
            ->check(CLI::PositiveNumber);
        app.add_option("--document-end", options.document_end,
                       "Token that ends documents, to count them; default: the job's")
            ->type_name("ID")
            ->check(CLI::NonNegativeNumber);
        app.add_option("--tokenizer", options.tokenizer,
                       "Hugging Face folder; shows the first documents as text")
            ->type_name("FOLDER");
        app.add_option("--show", options.show, "How many documents --tokenizer shows")
            ->type_name("N")
            ->check(CLI::PositiveNumber)
            ->capture_default_str();
      },
      Info);
  command->footer(
      "The command reads every file once. Exit status 1 and the reasons if it does not fit the "
      "job, --context "
      "or --vocab;\n2 if it cannot be read as the format.\n\nExamples:\n"
      "  takt data info train.bin --format uint16 --context 1024 --vocab 50257\n"
      "  takt data info 'fineweb/*_train_*.bin' --format llmc job.yaml\n"
      "  takt data info train.bin --format uint16 --tokenizer gpt2\n"
      "  takt -o json data info corpus_text_document --format megatron | jq .documents");
}

}  // namespace takt::cli
