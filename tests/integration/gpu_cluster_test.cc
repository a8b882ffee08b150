// SPDX-License-Identifier: Apache-2.0
// Workers that find a GPU in their module (fake_gpu.cc): kernel plans and faults between processes.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/cluster.h"

namespace takt {
namespace {

using ::testing::AllOf;
using testing::Cluster;
using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class GpuClusterTest : public ::testing::Test {
 protected:
  GpuClusterTest() {
    // A worker looks for modules beside itself: it is run from a folder that has the fake ones.
    std::filesystem::create_directories(root_ + "/bin");
    std::filesystem::create_directories(root_ + "/lib/takt");
    std::filesystem::create_directories(root_ + "/driver");
    std::filesystem::copy(TAKT_WORKER, root_ + "/bin/takt-worker");
    std::filesystem::create_symlink(TAKT_FAKE_GPU, root_ + "/lib/takt/takt_cuda.so");
    std::filesystem::create_symlink(TAKT_FAKE_DRIVER, root_ + "/driver/libcuda.so.1");
  }
  ~GpuClusterTest() override { std::filesystem::remove_all(root_); }

  // A worker with a GPU of its own.
  testing::WorkerPlace WithGpu(const std::string& name,
                               std::int64_t bytes = std::int64_t{1} << 33) {
    return {.wrapper = {"/usr/bin/env", absl::StrCat("LD_LIBRARY_PATH=", root_, "/driver"),
                        absl::StrCat("TAKT_FAKE_GPU_UUID=GPU-", name),
                        absl::StrCat("TAKT_FAKE_GPU_BYTES=", bytes),
                        absl::StrCat("TAKT_FAKE_GPU_LOST=", LostFile(name)), "/bin/sh", "-c",
                        "shift; exec \"$0\" \"$@\"", root_ + "/bin/takt-worker"},
            .arguments = {"--kernel-plans", root_ + "/kernel-plans"},
            .device = "auto"};
  }
  std::map<std::string, testing::WorkerPlace> Gpus(int number) {
    std::map<std::string, testing::WorkerPlace> places;
    for (int i = 0; i < number; ++i) places[absl::StrCat("w", i)] = WithGpu(absl::StrCat("w", i));
    return places;
  }
  std::string LostFile(const std::string& name) const {
    return absl::StrCat(root_, "/lost-", name);
  }

  static std::string Yaml(const std::string& name, int steps, const std::string& checkpoints) {
    return absl::StrCat(
        "name: ", name,
        "\nmodel: {family: gpt2, layers: 2, hidden: 16, heads: 2, context: 16, vocab: 256}"
        "\ndata: {train: {path: data.txt, format: bytes}}\nbatch: {global: 4, microbatch: 2}"
        "\noptimizer: {adamw: {learning_rate: 3.0e-3}}\nsteps: ",
        steps,
        "\nparallelism: {pipeline: 2, schedule: 1f1b, device: cuda}\ncheckpoint: {directory: ",
        checkpoints, ", every_steps: 20}\n");
  }

  const std::string root_ =
      std::filesystem::path(::testing::TempDir()) / absl::StrCat("gpu-cluster-", ::getpid());
};

TEST_F(GpuClusterTest, OneRankChoosesKernelsForAllAndForLaterJobs) {
  Cluster cluster(2, Gpus(2));
  cluster.Submit(Yaml("first", 3, "a"));
  const v1::Job first = cluster.AwaitEnd("first");
  EXPECT_EQ(first.state(), v1::JOB_STATE_SUCCEEDED) << first.reason();
  EXPECT_THAT(first.kernel_plan(), AllOf(HasSubstr("shapes for sm 9.0 x 132, cublasLt 13.0.2: "),
                                         EndsWith("chosen now")));
  EXPECT_THAT(Contents(cluster.directory() + "/a/latest/kernel_plan.json"),
              HasSubstr("takt-kernel-plan 1"));
  EXPECT_THAT(Contents(cluster.directory() + "/a/latest/manifest.json"),
              HasSubstr("kernel_plan.json"));
  cluster.Submit(Yaml("second", 3, "b"));
  EXPECT_THAT(cluster.AwaitEnd("second").kernel_plan(), EndsWith(" of earlier jobs"));
  cluster.Submit(Yaml("third", 5, "a"));
  EXPECT_THAT(cluster.AwaitEnd("third").kernel_plan(), EndsWith(" of the checkpoint"));
}

// The job continues on another worker with the kernels that it had. The worker that starts again
// has no GPU and says why.
TEST_F(GpuClusterTest, AJobOutlivesAGpuThatFallsOffTheBus) {
  Cluster cluster(3, Gpus(3));
  cluster.Submit(Yaml("j", 400, "c"));
  const v1::Job before = cluster.AwaitStep("j", 50);
  ASSERT_EQ(before.ranks_size(), 2) << before.reason();
  const std::string unlucky = before.ranks(1).worker();
  const std::string incarnation = cluster.Workers()[unlucky].incarnation();
  std::ofstream(LostFile(unlucky)) << "1";
  const v1::Job job = cluster.AwaitEnd("j");
  EXPECT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.reason();
  // Its worker may leave while the next generation is planned, which makes another.
  EXPECT_GE(job.generation(), 2);
  EXPECT_GE(job.resumed_step(), 20);
  EXPECT_THAT(job.kernel_plan(), EndsWith(" of the checkpoint"));

  cluster.AwaitIdle({"w0", "w1", "w2"});
  const v1::Worker again = cluster.Workers()[unlucky];
  EXPECT_NE(again.incarnation(), incarnation);
  EXPECT_FALSE(again.has_device());
  EXPECT_FALSE(cluster.worker(unlucky).WaitUntil(absl::Now()));  // the same process
  EXPECT_THAT(Contents(cluster.directory() + "/" + unlucky + ".log"),
              AllOf(HasSubstr("begins anew"), HasSubstr("the GPU is lost"),
                    HasSubstr("computes on its cores alone"),
                    HasSubstr("no CUDA-capable device is detected")));
}

TEST_F(GpuClusterTest, OutOfMemorySaysWhatWasAskedAndPredictedAndTheWorkerStays) {
  std::map<std::string, testing::WorkerPlace> places = Gpus(2);
  places["w1"] = WithGpu("w1", /*bytes=*/1 << 10);  // another process has the rest
  Cluster cluster(2, std::move(places));
  const std::string incarnation = cluster.Workers()["w1"].incarnation();
  cluster.Submit(Yaml("j", 3, "c"));
  const v1::Job job = cluster.AwaitEnd("j");
  EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
  std::vector<std::string> reasons;
  for (const v1::JobTransition& transition : job.transitions())
    reasons.push_back(transition.reason());
  EXPECT_THAT(reasons,
              Contains(AllOf(HasSubstr("worker w1 (rank 1)"),
                             HasSubstr("the plan's memory does not fit the device: it predicts"),
                             HasSubstr("1024 B are free"))));
  cluster.AwaitIdle({"w0", "w1"});
  EXPECT_EQ(cluster.Workers()["w1"].incarnation(), incarnation);
}

}  // namespace
}  // namespace takt
