// SPDX-License-Identifier: Apache-2.0
// `takt eval JOB.yaml`: the model runs as a job of the cluster.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "cli/base/context.h"
#include "cli/model/score.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::cli {

struct ClusterEvaluation {
  std::string job;        // the file
  std::int64_t step = 0;  // of the job's checkpoints; 0: the newest
  std::string data;       // in place of data.validation.path; empty: that
  std::string format;     // with `data`
  int batches = 0;        // in place of data.validation.batches; 0: those
};

// Submits a job that scores the validation set with the weights of a checkpoint of the job, waits
// for its end, and deletes it. If it fails, it stays, so that its logs can be read.
// Errors: kInvalidArgument (FieldErrors), those of the client and of the job; kCancelled (Ctrl-C,
// which cancels the job).
absl::StatusOr<Score> EvaluateOnCluster(const Context& context, const ClusterEvaluation& options);

// Returns the job that evaluates `job`. weights: as EvaluateSpec::weights. suffix: makes its name.
v1::JobSpec EvaluationOf(const v1::JobSpec& job, const std::string& weights,
                         std::string_view suffix);

}  // namespace takt::cli
