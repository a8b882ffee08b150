// SPDX-License-Identifier: Apache-2.0
#include "cli/job/job_mesh.h"

#include "gtest/gtest.h"

namespace takt::cli {
namespace {

// Returns a job with two stages on two pp ranks.
v1::Job JobOn(int num_ranks) {
  v1::Job job;
  for (const int pp_rank : {0, 1}) job.add_stages()->set_pp_rank(pp_rank);
  for (int rank = 0; rank < num_ranks; ++rank) job.add_ranks()->set_rank(rank);
  return job;
}

TEST(JobMesh, RanksThatSplitNothingMoreAreReplicas) {
  const v1::Job job = JobOn(8);
  EXPECT_EQ(mesh::ToString(MeshOf(job)), "2 x 4");
  EXPECT_EQ(RanksText(job), "8 ranks");
}

TEST(JobMesh, TheJobSaysWhichRanksSplitLayersAndSequences) {
  v1::Job job = JobOn(16);
  job.mutable_spec()->mutable_parallelism()->set_tensor(4);
  EXPECT_EQ(RanksText(job), "16 ranks (2 x 2 x tensor 4)");
  job.mutable_spec()->mutable_parallelism()->set_context(2);
  EXPECT_EQ(RanksText(job), "16 ranks (2 x 1 x context 2 x tensor 4)");
}

TEST(JobMesh, AJobWithoutRanksHasNoMesh) {
  EXPECT_FALSE(MeshOf(v1::Job()).IsPossible());
  EXPECT_EQ(RanksText(v1::Job()), "0 ranks");
  v1::Job paused = JobOn(0);
  paused.mutable_spec()->mutable_parallelism()->set_tensor(4);
  EXPECT_EQ(RanksText(paused), "0 ranks");
}

}  // namespace
}  // namespace takt::cli
