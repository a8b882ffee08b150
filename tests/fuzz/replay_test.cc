// SPDX-License-Identifier: Apache-2.0
// What fuzzing starts from and what it once found, in every build.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gtest/gtest.h"
#include "tests/fuzz/targets.h"

namespace takt::fuzz {
namespace {

namespace fs = std::filesystem;

TEST(FuzzCorpus, EveryTargetSurvivesItsInputs) {
  for (const Target& target : Targets()) {
    int inputs = 0;
    const fs::path folder = fs::path(TAKT_SOURCE_DIR) / "tests/fuzz/corpus" / target.name;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      SCOPED_TRACE(entry.path().string());
      std::ifstream in(entry.path(), std::ios::binary);
      const std::string input{std::istreambuf_iterator<char>(in), {}};
      target.run(std::as_bytes(std::span(input)));
      ++inputs;
    }
    EXPECT_GE(inputs, 3) << target.name;
  }
}

}  // namespace
}  // namespace takt::fuzz
