// SPDX-License-Identifier: Apache-2.0
#include "tests/documents/schedule_pages.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "gtest/gtest.h"

namespace takt::documents {
namespace {

TEST(SchedulePages, InTheRepositoryAreCurrent) {
  const auto pages = SchedulePages();
  ASSERT_TRUE(pages.ok()) << pages.status();
  const std::string directory = TAKT_SOURCE_DIR "/docs/schedules/";
  for (const auto& [name, expected] : *pages) {
    std::stringstream found;
    found << std::ifstream(directory + name).rdbuf();
    EXPECT_TRUE(found.str() == expected)
        << name << ": ninja schedule_documents, then: schedule_documents docs/schedules";
  }
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    EXPECT_TRUE(pages->contains(file.path().filename())) << file.path() << " is of no family";
  }
}

}  // namespace
}  // namespace takt::documents
