// SPDX-License-Identifier: Apache-2.0
// Makes the jobs that `takt-bench train` measures.
#pragma once

#include <map>
#include <string>

#include "common/config/job_spec.h"
#include "common/model/model.h"

namespace takt::bench {

struct TrainJobOptions {
  std::string model = "gpt2-124m", device = "cpu", precision = "f32", residual = "f32";
  int batch = 8, microbatch = 0, context = 256, threads = 1, steps = 3, warmup = 1;

  bool on_gpu() const { return device != "cpu"; }
  model::Precision Precision() const {
    return precision == "bf16" ? model::Precision::kBf16 : model::Precision::kF32;
  }
  int Microbatch() const { return microbatch > 0 ? microbatch : batch; }
};

// Returns the models by name, without a context. tests/bench/torch_baseline.py has the same models,
// with two differences: it fills vocabularies up to a multiple of 128, and its GPT-2 has as many
// positions as the context. Neither scales the frequencies of rotary positions, as Llama 3 does.
const std::map<std::string, model::ModelConfig>& Models();

model::ModelConfig ModelOf(const TrainJobOptions& options);

// Returns a job of `warmup` and `steps` steps on one rank, which reads the tokens of a TokenFolder.
config::JobSpec TrainJob(const TrainJobOptions& options);

// A folder with uniform random tokens, enough windows for one epoch of the run. The destructor
// removes it.
class TokenFolder {
 public:
  explicit TokenFolder(const TrainJobOptions& options);
  ~TokenFolder();
  TokenFolder(const TokenFolder&) = delete;
  TokenFolder& operator=(const TokenFolder&) = delete;
  const std::string& path() const { return path_; }  // the job's data root

 private:
  std::string path_;
};

}  // namespace takt::bench
