// SPDX-License-Identifier: Apache-2.0
#include "common/program/lowering.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/program/asynchronous_lowering.h"
#include "common/program/merge_weight_grads.h"
#include "common/program/rank_lowering.h"
#include "common/program/receive_points.h"
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
    next = stages[s].last_layer;
  }
  return absl::OkStatus();
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

  if (schedule.updates != schedule::Updates::kFlush) return LowerWithoutFlush(schedule, complete);

  const schedule::ActionGraph graph(schedule);
  const std::vector<std::vector<ReceivePoint>> receives = FindReceivePoints(graph);
  std::vector<Program> programs;
  programs.reserve(schedule.ranks.size());
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    Program program = RankLowering(graph, complete, rank).Build(receives[rank]);
    if (complete.merge_weight_grads && MergeWeightGrads(program)) {
      program = RankLowering(graph, complete, rank, program.slots).Build(receives[rank]);
      MergeWeightGrads(program);
    }
    programs.push_back(std::move(program));
  }
  return programs;
}

}  // namespace takt::program
