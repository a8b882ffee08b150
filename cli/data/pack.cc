// SPDX-License-Identifier: Apache-2.0
// Packs documents of JSON lines into rows of a safetensors file that say where documents begin.
#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/base/new_file.h"
#include "cli/base/one_of.h"
#include "cli/base/report.h"
#include "cli/base/text.h"
#include "cli/data/commands.h"
#include "cli/data/text_input.h"
#include "cli/data/tokenizer_option.h"
#include "common/base/bounded_text.h"
#include "common/base/mapped_file.h"
#include "common/base/status.h"
#include "common/checkpoint/safetensors.h"
#include "common/data/document_line.h"
#include "common/data/row_packer.h"
#include "common/data/token_values.h"
#include "common/tokenizer/tokenizer_folder.h"
#include "common/tokenizer/utf8.h"

namespace takt::cli {
namespace {

// Says what becomes of a document that is longer than a row.
enum class TooLong { kRefuse, kSkip, kCut };

struct Options {
  std::vector<std::string> in;
  std::string out;
  int context = 0;
  std::string tokenizer;  // folder; empty: not given
  std::string bos, eod;
  TooLong too_long = TooLong::kRefuse;
};

struct Counts {
  std::int64_t documents = 0;
  std::int64_t empty = 0, skipped = 0, cut = 0;  // documents
};

// One caller at a time.
class Packing {
 public:
  // folder: borrowed; null: the documents are ids. begin, end: come before each prompt and after
  // each completion that is a text.
  Packing(const Options& options, const tokenizer::TokenizerFolder* folder,
          std::optional<std::int32_t> begin, std::optional<std::int32_t> end)
      : options_(options), begin_(begin), end_(end), rows_(options.context) {
    if (folder != nullptr) encoder_ = folder->tokenizer->NewEncoder({});
  }

  // Errors: kInvalidArgument, kFailedPrecondition (FieldError, with file and line).
  absl::Status AddFile(const std::string& path) {
    const absl::StatusOr<MappedFile> file = MappedFile::Open(path);
    if (!file.ok()) {
      return UnusableField({.field = "IN",
                            .value = path,
                            .rule = std::string(file.status().message()),
                            .fix = "give a file that can be read"});
    }
    const auto bytes = file->bytes();
    std::string_view rest(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    for (std::int64_t number = 1; !rest.empty(); ++number) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      const std::string_view line = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      const bool is_blank = line.find_first_not_of(" \t\r") == std::string_view::npos;
      const absl::Status added = is_blank ? absl::OkStatus() : AddLine(line);
      if (added.ok()) continue;
      return InvalidField({.field = "IN",
                           .value = std::string(FirstBytes(line, 80)),
                           .rule = std::string(added.message()),
                           .fix = "mend or remove the line",
                           .where = absl::StrCat(path, ":", number)});
    }
    return absl::OkStatus();
  }

  const data::RowPacker& Finish() {
    rows_.Finish();
    return rows_;
  }
  const Counts& counts() const { return counts_; }

 private:
  // Errors: kInvalidArgument, a clause about the line.
  absl::Status AddLine(std::string_view line) {
    std::string storage;
    ASSIGN_OR_RETURN(data::DocumentLine parsed,
                     data::ParseDocumentLine(tokenizer::ReplaceInvalidUtf8(line, storage).text));
    data::TrainingDocument& document = parsed.document;
    if (parsed.has_texts) RETURN_IF_ERROR(Encode(parsed));
    const auto context = static_cast<std::size_t>(options_.context);
    if (document.tokens.empty()) {
      ++counts_.empty;
      return absl::OkStatus();
    }
    if (document.tokens.size() > context) {
      if (options_.too_long == TooLong::kRefuse) {
        return absl::InvalidArgumentError(
            absl::StrCat("has ", document.tokens.size(), " tokens, a row has ", context,
                         " (--too-long skip or cut takes the others)"));
      }
      if (options_.too_long == TooLong::kSkip) {
        ++counts_.skipped;
        return absl::OkStatus();
      }
      ++counts_.cut;
      document.tokens.resize(context);
      document.targets.resize(context);
    }
    ++counts_.documents;
    rows_.Add(document);
    return absl::OkStatus();
  }

  // The two texts are encoded apart, so that the place where scoring begins is exact.
  absl::Status Encode(data::DocumentLine& line) {
    if (encoder_ == nullptr)
      return absl::InvalidArgumentError("has texts, which need --tokenizer FOLDER");
    std::vector<std::int32_t> prompt, completion;
    if (begin_.has_value()) prompt.push_back(*begin_);
    RETURN_IF_ERROR(encoder_->Encode(line.prompt, prompt));
    RETURN_IF_ERROR(encoder_->Encode(line.completion, completion));
    if (end_.has_value()) completion.push_back(*end_);
    line.document.Append(prompt, /*scored=*/false);
    line.document.Append(completion, /*scored=*/true);
    return absl::OkStatus();
  }

  const Options& options_;
  const std::optional<std::int32_t> begin_, end_;
  std::unique_ptr<tokenizer::Encoder> encoder_;  // null: there is no tokenizer
  data::RowPacker rows_;
  Counts counts_;
};

std::string FileOf(const data::RowPacker& rows, std::int64_t context) {
  std::vector<checkpoint::Tensor> tensors;
  for (const auto& [name, values] :
       {std::pair("tokens", &rows.tokens()), std::pair("targets", &rows.targets()),
        std::pair("document", &rows.documents())}) {
    tensors.push_back({.name = name,
                       .dtype = "I32",
                       .shape = {std::ssize(*values) / context, context},
                       .bytes = std::as_bytes(std::span(*values))});
  }
  return checkpoint::FormatSafetensors(std::move(tensors));
}

void Print(const Context& context, const Options& options, const data::RowPacker& rows,
           const Counts& counts) {
  const std::int64_t slots = std::ssize(rows.tokens());
  const std::int64_t ignored = std::ranges::count(rows.targets(), data::kIgnoredTarget);
  if (context.json()) {
    const Json json = {{"path", options.out},
                       {"context", options.context},
                       {"rows", slots / options.context},
                       {"documents", counts.documents},
                       {"tokens", slots - rows.padding()},
                       {"scored_targets", slots - ignored},
                       {"padding", rows.padding()},
                       {"empty", counts.empty},
                       {"skipped", counts.skipped},
                       {"cut", counts.cut}};
    PrintJson(context, json);
    return;
  }
  Table table({"file", options.out});
  table.Add({"rows", absl::StrCat(slots / options.context, " of ", options.context, " tokens")});
  table.Add({"documents", absl::StrCat(counts.documents)});
  table.Add({"tokens", absl::StrCat(slots - rows.padding())});
  table.Add({"scored targets", absl::StrCat(slots - ignored)});
  table.Add({"padding", absl::StrFormat("%.1f%%", 100.0 * static_cast<double>(rows.padding()) /
                                                      static_cast<double>(slots))});
  if (counts.skipped > 0) table.Add({"skipped", absl::StrCat(counts.skipped, ", too long")});
  if (counts.cut > 0) table.Add({"cut", absl::StrCat(counts.cut, ", too long")});
  if (counts.empty > 0) table.Add({"left out", absl::StrCat(counts.empty, ", without tokens")});
  context.terminal.out << table.ToString() << std::flush;
}

absl::StatusOr<ExitCode> Pack(const Context& context, const Options& options) {
  if (!options.out.ends_with(".safetensors")) {
    return InvalidField({.field = "--out",
                         .value = options.out,
                         .rule = "must end with .safetensors, as the format is",
                         .fix = "give such a name"});
  }
  RETURN_IF_ERROR(CheckNewFile(options.out));
  std::optional<tokenizer::TokenizerFolder> folder;
  std::optional<std::int32_t> begin, end;
  if (!options.tokenizer.empty()) {
    ASSIGN_OR_RETURN(folder, tokenizer::OpenTokenizerFolder("--tokenizer", options.tokenizer));
    ASSIGN_OR_RETURN(begin,
                     BeginOfDocument(options.bos, *folder->tokenizer, folder->begin_of_document));
    ASSIGN_OR_RETURN(end, EndOfDocument(options.eod, *folder));
  }
  ASSIGN_OR_RETURN(const std::vector<InputFile> files, FindInputFiles(options.in));
  Packing packing(options, folder.has_value() ? &*folder : nullptr, begin, end);
  for (const InputFile& file : files) RETURN_IF_ERROR(packing.AddFile(file.path));
  const data::RowPacker& rows = packing.Finish();
  if (rows.tokens().empty()) {
    return InvalidField({.field = "IN",
                         .value = options.in.front(),
                         .rule = "holds no document that fits into a row",
                         .fix = "give lines of JSON with documents, or a longer --context"});
  }
  RETURN_IF_ERROR(WriteNewFile(options.out, FileOf(rows, options.context)));
  Print(context, options, rows, packing.counts());
  return ExitCode::kDone;
}

void DeclareOptions(CLI::App& app, Options& options) {
  app.add_option("IN", options.in, "Files of JSON lines, or directories of such files")
      ->type_name("")
      ->required();
  app.add_option("--out", options.out, "File to make")->type_name("FILE.safetensors")->required();
  app.add_option("--context", options.context, "Tokens of a row, as model.context of the job")
      ->type_name("T")
      ->check(CLI::Range(1, 1 << 24))
      ->required();
  app.add_option("--tokenizer", options.tokenizer, "Hugging Face folder, for texts")
      ->type_name("FOLDER");
  app.add_option("--bos", options.bos,
                 "Token or id before each prompt that is a text, or none; default: as the folder's "
                 "model wants")
      ->type_name("TOKEN");
  app.add_option("--eod", options.eod,
                 "Token or id after each completion that is a text, or none; default: the "
                 "folder's eos_token")
      ->type_name("TOKEN");
  app.add_option("--too-long", options.too_long,
                 "What becomes of documents that are longer than a row; default: refuse")
      ->transform(OneOf<TooLong>(
          {{"refuse", TooLong::kRefuse}, {"skip", TooLong::kSkip}, {"cut", TooLong::kCut}}))
      ->type_name("");
}

}  // namespace

void AddDataPack(CLI::App& data, Context& context) {
  CLI::App* command = AddCommand<Options>(
      data, context, "pack", "Pack documents of JSON lines into rows", DeclareOptions, Pack);
  command->footer(
      "A line has `input_ids` (and `labels`, `attention_mask`), or `prompt` and `completion`, both "
      "as ids or as texts.\nOf a prompt nothing is scored. Nothing is overwritten. Train on the "
      "file with data.documents: separate.\n\nExamples:\n"
      "  takt data pack tokens.jsonl --out train.safetensors --context 2048\n"
      "  takt data pack pairs.jsonl --tokenizer gpt2 --out train.safetensors --context 1024");
}

}  // namespace takt::cli
