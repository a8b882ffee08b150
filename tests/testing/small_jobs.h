// SPDX-License-Identifier: Apache-2.0
// Small jobs of every family, and their run on the meta backend.
#pragma once

#include <string>
#include <utility>

#include "common/plan/plan.h"
#include "worker/train/meta_run.h"

namespace takt::testing {

inline model::ModelConfig Gpt2() {
  return {.layers = 8,
          .hidden = 36,
          .heads = 3,
          .kv_heads = 3,
          .inner = 100,
          .context = 19,
          .positions = 23,
          .vocab = 131};
}

inline model::ModelConfig Llama(bool tied) {
  return {.family = tied ? model::Family::kQwen2 : model::Family::kLlama,
          .layers = 8,
          .hidden = 36,
          .heads = 6,
          .kv_heads = 2,
          .head_size = 10,
          .inner = 50,
          .context = 17,
          .positions = 17,
          .vocab = 67,
          .tied_head = tied};
}

inline model::ModelConfig Qwen3() {
  model::ModelConfig config = Llama(/*tied=*/true);
  config.family = model::Family::kQwen3;
  return config;
}

// A power of two as the context makes the average number of keys of a token exact.
inline model::ModelConfig Mistral() {
  model::ModelConfig config = Llama(/*tied=*/false);
  config.family = model::Family::kMistral;
  config.context = config.positions = 16;
  config.attention_window = 5;
  return config;
}

// Neither the tokens of a microbatch nor their rows are a multiple of the experts.
inline model::ModelConfig Mixtral() {
  model::ModelConfig config = Llama(/*tied=*/false);
  config.family = model::Family::kMixtral;
  config.mixture =
      model::Mixture{.experts = 5, .chosen = 2, .inner = config.inner, .auxiliary_loss = 0.01};
  return config;
}

inline model::ModelConfig Qwen3Moe() {
  model::ModelConfig config = Llama(/*tied=*/false);
  config.family = model::Family::kQwen3Moe;
  config.mixture = model::Mixture{
      .experts = 7, .chosen = 3, .inner = 22, .normalised = false, .dense_blocks = {0, 3}};
  return config;
}

// The same with rows of whole vectors, which products in bf16 on GPUs read as they are stored
// (model::Parameter::kept_rounded).
inline model::ModelConfig WithWholeVectors(model::ModelConfig config) {
  config.hidden = 48;
  config.inner = 40;
  if (config.head_size > 0) config.head_size = 8;
  if (config.family == model::Family::kMixtral) config.mixture->inner = config.inner;
  return config;
}

// Its layers are on two pp ranks.
inline config::JobSpec JobOf(const model::ModelConfig& model, const std::string& schedule) {
  config::JobSpec job;
  job.model = model;
  job.train = {{.path = "nowhere"}};
  job.global_batch = 32;
  job.microbatch = 2;
  job.adamw.clip_norm = 0;
  job.parallelism.pipeline = 2;
  job.parallelism.schedule = schedule;
  return job;
}

// Runs the programs of the first replica's pp rank `rank`.
inline absl::StatusOr<train::MetaReport> RunRank(const config::JobSpec& job, const plan::Plan& plan,
                                                 int rank, backend::OpListener listener = nullptr) {
  return train::RunOnMeta(
      {.job = &job,
       .model = &plan.model,
       .partition = &plan.partition,
       .program = &plan.programs[rank],
       .validation_program =
           plan.validation_programs.empty() ? nullptr : &plan.validation_programs[rank],
       .mesh = plan.mesh,
       .rank = plan.mesh.RankOf({.pp = PpRank(rank)}),
       .vocabulary_ends = plan.vocabulary_ends},
      std::move(listener));
}

}  // namespace takt::testing
