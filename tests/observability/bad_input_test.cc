// SPDX-License-Identifier: Apache-2.0
// `takt trace` and `takt explain` asked for what there is not, of real daemons.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/integration/command.h"
#include "tests/testing/cluster.h"

namespace takt::observability {
namespace {

using integration::Command;
using integration::ReadFile;
using integration::TestDirectory;
using testing::Cluster;
using testing::EmulatedJob;
using ::testing::HasSubstr;

class BadInput : public ::testing::Test {
 protected:
  // Runs takt and holds how it ends.
  void Expect(std::vector<std::string> arguments, const std::string& end, const std::string& text) {
    arguments.insert(arguments.begin(),
                     {"--coordinator", "unix:" + cluster_.directory() + "/socket"});
    Command command("takt", arguments);
    EXPECT_EQ(command.Wait(), "exit status " + end) << command.err();
    EXPECT_THAT(command.err(), HasSubstr(text));
    EXPECT_EQ(command.out(), "");
  }
  std::string File() const { return directory_.Path("timeline.html"); }

  Cluster cluster_{2};
  const TestDirectory directory_;
};

TEST_F(BadInput, JobsAndStepsThatAreNotThere) {
  cluster_.Submit(EmulatedJob{.name = "waits", .pipeline = 4}.Yaml());
  Expect({"trace", "waits", File()}, "1", "no step of it has run yet");
  Expect({"explain", "waits"}, "1", "no step of it has run yet");
  Expect({"trace", "nobody", File()}, "4", "nobody");
  Expect({"explain", "nobody"}, "4", "nobody");
  cluster_.Cancel("waits");

  cluster_.Submit(EmulatedJob{.name = "ran", .pipeline = 2, .milliseconds = 4}.Yaml());
  ASSERT_EQ(cluster_.AwaitEnd("ran").state(), v1::JOB_STATE_SUCCEEDED);
  Expect({"trace", "ran", File(), "--steps", "500..600"}, "4", "are not kept: the last that is: ");
  Expect({"explain", "ran", "--step", "500"}, "4",
         "step 500 of job ran is not kept: the last that is: ");
  Expect({"trace", "ran", File(), "--steps", "6..5"}, "2", "--steps");
  EXPECT_FALSE(std::filesystem::exists(File()));
}

TEST_F(BadInput, FilesThatMayNotBeWritten) {
  cluster_.Submit(EmulatedJob{.name = "ran", .pipeline = 2, .milliseconds = 4}.Yaml());
  ASSERT_EQ(cluster_.AwaitEnd("ran").state(), v1::JOB_STATE_SUCCEEDED);
  directory_.Write("timeline.html", "precious");
  Expect({"trace", "ran", File()}, "2", "nothing is overwritten");
  EXPECT_EQ(ReadFile(File()), "precious");
  Expect({"trace", "ran", directory_.Path("none/timeline.html")}, "2", "its directory");
  Expect({"trace", "ran", "/proc/timeline.html"}, "1", "cannot write /proc/timeline.html");
}

}  // namespace
}  // namespace takt::observability
