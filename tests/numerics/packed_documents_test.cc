// SPDX-License-Identifier: Apache-2.0
// Documents that share a row give the bits of one rank on every layout, and the losses and
// gradients that they have in rows of their own.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/checkpoint/safetensors.h"
#include "common/model/vocabulary.h"
#include "tests/numerics/bit_equality.h"
#include "tests/numerics/golden.h"

namespace takt::numerics {
namespace {

class PackedDocuments : public BitEquality {
 protected:
  // Each number of the stream is a document, which ends with a blank.
  config::JobSpec Job() const {
    config::JobSpec job = BitEquality::Job();
    job.model.layers = 4;
    job.documents = config::Documents::kSeparate;
    job.document_end = ' ';
    job.steps = 2;
    return job;
  }

  static config::JobSpec On(int pp, std::string_view schedule, config::JobSpec job) {
    job.parallelism.pipeline = pp;
    job.parallelism.schedule = schedule;
    job.parallelism.chunks = std::nullopt;
    return job;
  }
};

TEST_F(PackedDocuments, HaveTheSameBitsOverFamiliesAndStages) {
  const RunResult reference = Train(Job());
  for (const schedule::Family& family : OneWayFamilies()) {
    for (const int pp : {2, 3}) {
      SCOPED_TRACE(std::string(family.name) + " pp " + std::to_string(pp));
      ExpectSameBits(reference, Train(On(pp, family.name, Job())));
    }
  }
  config::JobSpec joined = Job();
  joined.documents = config::Documents::kJoin;
  joined.document_end = std::nullopt;
  const RunResult other = Train(joined);
  EXPECT_NE(reference.steps[0].loss, other.steps[0].loss);
  EXPECT_LT(reference.steps[0].tokens, other.steps[0].tokens);
}

TEST_F(PackedDocuments, HaveTheSameBitsOverModelsAndWhatIsRecomputed) {
  using enum model::Recompute;
  for (model::ModelConfig (*const family)(model::ModelConfig) : {&Llama, &Qwen3, &Mistral}) {
    config::JobSpec job = Job();
    job.model = family(job.model);
    for (const config::Precision precision : {config::Precision::kF32, config::Precision::kBf16}) {
      job.precision = precision;
      const RunResult reference = Train(job);
      for (const model::Recompute mode : {kNone, kSelective, kFull}) {
        SCOPED_TRACE(std::string(model::Name(mode)));
        config::JobSpec recomputing = On(3, "zb-h1", job);
        recomputing.parallelism.recompute = {mode};
        recomputing.parallelism.threads = 2;
        ExpectSameBits(reference, Train(recomputing));
      }
      ExpectSameBits(reference, TrainOnDevice(job, /*lazy=*/true));
    }
  }
}

TEST_F(PackedDocuments, HaveTheSameBitsOfReplicasAndTwoCopies) {
  config::JobSpec job = Job();
  job.global_batch = 24;
  job.parallelism.data = 2;
  const RunResult reference = Train(job);
  ExpectSameBits(reference, Train(On(3, "1f1b", job)));
  job.parallelism.data = 1;
  ExpectSameBits(reference, Train(On(4, "dualpipe", job)));
}

// A program without a flush has tokens for each microbatch, on every rank.
TEST_F(PackedDocuments, TrainWithoutAFlush) {
  for (const char* schedule : {"pipedream", "pipedream-2bw"}) {
    config::JobSpec job = On(3, schedule, Job());
    job.model = Llama(job.model);  // whose head is not tied
    job.adamw.clip_norm = 0;       // weights change before the norm of the step is known
    const RunResult on_host = Train(job);
    ASSERT_EQ(on_host.steps.size(), 2U) << schedule;
    EXPECT_GT(on_host.steps[1].loss, 0) << schedule;
    ExpectSame(on_host, TrainOnDevice(job, /*lazy=*/true));
  }
}

// Rows of the embedding come from other ranks, and learned positions are added to them.
TEST_F(PackedDocuments, HaveTheSameBitsWhereTheVocabularyIsSpread) {
  constexpr int kVocab = 2 * model::kVocabularyBlock + 70;
  constexpr int kEnd = 7;
  std::ofstream data(directory_ / "train.u16", std::ios::binary);
  for (std::int64_t i = 0; i < 3000; ++i) {
    const std::int64_t word = i % 5 == 0 ? kEnd : i * i * 31 % kVocab;
    data.put(static_cast<char>(word % 256)).put(static_cast<char>(word / 256));
  }
  data.close();
  config::JobSpec job = Job();
  job.model.hidden = 12;
  job.model.inner = 28;
  job.model.vocab = kVocab;
  job.document_end = kEnd;
  job.train = {
      {.path = (directory_ / "train.u16").string(), .format = config::DataFormat::kUint16}};
  job.validation->path = job.train[0].path;
  job.validation->format = config::DataFormat::kUint16;
  job.global_batch = 6;
  const RunResult reference = Train(job);
  for (const int pp : {2, 3}) {
    config::JobSpec spread = On(pp, "1f1b", job);
    spread.parallelism.vocabulary = config::Vocabulary::kSpread;
    ExpectSameBits(reference, Train(spread));
  }
}

// Rows of a safetensors file.
struct Rows {
  std::vector<std::int32_t> tokens, targets, documents;

  void Write(const std::filesystem::path& path, std::int64_t context, bool with_documents) const {
    const auto tensor = [&](const char* name, const std::vector<std::int32_t>& values) {
      return checkpoint::Tensor{
          .name = name,
          .dtype = "I32",
          .shape = {static_cast<std::int64_t>(values.size()) / context, context},
          .bytes = std::as_bytes(std::span(values))};
    };
    std::vector<checkpoint::Tensor> tensors = {tensor("tokens", tokens),
                                               tensor("targets", targets)};
    if (with_documents) tensors.push_back(tensor("document", documents));
    std::ofstream(path, std::ios::binary) << checkpoint::FormatSafetensors(tensors);
  }
};

TEST_F(PackedDocuments, AgreeWithDocumentsInRowsOfTheirOwn) {
  constexpr int kContext = 19, kRows = 3, kVocab = 131;
  for (const unsigned seed : {1U, 2U, 3U, 4U}) {
    std::mt19937 generator(seed);
    const auto below = [&](int limit) {
      return static_cast<std::int32_t>(generator() % static_cast<unsigned>(limit));
    };
    Rows packed, alone;
    for (int row = 0; row < kRows; ++row) {
      int document = 0;
      for (int begin = 0; begin < kContext; ++document) {
        const int end = std::min(kContext, begin + 1 + below(12));
        for (int t = begin; t < end; ++t) {
          packed.tokens.push_back(below(kVocab));
          packed.documents.push_back(document);
        }
        const auto first = packed.tokens.end() - (end - begin);
        alone.tokens.insert(alone.tokens.end(), first, packed.tokens.end());
        alone.targets.insert(alone.targets.end(), first + 1, packed.tokens.end());
        // The last token of the row has a target, which no other document gives it.
        alone.targets.push_back(end == kContext ? 5 : -100);
        alone.tokens.resize(alone.tokens.size() + kContext - (end - begin), 0);
        alone.targets.resize(alone.tokens.size(), -100);
        begin = end;
      }
      // The targets cross documents, as of a row that was shifted as a whole.
      const auto row_begin = packed.tokens.end() - kContext;
      packed.targets.insert(packed.targets.end(), row_begin + 1, packed.tokens.end());
      packed.targets.push_back(5);
    }
    packed.Write(directory_ / "packed.safetensors", kContext, true);
    alone.Write(directory_ / "alone.safetensors", kContext, false);

    for (const bool llama : {false, true}) {
      config::JobSpec job = Job();
      job.steps = 1;
      job.shuffle = false;
      job.validation = std::nullopt;
      job.document_end = std::nullopt;
      if (llama) job.model = Llama(job.model);
      job.train = {{.path = (directory_ / "packed.safetensors").string(),
                    .format = config::DataFormat::kSafetensors}};
      job.global_batch = kRows;
      const RunResult together = Train(job);
      job.documents = config::Documents::kJoin;
      job.train[0].path = (directory_ / "alone.safetensors").string();
      job.global_batch = static_cast<int>(alone.tokens.size()) / kContext;
      const RunResult apart = Train(job);
      ASSERT_EQ(together.steps.size(), 1U);
      ASSERT_EQ(apart.steps.size(), 1U);
      EXPECT_EQ(together.steps[0].tokens, apart.steps[0].tokens);
      Comparison compare("seed " + std::to_string(seed) + (llama ? " llama" : " gpt2"));
      compare.Absolute("loss", "step 1", together.steps[0].loss, apart.steps[0].loss, 1e-5);
      for (const auto& [name, gradient] : apart.gradients)
        compare.MaxRelative("gradients", name, together.gradients.at(name), gradient, 3e-5);
    }
  }
}

}  // namespace
}  // namespace takt::numerics
