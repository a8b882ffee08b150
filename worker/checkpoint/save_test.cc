// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/save.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/hash.h"
#include "common/checkpoint/layout.h"
#include "common/checkpoint/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_job.h"
#include "worker/checkpoint/snapshot.h"

namespace takt::worker_checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

class SaveTest : public ::testing::Test {
 protected:
  const testing::TemporaryDirectory directory_;
  const testing::CheckpointJob job_;
  const std::unique_ptr<FileSystem> files_ = CreatePosixFileSystem();
};

TEST_F(SaveTest, WritesAFileALayerAndSaysWhatIsInThem) {
  const testing::ModelState state = job_.StateAt(StepId(1));
  const std::vector<LayerId> ids = {LayerId(3), LayerId(1)};
  const std::vector<LayerState> layers = state.Layers(ids);
  const std::vector<TextFile> texts = {{"config.json", "{}\n"}};
  const std::string partial = directory_.path() + "/p";
  const auto entries = SaveShards(
      *files_, {.directory = partial, .num_layers = 4, .layers = layers, .texts = texts});
  ASSERT_TRUE(entries.ok()) << entries.status();
  std::vector<std::string> names;
  for (const checkpoint::FileEntry& entry : *entries) {
    names.push_back(entry.name);
    const std::string path = absl::StrCat(partial, "/", entry.name);
    EXPECT_EQ(fs::file_size(path), static_cast<std::uintmax_t>(entry.bytes));
    EXPECT_EQ(checkpoint::HashOf(MappedFile::Open(path)->bytes()), entry.xxh3_128);
  }
  EXPECT_THAT(
      names, ElementsAre("model-00004-of-00004.safetensors", "optimizer-00004-of-00004.safetensors",
                         "model-00002-of-00004.safetensors", "optimizer-00002-of-00004.safetensors",
                         "config.json"));
}

// An optimizer with fewer moments saves fewer tensors, and without any there is no file.
TEST_F(SaveTest, WritesTheMomentsThatThereAre) {
  const std::vector<float> weight = {1, 2}, m = {3, 4};
  for (const int moments : {1, 0}) {
    const model::Parameter parameter{.name = "w", .shape = {2}, .moments = moments};
    const std::vector<LayerState> layers = {
        {.layer = LayerId(0),
         .parameters = {
             {.parameter = &parameter,
              .weight = weight,
              .m = moments == 1 ? std::span<const float>(m) : std::span<const float>()}}}};
    auto snapshot = Snapshot::Create(layers);
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    EXPECT_EQ(snapshot->bytes(), 8 * (1 + moments));
    ASSERT_TRUE(snapshot->Take(layers, {}).ok());
    const std::string partial = absl::StrCat(directory_.path(), "/p", moments);
    const auto entries =
        SaveShards(*files_, {.directory = partial, .num_layers = 1, .layers = snapshot->layers()});
    ASSERT_TRUE(entries.ok()) << entries.status();
    ASSERT_EQ(entries->size(), static_cast<std::size_t>(1 + moments));
    if (moments == 0) continue;
    const auto written = MappedFile::Open(absl::StrCat(partial, "/", (*entries)[1].name));
    ASSERT_TRUE(written.ok());
    const std::string expected = checkpoint::FormatSafetensors(
        {{.name = "exp_avg.w", .dtype = "F32", .shape = {2}, .bytes = std::as_bytes(std::span(m))}},
        {{"format", "pt"}});
    EXPECT_TRUE(std::ranges::equal(written->bytes(), std::as_bytes(std::span(expected))));
  }
}

// The streaming writer and the one in memory must agree, so that what holds for one holds for both.
TEST_F(SaveTest, FilesAreThoseOfTheReferenceOrder) {
  const testing::ModelState state = job_.StateAt(StepId(1));
  const std::vector<LayerId> ids = {LayerId(1)};
  const std::vector<LayerState> layers = state.Layers(ids);
  ASSERT_TRUE(
      SaveShards(*files_, {.directory = directory_.path(), .num_layers = 4, .layers = layers})
          .ok());
  std::vector<checkpoint::Tensor> tensors;
  for (const ParameterState& parameter : layers[0].parameters) {
    tensors.push_back({.name = parameter.parameter->name,
                       .dtype = "F32",
                       .shape = parameter.parameter->shape,
                       .bytes = std::as_bytes(parameter.weight)});
  }
  const std::string expected = checkpoint::FormatSafetensors(tensors, {{"format", "pt"}});
  const auto written =
      MappedFile::Open(directory_.path() + "/" + checkpoint::ModelFile(LayerId(1), 4));
  ASSERT_TRUE(written.ok());
  EXPECT_TRUE(std::ranges::equal(written->bytes(), std::as_bytes(std::span(expected))));
}

TEST_F(SaveTest, WhatLiesInThePartialDirectoryIsOverwritten) {
  const std::vector<std::vector<LayerId>> ranks = {job_.AllLayers()};
  const auto first = job_.SaveShards(*files_, directory_.path(), StepId(5), ranks);
  const auto second = job_.SaveShards(*files_, directory_.path(), StepId(5), ranks);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(*first, *second);
}

TEST_F(SaveTest, WhatIsGivenUpLeavesNoFiles) {
  const std::atomic<bool> given_up = true;
  const testing::ModelState live = job_.StateAt(StepId(1));
  const std::vector<LayerState> layers = live.Layers(job_.AllLayers());
  const std::string partial = directory_.path() + "/step-00000001.partial-j-1";
  const auto saved = SaveShards(*files_, {.directory = partial,
                                          .num_layers = job_.num_layers(),
                                          .layers = layers,
                                          .given_up = &given_up});
  EXPECT_TRUE(absl::IsCancelled(saved.status())) << saved.status();
  EXPECT_TRUE(std::filesystem::is_empty(partial));
}

TEST_F(SaveTest, SnapshotIsACopyOfTheMoment) {
  testing::ModelState live = job_.StateAt(StepId(1));
  const std::vector<LayerId> all = job_.AllLayers();
  auto snapshot = Snapshot::Create(live.Layers(all));
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_EQ(snapshot->bytes(), 12 * job_.model().num_parameters());
  ASSERT_TRUE(snapshot->Take(live.Layers(all), {.threads = 3}).ok());
  live.Targets(all)[0].parameters[0].weight[0] = 1234.5F;
  EXPECT_NE(snapshot->layers()[0].parameters[0].weight[0], 1234.5F);
  const Snapshot moved = *std::move(snapshot);
  const std::vector<LayerState> originals = live.Layers(all);
  for (std::size_t i = 0; i < originals.size(); ++i) {
    EXPECT_EQ(moved.layers()[i].layer, originals[i].layer);
    for (std::size_t j = 0; j < originals[i].parameters.size(); ++j) {
      const ParameterState &copy = moved.layers()[i].parameters[j],
                           &original = originals[i].parameters[j];
      EXPECT_EQ(copy.parameter, original.parameter);
      EXPECT_TRUE(std::ranges::equal(std::as_bytes(copy.m), std::as_bytes(original.m)));
      EXPECT_TRUE(std::ranges::equal(std::as_bytes(copy.v), std::as_bytes(original.v)));
    }
  }
}

// Another rank has the other rows.
TEST_F(SaveTest, SnapshotHasRoomForAllRowsOfAParameter) {
  const testing::ModelState live = job_.StateAt(StepId(1));
  const std::vector<LayerState> whole = live.Layers(job_.AllLayers());
  const model::Parameter& table = *whole[0].parameters[0].parameter;
  ASSERT_GT(table.shape[0], 3);
  const auto columns = static_cast<std::size_t>(table.elements() / table.shape[0]);
  const auto rows_of = [columns](std::span<const float> all) {
    return all.subspan(2 * columns, columns);
  };
  std::vector<LayerState> here = whole;
  ParameterState& part = here[0].parameters[0];
  part = {.parameter = &table,
          .weight = rows_of(part.weight),
          .m = rows_of(part.m),
          .v = rows_of(part.v),
          .first_row = 2};
  auto snapshot = Snapshot::Create(here);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_EQ(snapshot->bytes(), 12 * job_.model().num_parameters());
  const ParameterTarget place = snapshot->PlaceOf(table);
  std::ranges::fill(place.weight, 0.5F);
  ASSERT_TRUE(snapshot->Take(here, {}).ok());
  const ParameterState& copy = snapshot->layers()[0].parameters[0];
  ASSERT_EQ(copy.weight.size(), static_cast<std::size_t>(table.elements()));
  EXPECT_TRUE(std::ranges::equal(std::as_bytes(rows_of(copy.weight)), std::as_bytes(part.weight)));
  EXPECT_EQ(copy.weight[2 * columns - 1], 0.5F);
  EXPECT_EQ(copy.weight[3 * columns], 0.5F);
}

}  // namespace
}  // namespace takt::worker_checkpoint
