// SPDX-License-Identifier: Apache-2.0
#include "worker/engine/event_waits.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace takt::engine {
namespace {

using program::Wait;

// For each lane, how many of its instructions are known to be done, over all iterations.
using Clock = std::vector<std::int64_t>;

void Merge(const Clock& from, Clock& into) {
  for (std::size_t lane = 0; lane < into.size(); ++lane) {
    into[lane] = std::max(into[lane], from[lane]);
  }
}

// The planner looks at this many iterations. A further one would add nothing to what is known about
// the one before it.
constexpr int kIterations = 3;

class Planner {
 public:
  Planner(const program::Program& program, std::span<const int> stream_of)
      : stream_of_(stream_of), lanes_(program.lanes.size()), waits_(Dependencies(program)) {
    for (std::size_t i = 0; i < program.body.size(); ++i) {
      lane_of_.push_back(static_cast<std::size_t>(program.body[i].lane.value()));
      position_of_.push_back(static_cast<std::int64_t>(lanes_[lane_of_[i]].size()));
      lanes_[lane_of_[i]].push_back(i);
    }
    for (std::vector<Clock>& ends : ends_) ends.assign(program.body.size(), Clock(lanes_.size()));
  }

  std::vector<std::vector<Wait>> Run() {
    std::vector<std::vector<Wait>> result(lane_of_.size());
    for (std::int64_t iteration = 0; iteration < kIterations; ++iteration) {
      for (std::size_t i = 0; i < lane_of_.size(); ++i) result[i] = Visit(i, iteration);
    }
    return result;
  }

 private:
  // An instruction for which another one waits.
  struct Awaited {
    Wait wait;
    std::size_t instruction = 0;
    std::int64_t count = 0;  // what its lane has done once it is done
    const Clock* end = nullptr;
  };

  Awaited Find(const Wait& wait, std::int64_t iteration) const {
    const std::vector<std::size_t>& lane = lanes_[static_cast<std::size_t>(wait.lane.value())];
    const auto length = static_cast<std::int64_t>(lane.size());
    const std::int64_t count = iteration * length + wait.position + 1;
    const std::int64_t of = wait.position < 0 ? iteration - 1 : iteration;
    const std::int64_t position = wait.position < 0 ? wait.position + length : wait.position;
    const std::size_t instruction = lane[static_cast<std::size_t>(position)];
    return {wait, instruction, count, &ends_[static_cast<std::size_t>(of & 1)][instruction]};
  }

  // Returns what it waits for, including the instruction before it on its lane. Before the first
  // iteration there is nothing.
  std::vector<Awaited> AwaitedBy(std::size_t i, std::int64_t iteration) const {
    std::vector<Awaited> all;
    const auto add = [&](const Wait& wait) {
      if (iteration > 0 || wait.position >= 0) all.push_back(Find(wait, iteration));
    };
    for (const Wait& wait : waits_[i]) add(wait);
    add({LaneId(static_cast<std::int32_t>(lane_of_[i])),
         static_cast<std::int32_t>(position_of_[i]) - 1});
    return all;
  }

  std::vector<Wait> Visit(std::size_t i, std::int64_t iteration) {
    Clock known(lanes_.size());  // known without waiting for events
    std::vector<Awaited> events;
    for (const Awaited& awaited : AwaitedBy(i, iteration)) {
      const int stream = stream_of_[awaited.instruction];
      if (stream == kHost || stream == stream_of_[i]) {
        Merge(*awaited.end, known);
      } else {
        events.push_back(awaited);
      }
    }
    std::vector<Wait> needed;
    Clock start = known;
    for (const Awaited& event : events) {
      const auto lane = static_cast<std::size_t>(event.wait.lane.value());
      const bool implied =
          known[lane] >= event.count || std::ranges::any_of(events, [&](const Awaited& other) {
            return other.instruction != event.instruction && (*other.end)[lane] >= event.count;
          });
      if (!implied) needed.push_back(event.wait);
      Merge(*event.end, start);
    }
    Clock& end = ends_[static_cast<std::size_t>(iteration & 1)][i];
    end = std::move(start);
    end[lane_of_[i]] =
        iteration * static_cast<std::int64_t>(lanes_[lane_of_[i]].size()) + position_of_[i] + 1;
    return needed;
  }

  const std::span<const int> stream_of_;
  std::vector<std::vector<std::size_t>> lanes_;  // the instructions of each lane
  std::vector<std::size_t> lane_of_;
  std::vector<std::int64_t> position_of_;
  const program::WaitLists waits_;
  // By instruction, in the last two iterations: all that must be done once it is done.
  std::array<std::vector<Clock>, 2> ends_;
};

}  // namespace

std::vector<std::vector<Wait>> EventWaits(const program::Program& program,
                                          std::span<const int> stream_of) {
  return Planner(program, stream_of).Run();
}

}  // namespace takt::engine
