// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/base/one_of.h"
#include "cli/base/report.h"
#include "cli/base/text.h"
#include "cli/data/commands.h"
#include "cli/data/tokenize_run.h"
#include "cli/data/tokenize_state.h"
#include "cli/data/tokenizer_option.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/data/token_origin.h"

namespace takt::cli {
namespace {

namespace fs = std::filesystem;

enum class OutFormat { kUint16, kUint32, kMegatron };
constexpr const char* kOutFormatNames[] = {"uint16", "uint32", "megatron"};
constexpr std::int64_t kUint16Ids = 65536;
constexpr std::int64_t kProgressIntervalNanos = 200'000'000;

struct Options {
  std::vector<std::string> in;
  std::string tokenizer;
  std::string out;
  std::optional<OutFormat> format;        // absent: uint16 if the vocabulary fits, else uint32
  std::optional<DocumentKind> documents;  // absent: by the names of the files
  std::string field = "text";
  std::string bos, eod;
  bool special_tokens = false;
  int threads = 0;  // 0: one for each core
};

absl::StatusOr<DocumentKind> KindOf(const Options& options, const std::vector<InputFile>& files) {
  if (options.documents.has_value()) return *options.documents;
  const auto num_jsonl = std::ranges::count_if(
      files, [](const InputFile& file) { return file.path.ends_with(".jsonl"); });
  if (num_jsonl == 0) return DocumentKind::kFiles;
  if (num_jsonl == std::ssize(files)) return DocumentKind::kJsonl;
  return InvalidField({.field = "--documents",
                       .rule = "is missing, and only some of the files end with .jsonl",
                       .fix = "say what a document is, or give the files to two commands"});
}

// Returns the format, the path and the type of the output.
absl::StatusOr<data::TokenWriterOptions> OutputOf(const Options& options, OutFormat format,
                                                  std::int64_t vocab) {
  const bool fits = vocab <= kUint16Ids;
  if (format == OutFormat::kUint16 && !fits) {
    return InvalidField({.field = "--format",
                         .value = "uint16",
                         .rule = absl::StrCat("cannot hold the ids of a vocabulary of ", vocab),
                         .fix = "say --format uint32"});
  }
  if (format != OutFormat::kMegatron) {
    return data::TokenWriterOptions{
        .path = options.out,
        .type = format == OutFormat::kUint16 ? data::TokenType::kU16 : data::TokenType::kU32};
  }
  fs::path path(options.out);
  // As in a job, PREFIX and the names of both files mean the pair.
  const bool has_suffix = path.extension() == ".bin" || path.extension() == ".idx";
  if (has_suffix) path.replace_extension();
  path += ".bin";
  return data::TokenWriterOptions{.path = path.string(),
                                  .type = fits ? data::TokenType::kU16 : data::TokenType::kI32,
                                  .has_index = true};
}

absl::Status CheckOutput(const data::TokenWriterOptions& out) {
  const fs::path path(out.path);
  std::error_code ignored;  // what cannot be looked at cannot be written, which says why
  if (path.filename().empty()) {
    return InvalidField({.field = out.field,
                         .value = out.path,
                         .rule = "must name a file",
                         .fix = "give a name such as train.bin"});
  }
  if (fs::exists(fs::symlink_status(path, ignored))) {
    return InvalidField({.field = out.field,
                         .value = out.path,
                         .rule = "must not be there yet: nothing is overwritten",
                         .fix = "give another name, or remove it first"});
  }
  // An index without its tokens is of another file, unless a run was about to finish.
  const fs::path index = fs::path(path).replace_extension(".idx");
  if (out.has_index && fs::exists(index, ignored) &&
      !fs::exists(TokenizeStatePath(out.path), ignored)) {
    return InvalidField({.field = out.field,
                         .value = index.string(),
                         .rule = "must not be there yet: nothing is overwritten",
                         .fix = "give another name, or remove it first"});
  }
  return absl::OkStatus();
}

// Shows on a terminal how far the run is. Another stream gets nothing.
class Progress {
 public:
  Progress(const Context& context, const Clock& clock, std::int64_t input_bytes)
      : context_(context), clock_(clock), input_bytes_(input_bytes), start_(clock.SteadyNanos()) {}
  ~Progress() { Wipe(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Show(const TokenizeResult& so_far) {
    const std::int64_t now = clock_.SteadyNanos();
    if (!context_.terminal.err_is_tty || context_.json() || now - last_ < kProgressIntervalNanos) {
      return;
    }
    last_ = now;
    const auto done = static_cast<double>(so_far.counts.input_bytes);
    const double rate = RateOf(so_far, now);
    const double left = static_cast<double>(input_bytes_) - done;
    const std::string text = absl::StrFormat(
        "%s of %s  %s tokens  %s/s  ETA %s",
        FormatPercent(input_bytes_ > 0 ? done / static_cast<double>(input_bytes_) : 1),
        FormatBytes(static_cast<double>(input_bytes_)),
        FormatCount(static_cast<double>(so_far.counts.tokens)), FormatBytes(rate),
        FormatSeconds(rate > 0 ? left / rate : -1));
    Wipe();
    const auto width = static_cast<std::size_t>(std::max(0, context_.terminal.columns - 1));
    context_.terminal.err << text.substr(0, width) << std::flush;
    is_drawn_ = true;
  }

  double SecondsAt(std::int64_t now) const { return static_cast<double>(now - start_) / 1e9; }

 private:
  // Bytes of input a second in this run.
  double RateOf(const TokenizeResult& so_far, std::int64_t now) const {
    const double seconds = SecondsAt(now);
    const auto bytes = static_cast<double>(so_far.counts.input_bytes - so_far.resumed_bytes);
    return seconds > 0 ? bytes / seconds : 0;
  }
  void Wipe() {
    if (is_drawn_) context_.terminal.err << "\r\x1b[K" << std::flush;
    is_drawn_ = false;
  }

  const Context& context_;
  const Clock& clock_;
  const std::int64_t input_bytes_;
  const std::int64_t start_;
  std::int64_t last_ = 0;
  bool is_drawn_ = false;
};

void PrintText(const Context& context, const TokenizeSettings& settings,
               const TokenizeResult& result, OutFormat format) {
  const DocumentCounts& counts = result.counts;
  Table table({"file", settings.out.path});
  table.Add({"format", absl::StrCat(kOutFormatNames[static_cast<int>(format)], " (",
                                    std::string(data::NameOf(settings.out.type)), " tokens)")});
  table.Add({"documents", absl::StrCat(counts.documents)});
  table.Add({"tokens", absl::StrCat(counts.tokens)});
  table.Add({"text", absl::StrFormat(
                         "%s, %.2f bytes a token", FormatBytes(static_cast<double>(counts.bytes)),
                         static_cast<double>(counts.bytes) / static_cast<double>(counts.tokens))});
  context.terminal.out << table.ToString() << std::flush;
}

Json ToJson(const TokenizeSettings& settings, const TokenizeResult& result, OutFormat format,
            const tokenizer::TokenizerFolder& folder, double seconds) {
  const DocumentCounts& counts = result.counts;
  const auto id_or_null = [](std::optional<std::int32_t> id) {
    return id.has_value() ? Json(*id) : Json(nullptr);
  };
  return {{"path", settings.out.path},
          {"format", kOutFormatNames[static_cast<int>(format)]},
          {"token_type", data::NameOf(settings.out.type)},
          {"documents", counts.documents},
          {"tokens", counts.tokens},
          {"bytes", counts.bytes},
          {"replaced", counts.replaced},
          {"tokenizer", folder.file},
          {"tokenizer_xxh3_128", folder.hash},
          {"vocab", folder.tokenizer->vocab_size()},
          {"begin_of_document", id_or_null(settings.documents.begin_of_document)},
          {"end_of_document", id_or_null(settings.documents.end_of_document)},
          {"input_bytes", counts.input_bytes},
          {"resumed_bytes", result.resumed_bytes},
          {"seconds", seconds}};
}

absl::StatusOr<ExitCode> Tokenize(const Context& context, const Options& options) {
  ASSIGN_OR_RETURN(const tokenizer::TokenizerFolder folder,
                   tokenizer::OpenTokenizerFolder("--tokenizer", options.tokenizer));
  TokenizeSettings settings;
  settings.documents.text_field = options.field;
  settings.documents.special_tokens = options.special_tokens;
  ASSIGN_OR_RETURN(settings.documents.begin_of_document,
                   BeginOfDocument(options.bos, *folder.tokenizer, folder.begin_of_document));
  ASSIGN_OR_RETURN(settings.documents.end_of_document, EndOfDocument(options.eod, folder));
  const std::int64_t vocab = folder.tokenizer->vocab_size();
  const OutFormat format =
      options.format.value_or(vocab <= kUint16Ids ? OutFormat::kUint16 : OutFormat::kUint32);
  ASSIGN_OR_RETURN(settings.out, OutputOf(options, format, vocab));
  RETURN_IF_ERROR(CheckOutput(settings.out));
  ASSIGN_OR_RETURN(settings.inputs, FindInputFiles(options.in));
  ASSIGN_OR_RETURN(settings.documents.kind, KindOf(options, settings.inputs));
  settings.threads = options.threads > 0
                         ? options.threads
                         : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::int64_t input_bytes = 0;
  for (const InputFile& input : settings.inputs) input_bytes += input.bytes;

  const Clock& clock = Clock::Real();
  absl::StatusOr<TokenizeResult> result = TokenizeResult();
  double seconds = 0;
  {
    Progress progress(context, clock, input_bytes);
    result = RunTokenize(settings, folder, clock,
                         [&](const TokenizeResult& so_far) { progress.Show(so_far); });
    seconds = progress.SecondsAt(clock.SteadyNanos());
  }
  RETURN_IF_ERROR(result.status());
  if (result->resumed_bytes > 0) {
    Say(context,
        absl::StrCat("went on after ", FormatBytes(static_cast<double>(result->resumed_bytes)),
                     " of an earlier run"));
  }
  if (result->counts.replaced > 0) {
    Say(context, absl::StrCat("warning: U+FFFD replaces bytes that are not UTF-8 in ",
                              result->counts.replaced, " places"));
  }
  if (context.json()) {
    PrintJson(context, ToJson(settings, *result, format, folder, seconds));
  } else {
    PrintText(context, settings, *result, format);
  }
  return ExitCode::kDone;
}

void DeclareOptions(CLI::App& app, Options& options) {
  app.add_option("IN", options.in, "Files with text, or directories of such files")
      ->type_name("")
      ->required();
  app.add_option("--tokenizer", options.tokenizer,
                 "Hugging Face folder with tokenizer.json or tokenizer.model")
      ->type_name("FOLDER")
      ->required();
  app.add_option("--out", options.out, "File to make; for megatron PREFIX or PREFIX.bin")
      ->type_name("FILE")
      ->required();
  app.add_option("--format", options.format,
                 "Of the output; default: uint16 if the vocabulary fits, else uint32")
      ->transform(OneOf<OutFormat>({{"uint16", OutFormat::kUint16},
                                    {"uint32", OutFormat::kUint32},
                                    {"megatron", OutFormat::kMegatron}}))
      ->type_name("");
  app.add_option("--documents", options.documents,
                 "What a document is; default: jsonl for files that end with .jsonl, else files")
      ->transform(OneOf<DocumentKind>({{"jsonl", DocumentKind::kJsonl},
                                       {"lines", DocumentKind::kLines},
                                       {"files", DocumentKind::kFiles}}))
      ->type_name("");
  app.add_option("--field", options.field, "Field of a JSON line that has the text")
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--bos", options.bos,
                 "Token or id before each document, or none; default: as the folder's model wants")
      ->type_name("TOKEN");
  app.add_option("--eod", options.eod,
                 "Token or id after each document, or none; default: the folder's eos_token")
      ->type_name("TOKEN");
  app.add_flag("--special", options.special_tokens,
               "Let text such as <|endoftext|> become the special token; default: it stays text");
  app.add_option("--threads", options.threads, "Threads; default: one for each core")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
}

}  // namespace

void AddDataTokenize(CLI::App& data, Context& context) {
  CLI::App* command = AddCommand<Options>(data, context, "tokenize", "Make a token file from text",
                                          DeclareOptions, Tokenize);
  command->footer(
      "The output appears when it is whole, with FILE.json beside it: tokens, documents, bytes of "
      "text, tokenizer.\nA run that was killed goes on when the same command is given again. "
      "Nothing is overwritten.\nBytes that are not UTF-8 become U+FFFD, and are counted.\n\n"
      "Examples:\n"
      "  takt data tokenize book.txt --tokenizer gpt2 --out train.bin\n"
      "  takt data tokenize shards/*.jsonl --tokenizer Llama-3.2-1B --out train.bin --format "
      "uint32\n"
      "  takt data tokenize lines.txt --documents lines --tokenizer t --out corpus --format "
      "megatron");
}

}  // namespace takt::cli
