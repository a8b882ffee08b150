// SPDX-License-Identifier: Apache-2.0
#include "common/search/seeds.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <map>
#include <set>
#include <utility>

#include "common/schedule/generate.h"
#include "common/schedule/generators/loop.h"

namespace takt::search {
namespace {

using schedule::Placement;

// The most microbatches that a rank may hold, none larger than its largest.
int Room(const Problem& problem, int rank) {
  std::int64_t largest = 1;
  for (const int h : problem.holders_of_rank[rank])
    largest = std::max(largest, problem.holders[h].weight);
  return static_cast<int>(std::min<std::int64_t>(problem.limit[rank] / largest, problem.num_items));
}

// The same for all ranks.
int Room(const Problem& problem) {
  int room = Room(problem, 0);
  for (int rank = 1; rank < problem.num_ranks; ++rank) room = std::min(room, Room(problem, rank));
  return room;
}

std::set<int> Groups(int num_ranks, int num_chunks, int num_microbatches) {
  if (num_chunks == 1) return {num_microbatches};
  std::set<int> groups{num_microbatches};
  for (int n = std::max(1, num_ranks / 2 - 1); n <= num_ranks + 1; ++n) groups.insert(n);
  groups.insert({1, num_ranks * 3 / 2, num_ranks * 2, num_ranks * 3});
  std::erase_if(groups, [&](int n) { return n < 1 || n > num_microbatches; });
  return groups;
}

constexpr int kPeriod = 6;

// The passes of a microbatch over a rank, down the v and up again, forward and then backward.
enum Pass { kFd, kFu, kId, kIu, kNumPasses };
using Passes = std::array<Step, kNumPasses>;

Passes PassesOf(const Problem& problem, int rank) {
  const auto down = static_cast<std::int16_t>(rank);
  const auto up = static_cast<std::int16_t>(2 * problem.num_ranks - 1 - rank);
  return {{{down, Kind::kForward},
           {up, Kind::kForward},
           {up, Kind::kInputGrad},
           {down, Kind::kInputGrad}}};
}

// The slots of the passes on `rank`.
std::array<int, kNumPasses> SlotsOf(const VBlock& block, int rank) {
  const int shift =
      block.early * std::min(block.turn, rank) + block.late * std::max(0, rank - block.turn);
  return {block.down + shift, block.up - rank, block.up_gradient + shift,
          block.down_gradient - rank};
}

bool Collides(const VBlock& block, int num_ranks) {
  for (int rank = 0; rank < num_ranks; ++rank) {
    std::set<int> used;
    for (const int slot : SlotsOf(block, rank)) used.insert((slot % kPeriod + kPeriod) % kPeriod);
    if (used.size() < kNumPasses) return true;
  }
  return false;
}

// Returns how many chunks a rank has in flight while the block repeats, in the mean and at least. A
// chunk is in flight from its F to a W right behind its I. It is the same for all ranks.
double MeanInFlight(const VBlock& block) {
  const int of_down = block.down_gradient - block.down + 2;
  const int of_up = block.up_gradient - block.up + 2;
  return static_cast<double>(of_down + of_up) / kPeriod;
}

// Writes a row pass by pass, each as often as there are any left.
struct PassWriter {
  Passes passes;
  std::array<int, kNumPasses> left{};
  Row row;

  bool Add(Pass pass) {
    if (left[pass] == 0) return false;
    --left[pass];
    row.push_back(passes[pass]);
    return true;
  }
};

// Orders what comes before the first Iu so that the first gradients come back soonest. At first the
// two chunks share the room; then the W behind each Id makes room for an F.
void FillFast(int num_ranks, int rank, int room, const Passes& passes, Row& row) {
  const auto end = std::find(row.begin(), row.end(), passes[kIu]);
  PassWriter fill{.passes = passes};
  for (const Pass pass : {kFd, kFu, kId})
    fill.left[pass] = static_cast<int>(std::count(row.begin(), end, passes[pass]));
  int up = std::min({rank + 1, room / 2, fill.left[kFu]});
  int down = room - up;
  for (int slot = 2 * rank; slot < 2 * (num_ranks - 1); ++slot) {
    if (down-- > 0) fill.Add(kFd);
  }
  for (int i = 0; i <= rank; ++i) {
    if (down-- > 0) fill.Add(kFd);
    if (up-- > 0) fill.Add(kFu);
  }
  for (bool more = true; more;) {
    const bool gradient = fill.Add(kId);
    more = fill.Add(kFu) || fill.Add(kFd) || gradient;
  }
  std::copy(fill.row.begin(), fill.row.end(), row.begin());
}

// Orders the last gradients, as many as the room is large, so that they leave the v soonest.
void DrainFast(int num_ranks, int rank, int room, const Passes& passes, Row& row) {
  const int count = static_cast<int>(std::count(row.begin(), row.end(), passes[kIu]));
  PassWriter drain{.passes = passes};  // from the end on
  drain.left[kIu] = std::min((room + 1) / 2, count);
  drain.left[kId] = std::min({rank + 1, room / 2, count});
  std::array<int, kNumPasses> moved = drain.left;
  for (int i = rank; i < num_ranks; ++i) drain.Add(kIu);
  for (bool more = true; more;) {
    const bool gradient = drain.Add(kId);
    more = drain.Add(kIu) || gradient;
  }
  for (auto step = row.rbegin(); step != row.rend(); ++step) {
    const auto pass = std::find(passes.begin(), passes.end(), *step) - passes.begin();
    if (moved[pass]-- <= 0) drain.row.push_back(*step);
  }
  row.assign(drain.row.rbegin(), drain.row.rend());
}

}  // namespace

Rows WithoutWeightGrads(Rows rows) {
  for (Row& row : rows)
    std::erase_if(row, [](const Step& step) { return step.kind == Kind::kWeightGrad; });
  return rows;
}

void SerialSeed(const Problem& problem, const Visit& visit) {
  Rows rows(problem.num_ranks);
  const auto add = [&](int h, Kind kind) {
    rows[problem.holders[h].rank].push_back({static_cast<std::int16_t>(h), kind});
  };
  for (std::size_t first = 0; first < problem.holders.size(); ++first) {
    if (problem.holders[first].previous >= 0) continue;
    for (int m = 0; m < problem.holders[first].count; ++m) {
      int h = static_cast<int>(first);
      for (; problem.holders[h].next >= 0; h = problem.holders[h].next) add(h, Kind::kForward);
      add(h, Kind::kForward);
      for (; h >= 0; h = problem.holders[h].previous) add(h, Kind::kInputGrad);
    }
  }
  visit(rows, "naive");
}

void LoopSeeds(const Problem& problem, const Visit& visit) {
  const int num_ranks = problem.num_ranks;
  const int num_chunks = problem.num_stages / num_ranks;
  std::set<std::vector<int>> seen;
  for (const int group : Groups(num_ranks, num_chunks, problem.num_microbatches)) {
    for (const double slope : {1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0}) {
      for (const int extra : {0, 1, 2, 3, num_ranks / 2, num_ranks, 2 * num_ranks}) {
        std::vector<int> warmup;
        for (int rank = 0; rank < num_ranks; ++rank) {
          const int wanted = (num_chunks > 1 ? (num_chunks - 1) * group : 0) +
                             static_cast<int>(std::lround(slope * (num_ranks - 1 - rank))) + extra;
          warmup.push_back(std::clamp(wanted, 0, Room(problem, rank) - 1));
        }
        std::vector<int> key = warmup;
        key.push_back(group);
        if (!seen.insert(key).second) continue;
        const schedule::Schedule schedule =
            schedule::BuildLoop({.name = "loop"},
                                {.num_ranks = num_ranks,
                                 .num_microbatches = problem.num_microbatches,
                                 .num_chunks = num_chunks},
                                {.group = group, .warmup = [&](int rank) { return warmup[rank]; }});
        if (!visit(WithoutWeightGrads(FromSchedule(problem, schedule)), "loop")) return;
      }
    }
  }
}

void TwoWaySeed(const Problem& problem, const Visit& visit) {
  const int num_ranks = problem.num_ranks, half = num_ranks / 2;
  const int num_each = std::max((problem.num_microbatches + 1) / 2, num_ranks);
  Rows rows(num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int depth = std::min(rank, num_ranks - 1 - rank);
    // The holders of the pipeline that enters at the nearer end, and of the other pipeline.
    const bool first_half = rank < half;
    const int down = rank, up = num_ranks + num_ranks - 1 - rank;
    const int near = first_half ? down : up, far = first_half ? up : down;
    std::map<std::pair<int, Kind>, int> done;
    const auto add = [&](int times, std::initializer_list<std::pair<int, Kind>> steps) {
      for (int i = 0; i < times; ++i) {
        for (const auto& [holder, kind] : steps) {
          if (done[{holder, kind}]++ < problem.holders[holder].count)
            rows[rank].push_back({static_cast<std::int16_t>(holder), kind});
        }
      }
    };
    const std::pair f0{near, Kind::kForward}, f1{far, Kind::kForward};
    const std::pair i0{near, Kind::kInputGrad}, i1{far, Kind::kInputGrad};
    const int rest = half - 1 - depth;
    add(2 * rest, {f0});
    add(depth + 1, {f0, f1});
    add(rest, {i1, f1});
    add(num_each - num_ranks + depth + 1, {f0, i1, f1, i0});
    add(rest, {i1, f1, i0});
    add(depth + 1, {i1, i0});
    add(rest, {i0});
  }
  visit(rows, "dualpipe");
}

std::vector<VBlock> VBlocks(int num_ranks) {
  std::vector<VBlock> blocks;
  const int last = num_ranks - 1;
  // The first time in `slot` of a period that is not before `least`.
  const auto from = [](int slot, int least) {
    return slot + (std::max(0, least - slot) + kPeriod - 1) / kPeriod * kPeriod;
  };
  const auto add_turns = [&](int up, int up_gradient, int down_gradient) {
    for (int early = 1; early < kPeriod; ++early) {
      for (int late = 1; late <= early; ++late) {
        for (int turn = 1; turn < (early == late ? 2 : std::max(2, num_ranks)); ++turn) {
          const int way = early * std::min(turn, last) + late * std::max(0, last - turn);
          VBlock block{.early = early, .late = late, .turn = turn};
          block.up = from(up, way + num_ranks);
          block.up_gradient = from(up_gradient, block.up + 1);
          block.down_gradient = from(down_gradient, block.up_gradient + way + num_ranks);
          if (!Collides(block, num_ranks)) blocks.push_back(block);
        }
      }
    }
  };
  for (int up = 1; up < kPeriod; ++up) {
    for (int up_gradient = 1; up_gradient < kPeriod; ++up_gradient) {
      for (int down_gradient = 1; down_gradient < kPeriod; ++down_gradient) {
        if (up != up_gradient && up != down_gradient && up_gradient != down_gradient)
          add_turns(up, up_gradient, down_gradient);
      }
    }
  }
  return blocks;
}

Rows Repeat(const Problem& problem, const VBlock& block) {
  Rows rows;
  std::vector<std::pair<int, Step>> slots;
  for (int rank = 0; rank < problem.num_ranks; ++rank) {
    const std::array<int, kNumPasses> times = SlotsOf(block, rank);
    const Passes passes = PassesOf(problem, rank);
    slots.clear();
    for (int m = 0; m < problem.num_microbatches; ++m) {
      for (int k = 0; k < kNumPasses; ++k) slots.emplace_back(times[k] + kPeriod * m, passes[k]);
    }
    std::sort(slots.begin(), slots.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    Row& row = rows.emplace_back();
    for (const auto& [time, step] : slots) row.push_back(step);
  }
  return rows;
}

bool FillsMemory(const Problem& problem, const VBlock& block) {
  if (problem.num_microbatches < 2 * problem.num_ranks) return false;
  constexpr int kSlack = 3;
  const int room = std::min(Room(problem), 2 * problem.num_ranks);
  const double held = MeanInFlight(block);
  return held <= room && held > room - kSlack;
}

Rows WithFastEnds(const Problem& problem, Rows rows) {
  for (int rank = 0; rank < problem.num_ranks; ++rank) {
    const Passes passes = PassesOf(problem, rank);
    const int room = std::min(Room(problem, rank), 2 * problem.num_ranks);
    FillFast(problem.num_ranks, rank, room, passes, rows[rank]);
    DrainFast(problem.num_ranks, rank, room, passes, rows[rank]);
  }
  return rows;
}

void FamilySeeds(const Problem& problem, const Request& request, const Visit& visit) {
  for (const schedule::Family& family : schedule::Families()) {
    if (family.updates != schedule::Updates::kFlush) continue;
    schedule::GenerateOptions options{.num_ranks = problem.num_ranks,
                                      .num_microbatches = problem.num_microbatches,
                                      .costs = request.costs};
    const int num_chunks = problem.num_stages / problem.num_ranks;
    if (family.uses_chunks) options.num_chunks = num_chunks;
    if (family.uses_memory) options.memory = Room(problem);
    const auto schedule = schedule::Generate(family.name, options);
    if (!schedule.ok() || schedule->placement != problem.placement ||
        schedule->num_stages != problem.num_stages)
      continue;
    if (!visit(FromSchedule(problem, *schedule), family.name)) return;
  }
}

}  // namespace takt::search
