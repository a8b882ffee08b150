// SPDX-License-Identifier: Apache-2.0
#include "common/trace/clocks.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/trace/messages.h"

namespace takt::trace {
namespace {

// Finds for each (from, to), in their own clocks, the most by which something that `to` waited for
// began later on `from` than the wait ended. The offset of `to` is at least that of `from` plus
// this.
using Bounds = std::map<std::pair<int, int>, std::int64_t>;

class BoundFinder {
 public:
  explicit BoundFinder(const JobTrace& trace) : trace_(trace) {}

  Bounds Find() {
    const std::vector<Message> messages = FindMessages(trace_);
    // Other sums may have nothing to do in a model whose layers only take time.
    std::vector<std::vector<Place>> meetings = FindMeetings(trace_);
    std::erase_if(meetings, [&](const std::vector<Place>& meeting) {
      const Place place = meeting.front();
      return trace_.ProgramOf(place.rank).body[place.instruction].op != program::Op::kNormExchange;
    });
    for (int step = 0; step < trace_.num_steps(); ++step) {
      for (const Message& message : messages) Add(step, message.send, message.recv);
      for (const std::vector<Place>& meeting : meetings) {
        for (const Place& from : meeting) {
          for (const Place& to : meeting) Add(step, from, to);
        }
      }
    }
    return std::move(bounds_);
  }

 private:
  const Span& At(int step, Place place) const {
    return trace_.ranks[place.rank].steps[step].body[place.instruction];
  }

  void Add(int step, Place from, Place to) {
    if (from.rank == to.rank) return;
    const std::int64_t bound = At(step, from).start_nanos - At(step, to).end_nanos;
    const auto [entry, is_new] = bounds_.try_emplace({from.rank, to.rank}, bound);
    entry->second = std::max(entry->second, bound);
  }

  const JobTrace& trace_;
  Bounds bounds_;
};

}  // namespace

Alignment AlignClocks(const JobTrace& trace) {
  Alignment alignment;
  std::vector<std::int64_t> errors;
  for (const RankTrace& rank : trace.ranks) {
    alignment.offset_nanos.push_back(rank.clock.offset_nanos);
    errors.push_back(rank.clock.error_nanos);
  }
  std::sort(errors.rbegin(), errors.rend());
  if (errors.size() > 1) alignment.error_nanos = errors[0] + errors[1];

  const Bounds bounds = BoundFinder(trace).Find();
  // There are as many rounds as a chain of ranks can be long. Clocks that run at different speeds
  // could need more without end.
  bool moved = true;
  for (int round = 0; moved && round < trace.num_ranks(); ++round) {
    moved = false;
    for (const auto& [pair, bound] : bounds) {
      const std::int64_t least = alignment.offset_nanos[pair.first] + bound;
      std::int64_t& offset = alignment.offset_nanos[pair.second];
      if (offset >= least) continue;
      offset = least;
      moved = true;
    }
  }
  for (int rank = 0; rank < trace.num_ranks(); ++rank) {
    alignment.correction_nanos =
        std::max(alignment.correction_nanos,
                 alignment.offset_nanos[rank] - trace.ranks[rank].clock.offset_nanos);
  }
  return alignment;
}

}  // namespace takt::trace
