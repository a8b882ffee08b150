// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace takt::backend::cuda {
namespace {

using ::testing::HasSubstr;

TEST(Driver, OfTheSameMajorVersionServes) {
  EXPECT_TRUE(CheckDriver(13000, 13000).ok());
  EXPECT_TRUE(CheckDriver(13000, 13020).ok());
  EXPECT_TRUE(CheckDriver(14010, 13000).ok());
}

TEST(Driver, ThatIsNotThereIsSaidToBeMissing) {
  const absl::Status status = CheckDriver(0, 13000);
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("no NVIDIA driver"));
}

TEST(Driver, ThatIsTooOldIsNamedWithWhatIsNeeded) {
  const absl::Status status = CheckDriver(12090, 13000);
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("too old: it speaks CUDA 12.9, this worker needs 13.0"));
}

}  // namespace
}  // namespace takt::backend::cuda
