// SPDX-License-Identifier: Apache-2.0
#include <signal.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/base/report.h"
#include "cli/base/signals.h"
#include "cli/base/text.h"
#include "cli/data/tokenizer_option.h"
#include "cli/model/commands.h"
#include "cli/model/model_child.h"
#include "cli/model/model_options.h"
#include "cli/model/text_stream.h"
#include "common/base/counted.h"
#include "common/base/status.h"
#include "common/tokenizer/bytes.h"
#include "common/tokenizer/tokenizer_folder.h"
#include "common/tokenizer/utf8.h"

namespace takt::cli {
namespace {

constexpr char kBytes[] = "bytes";  // the value of --tokenizer for models of bytes

struct GenerateOptions {
  ModelOptions model;
  std::string prompt;
  std::string tokenizer;  // folder or kBytes; empty: that of the model's folder
  std::string bos;        // empty: that of the tokenizer
  int tokens = 0;         // 0: not given
  double temperature = 0;
  double top_p = 1;
  std::uint64_t seed = 0;
};

struct Vocabulary {
  std::unique_ptr<const tokenizer::Tokenizer> tokenizer;
  std::optional<std::int32_t> begin, end;  // the tokens before and after a document
};

// Returns whether a folder holds the tokenizer of its model.
bool HasTokenizer(const std::string& folder) {
  std::error_code error;
  for (const char* const file : {"tokenizer.json", "tokenizer.model"}) {
    if (std::filesystem::exists(std::filesystem::path(folder) / file, error)) return true;
  }
  return false;
}

absl::StatusOr<Vocabulary> OpenVocabulary(const GenerateOptions& options,
                                          const std::string& model_folder) {
  if (options.tokenizer == kBytes) return Vocabulary{.tokenizer = tokenizer::CreateByteTokenizer()};
  if (options.tokenizer.empty() && !HasTokenizer(model_folder)) {
    return InvalidField({.field = "--tokenizer",
                         .rule = "is missing, and the model's folder has no tokenizer",
                         .fix = "give the folder of the tokenizer that the model was trained with, "
                                "or bytes if each byte is a token"});
  }
  const bool own = options.tokenizer.empty();
  ASSIGN_OR_RETURN(tokenizer::TokenizerFolder folder,
                   tokenizer::OpenTokenizerFolder(own ? "CHECKPOINT" : "--tokenizer",
                                                  own ? model_folder : options.tokenizer));
  return Vocabulary{.tokenizer = std::move(folder.tokenizer),
                    .begin = folder.begin_of_document,
                    .end = folder.end_of_document};
}

// The prompt begins as documents do. It may hold special tokens by their content; one that begins
// it already is not put there twice.
absl::StatusOr<std::vector<std::int32_t>> Encode(const GenerateOptions& options,
                                                 const Vocabulary& vocabulary) {
  ASSIGN_OR_RETURN(const std::optional<std::int32_t> begin,
                   BeginOfDocument(options.bos, *vocabulary.tokenizer, vocabulary.begin));
  std::string storage;
  std::vector<std::int32_t> ids;
  const absl::Status status =
      vocabulary.tokenizer->NewEncoder({.special_tokens = true})
          ->Encode(tokenizer::ReplaceInvalidUtf8(options.prompt, storage).text, ids);
  const bool begins = !ids.empty() && ids.front() == begin;
  if (begin.has_value() && !begins) ids.insert(ids.begin(), *begin);
  if (status.ok()) return ids;
  return InvalidField({.field = "--prompt",
                       .rule = std::string(status.message()),
                       .fix = "give another prompt, or another tokenizer"});
}

v1::LocalModelRequest MakeRequest(const GenerateOptions& options, const std::string& folder,
                                  const std::vector<std::int32_t>& prompt,
                                  const Vocabulary& vocabulary) {
  v1::LocalModelRequest request;
  request.set_folder(folder);
  request.set_threads(options.model.threads);
  v1::GenerateText& work = *request.mutable_generate();
  work.mutable_prompt()->Add(prompt.begin(), prompt.end());
  work.set_tokens(options.tokens);
  work.set_temperature(options.temperature);
  work.set_top_p(options.top_p);
  work.set_seed(options.seed);
  if (vocabulary.end.has_value()) work.add_ends(*vocabulary.end);
  work.set_tokenizer_vocab(vocabulary.tokenizer->vocab_size());
  return request;
}

struct Result {
  std::vector<std::int32_t> tokens;
  std::string text;
  double load_seconds = 0, prompt_seconds = 0, seconds = 0;
  bool reached_end = false;

  // Counts without the first token, which the prompt gives.
  std::optional<double> TokensPerSecond() const {
    if (tokens.size() < 2 || seconds <= 0) return std::nullopt;
    return static_cast<double>(tokens.size() - 1) / seconds;
  }
};

// Receives the answers up to the last one, and prints the text as it comes. Ends early, without an
// error, if nobody reads the text any more.
absl::StatusOr<Result> Receive(const Context& context, ModelChild& child, TextStream stream,
                               std::optional<std::int32_t> end) {
  Result result;
  const auto show = [&](const std::string& text) {
    result.text += text;
    if (context.json()) return;
    context.terminal.out << (context.terminal.out_is_tty ? Harmless(text) : text) << std::flush;
  };
  while (context.terminal.out.good()) {
    ASSIGN_OR_RETURN(const v1::LocalModelAnswer answer, child.Next());
    if (answer.has_start()) {
      result.load_seconds = answer.start().load_seconds();
      result.prompt_seconds = answer.start().prompt_seconds();
    } else if (answer.has_generated()) {
      result.seconds = answer.generated().seconds();
      result.reached_end = answer.generated().reached_end();
      break;
    } else {
      result.tokens.push_back(answer.token());
      if (answer.token() != end) show(stream.Add(answer.token()));
    }
  }
  show(stream.Finish());
  return result;
}

void PrintResult(const Context& context, const Result& result, std::size_t prompt_tokens) {
  const std::optional<double> rate = result.TokensPerSecond();
  if (context.json()) {
    PrintJson(context, {{"prompt_tokens", prompt_tokens},
                        {"tokens", result.tokens},
                        {"text", result.text},
                        {"reached_end", result.reached_end},
                        {"load_seconds", result.load_seconds},
                        {"prompt_seconds", result.prompt_seconds},
                        {"seconds", result.seconds},
                        {"tokens_per_second", rate.has_value() ? Json(*rate) : Json(nullptr)}});
    return;
  }
  context.terminal.out << std::endl;
  Say(context,
      absl::StrCat("model read in ", FormatSeconds(result.load_seconds), "; prompt of ",
                   Counted(prompt_tokens, "token"), " in ", FormatSeconds(result.prompt_seconds),
                   "; ", Counted(std::ssize(result.tokens), "token"), " in ",
                   FormatSeconds(result.seconds),
                   rate.has_value() ? absl::StrFormat(", %.1f tokens/s", *rate) : ""));
}

absl::StatusOr<ExitCode> Generate(const Context& context, const GenerateOptions& options) {
  ASSIGN_OR_RETURN(const std::string folder, ModelFolder(context, options.model));
  ASSIGN_OR_RETURN(const Vocabulary vocabulary, OpenVocabulary(options, folder));
  ASSIGN_OR_RETURN(const std::vector<std::int32_t> prompt, Encode(options, vocabulary));
  ASSIGN_OR_RETURN(const std::unique_ptr<ModelChild> child,
                   ModelChild::Start(context.program_directory,
                                     MakeRequest(options, folder, prompt, vocabulary)));
  const SignalThread signals({SIGINT, SIGTERM, SIGHUP}, [&](int) { child->Kill(); });
  const absl::StatusOr<Result> result =
      Receive(context, *child, TextStream(*vocabulary.tokenizer, prompt), vocabulary.end);
  if (!context.terminal.out.good()) return ExitCode::kDone;  // the reader closed stdout
  if (!result.ok()) {
    if (absl::IsCancelled(result.status()) && !context.json()) context.terminal.out << std::endl;
    return result.status();
  }
  PrintResult(context, *result, prompt.size());
  return ExitCode::kDone;
}

}  // namespace

void AddGenerate(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand<GenerateOptions>(
      app, context, "generate", "Continue a text with a trained model, on this machine",
      [](CLI::App& app, GenerateOptions& options) {
        app.add_option("CHECKPOINT", options.model.checkpoint,
                       "Directory of checkpoints, or a Hugging Face folder")
            ->type_name("")
            ->required();
        app.add_option("--prompt", options.prompt, "The beginning of the text")
            ->type_name("TEXT")
            ->required();
        app.add_option("--tokenizer", options.tokenizer,
                       "Hugging Face folder of the tokenizer, or bytes if each byte is a token; "
                       "default: the one in CHECKPOINT")
            ->type_name("FOLDER");
        app.add_option("--bos", options.bos,
                       "Token or id before the prompt, or none; default: as the tokenizer's folder "
                       "says, as for `takt data tokenize`")
            ->type_name("TOKEN");
        app.add_option("--tokens", options.tokens,
                       "Make at most so many; default: 128, or as many as the model has positions "
                       "for")
            ->type_name("N")
            ->check(CLI::PositiveNumber);
        app.add_option("--temperature", options.temperature,
                       "0: always the most probable token; 1: draw by the model's probabilities; "
                       "above: more even")
            ->type_name("T")
            ->check(CLI::NonNegativeNumber)
            ->capture_default_str();
        app.add_option("--top-p", options.top_p,
                       "Draw only from the most probable tokens, which together have this share")
            ->type_name("P")
            ->check(CLI::Range(0.0, 1.0))
            ->capture_default_str();
        app.add_option("--seed", options.seed, "Another seed draws other tokens")
            ->type_name("S")
            ->check(CLI::NonNegativeNumber)
            ->capture_default_str();
        AddModelOptions(app, options.model);
      },
      Generate);
  command->footer(
      "The text goes to stdout as it comes, without the prompt; stderr says how fast that was. It "
      "ends with the token that\nends documents, if the tokenizer has one. With -o json one object "
      "comes at the end, with the ids too.\nExit status: 1 if the model cannot run or Ctrl-C ended "
      "it, 2 for wrong input, 4 if there is no such checkpoint.\n\nExamples:\n"
      "  takt generate checkpoints --prompt 'In the beginning' --tokenizer bytes\n"
      "  takt generate my-model --prompt 'Once upon a time' --tokens 200 --temperature 0.8 --top-p "
      "0.95 --seed 1\n"
      "  takt -o json generate my-model --prompt 'The capital of France is' | jq -r .text");
}

}  // namespace takt::cli
