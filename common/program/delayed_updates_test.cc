// SPDX-License-Identifier: Apache-2.0
// Executes programs without a flush on a model of one number a stage, and compares the results with
// the recurrences of the papers.
#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/program/lowering.h"
#include "common/program/program_serde.h"
#include "common/schedule/generate.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::program {
namespace {

using schedule::Schedule;
using schedule::Updates;
using ::testing::HasSubstr;

Schedule WithoutFlush(Updates updates, int ranks, int microbatches,
                      std::string_view family = "1f1b") {
  Schedule schedule =
      schedule::Generate(family, {.num_ranks = ranks, .num_microbatches = microbatches}).value();
  schedule.updates = updates;
  return schedule;
}

// The model: stage s maps x to weight[s] * x; the loss of the product y against target t is
// (y - t)^2 / 2. An update is a step of plain gradient descent.
constexpr double kRate = 0.01;
double InitialWeight(int stage) { return 0.5 + 0.25 * stage; }
double InputOf(int step, int m) { return 1 + 0.125 * ((step * 7 + m * 3) % 5); }
double TargetOf(int step, int m) { return 0.5 * ((step * 5 + m) % 3); }

// Runs all ranks' programs: the prologue, then bodies. Lanes go on in an order drawn from those
// that waits and messages allow.
class Interpreter {
 public:
  explicit Interpreter(const std::vector<Program>& programs, int steps, unsigned seed)
      : programs_(programs), steps_(steps), random_(seed) {
    for (const Program& program : programs) {
      Rank& rank = ranks_.emplace_back();
      rank.program = &program;
      rank.waits = Dependencies(program);
      rank.values.resize(program.slots.size());
      rank.lanes.resize(program.lanes.size());
      for (std::size_t i = 0; i < program.slots.size(); ++i) {
        const Slot& slot = program.slots[i];
        // SNAPSHOT fills the other versions.
        if (slot.kind == SlotKind::kWeights && slot.version == 0) {
          rank.values[i].number = InitialWeight(slot.stage.value());
        }
      }
      for (std::size_t i = 0; i < program.body.size(); ++i) {
        rank.lanes[program.body[i].lane.value()].list.push_back(static_cast<int>(i));
      }
    }
  }

  bool Run() {
    while (PrologueAdvances()) {
    }
    for (const Rank& rank : ranks_) {
      if (rank.prologue_done != static_cast<int>(rank.program->prologue.size())) return false;
    }
    for (;;) {
      std::vector<std::pair<int, int>> able;  // rank, lane; of a message its sender's
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        for (std::size_t l = 0; l < ranks_[r].lanes.size(); ++l) {
          if (CanRun(static_cast<int>(r), static_cast<int>(l))) {
            able.push_back({static_cast<int>(r), static_cast<int>(l)});
          }
        }
      }
      if (able.empty()) break;
      random_ = random_ * 1664525 + 1013904223;
      const auto [rank, lane] = able[(random_ >> 8) % able.size()];
      RunLane(rank, lane);
    }
    return std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
      return std::all_of(rank.lanes.begin(), rank.lanes.end(), [&](const LaneState& lane) {
        return lane.done == static_cast<int>(lane.list.size()) * steps_;
      });
    });
  }

  // The weights of a stage after each OPT.
  const std::vector<double>& History(int stage) const { return ranks_[stage].history; }

 private:
  // A number with what it is about, so that the test sees a slot that was used for another.
  struct Value {
    double number = 0;
    int step = -1, microbatch = -1;
    double target = 0;  // of tokens
  };
  struct LaneState {
    std::vector<int> list;
    int done = 0;
  };
  struct Rank {
    const Program* program = nullptr;
    WaitLists waits;
    std::vector<Value> values;
    std::vector<LaneState> lanes;
    std::vector<double> history;
    int prologue_done = 0;
    bool starts_gradient = true;  // the next B stores
  };

  bool PrologueAdvances() {
    bool advanced = false;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const Instruction* next = NextOfPrologue(static_cast<int>(r));
      if (next == nullptr || next->op == Op::kRecv) continue;  // its sender runs it
      if (next->op != Op::kSend) {
        Execute(ranks_[r], *next, 0);
      } else {
        const int peer = ranks_[r].program->lanes[next->lane.value()].peer.value();
        const Instruction* taken = NextOfPrologue(peer);
        if (taken == nullptr || taken->op != Op::kRecv) continue;
        Deliver(ranks_[r], *next, 0, ranks_[peer], *taken, 0);
        ++ranks_[peer].prologue_done;
      }
      ++ranks_[r].prologue_done;
      advanced = true;
    }
    return advanced;
  }

  const Instruction* NextOfPrologue(int rank) const {
    const std::vector<Instruction>& prologue = ranks_[rank].program->prologue;
    const int done = ranks_[rank].prologue_done;
    return done < static_cast<int>(prologue.size()) ? &prologue[done] : nullptr;
  }

  bool IsReady(const Rank& rank, const LaneState& lane) const {
    const int length = static_cast<int>(lane.list.size());
    if (length == 0 || lane.done == length * steps_) return false;
    for (const Wait& wait : rank.waits[lane.list[lane.done % length]]) {
      const LaneState& other = rank.lanes[wait.lane.value()];
      const int position = lane.done / length * static_cast<int>(other.list.size()) + wait.position;
      if (position >= other.done) return false;
    }
    return true;
  }

  const Instruction& Next(const Rank& rank, const LaneState& lane) const {
    return rank.program->body[lane.list[lane.done % lane.list.size()]];
  }
  int StepOf(const LaneState& lane) const { return lane.done / static_cast<int>(lane.list.size()); }

  // The receiving lane of a sending one.
  LaneState& Taker(int rank, int lane) {
    const Lane& sends = ranks_[rank].program->lanes[lane];
    Rank& peer = ranks_[sends.peer.value()];
    for (std::size_t i = 0; i < peer.lanes.size(); ++i) {
      const Lane& takes = peer.program->lanes[i];
      if (takes.kind == LaneKind::kRecv && takes.direction == sends.direction &&
          takes.peer.value() == rank) {
        return peer.lanes[i];
      }
    }
    ADD_FAILURE() << "nobody receives";
    return peer.lanes[0];
  }

  bool CanRun(int r, int l) {
    const Rank& rank = ranks_[r];
    const Lane& lane = rank.program->lanes[l];
    if (lane.kind == LaneKind::kRecv || !IsReady(rank, rank.lanes[l])) return false;
    return lane.kind != LaneKind::kSend || IsReady(ranks_[lane.peer.value()], Taker(r, l));
  }

  void RunLane(int r, int l) {
    Rank& rank = ranks_[r];
    LaneState& lane = rank.lanes[l];
    const Instruction& instruction = Next(rank, lane);
    if (instruction.op == Op::kSend) {
      Rank& peer = ranks_[rank.program->lanes[l].peer.value()];
      LaneState& taker = Taker(r, l);
      Deliver(rank, instruction, StepOf(lane), peer, Next(peer, taker), StepOf(taker));
      ++taker.done;
    } else {
      Execute(rank, instruction, StepOf(lane));
    }
    ++lane.done;
  }

  // Checks what a receiver checks on the wire.
  void Deliver(Rank& from, const Instruction& sent, int sent_step, Rank& to,
               const Instruction& taken, int taken_step) {
    EXPECT_EQ(sent.stage, taken.stage);
    EXPECT_EQ(sent.microbatch, taken.microbatch);
    EXPECT_EQ(sent_step + sent.step_ahead, taken_step + taken.step_ahead);
    const Value& message = from.values[sent.reads[0].value()];
    EXPECT_EQ(message.step, sent_step + sent.step_ahead);
    EXPECT_EQ(message.microbatch, sent.microbatch.value());
    to.values[taken.writes[0].value()] = message;
  }

  void Execute(Rank& rank, const Instruction& instruction, int iteration) {
    const int step = iteration + instruction.step_ahead;
    const int m = instruction.microbatch.value();
    const auto read = [&](SlotKind kind) -> Value& {
      for (const SlotId id : instruction.reads) {
        if (rank.program->slots[id.value()].kind == kind) return rank.values[id.value()];
      }
      ADD_FAILURE() << ToString(instruction, *rank.program) << " lacks a slot";
      return rank.values[0];
    };
    const auto find = [&](const std::vector<SlotId>& slots, SlotKind kind) {
      const auto found = std::find_if(slots.begin(), slots.end(), [&](SlotId id) {
        return rank.program->slots[id.value()].kind == kind;
      });
      return found == slots.end() ? nullptr : &rank.values[found->value()];
    };
    const auto about_this = [&](const Value& value) {
      EXPECT_EQ(value.step, step) << ToString(instruction, *rank.program);
      EXPECT_EQ(value.microbatch, m) << ToString(instruction, *rank.program);
      return value.number;
    };
    const int stage = instruction.stage.value();
    const bool is_last = stage == rank.program->num_stages - 1;
    switch (instruction.op) {
      case Op::kLoad:
        rank.values[instruction.writes[0].value()] = {InputOf(step, m), step, m, TargetOf(step, m)};
        return;
      case Op::kForward: {
        const double x = about_this(read(stage == 0 ? SlotKind::kTokens : SlotKind::kInput));
        const double weight = read(SlotKind::kWeights).number;
        *find(instruction.writes, SlotKind::kStash) = {weight * x, step, m};
        if (Value* output = find(instruction.writes, SlotKind::kOutput)) {
          *output = {weight * x, step, m};
        }
        return;
      }
      case Op::kInputGrad:
      case Op::kWeightGrad:
      case Op::kBackward: {
        const double x = about_this(read(stage == 0 ? SlotKind::kTokens : SlotKind::kInput));
        const double y = about_this(read(SlotKind::kStash));
        const double weight = read(SlotKind::kWeights).number;
        EXPECT_EQ(y, weight * x) << ToString(instruction, *rank.program)
                                 << " meets other weights than its F";
        if (is_last) about_this(read(SlotKind::kTokens));
        const double dy =
            is_last ? y - read(SlotKind::kTokens).target : about_this(read(SlotKind::kOutputGrad));
        if (Value* gradient = find(instruction.writes, SlotKind::kGradient)) {
          gradient->number = (rank.starts_gradient ? 0 : gradient->number) + dy * x;
          rank.starts_gradient = false;
        }
        if (Value* passed = find(instruction.writes, SlotKind::kInputGrad)) {
          *passed = {dy * weight, step, m};
        }
        return;
      }
      case Op::kOptimizer: {
        const double updated =
            read(SlotKind::kWeights).number - kRate * read(SlotKind::kGradient).number;
        for (std::size_t i = instruction.writes.size(); i-- > 1;) {
          rank.values[instruction.writes[i].value()] =
              rank.values[instruction.writes[i - 1].value()];
        }
        rank.values[instruction.writes[0].value()].number = updated;
        rank.history.push_back(updated);
        rank.starts_gradient = true;
        return;
      }
      case Op::kSnapshot:
        for (const SlotId id : instruction.writes) {
          rank.values[id.value()] = read(SlotKind::kWeights);
        }
        return;
      default:
        return;
    }
  }

  const std::vector<Program>& programs_;
  const int steps_;
  unsigned random_;
  std::vector<Rank> ranks_;
};

// The gradients of one microbatch by stage, where each stage has the weight given for it.
std::vector<double> Gradients(const std::vector<double>& weights, int step, int m) {
  std::vector<double> inputs = {InputOf(step, m)};
  for (const double weight : weights) inputs.push_back(weight * inputs.back());
  std::vector<double> gradients(weights.size());
  double dy = inputs.back() - TargetOf(step, m);
  for (std::size_t s = weights.size(); s-- > 0;) {
    gradients[s] = dy * inputs[s];
    dy *= weights[s];
  }
  return gradients;
}

std::vector<std::vector<double>> InitialHistories(int ranks) {
  std::vector<std::vector<double>> histories(ranks);
  for (int s = 0; s < ranks; ++s) histories[s] = {InitialWeight(s)};
  return histories;
}

constexpr std::pair<int, int> kSizes[] = {{1, 1}, {1, 3}, {2, 2}, {2, 3}, {3, 3},
                                          {3, 7}, {4, 4}, {4, 8}, {4, 9}, {5, 13}};
constexpr int kSteps = 4;

// Runs the programs of a schedule in several orders, and compares the weights of every stage.
void ExpectHistories(const Schedule& schedule, const std::vector<std::vector<double>>& expected) {
  const auto programs = Lower(schedule, {});
  ASSERT_TRUE(programs.ok()) << programs.status();
  for (const unsigned seed : {1u, 2u, 3u}) {
    Interpreter interpreter(*programs, kSteps, seed);
    ASSERT_TRUE(interpreter.Run())
        << schedule.num_ranks() << " ranks, " << schedule.num_microbatches << " microbatches";
    for (int s = 0; s < schedule.num_stages; ++s) {
      const std::vector<double> made(expected[s].begin() + 1, expected[s].end());
      EXPECT_EQ(interpreter.History(s), made) << schedule.num_ranks() << " ranks, stage " << s;
    }
  }
}

// Stage s applies the gradient of microbatch t, counted over all steps, to its weights after t
// updates. The gradient is taken at those after t - delay(s).
std::vector<std::vector<double>> UpdatedByEach(int ranks, int m,
                                               const std::function<int(int)>& delay) {
  auto histories = InitialHistories(ranks);
  for (int t = 0; t < kSteps * m; ++t) {
    std::vector<double> met;
    for (int s = 0; s < ranks; ++s) met.push_back(histories[s][std::max(0, t - delay(s))]);
    const std::vector<double> gradients = Gradients(met, t / m, t % m);
    for (int s = 0; s < ranks; ++s) {
      histories[s].push_back(histories[s].back() - kRate * gradients[s]);
    }
  }
  return histories;
}

// w(t+1) = w(t) - rate * gradient of step t at w(t-1); w(-1) = w(0).
std::vector<std::vector<double>> UpdatedByStep(int ranks, int m) {
  auto histories = InitialHistories(ranks);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<double> met, sums(ranks, 0);
    for (int s = 0; s < ranks; ++s) met.push_back(histories[s][std::max(0, step - 1)]);
    for (int i = 0; i < m; ++i) {
      const std::vector<double> gradients = Gradients(met, step, i);
      for (int s = 0; s < ranks; ++s) sums[s] += gradients[s];
    }
    for (int s = 0; s < ranks; ++s) histories[s].push_back(histories[s].back() - kRate * sums[s]);
  }
  return histories;
}

TEST(PipeDream, UpdatesWithGradientsAtTheWeightsOfItsForwards) {
  for (const auto& [p, m] : kSizes) {
    ExpectHistories(WithoutFlush(Updates::kEachBackward, p, m),
                    UpdatedByEach(p, m, [p = p](int s) { return p - 1 - s; }));
  }
}

TEST(PipeDream2Bw, UpdatesOnceAStepWithGradientsAtTheWeightsBefore) {
  for (const auto& [p, m] : kSizes) {
    ExpectHistories(WithoutFlush(Updates::kDelayed, p, m), UpdatedByStep(p, m));
  }
  // Fewer microbatches than ranks do as well. The pipeline only waits more.
  ExpectHistories(WithoutFlush(Updates::kDelayed, 4, 3), UpdatedByStep(4, 3));
  ExpectHistories(WithoutFlush(Updates::kDelayed, 4, 1), UpdatedByStep(4, 1));
}

// The schedule with every B as an I and the W of the same microbatch.
Schedule Split(Schedule schedule) {
  for (schedule::Row& row : schedule.ranks) {
    schedule::Row split;
    for (schedule::Action action : row) {
      const bool backward = action.kind == schedule::ActionKind::kBackward;
      if (backward) action.kind = schedule::ActionKind::kInputGrad;
      split.push_back(action);
      if (!backward) continue;
      split.push_back({action.stage, schedule::ActionKind::kWeightGrad, action.microbatch});
    }
    row = split;
  }
  return schedule;
}

TEST(WithoutAFlush, SplitsTheBackward) {
  for (const auto& [p, m] : {std::pair{1, 1}, {1, 3}, {2, 4}, {3, 7}, {4, 8}, {5, 13}}) {
    ExpectHistories(Split(WithoutFlush(Updates::kEachBackward, p, m)),
                    UpdatedByEach(p, m, [p = p](int s) { return p - 1 - s; }));
    ExpectHistories(Split(WithoutFlush(Updates::kDelayed, p, m)), UpdatedByStep(p, m));
    // Here W comes some backwards later than its I.
    ExpectHistories(WithoutFlush(Updates::kDelayed, p, m, "zb-h1"), UpdatedByStep(p, m));
  }
}

std::string List(const Program& program, const std::vector<Instruction>& part) {
  return absl::StrJoin(part, " ", [&](std::string* out, const Instruction& instruction) {
    out->append(ToString(instruction, program));
    if (instruction.step_ahead > 0) out->append("'");
  });
}

TEST(WithoutAFlush, LetsTheForwardsOfTheNextStepRunAmongTheBackwardsOfThisOne) {
  const auto programs = Lower(WithoutFlush(Updates::kDelayed, 2, 2), {.tied_embeddings = true});
  ASSERT_TRUE(programs.ok()) << programs.status();
  const Program& first = (*programs)[0];
  EXPECT_EQ(List(first, first.prologue), "SNAPSHOT LOAD 0F0 0SEND_F0");
  EXPECT_EQ(List(first, first.body),
            "1RECV_B0 LOAD 0F1 0SEND_F1 1RECV_B1 0B0 LOAD' 0F0' 0SEND_F0' 0B1 REDUCE_TIED OPT "
            "NORM_PARTIAL NORM_EXCHANGE");
  const Program& last = (*programs)[1];
  EXPECT_EQ(List(last, last.prologue), "SNAPSHOT 0RECV_F0");
  EXPECT_EQ(List(last, last.body),
            "0RECV_F1 LOAD 1F0 1B0 1SEND_B0 0RECV_F0' LOAD 1F1 1B1 1SEND_B1 REDUCE_TIED OPT "
            "NORM_PARTIAL NORM_EXCHANGE");
}

int NumSlots(const Program& program, SlotKind kind) {
  return static_cast<int>(std::count_if(program.slots.begin(), program.slots.end(),
                                        [&](const Slot& slot) { return slot.kind == kind; }));
}

TEST(WithoutAFlush, KeepsAsManyVersionsAndStashesAsThePapersSay) {
  const auto each = Lower(WithoutFlush(Updates::kEachBackward, 4, 8), {});
  const auto delayed = Lower(WithoutFlush(Updates::kDelayed, 4, 8), {});
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(NumSlots((*each)[r], SlotKind::kWeights), 4 - r);
    EXPECT_EQ(NumSlots((*delayed)[r], SlotKind::kWeights), 2);
    EXPECT_EQ(NumSlots((*delayed)[r], SlotKind::kStash), 4 - r == 3 ? 4 : 4 - r);
  }
}

TEST(WithoutAFlush, ReadsBackAndPassesTheCheck) {
  for (const Updates updates : {Updates::kEachBackward, Updates::kDelayed}) {
    const std::vector<Program> programs = Lower(WithoutFlush(updates, 3, 5), {}).value();
    for (const Program& program : programs) {
      EXPECT_TRUE(CheckProgram(program).ok()) << CheckProgram(program);
      const v1::Program proto = ToProto(program);
      EXPECT_EQ(proto.version(), 3);
      const auto back = FromProto(proto);
      ASSERT_TRUE(back.ok()) << back.status();
      EXPECT_EQ(ToProto(*back).SerializeAsString(), proto.SerializeAsString());
    }
  }
}

TEST(WithoutAFlush, RefusesWhatCannotRunWithoutAFlush) {
  const auto refusal = [](const Schedule& schedule, const LowerOptions& options) {
    return std::string(Lower(schedule, options).status().message());
  };
  const Schedule each = WithoutFlush(Updates::kEachBackward, 2, 4);
  EXPECT_THAT(refusal(each, {.reduce_gradients = true}), HasSubstr("parallelism.data"));
  EXPECT_THAT(refusal(each, {.tied_embeddings = true}), HasSubstr("use pipedream-2bw"));
  for (const auto& [family, rule] : {std::pair{"interleaved-1f1b", "each rank runs one stage"},
                                     std::pair{"chimera", "each rank runs one stage"},
                                     std::pair{"gpipe", "the last rank runs no forward ahead"}}) {
    EXPECT_THAT(refusal(WithoutFlush(Updates::kDelayed, 2, 4, family), {}), HasSubstr(rule));
  }
  EXPECT_THAT(refusal(WithoutFlush(Updates::kDelayed, 2, 3, "zb-h1"), {}),
              HasSubstr("at least as many as pp rank 1 holds at once (4)"));
  Schedule disordered = WithoutFlush(Updates::kDelayed, 1, 2);
  std::swap(disordered.ranks[0][0].microbatch, disordered.ranks[0][2].microbatch);
  std::swap(disordered.ranks[0][1].microbatch, disordered.ranks[0][3].microbatch);
  EXPECT_THAT(refusal(disordered, {}), HasSubstr("microbatch by microbatch in ascending order"));
}

}  // namespace
}  // namespace takt::program
