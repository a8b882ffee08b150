// SPDX-License-Identifier: Apache-2.0
#include "common/plan/copies.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CopiesTest : public ::testing::Test {
 protected:
  CopiesTest() {
    job_.copy_every_steps = config::kAutoCopies;
    job_.model.family = model::Family::kGpt2;
  }
  CopyInputs Inputs(mesh::Mesh mesh) const {
    return {.job = job_, .schedule = schedule_, .mesh = mesh};
  }
  std::string Why(mesh::Mesh mesh = {.pp_size = 2, .dp_size = 1}) const {
    return WhyNoCopies(Inputs(mesh));
  }

  config::JobSpec job_;
  schedule::Schedule schedule_;
};

TEST_F(CopiesTest, ARankKeepsTwoOfItsOwnAndTwoOfAnotherThatHasNoReplica) {
  EXPECT_THAT(Why(), IsEmpty());
  CopyCounts kept = CopiesKept(Inputs({.pp_size = 2, .dp_size = 1}));
  EXPECT_EQ(kept.own, 2);
  EXPECT_EQ(kept.peer, 2);
  kept = CopiesKept(Inputs({.pp_size = 2, .dp_size = 2}));
  EXPECT_EQ(kept.own, 2);
  EXPECT_EQ(kept.peer, 0);
  CopyInputs shared = Inputs({.pp_size = 2, .dp_size = 2});
  shared.shares = true;  // then no replica has the same
  EXPECT_EQ(CopiesKept(shared).peer, 2);
}

TEST_F(CopiesTest, RanksThatSplitLayersNeedAnotherWithTheSamePart) {
  EXPECT_EQ(CopiesKept(Inputs({.pp_size = 2, .tp_size = 2})).peer, 2);
  EXPECT_EQ(CopiesKept(Inputs({.dp_size = 2, .tp_size = 2})).peer, 0);
  EXPECT_EQ(CopiesKept(Inputs({.cp_size = 2})).own, 2) << "they have all layers";
  EXPECT_EQ(CopiesKept(Inputs({.cp_size = 2})).peer, 0);
  job_.parallelism.expert = 2;
  EXPECT_EQ(CopiesKept(Inputs({.dp_size = 2})).peer, 2) << "no other rank has these experts";
  EXPECT_EQ(CopiesKept(Inputs({.dp_size = 4})).peer, 0);
}

TEST_F(CopiesTest, JobsThatCannotGoOnFromCopiesKeepNone) {
  EXPECT_THAT(Why({.pp_size = 1, .dp_size = 1}), HasSubstr("no second rank"));
  EXPECT_THAT(Why({.pp_size = 1, .tp_size = 2}), HasSubstr("no second rank"));
  schedule_.updates = schedule::Updates::kEachBackward;
  EXPECT_THAT(Why(), HasSubstr("several versions"));
  schedule_.updates = schedule::Updates::kFlush;
  job_.model.family = model::Family::kEmulated;
  EXPECT_THAT(Why(), HasSubstr("no state"));
  job_.model.family = model::Family::kGpt2;
  job_.copy_every_steps = 0;
  EXPECT_THAT(Why(), HasSubstr("asks for none"));
  EXPECT_EQ(CopiesKept(Inputs({.pp_size = 2, .dp_size = 1})).own, 0);
}

TEST_F(CopiesTest, AJobAsksForThemByANumberOrWithoutFiles) {
  EXPECT_TRUE(AsksForCopies(job_)) << "it saves no files";
  job_.checkpoint = config::Checkpoint{.directory = "runs"};
  EXPECT_FALSE(AsksForCopies(job_)) << "the plan may choose";
  job_.copy_every_steps = 3;
  EXPECT_TRUE(AsksForCopies(job_));
}

TEST(LargestCopy, IsThatOfThePipelineRankWithMostParameters) {
  model::Model model;
  for (const std::int64_t elements : {10, 20, 5}) {
    model.layers.emplace_back();
    model.layers.back().parameters.push_back({.name = "w", .shape = {elements}});
  }
  const mesh::Partition partition = {{StageId(0), PpRank(0), LayerId(0), LayerId(1)},
                                     {StageId(1), PpRank(1), LayerId(1), LayerId(2)},
                                     {StageId(2), PpRank(0), LayerId(2), LayerId(3)}};
  EXPECT_EQ(LargestCopyBytes(model, partition), 20 * 12);
  for (model::Layer& layer : model.layers) layer.parameters[0].moments = 1;
  EXPECT_EQ(LargestCopyBytes(model, partition), 20 * 8);
  // Each of three writers has a layer.
  model.layers[0].parameters[0].shape = {18};
  EXPECT_EQ(LargestCopyBytes(model, partition), 23 * 8);
  EXPECT_EQ(LargestCopyBytes(model, partition, /*num_writers=*/3), 20 * 8);
}

}  // namespace
}  // namespace takt::plan
