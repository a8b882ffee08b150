// SPDX-License-Identifier: Apache-2.0
#include "common/explain/advice.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/counted.h"
#include "common/base/status.h"
#include "common/explain/durations.h"
#include "common/explain/explain.h"
#include "common/explain/other_schedules.h"

namespace takt::explain {
namespace {

using program::Instruction;
using program::Op;
using program::SlotKind;
using trace::TimeSum;

class Advisor {
 public:
  Advisor(const trace::Timeline& timeline, const MeasuredStep& step, const Explanation& explanation,
          const AdviceOptions& options)
      : timeline_(timeline),
        step_(step),
        explanation_(explanation),
        options_(options),
        usual_seconds_(step.StepTime(step.usual())) {}

  std::vector<Advice> Run() {
    MoveLayer();
    SpeedUpRank();
    SpeedUpLink();
    HaveData();
    ChangeSchedule();
    std::sort(advice_.begin(), advice_.end(),
              [](const Advice& a, const Advice& b) { return a.saved_seconds > b.saved_seconds; });
    return std::move(advice_);
  }

 private:
  int num_stages() const { return step_.programs()[0].num_stages; }

  // text: says what to do; the gain is added to it.
  void Add(Advice::Kind kind, double seconds, std::string text) {
    const double saved = usual_seconds_ - seconds;
    const double fraction = saved / explanation_.step_seconds;
    if (fraction < options_.least_fraction) return;
    advice_.push_back({.kind = kind,
                       .text = absl::StrFormat("%s saves %.1f %% (%.4g ms a step)", text,
                                               100 * fraction, 1e3 * saved),
                       .saved_seconds = saved,
                       .saved_fraction = fraction});
  }

  // Returns the layers of each stage, ascending, from the weights that its rank holds.
  std::vector<std::set<int>> LayersOfStages() const {
    std::vector<std::set<int>> layers(num_stages());
    for (const program::Program& program : step_.programs()) {
      for (const program::Slot& slot : program.slots) {
        const bool of_stage = slot.stage.value() < num_stages();  // others are of rows
        if (slot.kind == SlotKind::kWeights && of_stage)
          layers[slot.stage.value()].insert(slot.index);
      }
    }
    return layers;
  }

  double WorkOf(const std::set<int>& layers) const {
    const std::vector<double>& work_of = timeline_.trace->layer_work;
    if (work_of.empty()) return static_cast<double>(layers.size());
    double work = 0;
    for (const int layer : layers) {
      if (layer < static_cast<int>(work_of.size())) work += work_of[layer];
    }
    return work;
  }

  // Calls visit(rank, index, stage, share) for all passes of stages. S and T are of no stage.
  template <class Visit>
  void ForEachStageShare(Visit visit) const {
    step_.ForEachPass([&](std::size_t rank, std::size_t i, Op, StageId stage, double share) {
      if (stage.value() < num_stages()) visit(rank, i, stage, share);
    });
  }

  void MoveLayer() {
    const std::vector<std::set<int>> layers = LayersOfStages();
    std::vector<double> seconds(num_stages(), 0.0);
    ForEachStageShare([&](std::size_t rank, std::size_t i, StageId stage, double share) {
      seconds[stage.value()] += share * step_.usual()[rank][i];
    });
    const int from =
        static_cast<int>(std::max_element(seconds.begin(), seconds.end()) - seconds.begin());
    if (layers[from].size() < 2) return;
    // The nearest stage comes first, so of equal changes the one that moves fewest layers wins.
    int best = -1;
    double best_seconds = usual_seconds_;
    for (int distance = 1; distance < num_stages(); ++distance) {
      for (const int to : {from - distance, from + distance}) {
        if (to < 0 || to >= num_stages()) continue;
        const double time = step_.StepTime(WithMovedLayer(layers, from, to));
        if (time >= best_seconds * (1 - 1e-6)) continue;
        best = to;
        best_seconds = time;
      }
    }
    if (best < 0) return;
    const double mean =
        std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(num_stages());
    Add(Advice::Kind::kMoveLayer, best_seconds,
        absl::StrFormat("stage %d is %.0f %% slower than the mean: moving one layer to stage %d%s",
                        from, 100 * (seconds[from] / mean - 1), best,
                        std::abs(best - from) > 1 ? ", those between shifted by one," : ""));
  }

  // Stages are consecutive, so a layer reaches a stage farther away when each stage in between
  // passes one on.
  sim::Durations WithMovedLayer(std::vector<std::set<int>> layers, int from, int to) const {
    const std::vector<std::set<int>> before = layers;
    for (int stage = from; stage != to; stage += to > from ? 1 : -1) {
      const bool up = to > from;
      std::set<int>& giver = layers[stage];
      const auto moved = up ? std::prev(giver.end()) : giver.begin();
      layers[stage + (up ? 1 : -1)].insert(*moved);
      giver.erase(moved);
    }
    sim::Durations durations = step_.usual();
    ForEachStageShare([&](std::size_t rank, std::size_t i, StageId stage, double share) {
      const double work = WorkOf(before[stage.value()]);
      if (work <= 0) return;
      const double change = WorkOf(layers[stage.value()]) / work - 1;
      durations[rank][i] += share * change * step_.usual()[rank][i];
    });
    return durations;
  }

  void SpeedUpRank() {
    if (!explanation_.worst_op.has_value() || step_.programs().size() < 2) return;
    // Each instruction of that rank takes as long as the mean of its kind on the other ranks.
    const int slow = explanation_.worst_op->rank;
    std::map<Op, TimeSum> others;
    sim::Durations durations = step_.usual();
    for (const bool apply : {false, true}) {
      ForEachStageShare([&](std::size_t rank, std::size_t i, StageId, double) {
        const Instruction& instruction = step_.programs()[rank].body[i];
        TimeSum& sum = others[instruction.op];
        if (!apply && static_cast<int>(rank) != slow) {
          sum.Add(step_.usual()[rank][i], instruction);
        } else if (apply && static_cast<int>(rank) == slow && sum.count > 0) {
          durations[rank][i] = sum.mean() * instruction.num_microbatches;
        }
      });
    }
    const std::vector<double> usual = BusySeconds(step_, step_.usual());
    const std::vector<double> changed = BusySeconds(step_, durations);
    if (changed[slow] <= 0) return;
    Add(Advice::Kind::kSlowRank, step_.StepTime(durations),
        absl::StrFormat("rank %d computes %.0f %% longer than the others: equal to them it", slow,
                        100 * (usual[slow] / changed[slow] - 1)));
  }

  void SpeedUpLink() {
    if (!explanation_.worst_link.has_value()) return;
    const WorstLink& worst = *explanation_.worst_link;
    sim::Durations durations = step_.usual();
    const auto limit = [&](int rank, int peer, Op op) {
      const program::Program& program = step_.programs()[rank];
      for (std::size_t i = 0; i < program.body.size(); ++i) {
        const program::Lane& lane = program.lanes[program.body[i].lane.value()];
        if (program.body[i].op != op || lane.peer != PpRank(peer)) continue;
        durations[rank][i] = std::min(durations[rank][i], worst.others_seconds);
      }
    };
    limit(worst.from, worst.to, Op::kSend);
    limit(worst.to, worst.from, Op::kRecv);
    Add(Advice::Kind::kLink, step_.StepTime(durations),
        absl::StrFormat("messages from rank %d to rank %d take %.4g ms, others %.4g ms: equal to "
                        "them that link",
                        worst.from, worst.to, 1e3 * worst.seconds, 1e3 * worst.others_seconds));
  }

  void HaveData() {
    const double time = step_.StepTime(takt::explain::WithFree(step_, step_.usual(), Work::kData));
    Add(Advice::Kind::kData, time, "tokens come late: a faster disk, or data that is in memory,");
  }

  void ChangeSchedule() {
    const std::optional<OtherSchedule> other =
        FindBetterSchedule(timeline_.trace->programs, StageCosts());
    if (!other.has_value()) return;
    std::string text = absl::StrFormat("schedule %s instead of %s", other->name,
                                       timeline_.trace->programs[0].schedule);
    if (other->peak_in_flight != other->current_peak_in_flight) {
      absl::StrAppendFormat(&text, ", with %s in flight instead of %d,",
                            Counted(other->peak_in_flight, "microbatch"),
                            other->current_peak_in_flight);
    }
    Add(Advice::Kind::kSchedule, usual_seconds_ - other->saved_seconds, std::move(text));
  }

  // Stages have means over all copies, and links are by pp ranks.
  cost::Costs StageCosts() const {
    std::map<std::pair<Op, int>, TimeSum> by_stage;
    std::map<std::pair<PpRank, PpRank>, TimeSum> by_link;
    const mesh::Mesh& mesh = timeline_.trace->mesh;
    step_.ForEach([&](std::size_t rank, std::size_t i, const Instruction& instruction) {
      const double seconds = step_.usual()[rank][i];
      if (program::IsCompute(instruction.op)) {
        by_stage[{instruction.op, instruction.stage.value()}].Add(seconds, instruction);
      } else if (instruction.op == Op::kRecv) {
        const program::Lane& lane = step_.programs()[rank].lanes[instruction.lane.value()];
        const Rank from(lane.peer.value()), to(static_cast<std::int32_t>(rank));
        by_link[{mesh.PpRankOf(from), mesh.PpRankOf(to)}].Add(seconds, instruction);
      }
    });
    cost::Costs costs{.halves_run_beside = timeline_.trace->predicted.halves_run_beside};
    for (auto [op, list] : {std::pair(Op::kForward, &costs.forward),
                            {Op::kInputGrad, &costs.input_grad},
                            {Op::kWeightGrad, &costs.weight_grad},
                            {Op::kBackward, &costs.backward}}) {
      list->clear();
      for (int stage = 0; stage < num_stages(); ++stage) {
        list->push_back(by_stage[{op, stage}].mean());
      }
    }
    for (const auto& [link, sum] : by_link) costs.links[link] = {.latency = sum.mean()};
    return costs;
  }

  const trace::Timeline& timeline_;
  const MeasuredStep& step_;
  const Explanation& explanation_;
  const AdviceOptions& options_;
  const double usual_seconds_;
  std::vector<Advice> advice_;
};

}  // namespace

std::string_view Name(Advice::Kind kind) {
  constexpr std::string_view kNames[] = {"",     "move_layer", "slow_rank", "link",
                                         "data", "schedule",   "replan"};
  return kNames[static_cast<int>(kind)];
}

absl::StatusOr<std::vector<Advice>> Advise(const trace::Timeline& timeline, StepId step_id,
                                           const AdviceOptions& options) {
  ASSIGN_OR_RETURN(const Explanation explanation, Explain(timeline, step_id));
  ASSIGN_OR_RETURN(const MeasuredStep step, MeasuredStep::Create(timeline, step_id));
  return Advisor(timeline, step, explanation, options).Run();
}

}  // namespace takt::explain
