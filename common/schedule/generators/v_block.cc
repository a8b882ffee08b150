// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/generators/v_block.h"

#include <algorithm>
#include <array>

#include "common/base/status.h"
#include "common/schedule/generators/generators.h"
#include "common/schedule/generators/padding.h"
#include "common/schedule/generators/v_row.h"

namespace takt::schedule {
namespace {

constexpr int kPeriod = 6;
constexpr std::array kPasses = {VPass::kFd, VPass::kFu, VPass::kId, VPass::kIu};

bool IsForward(VPass pass) { return pass == VPass::kFd || pass == VPass::kFu; }

// A slot of a rank holds one of these. Until the end, a W may belong to any earlier I.
enum class Cell : std::uint8_t { kFd, kFu, kId, kIu, kW, kFree };

Cell CellOf(VPass pass) { return static_cast<Cell>(pass); }

// One rank's slots.
struct Lane {
  std::vector<Cell> cells;
  std::vector<int> load;                  // chunks in flight during each slot
  std::array<std::vector<int>, 4> slots;  // of each pass, by microbatch
  std::vector<int> input_grads;           // slots of all I, ascending

  int Peak() const { return *std::max_element(load.begin(), load.end()); }

  // Gives each free slot the W of the oldest I that lacks it, and appends the rest.
  void FillWeightGrads() {
    int pending = 0;
    for (std::size_t slot = 0; slot < cells.size() || pending > 0; ++slot) {
      if (slot == cells.size()) cells.push_back(Cell::kFree);
      if (cells[slot] == Cell::kId || cells[slot] == Cell::kIu) ++pending;
      if (cells[slot] == Cell::kFree && pending > 0) {
        cells[slot] = Cell::kW;
        --pending;
      }
    }
  }

  void CountLoad() {
    int in_flight = 0;
    load.clear();
    for (const Cell cell : cells) {
      if (cell == Cell::kFd || cell == Cell::kFu) ++in_flight;
      load.push_back(in_flight);
      if (cell == Cell::kW) --in_flight;
    }
  }
};

class Board {
 public:
  Board(int num_ranks, int num_microbatches, const VBlock& block)
      : num_ranks_(num_ranks), num_microbatches_(num_microbatches), lanes_(num_ranks) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      Lane& lane = lanes_[rank];
      const std::array first = {block.fd(rank), block.fu(rank), block.id(rank), block.iu(rank)};
      lane.cells.assign(first[3] + kPeriod * (num_microbatches - 1) + 1, Cell::kFree);
      for (const VPass pass : kPasses) {
        const int index = static_cast<int>(pass);
        for (int m = 0; m < num_microbatches; ++m) {
          const int slot = first[index] + kPeriod * m;
          lane.slots[index].push_back(slot);
          lane.cells[slot] = CellOf(pass);
          if (!IsForward(pass)) lane.input_grads.push_back(slot);
        }
      }
      std::sort(lane.input_grads.begin(), lane.input_grads.end());
      lane.FillWeightGrads();
      lane.CountLoad();
      limit_ = std::max(limit_, lane.Peak());
      width_ = std::max(width_, static_cast<int>(lane.cells.size()));
    }
    steady_begin_ = block.iu(0);
    steady_end_ = kPeriod * (num_microbatches - 1) + block.fd(0);
    if (steady_end_ < steady_begin_) steady_end_ = -1;  // too few microbatches for one
  }

  // Moves each action of fill and drain to the first free slot after its inputs in which the rank
  // stays within the memory of the block.
  void DrawTogether() {
    // The microbatch (or number of the W) that comes next on each rank, by cell.
    std::vector<std::array<int, 5>> next(num_ranks_);
    for (int slot = 0; slot < width_; ++slot) {
      for (int rank = 0; rank < num_ranks_; ++rank) {
        Lane& lane = lanes_[rank];
        if (slot >= static_cast<int>(lane.cells.size()) || lane.cells[slot] == Cell::kFree)
          continue;
        const int number = next[rank][static_cast<int>(lane.cells[slot])]++;
        if (slot < steady_begin_ || slot > steady_end_) Draw(rank, slot, number);
      }
    }
  }

  // The rows in the order of the slots, as early as unit times allow. After the steady state each W
  // waits for a slot in which nothing else can run.
  std::vector<Row> Rows() const;

 private:
  int SlotOf(int rank, VPass pass, int microbatch) const {
    return lanes_[rank].slots[static_cast<int>(pass)][microbatch];
  }

  // The first slot after the inputs of `pass`.
  int Ready(int rank, VPass pass, int microbatch) const {
    int last = -1;
    const auto after = [&](int on, VPass input) {
      last = std::max(last, SlotOf(on, input, microbatch));
    };
    const bool at_top = rank == 0;
    const bool at_bottom = rank == num_ranks_ - 1;
    if (pass != VPass::kFd) after(rank, static_cast<VPass>(static_cast<int>(pass) - 1));
    if (pass == VPass::kFd && !at_top) after(rank - 1, pass);
    if (pass == VPass::kId && !at_top) after(rank - 1, pass);
    if (pass == VPass::kFu && !at_bottom) after(rank + 1, pass);
    if (pass == VPass::kIu && !at_bottom) after(rank + 1, pass);
    if (microbatch > 0) last = std::max(last, SlotOf(rank, pass, microbatch - 1));
    return last + 1;
  }

  void Draw(int rank, int slot, int number) {
    Lane& lane = lanes_[rank];
    const Cell cell = lane.cells[slot];
    const bool is_weight_grad = cell == Cell::kW;
    const bool is_forward = cell == Cell::kFd || cell == Cell::kFu;
    int first = is_weight_grad ? lane.input_grads[number] + 1
                               : Ready(rank, static_cast<VPass>(cell), number);
    for (int s = slot - 1; is_forward && s >= first; --s) {
      if (lane.load[s] == limit_) first = s + 1;
    }
    int to = first;
    while (to < slot && lane.cells[to] != Cell::kFree) ++to;
    if (to >= slot) return;
    std::swap(lane.cells[to], lane.cells[slot]);
    if (is_forward) {
      for (int s = to; s < slot; ++s) ++lane.load[s];
    } else if (is_weight_grad) {
      for (int s = to + 1; s <= slot; ++s) --lane.load[s];
    }
    if (is_weight_grad) return;
    lane.slots[static_cast<int>(cell)][number] = to;
    if (is_forward) return;
    const auto old = std::lower_bound(lane.input_grads.begin(), lane.input_grads.end(), slot);
    const auto at = std::lower_bound(lane.input_grads.begin(), old, to);
    std::rotate(at, old, old + 1);
    *at = to;
  }

  int num_ranks_, num_microbatches_;
  std::vector<Lane> lanes_;
  int limit_ = 0;  // chunks in flight
  int width_ = 0;
  int steady_begin_ = 0, steady_end_ = 0;  // slots
};

// A row under construction, with the time at which it ends.
struct Timed {
  VRow row;
  int clock = 0;
  int in_flight = 0;

  int PendingWeightGrads() const {
    return row.Count(VPass::kId) + row.Count(VPass::kIu) - row.Count(VPass::kWd) -
           row.Count(VPass::kWu);
  }

  void AddWeightGrad() {
    const bool down = row.Count(VPass::kWd) < row.Count(VPass::kId);
    row.Add(down ? VPass::kWd : VPass::kWu);
    ++clock;
    --in_flight;
  }
};

std::vector<Row> Board::Rows() const {
  std::vector<Timed> timed;
  for (int rank = 0; rank < num_ranks_; ++rank)
    timed.push_back({.row = VRow(num_ranks_, rank, num_microbatches_)});
  // Holds the ends of the passes, in unit times, as slots, since Ready reads slots.
  Board ends = *this;
  for (int slot = 0; slot < width_; ++slot) {
    for (int rank = 0; rank < num_ranks_; ++rank) {
      const Lane& lane = lanes_[rank];
      Timed& t = timed[rank];
      if (slot >= static_cast<int>(lane.cells.size()) || lane.cells[slot] == Cell::kFree) continue;
      if (lane.cells[slot] == Cell::kW) {
        if (slot <= steady_end_) t.AddWeightGrad();
        continue;
      }
      const auto pass = static_cast<VPass>(lane.cells[slot]);
      const int microbatch = t.row.Count(pass);
      const int ready = ends.Ready(rank, pass, microbatch);
      const bool drains = slot > steady_end_;
      while (drains && t.PendingWeightGrads() > 0 &&
             (t.clock < ready || (IsForward(pass) && t.in_flight == limit_))) {
        t.AddWeightGrad();
      }
      ends.lanes_[rank].slots[static_cast<int>(pass)][microbatch] = std::max(t.clock, ready);
      t.clock = std::max(t.clock, ready) + 1;
      t.in_flight += IsForward(pass) ? 1 : 0;
      t.row.Add(pass);
    }
  }
  std::vector<Row> rows;
  for (Timed& t : timed) {
    while (t.PendingWeightGrads() > 0) t.AddWeightGrad();
    rows.push_back(t.row.Take());
  }
  return rows;
}

}  // namespace

absl::StatusOr<Schedule> BuildVBlock(const Family& family, const GenerateOptions& options,
                                     const VBlock& block) {
  const int ranks = options.num_ranks;
  RETURN_IF_ERROR(CheckPadded(ranks, 8 * std::int64_t{ranks}));  // the longest block
  Board board(ranks, options.num_microbatches, block);
  board.DrawTogether();
  return MakeSchedule(family, options, board.Rows());
}

}  // namespace takt::schedule
