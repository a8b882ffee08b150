// SPDX-License-Identifier: Apache-2.0
#include "common/program/lowering.h"

#include <iterator>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/program/meeting_points.h"
#include "common/program/merge_weight_grads.h"
#include "common/program/part_lists.h"
#include "common/program/rank_lowering.h"
#include "common/program/receive_points.h"
#include "common/program/slot_table.h"
#include "common/program/unrolled_schedule.h"
#include "common/schedule/graph.h"
#include "common/schedule/validator.h"

namespace takt::program {
namespace {

absl::Status CheckStages(const schedule::Schedule& schedule,
                         const std::vector<StageShape>& stages) {
  if (static_cast<int>(stages.size()) != schedule.num_stages) {
    return InvalidField({.field = "stages",
                         .value = absl::StrCat(stages.size()),
                         .rule = absl::StrCat("one shape for each of the ", schedule.num_stages,
                                              " stages of the schedule"),
                         .fix = "partition the model into as many stages"});
  }
  LayerId next = stages[0].first_layer;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    if (stages[s].first_layer != next || stages[s].last_layer <= next) {
      return InvalidField(
          {.field = absl::StrCat("stages[", s, "]"),
           .value = absl::StrCat("layers ", stages[s].first_layer.value(), " to ",
                                 stages[s].last_layer.value()),
           .rule = absl::StrCat("has at least one layer and begins at layer ", next.value()),
           .fix = "give consecutive stages consecutive layers"});
    }
    if (!stages[s].layers.empty() &&
        std::ssize(stages[s].layers) != stages[s].last_layer.value() - next.value()) {
      return InvalidField({.field = absl::StrCat("stages[", s, "].layers"),
                           .value = absl::StrCat(stages[s].layers.size()),
                           .rule = "has the parts of each of its layers",
                           .fix = "give those of all layers, or of none"});
    }
    next = stages[s].last_layer;
  }
  return absl::OkStatus();
}

absl::Status CheckUpdates(const schedule::Schedule& schedule, const LowerOptions& options) {
  if (schedule.updates != schedule::Updates::kEachBackward ||
      (!options.reduce_gradients && !options.tied_embeddings)) {
    return absl::OkStatus();
  }
  return InvalidField(
      {.field = options.reduce_gradients ? "parallelism.data" : "model.tied_embeddings",
       .value = options.reduce_gradients ? "more than 1" : "true",
       .rule = absl::StrCat(schedule.name,
                            " updates each stage after every backward, so no gradient can wait "
                            "for another rank"),
       .fix = "use pipedream-2bw"});
}

absl::Status CheckShards(const schedule::Schedule& schedule, const LowerOptions& options) {
  if (!options.shard_optimizer) return absl::OkStatus();
  const bool flushes = schedule.updates == schedule::Updates::kFlush;
  const bool two_copies = schedule.placement == schedule::Placement::kBidirectional;
  if (flushes && options.optimizer && (options.reduce_gradients || two_copies))
    return absl::OkStatus();
  return InvalidField(
      {.field = "parallelism.shard",
       .value = "optimizer",
       .rule = flushes ? "no two ranks sum a gradient, so none can share the optimizer's state"
                       : absl::StrCat(schedule.name, " keeps whole old weights"),
       .fix = "use none"});
}

absl::Status CheckVocabulary(const schedule::Schedule& schedule,
                             const std::optional<VocabularyShape>& vocabulary) {
  if (vocabulary.has_value() != schedule.spreads_vocabulary) {
    return InvalidField(
        {.field = "vocabulary",
         .value = vocabulary.has_value() ? "has sizes" : "has no sizes",
         .rule = absl::StrCat(schedule.name, vocabulary.has_value() ? " does not spread it"
                                                                    : " spreads it over all ranks"),
         .fix = "give sizes exactly if the schedule spreads the vocabulary"});
  }
  if (!vocabulary.has_value()) return absl::OkStatus();
  for (const auto* sizes : {&vocabulary->stash_bytes, &vocabulary->partial_grad_bytes,
                            &vocabulary->rows_bytes, &vocabulary->parts_bytes}) {
    if (sizes->empty() || sizes->size() == schedule.ranks.size()) continue;
    return InvalidField(
        {.field = "vocabulary",
         .value = absl::StrCat(sizes->size(), " sizes"),
         .rule = absl::StrCat("one size for each of the ", schedule.num_ranks(), " ranks"),
         .fix = "give one for each rank, or none"});
  }
  return absl::OkStatus();
}

// If every microbatch has its slot, none may begin again before it has ended.
absl::Status CheckPools(const Program& program) {
  const int needed = LargestPool(program.slots);
  if (needed <= program.num_microbatches) return absl::OkStatus();
  return InvalidField(
      {.field = "microbatches",
       .value = absl::StrCat(program.num_microbatches),
       .rule = absl::StrCat("without a flush, must be at least as many as pp rank ",
                            program.pp_rank.value(), " holds at once (", needed, ")"),
       .fix = "use more microbatches"});
}

}  // namespace

absl::StatusOr<std::vector<Program>> Lower(const schedule::Schedule& schedule,
                                           const LowerOptions& options) {
  RETURN_IF_ERROR(schedule::Validate(schedule));
  LowerOptions complete = options;
  if (complete.stages.empty()) {
    for (int s = 0; s < schedule.num_stages; ++s) {
      complete.stages.push_back({.first_layer = LayerId(s), .last_layer = LayerId(s + 1)});
    }
  }
  RETURN_IF_ERROR(CheckStages(schedule, complete.stages));

  RETURN_IF_ERROR(CheckUpdates(schedule, complete));
  RETURN_IF_ERROR(CheckShards(schedule, complete));
  RETURN_IF_ERROR(CheckVocabulary(schedule, complete.vocabulary));

  ASSIGN_OR_RETURN(const UnrolledSchedule steps, Unroll(schedule));
  const schedule::ActionGraph graph(steps.schedule);
  const std::vector<MeetingPoints> meetings = FindMeetingPoints(graph);
  const std::vector<ReceivePoints> receives = FindReceivePoints(graph, steps);
  std::vector<Program> programs;
  programs.reserve(schedule.ranks.size());
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    Program program =
        RankLowering(graph, steps, complete, rank).Build(receives[rank], meetings[rank]);
    program.part_lists = MakePartLists(program, complete.stages);
    const bool merges = complete.merge_weight_grads && MergeWeightGrads(program);
    const bool flushes = schedule.updates == schedule::Updates::kFlush;
    if (!flushes) RETURN_IF_ERROR(CheckPools(program));
    // The first lowering tells how large the pools are. The second one hands their slots out in an
    // order that needs to know it.
    if (merges || !flushes) {
      program = RankLowering(graph, steps, complete, rank, program.slots)
                    .Build(receives[rank], meetings[rank]);
      program.part_lists = MakePartLists(program, complete.stages);
      if (merges) MergeWeightGrads(program);
    }
    programs.push_back(std::move(program));
  }
  return programs;
}

}  // namespace takt::program
