// SPDX-License-Identifier: Apache-2.0
// What cannot be written to stdout is not passed over in silence.
#include "gmock/gmock.h"
#include "tests/integration/command.h"

namespace takt::integration {
namespace {

using testing::HasSubstr;

constexpr const char* kCommands[] = {"version", "--help", "-o json schedule list",
                                     "completion bash",
                                     "schedule show 1f1b --ranks 4 --microbatches 8 -f svg"};

class OutputTest : public testing::Test {
 protected:
  // Of `takt ARGUMENTS` with stdout as the shell's `redirection` says.
  int StatusOf(const std::string& arguments, const std::string& redirection) {
    const std::string command = absl::StrCat("cd ", directory_.Path("."), "; ", redirection, "; ",
                                             TAKT_BINARY_DIR, "/takt ", arguments, " 2>err");
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string Said() const { return ReadFile(directory_.Path("err")); }

  const TestDirectory directory_;
};

TEST_F(OutputTest, ADiskThatIsFullIsAnError) {
  for (const char* arguments : kCommands) {
    SCOPED_TRACE(arguments);
    EXPECT_EQ(StatusOf(arguments, "exec >/dev/full"), 1);
    EXPECT_THAT(Said(), HasSubstr("stdout did not take all of the output"));
  }
}

TEST_F(OutputTest, ClosedIsAnError) {
  EXPECT_EQ(StatusOf("version", "exec >&-"), 1);
  EXPECT_THAT(Said(), HasSubstr("stdout did not take all of the output"));
}

TEST_F(OutputTest, AReaderThatHasEnoughIsNone) {
  for (const char* arguments : kCommands) {
    SCOPED_TRACE(arguments);
    // A pipe that nobody reads any more.
    EXPECT_EQ(StatusOf(arguments, "mkfifo -m 600 pipe 2>err; exec 3<>pipe; exec >pipe 3>&-"), 0);
    EXPECT_EQ(Said(), "");
  }
}

TEST_F(OutputTest, WhatWasWrongWithTheCommandCountsFirst) {
  EXPECT_EQ(StatusOf("-o json schedule verify /nowhere.csv", "exec >/dev/full"), 2);
}

}  // namespace
}  // namespace takt::integration
