// SPDX-License-Identifier: Apache-2.0
// Trains a small model with three blocks of words, which may be spread over the ranks of a
// pipeline.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

#include "common/model/vocabulary.h"
#include "common/plan/plan.h"
#include "tests/numerics/bit_equality.h"

namespace takt::numerics {

class SpreadBitEquality : public BitEquality {
 protected:
  static constexpr int kVocab = 2 * model::kVocabularyBlock + 70;

  SpreadBitEquality() {
    std::ofstream data(directory_ / "train.u16", std::ios::binary);
    for (std::int64_t i = 0; i < 3000; ++i) {  // words of all blocks, some of them often
      const std::int64_t word = i % 5 == 0 ? 7 : i * i * 31 % kVocab;
      data.put(static_cast<char>(word % 256)).put(static_cast<char>(word / 256));
    }
  }

  // A small job on one rank. The tables are most of the model.
  config::JobSpec Job(model::Family family = model::Family::kGpt2) const {
    config::JobSpec job = BitEquality::Job();
    job.model.layers = 6;
    job.model.hidden = 12;
    job.model.inner = 28;
    job.model.context = job.model.positions = 7;
    if (family == model::Family::kLlama) job.model = Llama(job.model);
    job.model.vocab = kVocab;
    job.train = {
        {.path = (directory_ / "train.u16").string(), .format = config::DataFormat::kUint16}};
    job.validation->path = job.train[0].path;
    job.validation->format = config::DataFormat::kUint16;
    job.global_batch = 6;
    job.steps = 2;
    return job;
  }

  // The same job on more ranks, with or without its vocabulary spread over them.
  static config::JobSpec On(int pp, const std::string& schedule, config::JobSpec job,
                            config::Vocabulary vocabulary = config::Vocabulary::kSpread) {
    job.parallelism.pipeline = pp;
    job.parallelism.schedule = schedule;
    job.parallelism.chunks = std::nullopt;
    job.parallelism.vocabulary = vocabulary;
    return job;
  }

  static RunResult TrainSpread(const config::JobSpec& job) {
    const int pp = *job.parallelism.pipeline;
    const auto plan = plan::MakePlan(job, {.max_workers = pp * job.parallelism.data.value_or(1)});
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (plan.ok()) {
      EXPECT_EQ(plan->vocabulary_ends.size(), static_cast<std::size_t>(pp));
    }
    return Train(job);
  }
};

}  // namespace takt::numerics
