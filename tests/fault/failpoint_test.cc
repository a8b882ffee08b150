// SPDX-License-Identifier: Apache-2.0
// Ends the coordinator or the workers at every failpoint of the sources (common/base/failpoint.h),
// and starts them again. Nothing that was acknowledged is lost, and the job has the losses of one
// that nobody disturbed. Builds with NDEBUG have no failpoints, so there it is skipped.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "gtest/gtest.h"
#include "tests/fault/small_job.h"
#include "tests/testing/cluster.h"

namespace takt {
namespace {

using testing::Cluster;
using testing::SmallJob;

constexpr std::string_view kMark = "TAKT_FAILPOINT(\"";

// Runs the program with a failpoint armed, notes its exit status, and then becomes the program
// without one.
constexpr char kArmedOnce[] =
    R"(armed=$1 ended=$2; shift 2; TAKT_FAILPOINT=$armed "$@"; echo $? >"$ended"; exec "$@")";

// A fresh directory that goes with the object.
class NoteDirectory final {
 public:
  NoteDirectory() { TAKT_CHECK(mkdtemp(path_.data()) != nullptr); }
  ~NoteDirectory() { std::filesystem::remove_all(path_); }
  NoteDirectory(const NoteDirectory&) = delete;

  std::string PathOf(const std::string& process) const { return path_ + "/" + process; }
  // Returns how many processes ended at their failpoint.
  int CountEnded() const {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      std::ifstream note(entry.path());
      int status = 0;
      if (note >> status && status == kFailpointExit) ++count;
    }
    return count;
  }

 private:
  std::string path_ = ::testing::TempDir() + "takt-failpoint-XXXXXX";
};

std::set<std::string> NamesIn(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(entry.path());
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    for (std::size_t at = text.find(kMark); at != std::string::npos; at = text.find(kMark, at)) {
      at += kMark.size();
      names.insert(text.substr(at, text.find('"', at) - at));
    }
  }
  return names;
}

SmallJob JobNamed(const std::string& name) {
  return {.name = name,
          .steps = 1000,
          .save_every = 10,
          .checkpoints = name,
          .more = ", keep: 2, in_memory: off"};
}

class Failpoint : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef NDEBUG
    GTEST_SKIP() << "this build has no failpoints";
#endif
  }

  static bool IsPaused(const v1::Job& job) {
    return job.state() == v1::JOB_STATE_PAUSED || testing::HasEnded(job);
  }

  // Trains a job and gives commands. Each of the processes passes the failpoint so many times.
  // Returns how many of them ended there.
  static int RunThrough(const std::vector<std::string>& processes, const std::string& name,
                        int passing) {
    const std::vector<double>& undisturbed = Undisturbed();
    const NoteDirectory notes;
    std::map<std::string, testing::WorkerPlace> places;
    for (const std::string& process : processes) {
      places[process].wrapper = {"/bin/sh",
                                 "-c",
                                 kArmedOnce,
                                 "sh",
                                 absl::StrCat(name, ":", passing),
                                 notes.PathOf(process)};
    }
    Cluster cluster(2, places);
    cluster.Submit(JobNamed("j").Yaml());
    cluster.AwaitStep("j", 20);
    cluster.Pause("j");
    // It keeps training while the coordinator is away, and may come to its end before it is paused.
    if (cluster.AwaitJob("j", IsPaused).state() == v1::JOB_STATE_PAUSED) cluster.Resume("j");
    cluster.Submit(JobNamed("k").Yaml());
    cluster.Cancel("k");
    const v1::Job job = cluster.AwaitEnd("j");
    EXPECT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.reason();
    EXPECT_EQ(testing::LossesOf(cluster, "j"), undisturbed);
    EXPECT_EQ(cluster.AwaitEnd("k").state(), v1::JOB_STATE_CANCELLED);
    cluster.Drain("w1");
    cluster.ExpectNothingLost();
    return notes.CountEnded();
  }

  // `processes` pass all failpoints of a folder.
  static void RunThroughAll(const std::string& folder, const std::vector<std::string>& processes,
                            const std::vector<int>& later_passings) {
    const std::set<std::string> names = NamesIn(absl::StrCat(TAKT_SOURCE_DIR, "/", folder));
    EXPECT_FALSE(names.empty()) << folder;
    for (const std::string& name : names) {
      SCOPED_TRACE(name);
      EXPECT_GT(RunThrough(processes, name, 1), 0) << "it is never passed";
      // Not every failpoint is passed so often.
      for (const int passing : later_passings) RunThrough(processes, name, passing);
      if (HasFailure()) return;
    }
  }

 private:
  static const std::vector<double>& Undisturbed() {
    static const std::vector<double> losses = testing::UndisturbedLosses(JobNamed("j"));
    return losses;
  }
};

TEST_F(Failpoint, OfTheStoreLosesNothing) {
  RunThroughAll("coordinator/store", {"coordinator"}, {4, 12});
}

TEST_F(Failpoint, BetweenCommitAndEffectLosesNothing) {
  RunThroughAll("coordinator/job", {"coordinator"}, {4, 12});
}

TEST_F(Failpoint, OfACheckpointLosesNothing) {
  RunThroughAll("worker/checkpoint", {"w0", "w1"}, {3});
}

}  // namespace
}  // namespace takt
