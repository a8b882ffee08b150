// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/load.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/hash.h"
#include "common/checkpoint/layout.h"
#include "common/model/split_layers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"
#include "tests/testing/checkpoint_job.h"
#include "worker/checkpoint/commit.h"

namespace takt::worker_checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class LoadTest : public ::testing::Test {
 protected:
  LoadTest() {
    EXPECT_TRUE(job_.Save(*files_, directory_.path(), StepId(2), 1).ok());
    path_ = absl::StrCat(directory_.path(), "/", checkpoint::StepDirectoryName(StepId(2)));
  }

  const testing::TemporaryDirectory directory_;
  const testing::CheckpointJob job_;
  const std::unique_ptr<FileSystem> files_ = CreatePosixFileSystem();
  std::string path_;
};

TEST_F(LoadTest, OnlyWhatIsWantedIsFilled) {
  const auto step = checkpoint::StepFiles::Open(path_);
  ASSERT_TRUE(step.ok()) << step.status();
  const testing::ModelState saved = job_.StateAt(StepId(2));
  testing::ModelState loaded = job_.StateAt(StepId(3)), untouched = job_.StateAt(StepId(3));
  // Only the weight of the embedding: what a rank with the tied head wants.
  const std::vector<LayerId> embedding = {LayerId(0)};
  std::vector<LayerTarget> targets = loaded.Targets(embedding);
  targets[0].parameters.resize(1);
  targets[0].parameters[0].m = targets[0].parameters[0].v = {};
  ASSERT_TRUE(LoadLayers(*step, targets, {.num_layers = 4, .threads = 2}).ok());
  const auto bits = [&](const testing::ModelState& state) {
    return std::as_bytes(state.Layers(embedding)[0].parameters[0].weight);
  };
  EXPECT_TRUE(std::ranges::equal(bits(loaded), bits(saved)));
  std::ranges::copy(bits(untouched),
                    std::as_writable_bytes(targets[0].parameters[0].weight).begin());
  EXPECT_EQ(loaded, untouched);
}

TEST_F(LoadTest, ARunOfRowsIsFilledWithThoseRows) {
  const auto step = checkpoint::StepFiles::Open(path_);
  ASSERT_TRUE(step.ok()) << step.status();
  const testing::ModelState saved = job_.StateAt(StepId(2));
  testing::ModelState loaded = job_.StateAt(StepId(3)), expected = job_.StateAt(StepId(3));
  const std::vector<LayerId> embedding = {LayerId(0)};
  // Rows 2 to 4 of the table by words, and nothing else.
  const auto rows = [](auto& of) {
    const auto columns = static_cast<std::size_t>(of.parameter->shape[1]);
    of.weight = of.weight.subspan(2 * columns, 3 * columns);
    of.m = of.m.subspan(2 * columns, 3 * columns);
    of.v = of.v.subspan(2 * columns, 3 * columns);
  };
  std::vector<LayerTarget> targets = loaded.Targets(embedding), same = expected.Targets(embedding);
  std::vector<LayerState> from = saved.Layers(embedding);
  targets[0].parameters.resize(1);
  targets[0].parameters[0].first_row = 2;
  rows(targets[0].parameters[0]);
  rows(same[0].parameters[0]);
  rows(from[0].parameters[0]);
  const auto copy = [](std::span<const float> source, std::span<float> to) {
    std::ranges::copy(std::as_bytes(source), std::as_writable_bytes(to).begin());
  };
  copy(from[0].parameters[0].weight, same[0].parameters[0].weight);
  copy(from[0].parameters[0].m, same[0].parameters[0].m);
  copy(from[0].parameters[0].v, same[0].parameters[0].v);
  ASSERT_TRUE(LoadLayers(*step, targets, {.num_layers = 4, .threads = 2}).ok());
  EXPECT_EQ(loaded, expected);
}

// One of two ranks that split the layers has half of each of q, k and v.
TEST_F(LoadTest, PiecesOfASplitTensorAreFilled) {
  const auto step = checkpoint::StepFiles::Open(path_);
  ASSERT_TRUE(step.ok()) << step.status();
  const testing::ModelState saved = job_.StateAt(StepId(2));
  const std::vector<LayerId> block = {LayerId(1)};
  const std::vector<LayerState> whole = saved.Layers(block);
  const auto found = std::ranges::find_if(whole[0].parameters, [](const ParameterState& state) {
    return state.parameter->name.ends_with("attn.c_attn.weight");
  });
  ASSERT_NE(found, whole[0].parameters.end());
  model::Parameter part = *found->parameter;
  ASSERT_EQ(part.shape[1] % 6, 0);
  part.shape[1] /= 2;
  part.split = {.dimension = 1, .sections = 3, .pieces = 2, .first = 1};
  const auto count = static_cast<std::size_t>(part.elements());
  std::vector<float> weight(count), m(count), v(count);
  const LayerTarget target{.layer = LayerId(1),
                           .parameters = {{.parameter = &part, .weight = weight, .m = m, .v = v}}};
  ASSERT_TRUE(LoadLayers(*step, {&target, 1}, {.num_layers = 4}).ok());
  const auto compare = [&](const model::ElementRun& run) {
    const auto same = [&run](std::span<const float> loaded, std::span<const float> all) {
      const auto part_of = [&run](std::span<const float> of, std::int64_t from) {
        return std::as_bytes(
            of.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(run.count)));
      };
      return std::ranges::equal(part_of(loaded, run.here), part_of(all, run.whole));
    };
    EXPECT_TRUE(same(weight, found->weight) && same(m, found->m) && same(v, found->v)) << run.whole;
    return absl::OkStatus();
  };
  EXPECT_TRUE(model::ForEachRun(part, compare).ok());
}

// A rank that shares the optimizer's state has whole weights and a run of the moments.
TEST_F(LoadTest, ARunOfMomentsIsFilledBesideTheWholeWeight) {
  const auto step = checkpoint::StepFiles::Open(path_);
  ASSERT_TRUE(step.ok()) << step.status();
  const testing::ModelState saved = job_.StateAt(StepId(2));
  testing::ModelState loaded = job_.StateAt(StepId(3)), expected = job_.StateAt(StepId(3));
  const std::vector<LayerId> embedding = {LayerId(0)};
  constexpr std::size_t kFirst = 5, kCount = 9;
  std::vector<LayerTarget> targets = loaded.Targets(embedding), same = expected.Targets(embedding);
  const std::vector<LayerState> from = saved.Layers(embedding);
  targets[0].parameters.resize(1);
  ParameterTarget& target = targets[0].parameters[0];
  target.first_moment = kFirst;
  target.m = target.m.subspan(kFirst, kCount);
  target.v = target.v.subspan(kFirst, kCount);
  const auto copy = [](std::span<const float> source, std::span<float> to) {
    std::ranges::copy(std::as_bytes(source), std::as_writable_bytes(to).begin());
  };
  const ParameterState& state = from[0].parameters[0];
  copy(state.weight, same[0].parameters[0].weight);
  copy(state.m.subspan(kFirst, kCount), same[0].parameters[0].m.subspan(kFirst, kCount));
  copy(state.v.subspan(kFirst, kCount), same[0].parameters[0].v.subspan(kFirst, kCount));
  ASSERT_TRUE(LoadLayers(*step, targets, {.num_layers = 4, .threads = 2}).ok());
  EXPECT_EQ(loaded, expected);
}

TEST_F(LoadTest, NamesTensorAndBothShapesWhereTheModelIsAnother) {
  const auto step = checkpoint::StepFiles::Open(path_);
  ASSERT_TRUE(step.ok()) << step.status();
  testing::ModelState state = job_.StateAt(StepId(1));
  const std::vector<LayerId> embedding = {LayerId(0)};
  std::vector<LayerTarget> targets = state.Targets(embedding);
  model::Parameter other = *targets[0].parameters[0].parameter;
  other.shape = {4, 7};
  targets[0].parameters[0].parameter = &other;
  absl::Status status = LoadLayers(*step, targets, {.num_layers = 4});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("model-00001-of-00004.safetensors"),
                    HasSubstr("transformer.wte.weight must be F32 of shape [4,7]"),
                    HasSubstr("it is F32 of shape [7,4]")));
  other.name = "transformer.other.weight";
  status = LoadLayers(*step, targets, {.num_layers = 4});
  EXPECT_THAT(std::string(status.message()), HasSubstr("must hold transformer.other.weight"));
  status = LoadLayers(*step, state.Targets(embedding), {.num_layers = 5});
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("model-00001-of-00005.safetensors is not in the manifest"));
}

// Sizes and headers are right, so only the hashes show the damage. The first error in the order of
// files counts.
TEST_F(LoadTest, AChangedByteOfATensorIsFoundWhileLoading) {
  for (const std::string& name :
       {checkpoint::ModelFile(LayerId(2), 4), checkpoint::OptimizerFile(LayerId(2), 4)}) {
    const std::string path = absl::StrCat(path_, "/", name);
    const auto flip_last_byte = [&] {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(-1, std::ios::end);
      const char byte = static_cast<char>(file.get());
      file.seekp(-1, std::ios::end);
      file.put(static_cast<char>(byte ^ 1));
    };
    flip_last_byte();
    const auto step = checkpoint::StepFiles::Open(path_);
    ASSERT_TRUE(step.ok()) << step.status();
    testing::ModelState state = job_.StateAt(StepId(1));
    const absl::Status status =
        LoadLayers(*step, state.Targets(job_.AllLayers()), {.num_layers = 4, .threads = 2});
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(path), HasSubstr("damaged")));
    EXPECT_EQ(VerifyFiles(*step, {{checkpoint::ModelFile(LayerId(0), 4), name}}, 2), status);
    EXPECT_TRUE(VerifyFiles(*step, {{checkpoint::ModelFile(LayerId(0), 4)}}, 2).ok());
    flip_last_byte();
  }
}

TEST_F(LoadTest, AFileThatEndsEarlierThanWhenItWasOpenedIsAnErrorAndNoSignal) {
  const auto step = checkpoint::StepFiles::Open(path_);
  ASSERT_TRUE(step.ok()) << step.status();
  fs::resize_file(absl::StrCat(path_, "/", checkpoint::OptimizerFile(LayerId(1), 4)), 100);
  testing::ModelState state = job_.StateAt(StepId(1));
  const absl::Status status = LoadLayers(*step, state.Targets(job_.AllLayers()), {.num_layers = 4});
  EXPECT_THAT(std::string(status.message()), HasSubstr(checkpoint::OptimizerFile(LayerId(1), 4)));
}

// Distributes the layers over the ranks at random.
std::vector<std::vector<LayerId>> Dealt(std::span<const LayerId> layers) {
  std::vector<std::vector<LayerId>> ranks(*rc::gen::inRange<std::size_t>(1, 6));
  for (const LayerId layer : layers) {
    ranks[*rc::gen::inRange<std::size_t>(0, ranks.size())].push_back(layer);
  }
  return ranks;
}

RC_GTEST_PROP(Checkpoint, SavedFromAnySplitLoadsIntoAnyOtherBitForBit, ()) {
  const testing::TemporaryDirectory directory;
  const testing::CheckpointJob job;
  const std::unique_ptr<FileSystem> files = CreatePosixFileSystem();
  const StepId step(*rc::gen::inRange(1, 1000));
  const std::vector<LayerId> all = job.AllLayers();
  const auto manifest = job.SaveShards(*files, directory.path(), step, Dealt(all));
  RC_ASSERT(manifest.ok());
  RC_ASSERT(Publish(*files, directory.path(), *manifest, {.token = "a"}).ok());

  const auto opened = checkpoint::StepFiles::Open(
      absl::StrCat(directory.path(), "/", checkpoint::StepDirectoryName(step)));
  RC_ASSERT(opened.ok());
  testing::ModelState loaded(job.model(), 0);
  for (const std::vector<LayerId>& rank : Dealt(all)) {
    const absl::Status status =
        LoadLayers(*opened, loaded.Targets(rank),
                   {.num_layers = job.num_layers(), .threads = *rc::gen::inRange(1, 4)});
    RC_ASSERT(status.ok());
  }
  RC_ASSERT(loaded == job.StateAt(step));
}

}  // namespace
}  // namespace takt::worker_checkpoint
