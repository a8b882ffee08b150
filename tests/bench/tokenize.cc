// SPDX-License-Identifier: Apache-2.0
// Measures how much text one core turns into tokens, with an encoder that knows no piece yet.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/tokenizer/tokenizer_folder.h"
#include "common/tokenizer/utf8.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/statistics.h"
#include "tests/bench/table.h"

namespace takt::bench::tokenize_command {
namespace {

constexpr double kLeastBytesPerSecond = 5e6;

struct Options : CommonOptions {
  std::string text;  // file; empty: the pages of docs/
  std::vector<std::string> tokenizers;
  int turns = 5;
};

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

absl::StatusOr<std::string> TextOf(const Options& options) {
  std::string text;
  if (!options.text.empty()) {
    text = ReadFile(options.text);
  } else {
    std::error_code ignored;  // then there is no text
    for (const auto& entry :
         std::filesystem::directory_iterator(absl::StrCat(TAKT_SOURCE_DIR, "/docs"), ignored)) {
      if (entry.path().extension() == ".md") text += ReadFile(entry.path());
    }
  }
  if (text.empty()) return absl::InvalidArgumentError("--text: holds no text");
  std::string storage;
  return std::string(tokenizer::ReplaceInvalidUtf8(text, storage).text);
}

absl::StatusOr<nlohmann::json> Measure(const Options& options, const std::string& folder,
                                       const std::string& text) {
  ASSIGN_OR_RETURN(const tokenizer::TokenizerFolder opened,
                   tokenizer::OpenTokenizerFolder("--tokenizers", folder));
  std::vector<double> seconds;
  std::size_t tokens = 0;
  for (int turn = 0; turn < options.turns; ++turn) {
    const auto encoder = opened.tokenizer->NewEncoder({});
    std::vector<std::int32_t> ids;
    const std::int64_t begin = Clock::Real().SteadyNanos();
    RETURN_IF_ERROR(encoder->Encode(text, ids));
    seconds.push_back(static_cast<double>(Clock::Real().SteadyNanos() - begin) * 1e-9);
    tokens = ids.size();
  }
  const double rate = static_cast<double>(text.size()) / Median(seconds);
  return nlohmann::json{{"tokenizer", std::filesystem::path(folder).filename().string()},
                        {"vocab", opened.tokenizer->vocab_size()},
                        {"tokens", tokens},
                        {"bytes_per_second", rate},
                        {"limit_bytes_per_second", kLeastBytesPerSecond},
                        {"ratio", rate / kLeastBytesPerSecond},
                        {"holds", rate >= kLeastBytesPerSecond}};
}

absl::Status Run(const Options& options) {
  std::vector<std::string> folders = options.tokenizers;
  if (folders.empty()) {
    for (const char* name : {"gpt2", "llama3", "qwen2", "llama2", "unigram"}) {
      folders.push_back(absl::StrCat(TAKT_SOURCE_DIR, "/tests/golden/tokenizer/", name));
    }
  }
  ASSIGN_OR_RETURN(const std::string text, TextOf(options));
  Table table(options.json(), {{"tokenizer", "tokenizer", 12},
                               {"vocabulary", "vocab"},
                               {"tokens", "tokens", 9},
                               {"MB/s", "bytes_per_second", 8, 1, 1e-6},
                               {"over 5 MB/s", "ratio", 11, 2}});
  for (const std::string& folder : folders) {
    ASSIGN_OR_RETURN(const nlohmann::json row, Measure(options, folder, text));
    table.Add(row);
  }
  table.End({{"bytes", text.size()}, {"turns", options.turns}});
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "tokenize", "Bytes of text that one core turns into tokens in a second",
      [](CLI::App& command, Options& options) {
        command.add_option("--text", options.text, "File with text; default: docs/*.md");
        command.add_option("--tokenizers", options.tokenizers,
                           "Hugging Face folders; default: those of tests/golden/tokenizer");
        command.add_option("--turns", options.turns, "Runs of each")->check(CLI::Range(1, 100000));
      },
      Run);
}

}  // namespace takt::bench::tokenize_command
