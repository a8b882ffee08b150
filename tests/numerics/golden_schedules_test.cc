// SPDX-License-Identifier: Apache-2.0
// Orders that other implementations made run as they are: every file of tests/golden/schedules that
// a tiny model has layers enough for, as a job with `schedule: file:PATH`.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "common/schedule/text.h"
#include "gtest/gtest.h"
#include "tests/numerics/in_process_run.h"

namespace takt::numerics {
namespace {

namespace fs = std::filesystem;

constexpr int kMostRanks = 4, kMostMicrobatches = 8, kMostStages = 8;

std::string Read(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

bool ComputesWeightGrad(const schedule::Action& action) {
  return action.kind == schedule::ActionKind::kWeightGrad ||
         action.kind == schedule::ActionKind::kBackward;
}

// How many replicas sum a step in the order in which this schedule does; 0: none.
int ReplicasOf(const schedule::Schedule& schedule) {
  const bool two_ways = schedule.placement == schedule::Placement::kBidirectional;
  for (int r = 0; r < schedule.num_ranks(); ++r) {
    std::map<StageId, MicrobatchId> last;
    for (const schedule::Action& action : schedule.ranks[r]) {
      if (!ComputesWeightGrad(action)) continue;
      const auto [it, is_first] = last.try_emplace(action.stage, action.microbatch);
      if (!is_first && action.microbatch < it->second) return 0;
      it->second = action.microbatch;
      const bool is_down = action.stage == StageId(r);
      const bool in_first_half = action.microbatch.value() < schedule.num_microbatches / 2;
      if (two_ways && is_down != in_first_half) return 0;
    }
  }
  return two_ways ? 2 : 1;
}

void ExpectSteps(const std::vector<train::StepResult>& steps,
                 const std::vector<train::StepResult>& expected, bool exactly) {
  ASSERT_EQ(steps.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(steps[i].loss, expected[i].loss, exactly ? 0 : 1e-5) << "step " << i + 1;
    EXPECT_NEAR(steps[i].grad_norm, expected[i].grad_norm, exactly ? 0 : 1e-4) << "step " << i + 1;
  }
}

class GoldenSchedules : public ::testing::Test {
 protected:
  GoldenSchedules() {
    std::string pattern = (fs::temp_directory_path() / "takt-numerics-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
    std::ofstream data(directory_ / "train.txt", std::ios::binary);
    for (int i = 0; i < 2000; ++i) data << i * i << ' ';
  }
  ~GoldenSchedules() override { fs::remove_all(directory_); }

  config::JobSpec Job(int global_batch) const {
    config::JobSpec job;
    job.name = "golden";
    job.model = {.layers = kMostStages,
                 .hidden = 12,
                 .heads = 3,
                 .kv_heads = 3,
                 .inner = 48,
                 .context = 7,
                 .positions = 7,
                 .vocab = 131};
    job.train = {
        {.path = (directory_ / "train.txt").string(), .format = config::DataFormat::kBytes}};
    job.global_batch = global_batch;
    job.microbatch = 1;
    job.steps = 2;
    job.seed = 7;
    job.parallelism = {.pipeline = 1, .data = 1, .chunks = 1, .threads = 1, .schedule = "naive"};
    return job;
  }

  const std::vector<train::StepResult>& Reference(int global_batch, int replicas) {
    std::vector<train::StepResult>& steps = references_[{global_batch, replicas}];
    if (!steps.empty()) return steps;
    config::JobSpec job = Job(global_batch);
    job.parallelism.data = replicas;
    absl::StatusOr<RunResult> result = TrainInProcess({.job = job});
    EXPECT_TRUE(result.ok()) << result.status();
    return steps = result.value().steps;
  }

  fs::path directory_;
  std::map<std::pair<int, int>, std::vector<train::StepResult>> references_;
};

TEST_F(GoldenSchedules, TrainToTheSameLoss) {
  int exact = 0, two_copies = 0, overlapping = 0, all = 0;
  for (const fs::directory_entry& entry :
       fs::recursive_directory_iterator(TAKT_SOURCE_DIR "/tests/golden/schedules")) {
    if (entry.path().extension() != ".csv") continue;
    const std::string csv = Read(entry.path());
    absl::StatusOr<schedule::Schedule> schedule = schedule::ParseCsv(csv, "golden");
    ASSERT_TRUE(schedule.ok()) << entry.path() << ": " << schedule.status();
    const int num_microbatches = schedule->num_microbatches;
    if (schedule->num_ranks() > kMostRanks || num_microbatches > kMostMicrobatches ||
        schedule->num_stages > kMostStages) {
      continue;
    }
    SCOPED_TRACE(entry.path().string());
    schedule->placement = schedule::InferPlacement(*schedule).value();
    const int replicas = ReplicasOf(*schedule);
    // The order of a sum of two does not show in its bits.
    for (const int dp_size : replicas == 2 ? std::vector{1, 2} : std::vector{1}) {
      config::JobSpec job = Job(num_microbatches * dp_size);
      job.parallelism.pipeline = schedule->num_ranks();
      job.parallelism.data = dp_size;
      job.parallelism.chunks = std::nullopt;
      job.parallelism.schedule = "file:golden.csv";
      job.parallelism.schedule_csv = csv;
      const absl::StatusOr<RunResult> result = TrainInProcess({.job = job});
      ASSERT_TRUE(result.ok()) << result.status();
      ExpectSteps(result->steps, Reference(job.global_batch, std::max(1, replicas) * dp_size),
                  /*exactly=*/replicas > 0);
    }
    ++all;
    exact += replicas > 0 ? 1 : 0;
    two_copies += replicas == 2 ? 1 : 0;
    overlapping += csv.find("OVERLAP") != std::string::npos ? 1 : 0;
  }
  std::printf(
      "%d files: %d bit for bit, %d of them with two copies of the weights; %d with overlapped "
      "pairs\n",
      all, exact, two_copies, overlapping);
  EXPECT_GE(exact, 50);
  EXPECT_GE(two_copies, 3);
  EXPECT_GE(overlapping, 5);
}

}  // namespace
}  // namespace takt::numerics
