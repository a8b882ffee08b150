// SPDX-License-Identifier: Apache-2.0
// The jobs that `takt-bench plan-truth` measures. Their steps take 20 to 300 ms on a core.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"

namespace takt::bench {

enum class TruthGroup {
  kReal,            // models whose ranks have cores of their own
  kOversubscribed,  // models whose ranks have more threads than there are cores
  kEmulated,        // layers that only sleep
};

std::string_view Name(TruthGroup group);

// Every job of this file names its pipeline and the threads of a rank.
int RanksOf(const config::JobSpec& job);
int ThreadsOf(const config::JobSpec& job);

TruthGroup GroupOf(const config::JobSpec& job, int cores);

// Returns all jobs. A job's name says all that tells it from the others:
// "gpt2-6m-pp2-t1-f32-zb-v". Tokens are those of TruthTokens.
std::vector<config::JobSpec> TruthJobs();

// Returns eight of them, of different models, as they would be if their schedules were left open.
// They still name a pipeline of two ranks, which is the most that they may use. Each is named after
// its model.
std::vector<config::JobSpec> ChoiceJobs();

// Returns the job named `only`, or if that is empty the first `count`, or if that is 0 all.
// Errors: kInvalidArgument: no job has that name.
absl::StatusOr<std::vector<config::JobSpec>> Select(std::vector<config::JobSpec> jobs, int count,
                                                    const std::string& only);

// Returns where a job of that model finds its tokens, in the folder of a TruthTokens.
std::vector<config::Corpus> TrainingDataOf(const model::ModelConfig& model);

// A folder with random tokens for each vocabulary of some jobs. The destructor removes it.
class TruthTokens {
 public:
  explicit TruthTokens(const std::vector<config::JobSpec>& jobs);
  ~TruthTokens();
  TruthTokens(const TruthTokens&) = delete;
  TruthTokens& operator=(const TruthTokens&) = delete;

  const std::string& path() const { return path_; }  // the jobs' data root

 private:
  std::string path_;
};

}  // namespace takt::bench
