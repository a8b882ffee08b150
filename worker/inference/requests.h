// SPDX-License-Identifier: Apache-2.0
// Says what the command line asks a model for, and what it is told (takt/v1/local_model.proto).
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/config/job_spec.h"
#include "worker/inference/evaluation.h"
#include "worker/inference/sampler.h"

namespace takt::inference {

struct GenerateRequest {
  std::vector<std::int32_t> prompt;
  int tokens = 0;  // 0: kDefaultTokens, or as many as the model has positions for
  SamplingOptions sampling;
  std::vector<std::int32_t> ends;
  int tokenizer_vocab = 0;  // 0: not known
};

struct EvaluateRequest {
  std::string data;
  config::DataFormat format = config::DataFormat::kBytes;
  int context = 0;  // 0: the length of rows, else the model's positions, at most kDefaultContext
  std::int64_t max_windows = 0;
  EvaluatedDocuments documents;
};

inline constexpr int kDefaultTokens = 128, kDefaultContext = 1024;

struct Request {
  std::string folder;
  int threads = 0;
  std::variant<GenerateRequest, EvaluateRequest> work;
};

struct GenerationStart {
  double load_seconds = 0, prompt_seconds = 0;
};
struct Token {
  std::int32_t id = 0;
};
struct Generated {
  double seconds = 0;
  bool reached_end = false;
};
struct Progress {
  std::int64_t windows_done = 0, windows = 0;
};
struct Evaluated {
  Evaluation evaluation;
  int context = 0;
};
// A status is the error with which the work ended.
using Answer = std::variant<GenerationStart, Token, Generated, Progress, Evaluated, absl::Status>;

}  // namespace takt::inference
