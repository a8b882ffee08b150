// SPDX-License-Identifier: Apache-2.0
#include "worker/plugin/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "common/base/version.h"

namespace takt::plugin {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// The fake modules, each in a folder of its own under the name of a real module.
std::string Folder(const std::string& fake) { return TAKT_FAKE_MODULES "/" + fake; }

TEST(Loader, OpensAModuleOfItsVersion) {
  const auto entry = LoadCuda(Folder("fine"));
  ASSERT_TRUE(entry.ok()) << entry.status();
  const auto devices = (*entry)->list_devices();
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_THAT(*devices, SizeIs(1));
  EXPECT_EQ(devices->front().uuid, "GPU-fake");
}

TEST(Loader, SaysThatAModuleIsNotThere) {
  const absl::Status cuda = LoadCuda(Folder("none")).status();
  EXPECT_TRUE(absl::IsNotFound(cuda)) << cuda;
  EXPECT_THAT(std::string(cuda.message()),
              AllOf(HasSubstr("none/takt_cuda.so is not there"), HasSubstr("takt-worker-cuda"),
                    HasSubstr("TAKT_CUDA=ON")));
  const absl::Status nccl = LoadNccl(Folder("none")).status();
  EXPECT_TRUE(absl::IsNotFound(nccl)) << nccl;
  EXPECT_THAT(std::string(nccl.message()), HasSubstr("none/takt_nccl.so is not there"));
}

TEST(Loader, RefusesAnotherVersionAndNamesBoth) {
  const absl::Status status = LoadCuda(Folder("older")).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(std::string("is of version 0.0.1, this worker of ") + kTaktVersion));
}

TEST(Loader, NamesTheLibraryThatAModuleLacks) {
  const absl::Status status = LoadCuda(Folder("lacking")).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("cannot be opened: libtakt_fake.so: cannot open shared object file"));
}

TEST(Loader, RefusesWhatIsNoModule) {
  const absl::Status status = LoadNccl(Folder("stranger")).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("has no TaktNcclPlugin"));
}

// This holds with a driver and without one.
TEST(Loader, SaysThatADriverIsNotThere) {
  const absl::Status status = FindDriver();
  if (status.ok()) return;
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("no NVIDIA driver: libcuda.so.1: "));
}

TEST(Loader, LooksBesideTheProgram) {
  const std::filesystem::path tests = std::filesystem::canonical("/proc/self/exe").parent_path();
  EXPECT_EQ(ModuleDirectory(), tests.parent_path() / "lib" / "takt");
}

}  // namespace
}  // namespace takt::plugin
