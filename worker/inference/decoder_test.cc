// SPDX-License-Identifier: Apache-2.0
// Compares generation with what torch computed of the same weights in double (tests/golden/models),
// and with passes over the whole sequence.
#include "worker/inference/decoder.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/mapped_file.h"
#include "common/checkpoint/safetensors.h"
#include "common/model/llama.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/inference/sampler.h"

namespace takt::inference {
namespace {

using Floats = std::vector<float>;
using Ids = std::vector<std::int32_t>;

std::string FolderOf(const std::string& name) {
  return std::string(TAKT_SOURCE_DIR "/tests/golden/models/") + name;
}

template <class T>
std::vector<T> ReadTensor(const std::string& path, const std::string& name) {
  const MappedFile file = MappedFile::Open(path).value();
  const checkpoint::SafetensorsView view =
      checkpoint::SafetensorsView::Parse(file.bytes(), path).value();
  const checkpoint::Tensor* const tensor = view.Find(name);
  std::vector<T> values(tensor->bytes.size() / sizeof(T));
  std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
  return values;
}

class DecoderTest : public testing::TestWithParam<std::string> {
 protected:
  // Returns the logits that follow each of the tokens, which come in pieces of these sizes and then
  // one by one. Of a piece only the last one's logits are known; the others are empty.
  std::vector<Floats> Decode(const Ids& tokens, std::vector<std::size_t> pieces) const {
    const auto decoder = Decoder::Create(*model_, std::ssize(tokens)).value();
    std::vector<Floats> logits(tokens.size());
    for (std::size_t done = 0, piece = 0; done < tokens.size(); ++piece) {
      const std::size_t count = piece < pieces.size() ? pieces[piece] : 1;
      const auto next = decoder->Append(std::span(tokens).subspan(done, count));
      EXPECT_TRUE(next.ok()) << next.status();
      done += count;
      EXPECT_EQ(decoder->length(), static_cast<std::int64_t>(done));
      logits[done - 1].assign(next->begin(), next->end());
    }
    return logits;
  }

  // Returns the logits that follow the last token, of a pass over all of them without a cache.
  Floats WholePass(const Ids& tokens) const {
    model::ModelConfig config = model_->config();
    config.context = static_cast<int>(tokens.size());
    const Floats table = model::RotaryTable(config);
    const auto pass =
        Pass::Create(*model_, {.rows = config.context, .rotary_table = table.data()}).value();
    const Ids targets(tokens.size(), backend::kIgnoredTarget);
    double loss = -1;
    EXPECT_TRUE(pass->Run({.tokens = tokens.data(), .targets = targets.data()}, &loss).ok());
    EXPECT_EQ(loss, 0);  // nothing is scored
    Floats logits(static_cast<std::size_t>(config.vocab));
    pass->CopyLogits(std::ssize(tokens) - 1, logits);
    return logits;
  }

  const std::unique_ptr<LocalModel> model_ = LocalModel::Open(FolderOf(GetParam()), 2).value();
};

// The tolerance is that of tests/numerics for logits in f32.
void ExpectNear(const Floats& got, std::span<const float> want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], want[i], 2e-5) << what << ", token " << i;
}

TEST_P(DecoderTest, LogitsAreThoseOfTorch) {
  const Floats expected =
      ReadTensor<float>(FolderOf(GetParam()) + "/expected.safetensors", "logits");
  const auto vocab = static_cast<std::size_t>(model_->config().vocab);
  const std::size_t length = expected.size() / vocab;
  Ids tokens = ReadTensor<std::int32_t>(FolderOf(GetParam()) + "/batch.safetensors", "tokens");
  tokens.resize(length);  // the logits are those of the first row
  for (const std::vector<std::size_t>& pieces :
       {std::vector<std::size_t>{}, std::vector<std::size_t>{length},
        std::vector<std::size_t>{1, 5, length - 8}}) {
    const std::vector<Floats> logits = Decode(tokens, pieces);
    for (std::size_t t = 0; t < length; ++t) {
      if (logits[t].empty()) continue;
      ExpectNear(logits[t], std::span(expected).subspan(t * vocab, vocab),
                 "position " + std::to_string(t));
    }
  }
}

// Generates greedily up to the last position, beyond the window of a model that has one.
TEST_P(DecoderTest, GreedyTokensAreThoseOfWholePasses) {
  Ids tokens = ReadTensor<std::int32_t>(FolderOf(GetParam()) + "/batch.safetensors", "tokens");
  tokens.resize(5);
  const std::int64_t positions = model_->config().positions;
  const auto decoder = Decoder::Create(*model_, positions).value();
  Sampler sampler({});
  Floats logits;
  const auto append = [&](std::span<const std::int32_t> more) {
    const auto next = decoder->Append(more);
    ASSERT_TRUE(next.ok()) << next.status();
    logits.assign(next->begin(), next->end());
  };
  append(tokens);
  while (std::ssize(tokens) < positions) {
    const Floats whole = WholePass(tokens);
    ExpectNear(logits, whole, "after " + std::to_string(tokens.size()) + " tokens");
    const std::int32_t next = sampler.Next(logits).value();
    // Both choose the same token, unless two are as probable as rounding can tell.
    const auto largest = static_cast<std::size_t>(std::ranges::max_element(whole) - whole.begin());
    EXPECT_LT(whole[largest] - whole[static_cast<std::size_t>(next)], 2e-5);
    tokens.push_back(next);
    append({&tokens.back(), 1});
  }
}

TEST_P(DecoderTest, GivesTheSameBitsForAnyNumberOfThreads) {
  const Ids tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const std::vector<Floats> expected = Decode(tokens, {7});
  for (const int threads : {1, 3}) {
    const auto other = LocalModel::Open(FolderOf(GetParam()), threads).value();
    const auto decoder = Decoder::Create(*other, std::ssize(tokens)).value();
    auto logits = decoder->Append(std::span(tokens).first(7));
    for (std::size_t t = 7; t < tokens.size(); ++t) {
      ASSERT_TRUE(logits.ok());
      EXPECT_TRUE(std::ranges::equal(*logits, expected[t - 1])) << threads << " threads";
      logits = decoder->Append({&tokens[t], 1});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DecoderTest,
                         testing::Values("gpt2-tiny", "llama-tiny", "qwen2-tiny", "qwen3-tiny",
                                         "mistral-tiny", "mixtral-tiny", "qwen3moe-tiny",
                                         "qwen3moe-unnormed"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(LocalModel, CountsTheWeightsThatAreReadForEachToken) {
  const model::ModelConfig tied = {.layers = 1,
                                   .hidden = 4,
                                   .heads = 2,
                                   .kv_heads = 2,
                                   .inner = 16,
                                   .context = 8,
                                   .positions = 8,
                                   .vocab = 11};
  // A block has 2 norms of 8, products of 4 x 12 + 12, 4 x 4 + 4, 4 x 16 + 16 and 16 x 4 + 4; the
  // head has a norm of 8 and the table of 11 words.
  const std::int64_t block = 2 * 8 + 60 + 20 + 80 + 68;
  EXPECT_EQ(LocalModel::MakeRandom(tied, 1).value()->bytes_per_token(), 4 * (block + 8 + 44));
}

TEST(LocalModel, CountsOnlyTheExpertsThatATokenChooses) {
  model::ModelConfig config = {.family = model::Family::kQwen3Moe,
                               .layers = 2,
                               .hidden = 4,
                               .heads = 2,
                               .kv_heads = 2,
                               .inner = 16,
                               .context = 8,
                               .positions = 8,
                               .vocab = 11};
  config.mixture = model::Mixture{.experts = 6, .chosen = 2, .inner = 5, .dense_blocks = {0}};
  const std::int64_t all_chosen = [&] {
    model::ModelConfig few = config;
    few.mixture->experts = 2;
    return LocalModel::MakeRandom(few, 1).value()->bytes_per_token();
  }();
  // Four experts more add nothing to one block but four rows of its router.
  EXPECT_EQ(LocalModel::MakeRandom(config, 1).value()->bytes_per_token(), all_chosen + 4 * (4 * 4));
}

TEST(LocalModel, SaysWhatIsWrongWithAFolder) {
  const auto message = [](const std::string& folder) {
    return std::string(LocalModel::Open(folder, 1).status().message());
  };
  EXPECT_THAT(message("/nonexistent"), testing::HasSubstr("CHECKPOINT"));
  EXPECT_THAT(message("/nonexistent"), testing::HasSubstr("/nonexistent/config.json"));
  // There is no config.json.
  EXPECT_THAT(message(TAKT_SOURCE_DIR "/tests/golden/models"), testing::HasSubstr("CHECKPOINT"));
}

}  // namespace
}  // namespace takt::inference
