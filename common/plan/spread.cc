// SPDX-License-Identifier: Apache-2.0
#include "common/plan/spread.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/vocabulary.h"
#include "common/plan/copies.h"
#include "common/plan/stage_costs.h"
#include "common/schedule/spread_vocabulary.h"

namespace takt::plan {
namespace {

using config::Vocabulary;

// Both meetings of a microbatch are hidden where its T comes two forwards later. One more covers
// slow links.
constexpr int kDeepest = 3;

// Steps that differ by a smaller share differ by rounding.
constexpr double kRounding = 1e-9;

constexpr char kTooOld[] = "a worker's program is too old to spread the vocabulary";

// Returns whether the job leaves the choice, and there is something to choose.
bool IsOpen(const CandidateInputs& inputs, int pp_size) {
  return pp_size > 1 && inputs.job.parallelism.vocabulary == Vocabulary::kAuto &&
         inputs.job.model.family != model::Family::kEmulated &&
         inputs.job.residual == model::Precision::kF32 &&
         !inputs.model.tensor.splits() &&  // then those ranks share the words
         !inputs.model.experts.shares() && inputs.model.context_ranks == 1 &&
         inputs.job.parallelism.data_leaves == 0 &&
         model::NumVocabularyBlocks(inputs.model.config.vocab) > 1;
}

// Returns the version of workers that spread the vocabulary of the job.
int SpreadProtocol(const config::JobSpec& job) {
  return job.barrier == config::Barrier::kNever ? kForeseenRowsProtocolVersion
                                                : kSpreadProtocolVersion;
}

bool OnGpus(const CandidateInputs& inputs) {
  return inputs.options.device == config::DeviceKind::kCuda;
}

absl::Status CannotSpread(std::string rule, std::string fix) {
  return InvalidField({.field = "parallelism.vocabulary",
                       .value = "spread",
                       .rule = std::move(rule),
                       .fix = std::move(fix)});
}

}  // namespace

VocabularyModes ModesOf(const CandidateInputs& inputs, int pp_size) {
  const Vocabulary asked = inputs.job.parallelism.vocabulary;
  if (pp_size == 1 || inputs.job.model.family == model::Family::kEmulated) return {};
  if (asked != Vocabulary::kAuto)
    return {.last = asked == Vocabulary::kLast, .spread = asked == Vocabulary::kSpread};
  const bool can = inputs.options.oldest_protocol >= SpreadProtocol(inputs.job) &&
                   !OnGpus(inputs) && !AsksForCopies(inputs.job);
  return {.last = true, .spread = can && IsOpen(inputs, pp_size)};
}

std::string_view WhyAutoKeepsLast(const CandidateInputs& inputs, int pp_size) {
  if (!IsOpen(inputs, pp_size)) return "";
  if (inputs.options.oldest_protocol < SpreadProtocol(inputs.job)) return kTooOld;
  if (OnGpus(inputs)) return "spreading the vocabulary has not been tested on GPUs yet";
  if (!AsksForCopies(inputs.job)) return "";
  return "checkpoint.in_memory asks for copies, which have no rows of a spread vocabulary yet";
}

absl::Status CheckSpread(const CandidateInputs& inputs, const schedule::Schedule& schedule) {
  if (inputs.options.oldest_protocol < kSpreadProtocolVersion) {
    return CannotSpread(absl::StrCat("must be last, as ", kTooOld),
                        "use auto or last, or upgrade takt-worker");
  }
  if (OnGpus(inputs)) {
    return CannotSpread("must be last on GPUs, on which spread has not been tested yet",
                        "use auto or last, or device: cpu");
  }
  if (schedule.placement == schedule::Placement::kBidirectional) {
    return CannotSpread(
        absl::StrCat("must be last under ", schedule.name,
                     ": with two copies of the stages, two ranks have the last one"),
        "use auto or last, or a schedule with one copy of the weights");
  }
  if (schedule.updates != schedule::Updates::kFlush) {
    return CannotSpread(absl::StrCat("must be last under ", schedule.name,
                                     ": microbatches of one step meet different weights"),
                        "use auto or last, or a schedule that flushes every step");
  }
  return absl::OkStatus();
}

mesh::VocabularyEnds DealBlocks(const CandidateInputs& inputs, const mesh::Partition& partition) {
  int pp_size = 1;
  for (const mesh::Stage& stage : partition) pp_size = std::max(pp_size, stage.pp_rank.value() + 1);
  const std::int64_t vocab = inputs.model.config.vocab;
  const int num_blocks = model::NumVocabularyBlocks(vocab);
  // The costs of a split that gives all blocks to the first rank say what each block takes.
  const cost::Costs costs = CostsOf(inputs, partition, mesh::VocabularyEnds(pp_size, num_blocks));
  const double seconds_of_block = (costs.S(PpRank(0)) + costs.T(PpRank(0))) *
                                  static_cast<double>(std::min(model::kVocabularyBlock, vocab)) /
                                  static_cast<double>(vocab);
  std::vector<double> busy(pp_size, 0);
  for (const mesh::Stage& stage : partition) {
    busy[stage.pp_rank.value()] +=
        costs.F(stage.id) + std::min(costs.B(stage.id), costs.I(stage.id) + costs.W(stage.id));
  }
  mesh::VocabularyEnds ends(pp_size, 0);  // first the blocks of each rank
  for (int block = 0; block < num_blocks; ++block) {
    const auto least = std::ranges::min_element(busy);
    *least += seconds_of_block;
    ++ends[least - busy.begin()];
  }
  for (int rank = 1; rank < pp_size; ++rank) ends[rank] += ends[rank - 1];
  return ends;
}

absl::StatusOr<schedule::Schedule> WithVocabulary(const CandidateInputs& inputs,
                                                  const schedule::Schedule& schedule,
                                                  const mesh::Partition& partition,
                                                  const mesh::VocabularyEnds& vocabulary_ends) {
  if (schedule.spreads_vocabulary) return schedule;
  const cost::Costs costs = CostsOf(inputs, partition, vocabulary_ends);
  std::optional<schedule::Schedule> best;
  double least = 0;
  for (int depth = 0; depth <= kDeepest; ++depth) {
    absl::StatusOr<schedule::Schedule> deep = schedule::SpreadVocabulary(schedule, costs, depth);
    if (depth > 0 && !deep.ok()) continue;  // it does not fit the schedule
    ASSIGN_OR_RETURN(schedule::Schedule placed, std::move(deep));
    ASSIGN_OR_RETURN(const sim::Report report,
                     SimulateOver(inputs, placed, partition, vocabulary_ends));
    if (best && report.makespan >= least * (1 - kRounding)) continue;
    least = report.makespan;
    best = std::move(placed);
  }
  return *std::move(best);
}

schedule::Schedule WithoutVocabulary(schedule::Schedule schedule) {
  for (schedule::Row& row : schedule.ranks) {
    std::erase_if(row, [](const schedule::Action& action) {
      return action.kind == schedule::ActionKind::kVocabularyForward ||
             action.kind == schedule::ActionKind::kVocabularyBackward;
    });
  }
  schedule.spreads_vocabulary = false;
  return schedule;
}

}  // namespace takt::plan
