// SPDX-License-Identifier: Apache-2.0
// Assigns layers to stages. Letters: S stages. A stage consists of one or more layers, which are
// blocks, the embedding or the head.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/plan/plan.h"

namespace takt::plan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Sums the work of a run of layers.
class LayerWork {
 public:
  // layer_seconds: as in MakePartition.
  LayerWork(const model::Model& model, const std::vector<double>& layer_seconds) {
    for (std::size_t i = 0; i < model.layers.size(); ++i) {
      const double work = layer_seconds.empty() ? model.layers[i].cost.Work() : layer_seconds[i];
      prefix_.push_back(prefix_.back() + work);
    }
  }

  int size() const { return static_cast<int>(prefix_.size()) - 1; }
  double Of(int begin, int end) const { return prefix_[end] - prefix_[begin]; }

 private:
  std::vector<double> prefix_{0};
};

// Cuts the layers into S runs so that what `add` makes of their work is least. `add` is monotone in
// both arguments. Runs that work more than `limit` are not considered. Returns the end of each run.
// best[s][e] is the least for layers [0, e) in s+1 runs. An inner loop ends as soon as a longer
// last run cannot win.
template <class Add>
std::vector<int> Cut(const LayerWork& work, int num_stages, double limit, Add add) {
  const int num_layers = work.size();
  std::vector<double> best(num_layers + 1, kInfinity), previous;
  std::vector<std::vector<int>> begin(num_stages, std::vector<int>(num_layers + 1, 0));
  for (int end = 1; end <= num_layers; ++end) {
    if (work.Of(0, end) <= limit) best[end] = add(0.0, work.Of(0, end));
  }
  for (int stage = 1; stage < num_stages; ++stage) {
    previous = std::exchange(best, std::vector<double>(num_layers + 1, kInfinity));
    for (int end = stage + 1; end <= num_layers; ++end) {
      for (int b = end - 1; b >= stage; --b) {
        const double run = work.Of(b, end);
        if (run > limit || add(0.0, run) >= best[end]) break;
        const double total = add(previous[b], run);
        if (total < best[end]) {
          best[end] = total;
          begin[stage][end] = b;
        }
      }
    }
  }
  std::vector<int> ends(num_stages);
  for (int stage = num_stages - 1, end = num_layers; stage >= 0; --stage) {
    ends[stage] = end;
    end = begin[stage][end];
  }
  return ends;
}

// The largest run decides the time of a step. Of the cuts whose largest run is least, the one with
// the least sum of squares is the most even.
std::vector<int> Balance(const LayerWork& work, int num_stages) {
  const std::vector<int> least =
      Cut(work, num_stages, kInfinity, [](double a, double b) { return std::max(a, b); });
  double largest = 0;
  for (int stage = 0; stage < num_stages; ++stage) {
    largest = std::max(largest, work.Of(stage == 0 ? 0 : least[stage - 1], least[stage]));
  }
  return Cut(work, num_stages, largest, [](double a, double b) { return a + b * b; });
}

// Returns the end of each stage, in layers. stage_layers: the blocks of each stage.
absl::StatusOr<std::vector<int>> EndsOf(const model::Model& model,
                                        const std::vector<int>& stage_layers, int num_stages) {
  const int num_layers = static_cast<int>(model.layers.size());
  const int embeddings = model.layers.front().block < 0 ? 1 : 0;
  const int heads = model.layers.back().block < 0 ? 1 : 0;
  const int num_blocks = num_layers - embeddings - heads;
  std::vector<int> ends;
  bool valid = std::ssize(stage_layers) == num_stages;
  std::int64_t blocks = 0;
  for (const int count : stage_layers) {
    const int begin = ends.empty() ? 0 : ends.back();
    blocks += count;
    const bool is_last = std::ssize(ends) + 1 == num_stages;
    ends.push_back(static_cast<int>(blocks) + embeddings + (is_last ? heads : 0));
    valid &= count >= 0 && ends.back() > begin;
  }
  if (valid && blocks == num_blocks) return ends;
  return InvalidField(
      {.field = "parallelism.stage_layers",
       .value = absl::StrCat("[", absl::StrJoin(stage_layers, ", "), "]"),
       .rule = absl::StrCat("must be ", num_stages, " counts that sum to model.layers (",
                            num_blocks, "); only the first and the last may be 0, where the ",
                            "embedding or the head is a stage alone"),
       .fix = "correct the counts, or leave them out"});
}

}  // namespace

absl::StatusOr<mesh::Partition> MakePartition(const model::Model& model, int num_stages,
                                              const std::vector<int>& stage_layers,
                                              schedule::Placement placement, int pp_size,
                                              const std::vector<double>& layer_seconds) {
  TAKT_CHECK(num_stages >= 1 && pp_size >= 1);
  const LayerWork work(model, layer_seconds);
  if (num_stages > work.size()) {
    return InvalidField(
        {.field = "parallelism.pipeline",
         .value = absl::StrCat(pp_size),
         .rule = absl::StrCat("makes ", num_stages, " stages with ", num_stages / pp_size,
                              " a rank; must be at most the layers (", work.size(),
                              ", the embedding and the head among them)"),
         .fix = "use fewer ranks or chunks, or more layers"});
  }
  std::vector<int> ends;
  if (stage_layers.empty()) {
    ends = Balance(work, num_stages);
  } else {
    ASSIGN_OR_RETURN(ends, EndsOf(model, stage_layers, num_stages));
  }
  mesh::Partition partition;
  int first_layer = 0;
  for (int stage = 0; stage < num_stages; ++stage) {
    partition.push_back({.id = StageId(stage),
                         .pp_rank = schedule::RankOfStage(placement, pp_size, StageId(stage)),
                         .first_layer = LayerId(first_layer),
                         .last_layer = LayerId(ends[stage])});
    first_layer = ends[stage];
  }
  return partition;
}

}  // namespace takt::plan
