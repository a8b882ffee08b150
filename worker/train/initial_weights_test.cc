// SPDX-License-Identifier: Apache-2.0
#include "worker/train/initial_weights.h"
#include "worker/backend/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/float_formats.h"
#include "common/checkpoint/hf_index.h"
#include "common/checkpoint/safetensors.h"
#include "common/layout/parameter_layout.h"
#include "common/model/hf_config.h"
#include "common/model/split_layers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/train/rows_testing.h"

namespace takt::train {
namespace {

model::Parameter Normal(std::string name, std::int64_t size, double stddev = 0.02) {
  return {.name = std::move(name), .shape = {size}, .init = model::Init::kNormal, .stddev = stddev};
}

std::vector<float> Fill(const model::Parameter& parameter, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(parameter.elements()), -1.0F);
  FillInitialWeights(parameter, seed, values);
  return values;
}

TEST(InitialWeights, DependOnSeedAndNameAlone) {
  const std::vector<float> values = Fill(Normal("a", 100), 7);
  EXPECT_EQ(values, Fill(Normal("a", 100), 7));
  EXPECT_NE(values, Fill(Normal("a", 100), 8));
  EXPECT_NE(values, Fill(Normal("b", 100), 7));
}

TEST(InitialWeights, OfAPrefixAreAPrefix) {
  const std::vector<float> all = Fill(Normal("a", 101), 7);
  const std::vector<float> part = Fill(Normal("a", 50), 7);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin()));
}

TEST(InitialWeights, OfARunOfRowsAreThoseRows) {
  const model::Model model = rows_testing::ModelOfThreeBlocks();
  const std::vector<float> all = Fill(model.layers.front().parameters.front(), 7);
  const auto backend = backend::CreateCpuBackend({}).value();
  config::JobSpec job;
  job.seed = 7;
  for (const std::int64_t first : {0, 4096, 8192}) {
    const auto store =
        ParameterStore::Create(
            model, rows_testing::LayOutRows(model, first, 10000 - first, {LayerId(0)}), *backend)
            .value();
    ASSERT_TRUE(InitializeWeights(job, "", *store, *backend).ok());
    const ParameterRef& run = store->Layer(LayerId(0)).refs[0];
    EXPECT_TRUE(std::ranges::equal(std::span(run.weight, run.weight + run.elements()),
                                   std::span(all).subspan(static_cast<std::size_t>(first * 4))));
  }
}

TEST(InitialWeights, OfPiecesAreThoseOfTheWhole) {
  const model::ModelConfig config{.layers = 1,
                                  .hidden = 12,
                                  .heads = 4,
                                  .kv_heads = 4,
                                  .inner = 20,
                                  .context = 8,
                                  .positions = 8,
                                  .vocab = 30};
  const model::Model whole = *model::BuildModel(config, 1);
  const auto backend = backend::CreateCpuBackend({}).value();
  config::JobSpec job;
  job.seed = 7;
  for (int rank = 0; rank < 2; ++rank) {
    const model::Model part =
        *model::BuildModel(config, 1, {}, {.size = 2, .index = rank, .leaves = 4});
    const auto store =
        ParameterStore::Create(part, layout::LayOutParameters(part, {LayerId(1)}), *backend)
            .value();
    ASSERT_TRUE(InitializeWeights(job, "", *store, *backend).ok());
    for (const ParameterRef& ref : store->Layer(LayerId(1)).refs) {
      const std::vector<float> all = Fill(*whole.Find(ref.parameter->name), 7);
      const auto compare = [&](const model::ElementRun& run) {
        for (std::int64_t i = 0; i < run.count; ++i)
          EXPECT_EQ(ref.weight[run.here + i], all[static_cast<std::size_t>(run.whole + i)]);
        return absl::OkStatus();
      };
      EXPECT_TRUE(model::ForEachRun(*ref.parameter, compare).ok()) << ref.parameter->name;
    }
  }
}

// The standard errors of the moments of n normal numbers are 1/sqrt(n), sqrt(2/n) and sqrt(24/n)
// for mean, variance and kurtosis.
TEST(InitialWeights, AreNormal) {
  constexpr int kCount = 1'000'000;
  const std::vector<float> values = Fill(Normal("transformer.wte.weight", kCount, 0.02), 1234);
  double sum = 0;
  double squares = 0;
  double fourths = 0;
  double neighbours = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = values[i] / 0.02;
    sum += x;
    squares += x * x;
    fourths += x * x * x * x;
    if (i > 0) neighbours += x * values[i - 1] / 0.02;
  }
  const double standard_error = 1 / std::sqrt(kCount);
  EXPECT_NEAR(sum / kCount, 0, 5 * standard_error);
  EXPECT_NEAR(squares / kCount, 1, 5 * std::sqrt(2.0) * standard_error);
  EXPECT_NEAR(fourths / kCount, 3, 5 * std::sqrt(96.0) * standard_error);
  EXPECT_NEAR(neighbours / kCount, 0, 5 * standard_error);
  EXPECT_GT(*std::max_element(values.begin(), values.end()), 4 * 0.02);
}

TEST(InitialWeights, OfNormsAndBiasesAreConstants) {
  EXPECT_THAT(Fill({.name = "bias", .shape = {5}, .init = model::Init::kZeros}, 1),
              ::testing::Each(0.0F));
  EXPECT_THAT(Fill({.name = "weight", .shape = {5}, .init = model::Init::kOnes}, 1),
              ::testing::Each(1.0F));
}

// The numbers are part of what makes a job reproducible, so they must not change from one build to
// the next.
TEST(InitialWeights, StayWhatTheyWere) {
  const std::vector<float> values = Fill(Normal("transformer.wte.weight", 3, 1.0), 1234);
  EXPECT_THAT(values, ::testing::ElementsAre(::testing::FloatNear(-0.439264F, 1e-6F),
                                             ::testing::FloatNear(-0.0409146F, 1e-6F),
                                             ::testing::FloatNear(0.470697F, 1e-6F)));
}

namespace fs = std::filesystem;

// A store of the embedding and the head of a tiny model, and a folder to load it from.
class InitFrom : public ::testing::Test {
 protected:
  InitFrom() {
    std::string pattern = (fs::temp_directory_path() / "takt-init-from-XXXXXX").string();
    root_ = fs::canonical(mkdtemp(pattern.data()));
    fs::create_directory(root_ / "model");
    job_.init_from = "model";
    const std::vector<const model::Parameter*> all = model_.AllParameters();
    for (std::size_t i = 0; i < all.size(); ++i) {
      values_.emplace_back(all[i]->elements(), static_cast<float>(i + 1));
      tensors_.push_back({.name = all[i]->name,
                          .dtype = "F32",
                          .shape = all[i]->shape,
                          .bytes = std::as_bytes(std::span(values_.back()))});
    }
  }
  ~InitFrom() override { fs::remove_all(root_); }

  absl::Status Load() {
    std::ofstream(root_ / "model" / "model.safetensors", std::ios::binary)
        << checkpoint::FormatSafetensors(tensors_);
    return InitializeWeights(job_, root_.string(), *store_, *backend_);
  }
  absl::Status LoadAsIs() { return InitializeWeights(job_, root_.string(), *store_, *backend_); }
  // Writes the tensors in turn to two files, and an index.
  void WriteShards() {
    std::vector<checkpoint::Tensor> halves[2];
    checkpoint::WeightMap weight_map;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      halves[i % 2].push_back(tensors_[i]);
      weight_map[tensors_[i].name] = checkpoint::ShardName("model", static_cast<int>(i % 2), 2);
    }
    for (int i : {0, 1}) {
      std::ofstream(root_ / "model" / checkpoint::ShardName("model", i, 2), std::ios::binary)
          << checkpoint::FormatSafetensors(halves[i]);
    }
    std::ofstream(root_ / "model" / checkpoint::kIndexFile)
        << checkpoint::FormatHfIndex(weight_map, 0);
  }
  void ExpectRefused(const std::string& rule) { ExpectRefused(Load(), rule); }
  void ExpectRefused(const absl::Status& status, const std::string& rule) {
    const std::vector<FieldError> errors = FieldErrorsOf(status);
    ASSERT_EQ(errors.size(), 1U);
    EXPECT_EQ(errors[0].field, "model.init_from");
    EXPECT_THAT(errors[0].rule, ::testing::HasSubstr(rule));
  }
  void Forget() {
    for (const LayerParameters& layer : store_->layers()) {
      for (const ParameterRef& ref : layer.refs) ref.weight[0] = -1;
    }
  }
  void ExpectLoaded() {
    const std::vector<const model::Parameter*> all = model_.AllParameters();
    for (const LayerParameters& layer : store_->layers()) {
      for (const ParameterRef& ref : layer.refs) {
        const std::vector<float>& values =
            values_[std::ranges::find(all, ref.parameter) - all.begin()];
        EXPECT_THAT(std::span(ref.weight, values.size()), ::testing::ElementsAreArray(values));
      }
    }
  }

  fs::path root_;
  config::JobSpec job_;
  const model::Model model_ =
      model::BuildModel({.layers = 1,
                         .hidden = 4,
                         .heads = 1,
                         .kv_heads = 1,
                         .inner = 16,
                         .context = 3,
                         .positions = 20000,  // more elements than are converted at a time
                         .vocab = 5},
                        1)
          .value();
  const std::unique_ptr<backend::Backend> backend_ = backend::CreateCpuBackend({}).value();
  const std::unique_ptr<ParameterStore> store_ =
      ParameterStore::Create(model_, layout::LayOutParameters(model_, {LayerId(0), LayerId(2)}),
                             *backend_)
          .value();
  std::deque<std::vector<float>> values_;
  std::vector<checkpoint::Tensor> tensors_;
};

TEST_F(InitFrom, TakesTheRowsOfATableThatARankHas) {
  const model::Model model = rows_testing::ModelOfThreeBlocks();
  const model::Parameter& table = model.layers.front().parameters.front();
  std::vector<float> values(static_cast<std::size_t>(table.elements()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(i % 251);  // exact in bf16
  std::vector<std::byte> halves(values.size() * 2);
  checkpoint::WriteFloats(checkpoint::FloatFormat::kBf16, values, halves);
  for (const bool bf16 : {false, true}) {
    tensors_.clear();
    tensors_.push_back(
        {.name = table.name,
         .dtype = bf16 ? "BF16" : "F32",
         .shape = table.shape,
         .bytes = bf16 ? std::span<const std::byte>(halves) : std::as_bytes(std::span(values))});
    std::ofstream(root_ / "model" / "model.safetensors", std::ios::binary)
        << checkpoint::FormatSafetensors(tensors_);
    const auto store =
        ParameterStore::Create(model, rows_testing::LayOutRows(model, 4096, 4096, {LayerId(0)}),
                               *backend_)
            .value();
    const absl::Status loaded = InitializeWeights(job_, root_.string(), *store, *backend_);
    ASSERT_TRUE(loaded.ok()) << loaded;
    const ParameterRef& run = store->Layer(LayerId(0)).refs[0];
    EXPECT_TRUE(std::ranges::equal(std::span(run.weight, run.weight + run.elements()),
                                   std::span(values).subspan(4096 * 4, 4096 * 4)));
  }
}

TEST_F(InitFrom, TakesNamesWithAndWithoutPrefix) {
  ASSERT_TRUE(Load().ok()) << Load();
  ExpectLoaded();
  for (checkpoint::Tensor& tensor : tensors_) tensor.name.erase(0, std::strlen("transformer."));
  Forget();
  ASSERT_TRUE(Load().ok()) << Load();
  ExpectLoaded();
}

TEST_F(InitFrom, TakesShards) {
  WriteShards();
  ASSERT_TRUE(LoadAsIs().ok()) << LoadAsIs();
  ExpectLoaded();
}

TEST_F(InitFrom, TakesHalfPrecision) {
  for (const checkpoint::FloatFormat format :
       {checkpoint::FloatFormat::kBf16, checkpoint::FloatFormat::kF16}) {
    std::deque<std::vector<std::byte>> halves;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      halves.emplace_back(values_[i].size() * checkpoint::BytesOf(format));
      checkpoint::WriteFloats(format, values_[i], halves.back());
      tensors_[i].dtype = checkpoint::DtypeOf(format);
      tensors_[i].bytes = halves.back();
    }
    Forget();
    ASSERT_TRUE(Load().ok()) << Load();
    ExpectLoaded();
  }
}

TEST_F(InitFrom, NeedsOnlyTheTensorsOfThisRank) {
  std::erase_if(tensors_,
                [](const auto& tensor) { return tensor.name.starts_with("transformer.h."); });
  EXPECT_TRUE(Load().ok()) << Load();
}

TEST_F(InitFrom, RefusesTensorsThatAreMissingOrDifferent) {
  const std::vector<checkpoint::Tensor> good = tensors_;
  tensors_.erase(tensors_.begin());
  ExpectRefused("must hold transformer.wte.weight, they do not");

  tensors_ = good;
  std::swap(tensors_[0].shape[0], tensors_[0].shape[1]);
  ExpectRefused(
      "transformer.wte.weight must be F32, BF16 or F16 of shape [5,4], it is F32 of shape [4,5]");

  tensors_ = good;
  tensors_[0].dtype = "I32";
  ExpectRefused("it is I32");
}

TEST_F(InitFrom, RefusesFoldersThatAreMissingDamagedOrOutside) {
  job_.init_from = "absent";
  ExpectRefused("must exist");
  job_.init_from = "../model";
  ExpectRefused("must lie under the worker's data root");
  job_.init_from = "model";
  std::ofstream(root_ / "model" / "model.safetensors") << "garbage";
  ExpectRefused(LoadAsIs(), "too short for a safetensors file");
}

TEST_F(InitFrom, RefusesShardsThatAreMissingOrLieOutside) {
  WriteShards();
  const fs::path shard = root_ / "model" / checkpoint::ShardName("model", 1, 2);
  const fs::path outside = fs::path(root_.string() + "-outside");
  fs::rename(shard, outside);
  ExpectRefused(LoadAsIs(), "names model-00002-of-00002.safetensors, which is not in the folder");
  fs::create_symlink(outside, shard);
  ExpectRefused(LoadAsIs(), "must lie under the worker's data root");
  fs::remove(shard);
  fs::rename(outside, root_ / "blob");  // as in the cache of Hugging Face's hub
  fs::create_symlink("../blob", shard);
  EXPECT_TRUE(LoadAsIs().ok()) << LoadAsIs();
}

TEST_F(InitFrom, CheckpointsKeepItsConfigAndDtype) {
  job_.model = model_.config;
  for (checkpoint::Tensor& tensor : tensors_) {
    tensor.dtype = "BF16";
    tensor.bytes = tensor.bytes.first(tensor.bytes.size() / 2);
  }
  ASSERT_TRUE(Load().ok()) << Load();
  EXPECT_FALSE(FormatCheckpointConfig(job_, root_.string()).ok());  // there is no config.json
  std::ofstream(root_ / "model" / "config.json") << R"({"eos_token_id": 3})";
  const std::string text = FormatCheckpointConfig(job_, root_.string()).value();
  EXPECT_THAT(text, ::testing::HasSubstr("\"eos_token_id\": 3,"));
  EXPECT_THAT(text, ::testing::HasSubstr("\"torch_dtype\": \"bfloat16\""));
  EXPECT_THAT(text, ::testing::HasSubstr("\"n_embd\": 4"));

  job_.init_from.clear();
  EXPECT_THAT(FormatCheckpointConfig(job_, root_.string()).value(),
              ::testing::HasSubstr("\"torch_dtype\": \"float32\""));
}

TEST(FormatCheckpointConfig, HasWhatTheJobLeavesOut) {
  config::JobSpec job;
  job.microbatch = 2;
  job.model = {.family = model::Family::kLlama,
               .layers = 1,
               .hidden = 8,
               .heads = 2,
               .kv_heads = 1,
               .inner = 12,
               .context = 4,
               .positions = 4,
               .vocab = 16};
  ASSERT_EQ(job.model.head_size, 0);
  const std::string text = FormatCheckpointConfig(job, "").value();
  const auto read = model::ParseHfConfig(text, "config.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->head_size, 4);
}

}  // namespace
}  // namespace takt::train
