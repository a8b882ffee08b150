// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/train_job.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::bench {
namespace {

constexpr char kTokens[] = "tokens.bin";

}  // namespace

const std::map<std::string, model::ModelConfig>& Models() {
  static const std::map<std::string, model::ModelConfig> models = {
      {"tiny", {.layers = 4, .hidden = 64, .heads = 4, .vocab = 512}},
      {"tiny-llama",
       {.family = model::Family::kLlama,
        .layers = 4,
        .hidden = 64,
        .heads = 4,
        .kv_heads = 2,
        .inner = 172,
        .vocab = 512,
        .tied_head = false}},
      {"gpt2-6m", {.layers = 8, .hidden = 256, .heads = 8, .vocab = 256}},  // the example job
      {"gpt2-124m", {.layers = 12, .hidden = 768, .heads = 12, .vocab = 50257}},
      {"gpt2-355m", {.layers = 24, .hidden = 1024, .heads = 16, .vocab = 50257}},
      {"gpt2-774m", {.layers = 36, .hidden = 1280, .heads = 20, .vocab = 50257}},
      {"gpt2-1558m", {.layers = 48, .hidden = 1600, .heads = 25, .vocab = 50257}},
      {"llama-110m",  // stories110M
       {.family = model::Family::kLlama,
        .layers = 12,
        .hidden = 768,
        .heads = 12,
        .inner = 2048,
        .vocab = 32000,
        .tied_head = false}},
      {"qwen3-140m",  // heads as wide as Qwen3's, wider together than the model
       {.family = model::Family::kQwen3,
        .layers = 12,
        .hidden = 768,
        .heads = 12,
        .kv_heads = 4,
        .head_size = 128,
        .inner = 2048,
        .vocab = 32000,
        .tied_head = false}},
      {"mistral-125m",  // a window of an eighth of 2048 tokens
       {.family = model::Family::kMistral,
        .layers = 12,
        .hidden = 768,
        .heads = 12,
        .kv_heads = 4,
        .inner = 2048,
        .vocab = 32000,
        .tied_head = false,
        .attention_window = 256}},
      {"moe-110m",  // 8 experts, of which a token has 2: as many products a token as llama-110m
       {.family = model::Family::kMixtral,
        .layers = 12,
        .hidden = 768,
        .heads = 12,
        .inner = 1024,
        .vocab = 32000,
        .tied_head = false,
        .mixture =
            model::Mixture{.experts = 8, .chosen = 2, .inner = 1024, .auxiliary_loss = 0.01}}},
      {"llama-1b",  // Llama-3.2-1B
       {.family = model::Family::kLlama,
        .layers = 16,
        .hidden = 2048,
        .heads = 32,
        .kv_heads = 8,
        .inner = 8192,
        .vocab = 128256,
        .tied_head = true,
        .rope_theta = 500000}},
      {"llama-8b-slice",  // 8 of the 32 blocks of Llama-3.1-8B
       {.family = model::Family::kLlama,
        .layers = 8,
        .hidden = 4096,
        .heads = 32,
        .kv_heads = 8,
        .inner = 14336,
        .vocab = 128256,
        .tied_head = false,
        .rope_theta = 500000}},
  };
  return models;
}

model::ModelConfig ModelOf(const TrainJobOptions& options) {
  model::ModelConfig config = Models().at(options.model);
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  if (config.inner == 0) config.inner = 4 * config.hidden;
  config.context = options.context;
  config.positions = std::max(1024, options.context);
  return config;
}

config::JobSpec TrainJob(const TrainJobOptions& options) {
  config::JobSpec job;
  job.name = "bench";
  job.model = ModelOf(options);
  job.precision = options.Precision();
  if (options.residual == "bf16") job.residual = model::Precision::kBf16;
  job.train = {{.path = kTokens, .format = config::DataFormat::kUint32}};
  job.global_batch = options.batch;
  job.microbatch = options.Microbatch();
  job.steps = options.warmup + options.steps;
  job.parallelism.pipeline = 1;
  job.parallelism.schedule = "1f1b";
  // Ranks that take turns on one device have no meetings of their own.
  job.parallelism.vocabulary = config::Vocabulary::kLast;
  return job;
}

TokenFolder::TokenFolder(const TrainJobOptions& options)
    : path_(std::filesystem::temp_directory_path() / "takt-bench-XXXXXX") {
  TAKT_CHECK(mkdtemp(path_.data()) != nullptr);
  std::mt19937 generator(1);
  std::ofstream file(absl::StrCat(path_, "/", kTokens), std::ios::binary);
  const auto vocab = static_cast<unsigned>(ModelOf(options).vocab);
  const std::int64_t steps = options.warmup + options.steps;
  const std::int64_t count = steps * options.batch * options.context + 1;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t token = generator() % vocab;
    file.write(reinterpret_cast<const char*>(&token), sizeof token);
  }
}

TokenFolder::~TokenFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace takt::bench
