// SPDX-License-Identifier: Apache-2.0
// Measures the rate at which text is generated, beside the rate at which memory gives the weights.
// Every token needs all weights, so that is the limit.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/reference_rates.h"
#include "tests/bench/table.h"
#include "worker/inference/decoder.h"
#include "worker/inference/local_model.h"
#include "worker/inference/sampler.h"

namespace takt::bench::generate_command {
namespace {

struct Options : CommonOptions {
  int layers = 12, hidden = 768, heads = 12, vocab = 50257;  // gpt2-124m
  int threads = 1, prompt = 64, tokens = 64, turns = 3;
};

model::ModelConfig ConfigOf(const Options& options) {
  constexpr int kPositions = 1024;
  return {.layers = options.layers,
          .hidden = options.hidden,
          .heads = options.heads,
          .kv_heads = options.heads,
          .inner = 4 * options.hidden,
          .context = kPositions,
          .positions = kPositions,
          .vocab = options.vocab};
}

struct Seconds {
  double prompt = 0, tokens = 0;
};

// Returns the seconds of the prompt, and of the tokens after the first.
absl::StatusOr<Seconds> Generate(const inference::LocalModel& model, const Options& options) {
  const std::vector<std::int32_t> prompt(static_cast<std::size_t>(options.prompt), 1);
  ASSIGN_OR_RETURN(const std::unique_ptr<inference::Decoder> decoder,
                   inference::Decoder::Create(model, options.prompt + options.tokens));
  inference::Sampler sampler({});
  const std::int64_t begin = Clock::Real().SteadyNanos();
  ASSIGN_OR_RETURN(std::span<const float> logits, decoder->Append(prompt));
  const std::int64_t middle = Clock::Real().SteadyNanos();
  for (int i = 0; i < options.tokens; ++i) {
    ASSIGN_OR_RETURN(const std::int32_t token, sampler.Next(logits));
    ASSIGN_OR_RETURN(logits, decoder->Append({&token, 1}));
  }
  const std::int64_t end = Clock::Real().SteadyNanos();
  return Seconds{.prompt = static_cast<double>(middle - begin) * 1e-9,
                 .tokens = static_cast<double>(end - middle) * 1e-9};
}

absl::Status Run(const Options& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<inference::LocalModel> model,
                   inference::LocalModel::MakeRandom(ConfigOf(options), options.threads));
  Table table(options.json(), {{"turn", "turn"},
                               {"prompt tokens/s", "prompt_tokens_per_second", 15, 1},
                               {"tokens/s", "tokens_per_second", 9, 1},
                               {"MB a token", "bytes_per_token", 10, 1, 1e-6},
                               {"copy GB/s", "copy_bytes_per_second", 9, 1, 1e-9},
                               {"limit", "limit_tokens_per_second", 7, 1},
                               {"ratio", "ratio", 6, 2}});
  double best = 0;
  for (int turn = 1; turn <= options.turns; ++turn) {
    const double copy = MemcpyBytesPerSecond(options.threads);
    ASSIGN_OR_RETURN(const Seconds seconds, Generate(*model, options));
    const double rate = options.tokens / seconds.tokens;
    const auto bytes = static_cast<double>(model->bytes_per_token());
    const double limit = copy / bytes;
    best = std::max(best, rate / limit);
    table.Add({{"turn", turn},
               {"prompt_tokens_per_second", options.prompt / seconds.prompt},
               {"tokens_per_second", rate},
               {"bytes_per_token", bytes},
               {"copy_bytes_per_second", copy},
               {"limit_tokens_per_second", limit},
               {"ratio", rate / limit},
               {"holds", rate >= limit / 2}});
  }
  table.End({{"threads", options.threads}, {"best_ratio", best}, {"holds", best >= 0.5}});
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "generate", "Tokens that a gpt2-124m in f32 makes in a second, beside memcpy",
      [](CLI::App& command, Options& options) {
        command.add_option("--layers", options.layers)->check(CLI::Range(1, 1000));
        command.add_option("--hidden", options.hidden)->check(CLI::Range(1, 100000));
        command.add_option("--heads", options.heads)->check(CLI::Range(1, 1000));
        command.add_option("--vocab", options.vocab)->check(CLI::Range(2, 1000000));
        command.add_option("--threads", options.threads)->check(CLI::Range(1, 1024));
        command.add_option("--prompt", options.prompt, "Tokens of the prompt")
            ->check(CLI::Range(1, 512));
        command.add_option("--tokens", options.tokens, "Tokens to make")->check(CLI::Range(2, 512));
        command.add_option("--turns", options.turns, "Runs of both")->check(CLI::Range(1, 100));
      },
      Run);
}

}  // namespace takt::bench::generate_command
