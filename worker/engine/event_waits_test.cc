// SPDX-License-Identifier: Apache-2.0
#include "worker/engine/event_waits.h"

#include <bitset>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/plan/plan.h"
#include "common/schedule/generate.h"
#include "gtest/gtest.h"

namespace takt::engine {
namespace {

using program::Instruction;
using program::LaneKind;
using program::Program;
using program::Wait;

constexpr int kIterations = 3;
using Nodes = std::bitset<1024>;

// Computes everything that is known to be done when an instruction begins, in a body that is
// repeated. A node is an (iteration, instruction) as a number.
class Order {
 public:
  explicit Order(const Program& program) : program_(program), lanes_(program.lanes.size()) {
    for (std::size_t i = 0; i < program.body.size(); ++i) {
      position_of_.push_back(static_cast<std::int32_t>(Lane(i).size()));
      Lane(i).push_back(i);
    }
  }

  std::vector<std::size_t>& Lane(std::size_t i) {
    return lanes_[static_cast<std::size_t>(program_.body[i].lane.value())];
  }
  std::size_t Node(int iteration, std::size_t i) const {
    return static_cast<std::size_t>(iteration) * program_.body.size() + i;
  }
  // -1: before the first iteration.
  std::int64_t NodeOf(const Wait& wait, int iteration) const {
    const auto& lane = lanes_[static_cast<std::size_t>(wait.lane.value())];
    const int of = wait.position < 0 ? iteration - 1 : iteration;
    if (of < 0) return -1;
    const std::int64_t position =
        wait.position < 0 ? wait.position + std::ssize(lane) : wait.position;
    return static_cast<std::int64_t>(Node(of, lane[static_cast<std::size_t>(position)]));
  }
  // The node before it on its lane.
  Wait Before(std::size_t i) const { return {program_.body[i].lane, position_of_[i] - 1}; }

  // Returns, for each node, those that are done when it begins, if `edges` gives those for which it
  // waits.
  std::vector<Nodes> Over(const std::function<std::vector<Wait>(std::size_t)>& edges) const {
    std::vector<Nodes> over(kIterations * program_.body.size());
    EXPECT_LE(over.size(), Nodes().size());
    for (int iteration = 0; iteration < kIterations; ++iteration) {
      for (std::size_t i = 0; i < program_.body.size(); ++i) {
        Nodes& mine = over[Node(iteration, i)];
        for (const Wait& wait : edges(i)) {
          const std::int64_t node = NodeOf(wait, iteration);
          if (node < 0) continue;
          mine.set(static_cast<std::size_t>(node));
          mine |= over[static_cast<std::size_t>(node)];
        }
      }
    }
    return over;
  }

 private:
  const Program& program_;
  std::vector<std::vector<std::size_t>> lanes_;
  std::vector<std::int32_t> position_of_;
};

// Lists which lanes leave their instructions on streams, one for each lane.
using OnDevice = std::function<bool(const Program&, const Instruction&)>;

std::vector<int> StreamsOf(const Program& program, const OnDevice& on_device) {
  std::vector<int> streams;
  for (const Instruction& instruction : program.body) {
    streams.push_back(on_device(program, instruction) ? instruction.lane.value() : kHost);
  }
  return streams;
}

void ExpectExactlyTheWaitsNeeded(const Program& program, const OnDevice& on_device) {
  const std::vector<int> streams = StreamsOf(program, on_device);
  const std::vector<std::vector<Wait>> waits = EventWaits(program, streams);
  const program::WaitLists dependencies = Dependencies(program);
  const Order order(program);
  const auto stream_of = [&](const Wait& wait) {
    return streams[static_cast<std::size_t>(order.NodeOf(wait, 1)) % program.body.size()];
  };
  // Two orders hold without events: the one within a stream, and that the host goes on when its own
  // instruction is done.
  const auto given = [&](std::size_t i) {
    std::vector<Wait> edges;
    const auto add = [&](const Wait& wait) {
      const int stream = stream_of(wait);
      if (stream == kHost || stream == streams[i]) edges.push_back(wait);
    };
    for (const Wait& wait : dependencies[i]) add(wait);
    add(order.Before(i));
    return edges;
  };
  const auto with = [&](std::size_t left_out, std::size_t which) {
    return order.Over([&](std::size_t i) {
      std::vector<Wait> edges = given(i);
      for (std::size_t w = 0; w < waits[i].size(); ++w) {
        if (i != left_out || w != which) edges.push_back(waits[i][w]);
      }
      return edges;
    });
  };
  const auto demanded = order.Over([&](std::size_t i) {
    std::vector<Wait> edges(dependencies[i].begin(), dependencies[i].end());
    edges.push_back(order.Before(i));
    return edges;
  });
  const auto none = program.body.size();
  EXPECT_EQ(with(none, 0), demanded) << "a dependency is lost";
  for (std::size_t i = 0; i < program.body.size(); ++i) {
    for (std::size_t w = 0; w < waits[i].size(); ++w) {
      EXPECT_NE(with(i, w), demanded)
          << ToString(program.body[i], program) << " waits for what is over anyway";
      EXPECT_NE(stream_of(waits[i][w]), kHost);
      EXPECT_NE(stream_of(waits[i][w]), streams[i]);
    }
  }
}

std::vector<Program> ProgramsOf(const schedule::Family& family) {
  config::JobSpec job;
  job.model = {.family = model::Family::kLlama,
               .layers = 8,
               .hidden = 4,
               .heads = 1,
               .kv_heads = 1,
               .head_size = 4,
               .inner = 4,
               .context = 2,
               .positions = 2,
               .vocab = 5,
               .tied_head = family.updates == schedule::Updates::kFlush};
  job.train = {{.path = "nowhere"}};
  job.global_batch = 12;
  job.microbatch = 1;
  job.adamw.clip_norm = 0;
  job.parallelism.pipeline = 2;
  job.parallelism.schedule = family.name;
  if (family.updates == schedule::Updates::kFlush) {
    job.parallelism.data = 2;
    job.global_batch = 24;
  }
  const absl::StatusOr<plan::Plan> plan = plan::MakePlan(job, {.max_workers = 4});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? plan->programs : std::vector<Program>();
}

LaneKind KindOf(const Program& program, const Instruction& instruction) {
  return program.lanes[static_cast<std::size_t>(instruction.lane.value())].kind;
}

TEST(EventWaits, AreExactlyThoseNeededInAllFamilies) {
  const std::pair<const char*, OnDevice> mappings[] = {
      {"compute and receives",
       [](const Program& program, const Instruction& instruction) {
         const LaneKind kind = KindOf(program, instruction);
         return kind == LaneKind::kCompute || kind == LaneKind::kRecv;
       }},
      {"all but files and the barrier",
       [](const Program& program, const Instruction& instruction) {
         return KindOf(program, instruction) != LaneKind::kLoad &&
                instruction.op != program::Op::kNormExchange;
       }},
  };
  int programs = 0;
  for (const schedule::Family& family : schedule::Families()) {
    for (const auto& [name, on_device] : mappings) {
      for (const Program& program : ProgramsOf(family)) {
        SCOPED_TRACE(absl::StrCat(std::string(family.name), ", ", name, ", pp rank ",
                                  program.pp_rank.value()));
        ExpectExactlyTheWaitsNeeded(program, on_device);
        ++programs;
      }
    }
  }
  EXPECT_GE(programs, 60);
}

TEST(EventWaits, ThereAreNoneOnTheHost) {
  for (const Program& program : ProgramsOf(schedule::Families().front())) {
    const std::vector<int> streams(program.body.size(), kHost);
    for (const std::vector<Wait>& waits : EventWaits(program, streams)) EXPECT_TRUE(waits.empty());
  }
}

}  // namespace
}  // namespace takt::engine
