// SPDX-License-Identifier: Apache-2.0
#include "common/profile/probe.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::profile {
namespace {

// The weights of one block alone might stay in a cache, those of a job's stage do not.
constexpr int kBlocks = 2;
// Microbatches of a step, and how many of them are between F and W at once.
constexpr int kMicrobatches = 4, kInFlight = 2;
// The first steps touch memory for the first time.
constexpr std::int64_t kFewestSteps = 6, kMostSteps = 200;

constexpr int kStages = 3;  // embedding, blocks, head

// Appends the passes of one microbatch through all stages.
void Append(std::string& csv, int microbatch, bool forward) {
  for (int i = 0; i < kStages; ++i) {
    const int stage = forward ? i : kStages - 1 - i;
    for (const char kind : forward ? std::string("F") : std::string("IW"))
      absl::StrAppend(&csv, csv.empty() ? "" : ",", stage, std::string(1, kind), microbatch);
  }
}

// One rank that does the forwards of some microbatches ahead of their backwards.
std::string ScheduleCsv() {
  std::string csv;
  for (int i = 0; i < kMicrobatches + kInFlight; ++i) {
    if (i < kMicrobatches) Append(csv, i, /*forward=*/true);
    if (i >= kInFlight) Append(csv, i - kInFlight, /*forward=*/false);
  }
  return csv + "\n";
}

// Returns about the FLOPs of a step of one rank, by 6 FLOPs for each parameter and token.
double FlopsOfStep(const config::JobSpec& probe) {
  const model::ModelConfig& m = probe.model;
  const double inner = m.mixture.has_value() ? 1.0 * m.mixture->chosen * m.mixture->inner : m.inner;
  const double block = 4.0 * m.hidden * m.hidden + 2.0 * m.hidden * inner;
  const double parameters = m.layers * block + static_cast<double>(m.vocab) * m.hidden;
  return 6 * parameters * kMicrobatches * probe.microbatch * m.context;
}

}  // namespace

config::JobSpec ProbeJob(const config::JobSpec& job, const ProbeOptions& options) {
  TAKT_CHECK(job.model.family != model::Family::kEmulated && options.num_ranks >= 1);
  config::JobSpec probe = job;
  probe.model.layers = std::min(job.model.layers, kBlocks);
  if (std::optional<model::Mixture>& mixture = probe.model.mixture; mixture.has_value()) {
    std::erase_if(mixture->dense_blocks, [&](int block) { return block >= probe.model.layers; });
  }
  probe.global_batch = kMicrobatches * job.microbatch * options.num_ranks;
  config::Parallelism& p = probe.parallelism;
  p.pipeline = 1;
  p.data = options.num_ranks;
  p.data_auto = p.tensor_auto = probe.microbatch_auto = false;
  // What a rank takes for its share of a layer, or of a sequence, follows from the whole.
  p.tensor = 1;
  p.tensor_leaves = p.data_leaves = 0;
  p.expert = 1;
  p.context = 1;
  p.chunks = kStages;
  p.group.reset();
  p.schedule = "file:probe.csv";
  p.schedule_csv = ScheduleCsv();
  p.stage_layers = {0, probe.model.layers, 0};
  p.recompute = {job.parallelism.recompute.empty() ? model::Recompute::kNone
                                                   : job.parallelism.recompute.front()};
  const double seconds = FlopsOfStep(probe) / options.flops_per_second;
  probe.steps = static_cast<std::int64_t>(std::clamp(options.target_seconds / seconds,
                                                     static_cast<double>(kFewestSteps),
                                                     static_cast<double>(kMostSteps)));
  probe.error_feedback = 0;  // the probe's gradients are not late
  probe.groups.clear();      // they may name parameters of blocks that the probe does not have
  probe.init_from.clear();
  probe.validation.reset();
  probe.checkpoint.reset();
  probe.copy_every_steps = 0;
  probe.elastic = {};
  probe.replan = config::Replan::kNever;
  probe.tensorboard.clear();
  probe.mlflow.clear();
  probe.warnings.clear();
  return probe;
}

}  // namespace takt::profile
