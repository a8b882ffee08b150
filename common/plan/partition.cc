// SPDX-License-Identifier: Apache-2.0
// Assigns layers to stages. Letters: L blocks, S stages. A stage consists of blocks. The embedding
// goes with the first block, the head with the last.
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

// Sums the work of a run of blocks. The embedding and the head are included where they belong.
class BlockWork {
 public:
  explicit BlockWork(const model::Model& model) {
    for (const model::Layer& layer : model.layers) {
      if (layer.block < 0) {
        (prefix_.size() == 1 ? embedding_ : head_) += layer.cost.Work();
      } else {
        prefix_.push_back(prefix_.back() + layer.cost.Work());
      }
    }
  }

  int size() const { return static_cast<int>(prefix_.size()) - 1; }
  double Of(int begin, int end) const {
    return prefix_[end] - prefix_[begin] + (begin == 0 ? embedding_ : 0) +
           (end == size() ? head_ : 0);
  }

 private:
  std::vector<double> prefix_{0};
  double embedding_ = 0, head_ = 0;
};

// Cuts the blocks into S runs so that what `add` makes of their work is least. `add` is monotone in
// both arguments. Runs that work more than `limit` are not considered. Returns the end of each run.
// best[s][e] is the least for blocks [0, e) in s+1 runs. An inner loop ends as soon as a longer
// last run cannot win.
template <class Add>
std::vector<int> Cut(const BlockWork& work, int num_stages, double limit, Add add) {
  const int num_blocks = work.size();
  std::vector<double> best(num_blocks + 1, kInfinity), previous;
  std::vector<std::vector<int>> begin(num_stages, std::vector<int>(num_blocks + 1, 0));
  for (int end = 1; end <= num_blocks; ++end) {
    if (work.Of(0, end) <= limit) best[end] = add(0.0, work.Of(0, end));
  }
  for (int stage = 1; stage < num_stages; ++stage) {
    previous = std::exchange(best, std::vector<double>(num_blocks + 1, kInfinity));
    for (int end = stage + 1; end <= num_blocks; ++end) {
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
  for (int stage = num_stages - 1, end = num_blocks; stage >= 0; --stage) {
    ends[stage] = end;
    end = begin[stage][end];
  }
  return ends;
}

// The largest run decides the time of a step. Of the cuts whose largest run is least, the one with
// the least sum of squares is the most even.
std::vector<int> Balance(const BlockWork& work, int num_stages) {
  const std::vector<int> least =
      Cut(work, num_stages, kInfinity, [](double a, double b) { return std::max(a, b); });
  double largest = 0;
  for (int stage = 0; stage < num_stages; ++stage) {
    largest = std::max(largest, work.Of(stage == 0 ? 0 : least[stage - 1], least[stage]));
  }
  return Cut(work, num_stages, largest, [](double a, double b) { return a + b * b; });
}

absl::Status CheckStageLayers(const std::vector<int>& stage_layers, int num_stages,
                              int num_blocks) {
  std::int64_t sum = 0;
  for (const int count : stage_layers) sum += count;
  const bool positive = std::ranges::all_of(stage_layers, [](int count) { return count >= 1; });
  if (positive && sum == num_blocks && std::ssize(stage_layers) == num_stages)
    return absl::OkStatus();
  return InvalidField(
      {.field = "parallelism.stage_layers",
       .value = absl::StrCat("[", absl::StrJoin(stage_layers, ", "), "]"),
       .rule = absl::StrCat("must be ", num_stages,
                            " counts of 1 or more that sum to model.layers (", num_blocks, ")"),
       .fix = "correct the counts, or leave them out"});
}

}  // namespace

absl::StatusOr<mesh::Partition> MakePartition(const model::Model& model, int num_stages,
                                              const std::vector<int>& stage_layers,
                                              schedule::Placement placement, int pp_size) {
  TAKT_CHECK(num_stages >= 1 && pp_size >= 1);
  const BlockWork work(model);
  if (num_stages > work.size()) {
    return InvalidField(
        {.field = "parallelism.pipeline",
         .value = absl::StrCat(pp_size),
         .rule = absl::StrCat("makes ", num_stages, " stages with ", num_stages / pp_size,
                              " a rank; must be at most model.layers (", work.size(), ")"),
         .fix = "use fewer ranks or chunks, or more layers"});
  }
  std::vector<int> ends;  // in blocks
  if (stage_layers.empty()) {
    ends = Balance(work, num_stages);
  } else {
    RETURN_IF_ERROR(CheckStageLayers(stage_layers, num_stages, work.size()));
    for (const int count : stage_layers) ends.push_back((ends.empty() ? 0 : ends.back()) + count);
  }
  const int before_blocks = model.layers.front().block < 0 ? 1 : 0;
  mesh::Partition partition;
  int first_layer = 0;
  for (int stage = 0; stage < num_stages; ++stage) {
    const bool is_last = stage == num_stages - 1;
    const int last_layer =
        is_last ? static_cast<int>(model.layers.size()) : ends[stage] + before_blocks;
    partition.push_back({.id = StageId(stage),
                         .pp_rank = schedule::RankOfStage(placement, pp_size, StageId(stage)),
                         .first_layer = LayerId(first_layer),
                         .last_layer = LayerId(last_layer)});
    first_layer = last_layer;
  }
  return partition;
}

}  // namespace takt::plan
