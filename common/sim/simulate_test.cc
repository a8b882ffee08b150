// SPDX-License-Identifier: Apache-2.0
#include "common/sim/simulate.h"

#include <functional>

#include "common/base/status.h"
#include "common/program/lowering.h"
#include "common/schedule/generate.h"
#include "common/schedule/text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::sim {
namespace {

using program::Instruction;
using program::Op;
using program::Program;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<Program> Programs(std::string_view family, int ranks, int microbatches,
                              const program::LowerOptions& options = {}) {
  const auto schedule =
      schedule::Generate(family, {.num_ranks = ranks, .num_microbatches = microbatches});
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return program::Lower(*schedule, options).value();
}

std::size_t IndexOf(const Program& program, std::string_view text) {
  for (std::size_t i = 0; i < program.body.size(); ++i) {
    if (ToString(program.body[i], program) == text) return i;
  }
  ADD_FAILURE() << "no " << std::string(text);
  return 0;
}

void Swap(Program& program, std::string_view a, std::string_view b) {
  std::swap(program.body[IndexOf(program, a)], program.body[IndexOf(program, b)]);
}

void Erase(Program& program, std::string_view text) {
  program.body.erase(program.body.begin() + IndexOf(program, text));
}

std::string Verdict(const std::vector<Program>& programs) {
  const absl::Status status = Prove(programs);
  EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(Simulate, MeetsThePublishedFiguresOfFourRanksAndEightMicrobatches) {
  const auto naive = Simulate(Programs("naive", 4, 8), {}).value();
  EXPECT_EQ(naive.makespan, 96);
  EXPECT_EQ(naive.bubble_fraction, 0.75);
  EXPECT_EQ(naive.ranks[0].peak_in_flight, 1);
  const auto gpipe = Simulate(Programs("gpipe", 4, 8), {}).value();
  EXPECT_EQ(gpipe.makespan, 33);
  EXPECT_DOUBLE_EQ(gpipe.bubble_fraction, 3.0 / 11);
  EXPECT_EQ(gpipe.ranks[0].peak_in_flight, 8);
  const auto one_f_one_b = Simulate(Programs("1f1b", 4, 8), {}).value();
  EXPECT_EQ(one_f_one_b.makespan, 33);
  EXPECT_DOUBLE_EQ(one_f_one_b.bubble_fraction, 3.0 / 11);
  EXPECT_EQ(one_f_one_b.ranks[0].peak_in_flight, 4);
}

TEST(Simulate, SplitsIdleTimeByWhereItIs) {
  const auto idle = [](std::string_view family, int rank) {
    const RankReport report = Simulate(Programs(family, 4, 8), {}).value().ranks[rank];
    return std::vector<double>{report.warmup_idle, report.steady_idle, report.cooldown_idle,
                               report.internal_idle};
  };
  // The first rank turns from forwards to backwards while the others run; the last is filled and
  // drained.
  EXPECT_EQ(idle("gpipe", 0), (std::vector<double>{0, 0, 0, 9}));
  EXPECT_EQ(idle("gpipe", 3), (std::vector<double>{3, 0, 6, 0}));
  // Here it waits for the first gradient, and then for one after each of the last ones.
  EXPECT_EQ(idle("1f1b", 0), (std::vector<double>{0, 0, 0, 9}));
  EXPECT_EQ(idle("1f1b", 3), (std::vector<double>{3, 0, 6, 0}));
}

TEST(Simulate, CountsTheOptimizerAfterTheBarrierIfItCosts) {
  EXPECT_EQ(Simulate(Programs("1f1b", 4, 8), {.optimizer = 2}).value().makespan, 35);
}

TEST(Simulate, CountsStashBytes) {
  const auto programs = Programs(
      "1f1b", 2, 4,
      {.stages = {{.output_bytes = 1, .stash_bytes = 100},
                  {.first_layer = LayerId(1), .last_layer = LayerId(2), .stash_bytes = 30}}});
  const auto report = Simulate(programs, {}).value();
  EXPECT_EQ(report.ranks[0].peak_stash_bytes, 200);
  EXPECT_EQ(report.ranks[1].peak_stash_bytes, 30);
}

TEST(Simulate, LetsBandwidthOccupyTheLinkAndLatencyNot) {
  const program::LowerOptions options{
      .stages = {{.output_bytes = 10}, {.first_layer = LayerId(1), .last_layer = LayerId(2)}}};
  const auto programs = Programs("gpipe", 2, 2, options);
  // F of both microbatches takes no time: the messages follow each other on the link, 5 each, or
  // fly beside each other.
  const cost::Costs nothing{.forward = {0}, .input_grad = {0}, .weight_grad = {0}, .backward = {0}};
  cost::Costs bandwidth = nothing;
  bandwidth.link.seconds_per_byte = 0.5;
  EXPECT_EQ(Simulate(programs, bandwidth).value().makespan, 20);
  cost::Costs latency = nothing;
  latency.link.latency = 5;
  EXPECT_EQ(Simulate(programs, latency).value().makespan, 10);
}

TEST(Simulate, TakesCostsByStageAndRefusesImpossibleOnes) {
  const auto programs = Programs("naive", 2, 1);
  EXPECT_EQ(Simulate(programs, {.forward = {1, 10}, .backward = {2, 20}}).value().makespan, 33);
  EXPECT_THAT(std::string(Simulate(programs, {.forward = {1, 2, 3}}).status().message()),
              HasSubstr("one for each of the 2 stages"));
  EXPECT_THAT(std::string(Simulate(programs, {.link = {.latency = -1}}).status().message()),
              HasSubstr("cost.comm is -1"));
  EXPECT_FALSE(Simulate(programs, {.optimizer = std::numeric_limits<double>::infinity()}).ok());
}

TEST(Prove, RefusesProgramsThatDoNotBelongTogether) {
  EXPECT_THAT(Verdict({}), HasSubstr("no programs"));
  auto programs = Programs("1f1b", 2, 2);
  EXPECT_EQ(Verdict(programs), "");
  EXPECT_THAT(Verdict({programs[0]}), HasSubstr("program 0 of 1 is for pp rank 0 of 2"));
  EXPECT_THAT(Verdict({programs[1], programs[0]}), HasSubstr("program 0 of 2 is for pp rank 1"));
  auto more = Programs("1f1b", 2, 3);
  EXPECT_THAT(Verdict({programs[0], more[1]}),
              HasSubstr("another number of stages or microbatches"));
}

TEST(Prove, FindsAMessageOrderThatDiffers) {
  auto programs = Programs("gpipe", 2, 2);
  Swap(programs[1], "0RECV_F0", "0RECV_F1");
  EXPECT_THAT(Verdict(programs),
              AllOf(HasSubstr("not received in the order in which they are sent"),
                    HasSubstr("rank 0 0SEND_F0 meets rank 1 0RECV_F1")));
}

TEST(Prove, FindsAMessageThatNobodySends) {
  auto programs = Programs("gpipe", 2, 1);
  programs[1].body = {};
  programs[1].slots = {};
  EXPECT_THAT(Verdict(programs), HasSubstr("1RECV_B0 waits for rank 1, which will never send it"));
}

TEST(Prove, FindsAMessageThatNobodyTakes) {
  auto programs = Programs("gpipe", 2, 1);
  std::vector<Instruction>& body = programs[0].body;
  const std::size_t sent = IndexOf(programs[0], "0SEND_F0");
  body.insert(body.begin() + sent, body[sent]);  // twice
  // In the second step; in the first one the surplus is taken for the next step's.
  EXPECT_THAT(Verdict(programs), HasSubstr("0SEND_F0 waits for rank 1, which will never take it"));
}

TEST(Prove, SpellsOutACycleBetweenRanks) {
  // Rank 0 wants the first gradient before it makes the second activation; rank 1 the other way
  // round.
  const std::vector<Program> programs = {Programs("naive", 2, 2)[0], Programs("gpipe", 2, 2)[1]};
  EXPECT_THAT(Verdict(programs),
              AllOf(HasSubstr("rank 0 0B0 waits for 1RECV_B0"),
                    HasSubstr("rank 0 1RECV_B0 waits for rank 1 to send it"),
                    HasSubstr("rank 1 1SEND_B0 waits for 1B0 behind rank 1 1F1"),
                    HasSubstr("rank 1 1F1 waits for 0RECV_F1"),
                    HasSubstr("rank 1 0RECV_F1 waits for rank 0 to send it"),
                    HasSubstr("rank 0 0SEND_F1 waits for 0F1 behind rank 0 0B0")));
}

TEST(Prove, FindsARankThatNeverComesToTheBarrier) {
  auto programs = Programs("1f1b", 2, 2);
  Erase(programs[1], "NORM_EXCHANGE");
  EXPECT_THAT(Verdict(programs), HasSubstr("NORM_EXCHANGE waits for a rank that will never come"));
}

TEST(Prove, FindsEachKindOfDamage) {
  const std::tuple<const char*, int, std::function<void(Program&)>> damages[] = {
      {"1F0 finds another activation", 1, [](Program& p) { Swap(p, "0RECV_F0", "1F0"); }},
      {"0B0 finds another gradient", 0, [](Program& p) { Erase(p, "1RECV_B0"); }},
      {"0F0 comes before LOAD", 0, [](Program& p) { Swap(p, "LOAD", "0F0"); }},
      {"0SEND_F0 finds another message", 0, [](Program& p) { Swap(p, "0F0", "0SEND_F0"); }},
      {"0B1 finds another stash", 0,
       [](Program& p) {
         Erase(p, "0F1");
         Erase(p, "0SEND_F1");
       }},
      {"runs 1 forwards on stage 1 of 2", 1,
       [](Program& p) {
         for (const char* text :
              {"0RECV_F1", "1F1", "1B1", "1SEND_B1", "REDUCE_GRAD(1)", "NORM_PARTIAL", "OPT"})
           Erase(p, text);
       }},
      {"NORM_PARTIAL comes before the gradient of layer 1 is complete", 1,
       [](Program& p) { Swap(p, "1B1", "NORM_PARTIAL"); }},
      {"REDUCE_GRAD(0) comes before the gradient of layer 0 is complete", 0,
       [](Program& p) { Swap(p, "0B1", "REDUCE_GRAD(0)"); }},
  };
  for (const auto& [message, rank, damage] : damages) {
    auto programs = Programs("gpipe", 2, 2, {.reduce_gradients = true});
    ASSERT_EQ(Verdict(programs), "");
    damage(programs[rank]);
    EXPECT_THAT(Verdict(programs), HasSubstr(message));
  }
}

}  // namespace
}  // namespace takt::sim
