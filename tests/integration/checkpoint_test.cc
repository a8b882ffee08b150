// SPDX-License-Identifier: Apache-2.0
// Checkpoints through real daemons: saved while a job trains, resumed by other layouts, and
// complete whichever process dies.
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/saving_jobs.h"
#include "tests/testing/cluster.h"

namespace takt {
namespace {

using testing::Cluster;
using ::testing::Contains;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class CheckpointTest : public SavingJobs {
 protected:
  void ExpectToResumeWithoutAndBack(const std::string& mesh, const std::string& shared);
};

TEST_F(CheckpointTest, AResumedJobGoesOnDigitForDigitWhateverItsLayout) {
  const std::vector<std::string> layouts = {
      "pipeline: 2, schedule: 1f1b",
      "pipeline: 1, schedule: naive",
      "pipeline: 4, schedule: zb-h1",
      "pipeline: 2, schedule: gpipe, stage_layers: [3, 1]",
      "pipeline: 2, schedule: interleaved-1f1b, chunks: 2",
  };
  const std::vector<std::pair<std::string, std::string>> models = {
      {kGpt, "f32"}, {kLlama, "f32"}, {kGpt, "bf16"}, {kLlama, "fp8"}};
  for (std::size_t m = 0; m < models.size(); ++m) {
    const std::string& model = models[m].first;
    const std::string& precision = models[m].second;
    const auto job = [&](const std::string& name, const std::string& directory) {
      return TrainingJob{.name = absl::StrCat(name, m),
                         .model = model,
                         .directory = Directory(absl::StrCat(directory, m)),
                         .precision = precision};
    };
    const std::vector<Step> straight = Train(job("straight", "straight"));
    ASSERT_EQ(straight.size(), 20u);
    TrainingJob half = job("half", "half");
    half.steps = 10;
    Train(half);
    ExpectLatest(half.directory);
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      TrainingJob rest = job(absl::StrCat("rest-", i, "-"), absl::StrCat("rest-", i, "-"));
      fs::copy(half.directory, rest.directory,
               fs::copy_options::recursive | fs::copy_options::copy_symlinks);
      rest.parallelism = layouts[i];
      EXPECT_EQ(Train(rest), From(straight, 11))
          << model << ", " << precision << ", " << layouts[i];
      ExpectLatest(rest.directory);
    }
  }
}

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Ranks have some rows of the tables each; checkpoints have the tables of any other job.
TEST_F(CheckpointTest, ASpreadVocabularyResumesOnOtherRanksAndOnOne) {
  TrainingJob job{.name = "straight",
                  .model =
                      "{family: llama, layers: 4, hidden: 16, heads: 2, kv_heads: 1, "
                      "inner: 32, context: 16, vocab: 10000}",
                  .parallelism = "pipeline: 1, schedule: naive",
                  .directory = Directory("straight"),
                  .steps = 12,
                  .every_steps = 6};
  const std::vector<Step> straight = Train(job);
  ASSERT_EQ(straight.size(), 12u);
  job.name = "half";
  job.parallelism = "pipeline: 3, schedule: 1f1b, vocabulary: spread, transport: gloo";
  job.directory = Directory("half");
  job.steps = 6;
  EXPECT_EQ(Train(job), std::vector<Step>(straight.begin(), straight.begin() + 6));
  ExpectLatest(job.directory);
  const std::string step = "/step-00000006";
  int files = 0;
  for (const fs::directory_entry& file : fs::directory_iterator(job.directory + step)) {
    if (file.path().extension() != ".safetensors") continue;
    ++files;
    EXPECT_TRUE(ReadFile(file) ==
                ReadFile(Directory("straight") + step + "/" + file.path().filename().string()))
        << file.path();
  }
  EXPECT_EQ(files, 12);  // weights and moments of six layers
  const std::string halves = job.directory;
  job.steps = 12;
  for (const std::string layout :
       {"pipeline: 2, schedule: zb-v, vocabulary: spread, transport: shm",
        "pipeline: 2, schedule: 1f1b, vocabulary: last"}) {
    job.name = absl::StrCat("rest-", layout.size());
    job.parallelism = layout;
    job.directory = Directory(job.name);
    fs::copy(halves, job.directory, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    EXPECT_EQ(Train(job), From(straight, 7)) << layout;
    ExpectLatest(job.directory);
  }
}

// Two copies of the weights; they sum as two replicas do.
TEST_F(CheckpointTest, ABidirectionalPipelineResumesBothCopies) {
  TrainingJob job{.name = "straight",
                  .parallelism = "pipeline: 2, schedule: dualpipe",
                  .directory = Directory("a")};
  const std::vector<Step> straight = Train(job);
  job.directory = Directory("b");
  job.name = "half";
  job.steps = 10;
  Train(job);
  job.name = "rest";
  job.parallelism += ", shard: optimizer";  // the two copies share, too
  job.steps = 20;
  EXPECT_EQ(Train(job), From(straight, 11));
  ExpectLatest(job.directory);
}

// Trains replicas that share, resumes without sharing, and then with it again. Their checkpoints
// are like those of any job. In bf16 the ranks have shards of most weights, besides the packed
// ones. mesh, shared: fields of `parallelism`.
void CheckpointTest::ExpectToResumeWithoutAndBack(const std::string& mesh,
                                                  const std::string& shared) {
  const auto layout = [&](const std::string& shard, const std::string& transport) {
    return absl::StrCat(mesh, ", ", shard, ", transport: ", transport);
  };
  const std::string none = "shard: none", step = "/step-00000010";
  for (const std::string transport : {"shm", "gloo"}) {
    SCOPED_TRACE(transport);
    TrainingJob job{.name = "straight-" + transport,
                    .parallelism = layout(none, "shm"),
                    .directory = Directory("straight-" + transport),
                    .precision = transport == "shm" ? "bf16" : "f32",
                    .keep = 4};
    const std::string straight_directory = job.directory;
    const std::vector<Step> straight = Train(job);
    ASSERT_EQ(straight.size(), 20u);
    job.directory = Directory(transport);
    const auto go_on = [&](const std::string& name, const std::string& shard, int steps) {
      job.name = name + "-" + transport;
      job.parallelism = layout(shard, transport);
      job.steps = steps;
      return Train(job);
    };
    EXPECT_EQ(go_on("half", shared, 10),
              std::vector<Step>(straight.begin(), straight.begin() + 10));
    ExpectLatest(job.directory);
    for (const fs::directory_entry& file : fs::directory_iterator(job.directory + step)) {
      if (file.path().extension() != ".safetensors") continue;
      EXPECT_TRUE(ReadFile(file) ==
                  ReadFile(straight_directory + step + "/" + file.path().filename().string()))
          << file.path();
    }
    EXPECT_EQ(go_on("rest", none, 15),
              std::vector<Step>(straight.begin() + 10, straight.begin() + 15));
    EXPECT_EQ(go_on("back", shared, 20), From(straight, 16));
    ExpectLatest(job.directory);
  }
}

// Each of two replicas has half of the moments.
TEST_F(CheckpointTest, ReplicasThatShareTheOptimizersStateResumeWithoutAndBack) {
  ExpectToResumeWithoutAndBack("pipeline: 2, data: 2, schedule: zb-h1", "shard: optimizer");
}

// Each of them has half of the weights, too.
TEST_F(CheckpointTest, ReplicasThatShareTheWeightsResumeWithoutAndBack) {
  ExpectToResumeWithoutAndBack("pipeline: 2, data: 2, schedule: interleaved-1f1b, chunks: 3",
                               "shard: parameters, reshard_after_forward: always");
}

// Sums are ordered by replicas, so only the windows are the same: losses agree but for rounding.
TEST_F(CheckpointTest, AnotherNumberOfReplicasConsumesTheSameWindows) {
  const std::vector<Step> straight =
      Train({.name = "straight", .directory = Directory("straight")});
  Train({.name = "half", .directory = Directory("c"), .steps = 10});
  const std::vector<Step> rest =
      Train({.name = "rest", .parallelism = "pipeline: 2, data: 2", .directory = Directory("c")});
  ASSERT_EQ(rest.size(), 10u);
  for (std::size_t i = 0; i < rest.size(); ++i) {
    EXPECT_EQ(rest[i].step, straight[10 + i].step);
    EXPECT_NEAR(rest[i].loss, straight[10 + i].loss, 1e-5);
  }
}

TEST_F(CheckpointTest, AJobWhoseWorkerDiesGoesOnFromItsLastCheckpoint) {
  const TrainingJob straight{.name = "straight", .directory = Directory("a"), .steps = 300};
  const std::vector<Step> expected = Train(straight);
  for (const std::string vocabulary : {"last", "spread"}) {  // spread: it dies in a meeting, too
    SCOPED_TRACE(vocabulary);
    const TrainingJob killed{
        .name = absl::StrCat("killed-", vocabulary),
        .parallelism = absl::StrCat("pipeline: 2, schedule: 1f1b, vocabulary: ", vocabulary),
        .directory = Directory(vocabulary),
        .steps = 300};
    cluster_.Submit(killed.Yaml());
    const v1::Job running = cluster_.AwaitStep(killed.name, 20);
    ASSERT_GT(running.ranks_size(), 0);
    cluster_.Kill(cluster_.worker(running.ranks(0).worker()));
    const v1::Job ended = cluster_.AwaitEnd(killed.name);
    ASSERT_EQ(ended.state(), v1::JOB_STATE_SUCCEEDED) << ended.reason();
    EXPECT_GE(ended.resumed_step(), 5);
    EXPECT_EQ(Curve(killed.name), expected);
  }
}

// It dies in a sum, in a gather or between them.
TEST_F(CheckpointTest, AJobWhoseReplicasShareGoesOnAfterOneHasDied) {
  TrainingJob job{.name = "straight",
                  .parallelism = "pipeline: 1, data: 2, shard: none",
                  .directory = Directory("a"),
                  .steps = 300};
  const std::vector<Step> expected = Train(job);
  job.name = "killed";
  job.parallelism = "pipeline: 1, data: 2, shard: optimizer";
  job.directory = Directory("b");
  cluster_.Submit(job.Yaml());
  const v1::Job running = cluster_.AwaitStep(job.name, 20);
  ASSERT_GT(running.ranks_size(), 1);
  cluster_.Kill(cluster_.worker(running.ranks(1).worker()));
  const v1::Job ended = cluster_.AwaitEnd(job.name);
  ASSERT_EQ(ended.state(), v1::JOB_STATE_SUCCEEDED) << ended.reason();
  EXPECT_GE(ended.resumed_step(), 5);
  EXPECT_EQ(Curve(job.name), expected);
}

// Every process in turn, at chance moments; a checkpoint is being made in most of them.
TEST_F(CheckpointTest, WhoeverIsKilledLatestIsComplete) {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  const TrainingJob job{.name = "job",
                        .directory = Directory("c"),
                        .steps = 1'000'000,
                        .every_steps = 2,
                        .keep = 1000};
  cluster_.Submit(job.Yaml());
  cluster_.AwaitStep(job.name, 10);
  for (int round = 0; round < 6; ++round) {
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", round ", round));
    const v1::Job now = cluster_.Job(job.name);
    cluster_.AwaitStep(job.name, now.last_step().step() + 1 + static_cast<int>(random() % 8));
    if (round % 3 == 2) {
      cluster_.Kill(cluster_.coordinator());
      ExpectLatest(job.directory);
      cluster_.StartCoordinator();
    } else {
      const v1::Job running = cluster_.Job(job.name);
      if (running.ranks_size() == 0) continue;
      const std::string name =
          running.ranks(static_cast<int>(random() % running.ranks_size())).worker();
      cluster_.Kill(cluster_.worker(name));
      ExpectLatest(job.directory);
      cluster_.StartWorker(name);
    }
    ASSERT_FALSE(testing::HasEnded(cluster_.Job(job.name))) << cluster_.Job(job.name).reason();
  }
  cluster_.Cancel(job.name);
  cluster_.AwaitEnd(job.name);
  ExpectLatest(job.directory);
}

// Its files may not grow for a while, as on a full disk.
TEST_F(CheckpointTest, CheckpointsThatCannotBeWrittenAreWarningsUntilThereIsRoomAgain) {
  const TrainingJob job{.name = "job",
                        .directory = Directory("c"),
                        .steps = 1'000'000,
                        .every_steps = 5,
                        .keep = 1000};
  cluster_.Submit(job.Yaml());
  const v1::Job running = cluster_.AwaitJob(
      job.name, [](const v1::Job& j) { return j.checkpoint().step() > 0 || testing::HasEnded(j); });
  ASSERT_GT(running.ranks_size(), 0);
  const pid_t worker = cluster_.worker(running.ranks(0).worker()).pid();
  const rlimit narrow{.rlim_cur = 1024, .rlim_max = RLIM_INFINITY};
  ASSERT_EQ(prlimit(worker, RLIMIT_FSIZE, &narrow, nullptr), 0);
  const v1::Job warned = cluster_.AwaitJob(
      job.name, [](const v1::Job& j) { return j.warnings_size() > 0 || testing::HasEnded(j); });
  EXPECT_THAT(warned.warnings(), Contains(HasSubstr("File too large")));
  cluster_.AwaitStep(job.name, warned.last_step().step() + 20);
  ExpectLatest(job.directory);
  const rlimit wide{.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
  ASSERT_EQ(prlimit(worker, RLIMIT_FSIZE, &wide, nullptr), 0);
  const std::int64_t now = cluster_.Job(job.name).last_step().step();
  const v1::Job saved = cluster_.AwaitJob(job.name, [&](const v1::Job& j) {
    return j.checkpoint().step() > now || testing::HasEnded(j);
  });
  EXPECT_EQ(saved.state(), v1::JOB_STATE_RUNNING) << saved.reason();
  cluster_.Cancel(job.name);
  cluster_.AwaitEnd(job.name);
  ExpectLatest(job.directory);
}

// A file lies where the shards of the first checkpoint are to go.
TEST_F(CheckpointTest, ACheckpointThatCannotBeBegunIsAWarning) {
  const TrainingJob job{.name = "job", .directory = Directory("c")};
  fs::create_directories(job.directory);
  std::ofstream(job.directory + "/step-00000005.partial-job-1") << "in the way";
  const std::vector<Step> curve = Train(job);
  EXPECT_EQ(curve.size(), 20u);
  const v1::Job ended = cluster_.Job(job.name);
  EXPECT_THAT(ended.warnings(), Contains(HasSubstr("step 5")));
  EXPECT_EQ(ended.checkpoint().step(), 20);
  ExpectLatest(job.directory);
}

// A directory has the name of a file of the last checkpoint. Each generation writes to a directory
// of its own, so only the first one meets it.
TEST_F(CheckpointTest, AJobWhoseLastCheckpointCannotBeWrittenSavesItAgain) {
  const TrainingJob job{.name = "job", .directory = Directory("c")};
  fs::create_directories(job.directory + "/step-00000020.partial-job-1/config.json");
  const std::vector<Step> curve = Train(job);
  EXPECT_EQ(curve.size(), 20u);
  const v1::Job ended = cluster_.Job(job.name);
  EXPECT_EQ(ended.generation(), 2);
  EXPECT_EQ(ended.resumed_step(), 15);
  EXPECT_EQ(ended.checkpoint().step(), 20);
  ExpectLatest(job.directory);
}

TEST_F(CheckpointTest, AJobWhoseLastCheckpointCanNeverBeWrittenFails) {
  const TrainingJob job{.name = "job", .directory = Directory("c")};
  for (int generation = 1; generation <= 9; ++generation) {
    fs::create_directories(
        absl::StrCat(job.directory, "/step-00000020.partial-job-", generation, "/config.json"));
  }
  cluster_.Submit(job.Yaml());
  const v1::Job ended = cluster_.AwaitEnd(job.name);
  EXPECT_EQ(ended.state(), v1::JOB_STATE_FAILED) << ended.reason();
  EXPECT_FALSE(ended.invalid_input());
  EXPECT_THAT(ended.reason(), HasSubstr("the checkpoint of step 20 failed"));
  EXPECT_EQ(ended.checkpoint().step(), 15);
  ExpectLatest(job.directory);
}

// One directory has two names. Only the first of two jobs that train at the same time may use it.
TEST_F(CheckpointTest, TheDirectoryOfALiveJobIsRefusedToAnotherByALinkToo) {
  const TrainingJob first{.name = "first", .directory = Directory("c"), .steps = 1'000'000};
  cluster_.Submit(first.Yaml());
  cluster_.AwaitJob(first.name, [](const v1::Job& job) {
    return job.checkpoint().step() > 0 || testing::HasEnded(job);
  });
  fs::create_directory_symlink(first.directory, Directory("link"));
  TrainingJob second{.name = "second", .directory = Directory("link")};
  cluster_.Submit(second.Yaml());
  const v1::Job refused = cluster_.AwaitEnd(second.name);
  EXPECT_EQ(refused.state(), v1::JOB_STATE_FAILED);
  EXPECT_TRUE(refused.invalid_input()) << refused.reason();
  EXPECT_THAT(refused.reason(), HasSubstr("is the directory of job first"));
  EXPECT_THAT(refused.reason(), HasSubstr("job second"));
  const std::int64_t saved = cluster_.Job(first.name).checkpoint().step();
  cluster_.AwaitJob(first.name, [&](const v1::Job& job) {
    return job.checkpoint().step() > saved || testing::HasEnded(job);
  });
  EXPECT_FALSE(testing::HasEnded(cluster_.Job(first.name)));
  cluster_.Cancel(first.name);
  cluster_.AwaitEnd(first.name);
  ExpectLatest(first.directory);
  // Now nobody needs it any more.
  second.name = "third";
  second.steps = static_cast<int>(cluster_.Job(first.name).checkpoint().step()) + 5;
  Train(second);
}

TEST_F(CheckpointTest, ACheckpointOfAnotherModelIsRefusedByField) {
  Train({.name = "first", .directory = Directory("c"), .steps = 5});
  TrainingJob other{.name = "second", .model = kLlama, .directory = Directory("c")};
  cluster_.Submit(other.Yaml());
  const v1::Job refused = cluster_.AwaitEnd(other.name);
  EXPECT_EQ(refused.state(), v1::JOB_STATE_FAILED);
  EXPECT_TRUE(refused.invalid_input()) << refused.reason();
  EXPECT_THAT(refused.reason(), HasSubstr("model.family"));
}

}  // namespace
}  // namespace takt
