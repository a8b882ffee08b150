// SPDX-License-Identifier: Apache-2.0
// Runs two ranks of a real job on the CPU and on a simulated device. Losses and the bytes of
// checkpoints must be the same, also with NCCL and on a device whose kernels are chosen.
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/config/job_file.h"
#include "common/config/job_spec_serde.h"
#include "common/plan/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "takt/v1/job_spec.pb.h"
#include "tests/testing/checkpoint_job.h"
#include "tests/testing/map_rendezvous.h"
#include "tests/testing/planned_backends.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/backend/discrete/discrete_backend.h"
#include "worker/checkpoint/commit.h"
#include "worker/session/pipeline_runner.h"
#include "worker/session/shared_rendezvous_testing.h"
#include "worker/session/small_job_testing.h"
#include "worker/transport/nccl/fake_nccl.h"
#include "worker/transport/nccl/nccl_transport.h"

namespace takt::session {
namespace {

using takt::testing::PlannedBackends;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using MakeBackends = decltype(PipelineRunnerOptions::make_backends);

struct RunOptions {
  std::int64_t steps = 3;
  Generation generation{1};
  std::string resume = "none";
  int pipeline = 2;  // 2: two stages
  int tensor = 1;    // 2: the ranks split all layers. Both 1: two replicas
  int expert = 0;    // ranks that share experts; 0: the model has none
  config::Shard shard = config::Shard::kNone;
  config::Precision precision = config::Precision::kF32;
  bool has_nccl = false;  // a fake one
  bool copies_between_devices = false;
  int layers = 0;  // 0: as many as the small job has
  // The ranks' copies in memory, from one run to the next. None: nothing is copied.
  std::vector<worker_checkpoint::CopyStore*> copies = {};
  StepId copied = {};  // the newest step that the run may go on from by them
};

// What the two ranks report.
struct Outcome {
  control::Resumed resumed;  // rank 0's
  std::vector<double> losses, validation_losses;
  std::vector<checkpoint::FileEntry> files;  // the checkpoint's
};

class DeviceRunTest : public ::testing::Test {
 protected:
  config::JobSpec Job() const {
    config::JobSpec job = small_.Spec("device");
    job.validation = {.path = small_.text(),
                      .format = config::DataFormat::kBytes,
                      .every_steps = 2,
                      .batches = 2};
    job.steps = 3;
    job.checkpoint = config::Checkpoint{.directory = "checkpoints"};
    return job;
  }

  static absl::StatusOr<std::unique_ptr<backend::BackendFactory>> OnCores(
      const control::Assignment&, int threads) {
    return backend::CreateCpuBackends({.threads = threads});
  }

  static transport::nccl::Library Nccl(int rank) {
    return {.api = &transport::nccl::FakeNccl::api(),
            .device_index = rank,
            .presence = {.version = transport::nccl::FakeNccl::kVersion,
                         .device = absl::StrCat("GPU-", rank)}};
  }

  // Each run writes into a directory of its own.
  Outcome Train(const MakeBackends& make_backends, const RunOptions& options = {}) {
    const testing::TemporaryDirectory checkpoints;
    return Train(make_backends, checkpoints.path(), options);
  }

  Outcome Train(const MakeBackends& make_backends, const std::string& root,
                const RunOptions& options) {
    config::JobSpec job = Job();
    job.steps = options.steps;
    if (options.layers > 0) job.model.layers = options.layers;
    job.parallelism.pipeline = options.pipeline;
    job.parallelism.tensor = options.tensor;
    job.parallelism.shard = options.shard;
    job.precision = options.precision;
    job.parallelism.data = 2 / options.pipeline / options.tensor;
    if (options.expert > 0) {
      job.model.family = model::Family::kMixtral;
      job.model.tied_head = false;
      job.model.inner = 20;
      job.model.mixture = model::Mixture{.experts = 4, .chosen = 2, .inner = 20};
      job.parallelism.expert = options.expert;
    }
    const plan::Plan plan = plan::MakePlan(job, {.max_workers = 2}).value();
    const auto map = std::make_shared<testing::MapRendezvous>();
    const std::unique_ptr<worker_checkpoint::FileSystem> files =
        worker_checkpoint::CreatePosixFileSystem();
    std::vector<Outcome> outcomes(2);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        control::Assignment assignment;
        assignment.key = {"device", options.generation};
        assignment.rank = Rank(rank);
        assignment.job = job;
        assignment.mesh = plan.mesh;
        assignment.partition = plan.partition;
        const auto pp_rank = static_cast<std::size_t>(plan.mesh.PpRankOf(Rank(rank)).value());
        assignment.program = plan.programs[pp_rank];
        assignment.validation_program = plan.validation_programs[pp_rank];
        assignment.secret = "secret";
        if (options.has_nccl) assignment.transport = config::TransportKind::kNccl;
        if (options.copies_between_devices) assignment.transport = config::TransportKind::kCudaIpc;
        assignment.resume = options.resume;
        if (!options.copies.empty()) {
          assignment.job_id = "id";
          assignment.copies = {.every_steps = 1, .shift = 1, .at_most = options.copied};
        }
        const transport::nccl::Library nccl = Nccl(rank);
        const auto runner = CreatePipelineRunner(
            {.data_root = "/",
             .checkpoint_root = root,
             .make_rendezvous =
                 [&](const control::JobKey&) { return std::make_unique<SharedRendezvous>(map); },
             .files = files.get(),
             .make_backends = make_backends,
             .nccl = options.has_nccl ? &nccl : nullptr,
             .copies = options.copies.empty() ? nullptr : options.copies[rank]},
            std::move(assignment));
        const auto prepared = runner->Prepare();
        ASSERT_TRUE(prepared.ok()) << prepared.status();
        outcomes[rank].resumed = *prepared;
        const auto end = runner->Run([&](const Report& report) { Add(report, outcomes[rank]); });
        ASSERT_TRUE(end.ok()) << end.status();
      });
    }
    for (std::thread& rank : ranks) rank.join();
    std::vector<checkpoint::FileEntry>& all = outcomes[0].files;
    all.insert(all.end(), outcomes[1].files.begin(), outcomes[1].files.end());
    return std::move(outcomes[0]);
  }

  // Does what the coordinator and a worker do about a checkpoint.
  void Commit(const Outcome& outcome, const std::string& root, const RunOptions& options) const {
    const config::JobSpec job = Job();
    const auto files = worker_checkpoint::CreatePosixFileSystem();
    const absl::StatusOr<std::string> manifest =
        checkpoint::FormatManifest({.job = "device",
                                    .generation = options.generation,
                                    .step = StepId(options.steps),
                                    .windows = options.steps * job.global_batch,
                                    .job_spec = config::FormatJobFile(config::ToProto(job)),
                                    .files = outcome.files});
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    const auto committed = worker_checkpoint::Publish(
        *files, root + "/" + job.checkpoint->directory, *manifest, {.token = "a"});
    ASSERT_TRUE(committed.ok()) << committed.status();
  }

  static void Add(const Report& report, Outcome& outcome) {
    if (const auto* step = std::get_if<control::RankStepReport>(&report)) {
      EXPECT_GT(step->busy_seconds, 0);
      EXPECT_GE(step->step_seconds, step->busy_seconds);
      if (step->rank != Rank(0)) return;
      outcome.losses.push_back(step->loss);
      if (step->validation_loss) outcome.validation_losses.push_back(*step->validation_loss);
      return;
    }
    const auto& part = std::get<control::CheckpointReport>(report);
    EXPECT_EQ(part.error, "");
    outcome.files.insert(outcome.files.end(), part.files.begin(), part.files.end());
  }

  const SmallJob small_;
};

std::map<std::string, std::string> Hashes(const Outcome& outcome) {
  std::map<std::string, std::string> hashes;
  for (const checkpoint::FileEntry& file : outcome.files) hashes[file.name] = file.xxh3_128;
  return hashes;
}

TEST_F(DeviceRunTest, LossesAndCheckpointsAreThoseOfTheCpu) {
  const Outcome expected = Train(OnCores);
  EXPECT_EQ(expected.losses.size(), 3u);
  EXPECT_EQ(expected.validation_losses.size(), 2u);
  EXPECT_GE(expected.files.size(), 8u);  // of four layers
  for (const bool lazy : {false, true}) {
    const Outcome device =
        Train([lazy](const control::Assignment&,
                     int threads) -> absl::StatusOr<std::unique_ptr<backend::BackendFactory>> {
          return backend::CreateDiscreteBackends(
              {.threads = threads, .lazy = lazy, .prepared_only = true});
        });
    EXPECT_EQ(device.losses, expected.losses);
    EXPECT_EQ(device.validation_losses, expected.validation_losses);
    EXPECT_EQ(Hashes(device), Hashes(expected));
  }
}

// Stages exchange messages and a tied embedding, replicas exchange their gradients, all on streams.
TEST_F(DeviceRunTest, LossesAndCheckpointsByNcclAreThoseOfTheCpu) {
  const auto make_backends =
      [](const control::Assignment&,
         int threads) -> absl::StatusOr<std::unique_ptr<backend::BackendFactory>> {
    return backend::CreateDiscreteBackends({.threads = threads});
  };
  for (const int pipeline : {2, 1}) {
    SCOPED_TRACE(absl::StrCat("pipeline ", pipeline));
    const Outcome expected = Train(OnCores, {.pipeline = pipeline});
    transport::nccl::FakeNccl nccl;
    const Outcome device = Train(make_backends, {.pipeline = pipeline, .has_nccl = true});
    EXPECT_EQ(device.losses, expected.losses);
    EXPECT_EQ(device.validation_losses, expected.validation_losses);
    EXPECT_EQ(Hashes(device), Hashes(expected));
    EXPECT_GT(nccl.num_given(), 0);
    EXPECT_EQ(nccl.num_open(), 0);
    EXPECT_EQ(nccl.num_aborted(), 0);
    EXPECT_TRUE(nccl.misuse().empty()) << nccl.misuse().front();
  }
}

// Stages copy from each other's memory, and sum through the host or by NCCL.
TEST_F(DeviceRunTest, LossesAndCheckpointsByCopiesBetweenDevicesAreThoseOfTheCpu) {
  const Outcome expected = Train(OnCores);
  for (const auto& [lazy, has_nccl] :
       {std::pair(false, false), std::pair(true, false), std::pair(false, true)}) {
    SCOPED_TRACE(absl::StrCat(lazy ? "lazy" : "eager", has_nccl ? ", NCCL" : ""));
    std::atomic<std::int64_t> copies = 0;
    const auto make_backends = [&copies, lazy = lazy](const control::Assignment&, int threads)
        -> absl::StatusOr<std::unique_ptr<backend::BackendFactory>> {
      return backend::CreateDiscreteBackends({.threads = threads,
                                              .lazy = lazy,
                                              .prepared_only = true,
                                              .shared_bytes = std::size_t{1} << 30,
                                              .peer_copies = &copies});
    };
    transport::nccl::FakeNccl nccl;
    const Outcome device =
        Train(make_backends, {.has_nccl = has_nccl, .copies_between_devices = true});
    EXPECT_EQ(device.losses, expected.losses);
    EXPECT_EQ(device.validation_losses, expected.validation_losses);
    EXPECT_EQ(Hashes(device), Hashes(expected));
    EXPECT_GT(copies, 6) << "each step has messages of both directions";
    EXPECT_EQ(nccl.num_open(), 0);
    EXPECT_TRUE(nccl.misuse().empty()) << nccl.misuse().front();
  }
}

// Replicas add up shards of gradients and gather weights, through the host and by NCCL, and pack
// them in bf16. Checkpoints have whole moments.
TEST_F(DeviceRunTest, ReplicasThatShareStateHaveTheLossesAndCheckpointsOfTheCpu) {
  using enum config::Precision;
  for (const auto& [shard, precision] : {std::pair(config::Shard::kOptimizer, kF32),
                                         {config::Shard::kOptimizer, kBf16},
                                         {config::Shard::kParameters, kF32}}) {
    const Outcome expected = Train(OnCores, {.pipeline = 1, .precision = precision});
    for (const bool has_nccl : {false, true}) {
      SCOPED_TRACE(absl::StrCat(static_cast<int>(shard), precision == kBf16 ? " bf16" : "",
                                has_nccl ? " nccl" : " host"));
      const auto make_backends =
          [](const control::Assignment&,
             int threads) -> absl::StatusOr<std::unique_ptr<backend::BackendFactory>> {
        return backend::CreateDiscreteBackends({.threads = threads, .prepared_only = true});
      };
      transport::nccl::FakeNccl nccl;
      const Outcome device =
          Train(make_backends,
                {.pipeline = 1, .shard = shard, .precision = precision, .has_nccl = has_nccl});
      EXPECT_EQ(device.losses, expected.losses);
      EXPECT_EQ(device.validation_losses, expected.validation_losses);
      EXPECT_EQ(Hashes(device), Hashes(expected));
      EXPECT_EQ(nccl.num_given() > 0, has_nccl);
      EXPECT_EQ(nccl.num_aborted(), 0);
      EXPECT_THAT(nccl.misuse(), IsEmpty());
    }
  }
}

// The ranks meet inside layers: through the host, and by NCCL on a stream beside that of compute. A
// checkpoint has whole layers, from which the job goes on.
TEST_F(DeviceRunTest, SplitLayersHaveTheLossesAndCheckpointsOfTheCpu) {
  const RunOptions split{.pipeline = 1, .tensor = 2};
  const Outcome expected = Train(OnCores, split);
  EXPECT_EQ(expected.losses.size(), 3u);
  for (const bool has_nccl : {false, true}) {
    for (const bool lazy : {false, true}) {
      SCOPED_TRACE(absl::StrCat(has_nccl ? "nccl" : "host", lazy ? ", lazy" : ""));
      const auto make_backends =
          [lazy](const control::Assignment&,
                 int threads) -> absl::StatusOr<std::unique_ptr<backend::BackendFactory>> {
        return backend::CreateDiscreteBackends(
            {.threads = threads, .lazy = lazy, .prepared_only = true});
      };
      transport::nccl::FakeNccl nccl;
      RunOptions options = split;
      options.has_nccl = has_nccl;
      const testing::TemporaryDirectory checkpoints;
      const Outcome device = Train(make_backends, checkpoints.path(), options);
      EXPECT_EQ(device.losses, expected.losses);
      EXPECT_EQ(device.validation_losses, expected.validation_losses);
      EXPECT_EQ(Hashes(device), Hashes(expected));
      EXPECT_EQ(nccl.num_given() > 0, has_nccl);
      EXPECT_EQ(nccl.num_aborted(), 0);
      EXPECT_THAT(nccl.misuse(), IsEmpty());
    }
  }
}

// Rows pass between the memories of two devices: through the host, and by NCCL. Checkpoints have
// all experts.
TEST_F(DeviceRunTest, SharedExpertsHaveTheLossesAndCheckpointsOfReplicasThatShareNone) {
  for (const config::Precision precision : {config::Precision::kF32, config::Precision::kBf16}) {
    const Outcome expected = Train(OnCores, {.pipeline = 1, .expert = 1, .precision = precision});
    EXPECT_EQ(expected.losses.size(), 3u);
    for (const bool has_nccl : {false, true}) {
      for (const bool lazy : {false, true}) {
        SCOPED_TRACE(absl::StrCat(has_nccl ? "nccl" : "host", lazy ? ", lazy" : ""));
        const auto make_backends =
            [lazy](const control::Assignment&,
                   int threads) -> absl::StatusOr<std::unique_ptr<backend::BackendFactory>> {
          return backend::CreateDiscreteBackends(
              {.threads = threads, .lazy = lazy, .prepared_only = true});
        };
        transport::nccl::FakeNccl nccl;
        const Outcome device =
            Train(make_backends,
                  {.pipeline = 1, .expert = 2, .precision = precision, .has_nccl = has_nccl});
        EXPECT_EQ(device.losses, expected.losses);
        EXPECT_EQ(device.validation_losses, expected.validation_losses);
        EXPECT_EQ(Hashes(device), Hashes(expected));
        EXPECT_EQ(nccl.num_given() > 0, has_nccl);
        EXPECT_EQ(nccl.num_aborted(), 0);
        EXPECT_THAT(nccl.misuse(), IsEmpty());
      }
    }
  }
}

TEST_F(DeviceRunTest, SplitLayersGoOnFromTheirCheckpoint) {
  const auto make_backends =
      [](const control::Assignment&,
         int threads) -> absl::StatusOr<std::unique_ptr<backend::BackendFactory>> {
    return backend::CreateDiscreteBackends({.threads = threads});
  };
  const RunOptions whole{.pipeline = 1, .tensor = 2};
  const Outcome expected = Train(make_backends, whole);
  const testing::TemporaryDirectory checkpoints;
  RunOptions part = whole;
  part.steps = 2;
  Commit(Train(make_backends, checkpoints.path(), part), checkpoints.path(), part);
  part.steps = 3;
  part.generation = Generation(2);
  part.resume = "auto";
  const Outcome rest = Train(make_backends, checkpoints.path(), part);
  EXPECT_EQ(rest.resumed.step, StepId(2));
  EXPECT_EQ(rest.losses, std::vector<double>(expected.losses.begin() + 2, expected.losses.end()));
}

// Rank 0 chooses kernels for the shapes of leaves. None is chosen later.
TEST_F(DeviceRunTest, SplitLayersComputeWithTheKernelsOfOneRank) {
  const backend::PlanTarget target{.compute_capability = "9.0", .sm_count = 132};
  const auto make_backends =
      [&](const control::Assignment& assignment,
          int threads) -> absl::StatusOr<std::unique_ptr<backend::BackendFactory>> {
    return std::make_unique<PlannedBackends>(target, /*seed=*/1 + assignment.rank.value(),
                                             backend::CreateDiscreteBackends({.threads = threads}));
  };
  const RunOptions split{.pipeline = 1, .tensor = 2};
  const Outcome device = Train(make_backends, split);
  EXPECT_THAT(device.resumed.kernel_plan, HasSubstr("chosen now"));
  EXPECT_THAT(device.resumed.notes, IsEmpty());
  EXPECT_EQ(device.losses, Train(OnCores, split).losses);
}

// One F and B of 24 blocks are more launches than half a queue holds, and microbatches follow each
// other. No thread may find the queue full: it would keep the others from sending.
TEST_F(DeviceRunTest, ADeepModelNeverFillsADevicesQueue) {
  constexpr int kLayers = 48;
  const RunOptions options{.steps = 2, .layers = kLayers};
  const Outcome expected = Train(OnCores, options);
  transport::nccl::FakeNccl nccl;
  const Outcome device = Train(
      [](const control::Assignment&,
         int threads) -> absl::StatusOr<std::unique_ptr<backend::BackendFactory>> {
        return backend::CreateDiscreteBackends({.threads = threads, .queue_capacity = 1024});
      },
      {.steps = 2, .has_nccl = true, .layers = kLayers});
  EXPECT_EQ(device.losses, expected.losses);
}

// Only rank 0's choices are used, for every product of the two ranks. None is chosen when it first
// runs, and none is missing. The checkpoint keeps them.
TEST_F(DeviceRunTest, AResumedJobComputesWithTheCheckpointsKernels) {
  const testing::TemporaryDirectory checkpoints;
  std::uint64_t seed = 0;
  backend::PlanTarget target{.compute_capability = "9.0", .sm_count = 132};
  const auto train = [&](const RunOptions& options) {
    seed += 2;
    return Train(
        [&](const control::Assignment& assignment,
            int threads) -> absl::StatusOr<std::unique_ptr<backend::BackendFactory>> {
          const int rank = assignment.rank.value();
          return std::make_unique<PlannedBackends>(
              target, seed + rank, backend::CreateDiscreteBackends({.threads = threads}));
        },
        checkpoints.path(), options);
  };
  const RunOptions first{.steps = 2};
  const Outcome begun = train(first);
  EXPECT_THAT(begun.resumed.kernel_plan, HasSubstr("chosen now"));
  EXPECT_TRUE(Hashes(begun).contains("kernel_plan.json"));
  Commit(begun, checkpoints.path(), first);

  const Outcome resumed = train({.generation = Generation(2), .resume = "auto"});
  EXPECT_EQ(resumed.resumed.step, StepId(2));
  EXPECT_THAT(resumed.resumed.kernel_plan, EndsWith(" of the checkpoint"));
  EXPECT_THAT(resumed.resumed.notes, IsEmpty());
  EXPECT_EQ(Hashes(resumed).at("kernel_plan.json"), Hashes(begun).at("kernel_plan.json"));

  target.sm_count = 108;
  const Outcome elsewhere = train({.generation = Generation(3), .resume = "auto"});
  EXPECT_EQ(elsewhere.resumed.step, StepId(2));
  EXPECT_THAT(elsewhere.resumed.notes,
              ElementsAre(AllOf(HasSubstr("losses may differ"), HasSubstr("target.sm_count"))));
  EXPECT_THAT(elsewhere.resumed.kernel_plan, HasSubstr("chosen now"));
  EXPECT_EQ(elsewhere.losses, resumed.losses);  // the simulated device computes on the CPU
}

// A spare takes the place of rank 0, which chose the kernels. Rank 1 tells it which.
TEST_F(DeviceRunTest, AJobThatGoesOnFromMemoryComputesWithItsKernels) {
  const backend::PlanTarget target{.compute_capability = "9.0", .sm_count = 132};
  std::uint64_t seed = 0;
  const auto make_backends =
      [&](const control::Assignment& assignment,
          int threads) -> absl::StatusOr<std::unique_ptr<backend::BackendFactory>> {
    return std::make_unique<PlannedBackends>(target, seed + assignment.rank.value(),
                                             backend::CreateDiscreteBackends({.threads = threads}));
  };
  worker_checkpoint::CopyStore first, second, spare;
  const Outcome whole = Train(make_backends, {.steps = 4});
  Train(make_backends, {.steps = 3, .copies = {&first, &second}});
  EXPECT_FALSE(first.kernels("id").empty());
  EXPECT_EQ(first.kernels("id"), second.kernels("id"));
  seed = 7;
  const Outcome resumed = Train(
      make_backends,
      {.steps = 4, .generation = Generation(2), .copies = {&spare, &second}, .copied = StepId(2)});
  EXPECT_TRUE(resumed.resumed.from_memory);
  EXPECT_EQ(resumed.resumed.step, StepId(2));
  EXPECT_THAT(resumed.resumed.kernel_plan, EndsWith(" of the checkpoint"));
  EXPECT_THAT(resumed.resumed.notes, IsEmpty());
  EXPECT_EQ(spare.kernels("id"), second.kernels("id"));
  EXPECT_EQ(resumed.losses, std::vector<double>(whole.losses.begin() + 2, whole.losses.end()));
}

}  // namespace
}  // namespace takt::session
