// SPDX-License-Identifier: Apache-2.0
#include "common/config/fp8_devices.h"

#include "gtest/gtest.h"

namespace takt::config {
namespace {

using model::Fp8Recipe;

Device With(const std::string& capability) {
  Device device;
  device.compute_capability = capability;
  return device;
}

TEST(Fp8Devices, MostIsTheLastRecipeThatIsNotRefused) {
  EXPECT_EQ(MostFp8On(With("8.0")), Fp8Recipe::kNone);
  EXPECT_EQ(MostFp8On(With("8.9")), Fp8Recipe::kTensor);
  EXPECT_EQ(MostFp8On(With("9.0")), Fp8Recipe::kBlock);
  EXPECT_EQ(MostFp8On(With("10.0")), Fp8Recipe::kTensor);
  for (const char* const capability : {"8.0", "8.9", "9.0", "10.0", "12.1"}) {
    for (const auto recipe : {Fp8Recipe::kNone, Fp8Recipe::kTensor, Fp8Recipe::kBlock})
      EXPECT_EQ(CheckFp8On(recipe, With(capability)).ok(), recipe <= MostFp8On(With(capability)))
          << capability;
  }
}

TEST(Fp8Devices, AnUnknownCapabilityIsTriedAndRefusedByTheWorker) {
  EXPECT_EQ(MostFp8On(With("")), Fp8Recipe::kBlock);
  EXPECT_FALSE(CheckFp8On(Fp8Recipe::kTensor, With("")).ok());
}

}  // namespace
}  // namespace takt::config
