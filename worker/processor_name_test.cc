// SPDX-License-Identifier: Apache-2.0
#include "worker/processor_name.h"

#include <sys/utsname.h>

#include <sstream>

#include "gtest/gtest.h"

namespace takt::worker {
namespace {

std::string NameIn(const std::string& text) {
  std::istringstream cpuinfo(text);
  return ProcessorName(cpuinfo);
}

TEST(ProcessorName, IsTheModelNameOfTheFirstCore) {
  EXPECT_EQ(NameIn("processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9B14 : 96 \n"
                   "model name\t: another\n"),
            "AMD EPYC 9B14 : 96");
}

TEST(ProcessorName, IsTheArchitectureWhereThereIsNoModelName) {
  utsname system{};
  ASSERT_EQ(uname(&system), 0);
  EXPECT_EQ(NameIn("processor\t: 0\nCPU part\t: 0xd40\n"), system.machine);
  EXPECT_EQ(NameIn("model name\t: \n"), system.machine);
  EXPECT_EQ(NameIn(""), system.machine);
}

TEST(ProcessorName, IsCutBetweenCharacters) {
  EXPECT_EQ(NameIn("model name: " + std::string(200, 'x')), std::string(100, 'x'));
  EXPECT_EQ(NameIn("model name: " + std::string(99, 'x') + "\xc3\xa9"), std::string(99, 'x'));
}

}  // namespace
}  // namespace takt::worker
