// SPDX-License-Identifier: Apache-2.0
// Two ranks of a real job, on the CPU and on a simulated device: the same losses, and checkpoints
// of the same bytes.
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "common/plan/plan.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_job.h"
#include "tests/testing/map_rendezvous.h"
#include "worker/backend/discrete/discrete_backend.h"
#include "worker/session/pipeline_runner.h"
#include "worker/session/shared_rendezvous_testing.h"

namespace takt::session {
namespace {

// What the two ranks report.
struct Outcome {
  std::vector<double> losses, validation_losses;
  std::map<std::string, std::string> hashes;  // of the checkpoint's files
};

class DeviceRunTest : public ::testing::Test {
 protected:
  DeviceRunTest() {
    std::ofstream data(directory_.path() + "/train.txt", std::ios::binary);
    for (int i = 0; i < 1000; ++i) data << i * i << ' ';
  }

  config::JobSpec Job() const {
    config::JobSpec job;
    job.name = "device";
    job.model = {.layers = 2,
                 .hidden = 12,
                 .heads = 2,
                 .kv_heads = 2,
                 .inner = 48,
                 .context = 8,
                 .positions = 8,
                 .vocab = 131};
    const std::string path = directory_.path() + "/train.txt";
    job.train = {{.path = path, .format = config::DataFormat::kBytes}};
    job.validation = {
        .path = path, .format = config::DataFormat::kBytes, .every_steps = 2, .batches = 2};
    job.global_batch = 4;
    job.microbatch = 1;
    job.adamw.learning_rate = 3e-3;
    job.steps = 3;
    job.checkpoint = config::Checkpoint{.directory = "checkpoints"};
    job.parallelism.pipeline = 2;
    job.parallelism.schedule = "1f1b";
    return job;
  }

  Outcome Train(const decltype(PipelineRunnerOptions::make_backends)& make_backends) {
    const config::JobSpec job = Job();
    const plan::Plan plan = plan::MakePlan(job, {.max_workers = 2}).value();
    const auto map = std::make_shared<testing::MapRendezvous>();
    const testing::TemporaryDirectory checkpoints;
    const std::unique_ptr<checkpoint::FileSystem> files = checkpoint::CreatePosixFileSystem();
    std::vector<Outcome> outcomes(2);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        Assignment assignment;
        assignment.key = {"device", Generation(1)};
        assignment.rank = Rank(rank);
        assignment.job = job;
        assignment.mesh = plan.mesh;
        assignment.partition = plan.partition;
        assignment.program = plan.programs[rank];
        assignment.validation_program = plan.validation_programs[rank];
        assignment.secret = "secret";
        const auto runner = CreatePipelineRunner(
            {.data_root = "/",
             .checkpoint_root = checkpoints.path(),
             .make_rendezvous =
                 [&](const JobKey&) { return std::make_unique<SharedRendezvous>(map); },
             .files = files.get(),
             .make_backends = make_backends},
            std::move(assignment));
        const auto prepared = runner->Prepare();
        ASSERT_TRUE(prepared.ok()) << prepared.status();
        const auto end = runner->Run([&](const Report& report) { Add(report, outcomes[rank]); });
        ASSERT_TRUE(end.ok()) << end.status();
      });
    }
    for (std::thread& rank : ranks) rank.join();
    outcomes[0].hashes.merge(outcomes[1].hashes);
    return std::move(outcomes[0]);
  }

  static void Add(const Report& report, Outcome& outcome) {
    if (const auto* step = std::get_if<StepReport>(&report)) {
      EXPECT_GT(step->busy_seconds, 0);
      EXPECT_GE(step->step_seconds, step->busy_seconds);
      if (step->rank != Rank(0)) return;
      outcome.losses.push_back(step->loss);
      if (step->validation_loss) outcome.validation_losses.push_back(*step->validation_loss);
      return;
    }
    const auto& part = std::get<CheckpointReport>(report);
    EXPECT_TRUE(part.error.ok()) << part.error;
    for (const checkpoint::FileEntry& file : part.files) outcome.hashes[file.name] = file.xxh3_128;
  }

  const testing::TemporaryDirectory directory_;
};

TEST_F(DeviceRunTest, LossesAndCheckpointsAreThoseOfTheCpu) {
  const Outcome expected = Train(nullptr);
  EXPECT_EQ(expected.losses.size(), 3u);
  EXPECT_EQ(expected.validation_losses.size(), 2u);
  EXPECT_GE(expected.hashes.size(), 8u);  // of four layers
  for (const bool lazy : {false, true}) {
    const Outcome device =
        Train([lazy](const Assignment&,
                     int threads) -> absl::StatusOr<std::unique_ptr<backend::BackendFactory>> {
          return backend::CreateDiscreteBackends({.threads = threads, .lazy = lazy});
        });
    EXPECT_EQ(device.losses, expected.losses);
    EXPECT_EQ(device.validation_losses, expected.validation_losses);
    EXPECT_EQ(device.hashes, expected.hashes);
  }
}

}  // namespace
}  // namespace takt::session
