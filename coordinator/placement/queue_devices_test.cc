// SPDX-License-Identifier: Apache-2.0
// Tests which workers jobs on GPUs and jobs on cores get where only some workers have a GPU.
#include <string>
#include <vector>

#include "coordinator/placement/queue.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::placement {
namespace {

using config::DeviceKind;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Two of the four workers have a GPU, and one of these has NCCL.
std::vector<GangWorker> Mixed() {
  return {{.name = "gpu0", .has_gpu = true, .has_nccl = true, .gpu = "0"},
          {.name = "gpu1", .has_gpu = true, .gpu = "1"},
          {.name = "cpu0"},
          {.name = "cpu1"}};
}

WaitingJob OnCpus(const std::string& name, int workers) {
  return {.name = name, .need = {.workers = workers}};
}

WaitingJob OnGpus(const std::string& name, int workers, bool nccl = false) {
  WaitingJob job = OnCpus(name, workers);
  job.need.device = DeviceKind::kCuda;
  job.need.nccl = nccl;
  return job;
}

TEST(GrantGangs, AJobOnGpusGetsWorkersThatHaveOne) {
  WaitingJob job = OnGpus("a", 1);
  job.need.up_to_all = true;
  EXPECT_THAT(GrantGangs({job}, {.idle = Mixed()})[0].workers, ElementsAre("gpu0", "gpu1"));
}

TEST(GrantGangs, CpusAndGpusAreNotMixedAndTheReasonSaysWhatWouldTakeThem) {
  const auto grants =
      GrantGangs({OnGpus("a", 3), OnGpus("b", 2, /*nccl=*/true)}, {.idle = Mixed()});
  EXPECT_EQ(grants[0].reason,
            "needs 3 workers with a GPU, 2 idle: 2 idle without, which device: cpu would take");
  EXPECT_EQ(grants[1].reason,
            "needs 2 workers with a GPU of its own and NCCL, 1 idle: 3 idle without, which "
            "transport: auto (and device: cpu where they have no GPU) would take");
}

TEST(GrantGangs, AJobInFp8GetsGpusThatMultiplyItAndOtherJobsLeaveTheseToIt) {
  using model::Fp8Recipe;
  const Capacity capacity{
      .idle = {{.name = "h100", .has_gpu = true, .gpu = "0", .fp8 = Fp8Recipe::kBlock},
               {.name = "a100", .has_gpu = true, .gpu = "1"},
               {.name = "l40", .has_gpu = true, .gpu = "2", .fp8 = Fp8Recipe::kTensor},
               {.name = "cpu"}}};
  const auto grant = [&](int workers, Fp8Recipe fp8) {
    WaitingJob job = OnGpus("job", workers);
    job.need.fp8 = fp8;
    return GrantGangs({job}, capacity)[0];
  };
  EXPECT_THAT(grant(1, Fp8Recipe::kNone).workers, ElementsAre("a100"));
  EXPECT_THAT(grant(1, Fp8Recipe::kTensor).workers, ElementsAre("l40"));
  EXPECT_THAT(grant(2, Fp8Recipe::kTensor).workers, ElementsAre("h100", "l40"));
  EXPECT_THAT(grant(1, Fp8Recipe::kBlock).workers, ElementsAre("h100"));
  EXPECT_EQ(grant(3, Fp8Recipe::kTensor).reason,
            "needs 3 workers with a GPU (precision: fp8 needs compute capability 8.9 or newer), 2 "
            "idle: 2 idle without, which device: cpu (or precision: bf16 where they have a GPU) "
            "would take");
  EXPECT_EQ(grant(2, Fp8Recipe::kBlock).reason,
            "needs 2 workers with a GPU (precision: fp8 in blocks needs compute capability 9.0), 1 "
            "idle: 3 idle without, which device: cpu (or precision: bf16 where they have a GPU) "
            "would take");
}

TEST(GrantGangs, ForNcclOneWorkerOfAGpuIsTaken) {
  const Capacity capacity{.idle = {{.name = "a", .has_gpu = true, .has_nccl = true, .gpu = "0"},
                                   {.name = "b", .has_gpu = true, .has_nccl = true, .gpu = "0"},
                                   {.name = "c", .has_gpu = true, .has_nccl = true, .gpu = "1"}}};
  EXPECT_THAT(GrantGangs({OnGpus("job", 2, true)}, capacity)[0].workers, ElementsAre("a", "c"));
  EXPECT_EQ(GrantGangs({OnGpus("job", 3, true)}, capacity)[0].reason,
            "needs 3 workers with a GPU of its own and NCCL, 2 idle: 1 idle on a GPU that another "
            "one uses, too, which transport: auto would take");
  EXPECT_EQ(GrantGangs({OnGpus("job", 3)}, capacity)[0].workers.size(), 3u);
}

// As while workers are upgraded one by one.
TEST(GrantGangs, ForNcclOneWorkerOfAGpuIsTakenIfTheyAreOfSeveralKinds) {
  const Capacity capacity{
      .idle = {{.name = "a", .has_gpu = true, .has_nccl = true, .gpu = "0"},
               {.name = "b", .has_gpu = true, .has_nccl = true, .gpu = "0", .protocol = 3}}};
  EXPECT_THAT(GrantGangs({OnGpus("job", 1, true)}, capacity)[0].workers, ElementsAre("a"));
  const Grant two = GrantGangs({OnGpus("job", 2, true)}, capacity)[0];
  EXPECT_THAT(two.workers, IsEmpty());
  EXPECT_EQ(two.reason,
            "needs 2 workers with a GPU of its own and NCCL, 1 idle: 1 idle on a GPU that another "
            "one uses, too, which transport: auto would take");
  EXPECT_EQ(GrantGangs({OnGpus("job", 2)}, capacity)[0].workers.size(), 2u);
}

TEST(GrantGangs, AJobOnCpusLeavesTheGpusToOthersWhereItCan) {
  const auto grants = GrantGangs({OnCpus("a", 2)}, {.idle = Mixed()});
  EXPECT_THAT(grants[0].workers, ElementsAre("cpu0", "cpu1"));
  EXPECT_THAT(GrantGangs({OnCpus("a", 4)}, {.idle = Mixed()})[0].workers,
              ElementsAre("cpu0", "cpu1", "gpu0", "gpu1"));
}

TEST(GrantGangs, AJobOnCpusOvertakesAReservationOfGpus) {
  const Holder holder{
      .name = "x", .workers = {{.name = "gpu2", .has_gpu = true, .gpu = "2"}}, .ends_in = 100};
  const auto grants = GrantGangs({OnGpus("gpus", 3), OnCpus("a", 2), OnCpus("b", 1)},
                                 {.idle = Mixed(), .held = {holder}});
  EXPECT_EQ(grants[0].reserved_in, 100);
  EXPECT_THAT(grants[1].workers, ElementsAre("cpu0", "cpu1"));
  EXPECT_THAT(grants[2].workers, IsEmpty());
}

}  // namespace
}  // namespace takt::placement
