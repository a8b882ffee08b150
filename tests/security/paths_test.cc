// SPDX-License-Identifier: Apache-2.0
// Jobs whose paths try to leave the roots of a real worker, each in every way.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/job_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/cluster.h"

namespace takt::security {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::Cluster;
using ::testing::HasSubstr;

constexpr char kJob[] =
    "model: {family: gpt2, layers: 2, hidden: 16, heads: 2, context: 16, vocab: 256}\n"
    "data: {train: {path: data.txt, format: bytes}}\n"
    "batch: {global: 2, microbatch: 2}\n"
    "optimizer: {adamw: {learning_rate: 1.0e-3}}\n"
    "steps: 2\n"
    "parallelism: {threads: 1, pipeline: 1, schedule: 1f1b}\n";

v1::JobSpec JobNamed(const std::string& name) {
  const absl::StatusOr<v1::JobSpec> spec =
      config::ParseJobFile(absl::StrCat("name: ", name, "\n", kJob), {});
  TAKT_CHECK(spec.ok());
  return *spec;
}

class Paths : public ::testing::Test {
 protected:
  Paths() {
    fs::create_directories(root() / "folder");
    fs::create_directories(outside() / "folder");
    for (const fs::path& place : {root(), outside()})
      std::ofstream(place / "data.txt") << std::string(4096, 'a');
    fs::create_directory_symlink("../outside", root() / "link");
    fs::create_symlink("../outside/data.txt", root() / "data-link.txt");
    fs::create_directory_symlink("/proc/self/root", root() / "everything");
    cluster_.emplace(1, std::map<std::string, testing::WorkerPlace>{{"w0", {.root = root()}}});
  }
  ~Paths() override {
    cluster_.reset();
    fs::remove_all(base_);
  }

  fs::path root() const { return base_ / "root"; }
  fs::path outside() const { return base_ / "outside"; }
  // Of `name` in outside(), as seen from the root.
  std::vector<std::string> WaysTo(const std::string& name) const {
    const std::string there = outside() / name;
    return {"../outside/" + name, "folder/../../outside/" + name, there,
            "link/" + name,       "/proc/self/root" + there,      "/proc/self/cwd/" + name,
            "everything" + there, "link/../../outside/" + name};
  }
  std::set<std::string> Listing(const fs::path& directory) const {
    std::set<std::string> names;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory))
      names.insert(entry.path());
    return names;
  }
  v1::Job Run(const v1::JobSpec& spec) {
    cluster_->Submit(spec);
    return cluster_->AwaitEnd(spec.name());
  }
  // A job with `path` in the field ends and says why.
  void ExpectRefused(v1::JobSpec spec, const std::string& field, const std::string& root_name,
                     const std::string& path) {
    spec.set_name(absl::StrCat("job", ++num_jobs_));
    const v1::Job job = Run(spec);
    EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED) << field << ": " << path;
    EXPECT_THAT(job.reason(),
                AllOf(HasSubstr(field), HasSubstr("must lie under the worker's " + root_name)))
        << path;
  }

  const fs::path base_ = [] {
    std::string pattern = (fs::temp_directory_path() / "takt-paths-XXXXXX").string();
    TAKT_CHECK(mkdtemp(pattern.data()) != nullptr);
    return fs::canonical(pattern);
  }();
  std::optional<Cluster> cluster_;
  int num_jobs_ = 0;
};

TEST_F(Paths, OfWhatAJobReadsStayUnderTheDataRoot) {
  std::vector<std::string> ways = WaysTo("data.txt");
  ways.insert(ways.end(), {"data-link.txt", "li*k/data.txt", "../outside/*.txt"});
  for (const std::string& way : ways) {
    v1::JobSpec spec = JobNamed("data");
    spec.mutable_data()->mutable_train(0)->set_path(way);
    ExpectRefused(spec, "data.train.path", "data root", way);
  }
  for (const std::string& way : WaysTo("folder")) {
    v1::JobSpec spec = JobNamed("init-from");
    spec.mutable_model()->set_init_from(way);
    ExpectRefused(spec, "model.init_from", "data root", way);
  }
}

TEST_F(Paths, OfWhatAJobWritesStayUnderTheCheckpointRoot) {
  const std::set<std::string> before = Listing(outside());
  for (const std::string name : {"folder", "new"}) {
    for (const std::string& way : WaysTo(name)) {
      v1::JobSpec saved = JobNamed("checkpoint");
      saved.mutable_checkpoint()->set_directory(way);
      ExpectRefused(saved, "checkpoint.directory", "checkpoint root", way);
      v1::JobSpec logged = JobNamed("tensorboard");
      logged.mutable_logging()->set_tensorboard(way);
      ExpectRefused(logged, "logging.tensorboard", "checkpoint root", way);
    }
  }
  EXPECT_EQ(Listing(outside()), before);
}

TEST_F(Paths, UnderTheRootsAreUsed) {
  fs::create_directory_symlink("folder", root() / "inner");
  v1::JobSpec spec = JobNamed("inside");
  spec.mutable_data()->mutable_train(0)->set_path("inner/../data.txt");
  spec.mutable_checkpoint()->set_directory("inner/checkpoints");
  spec.mutable_logging()->set_tensorboard((root() / "inner/runs").string());
  EXPECT_EQ(Run(spec).state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_TRUE(fs::exists(root() / "folder/checkpoints/latest"));
  EXPECT_FALSE(fs::is_empty(root() / "folder/runs"));
}

}  // namespace
}  // namespace takt::security
