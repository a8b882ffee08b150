// SPDX-License-Identifier: Apache-2.0
#include "common/sim/prove.h"

#include <algorithm>
#include <functional>
#include <tuple>

#include "common/schedule/text.h"
#include "common/sim/testing/program_edit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::sim {
namespace {

using program::Instruction;
using program::Program;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Verdict(const std::vector<Program>& programs, const ProofOptions& options = {}) {
  const absl::Status status = Prove(programs, options);
  EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
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

TEST(Prove, EveryLayerIsGatheredOnceAfterTheUpdateOfItsShards) {
  const program::LowerOptions shards{.reduce_gradients = true, .shard_optimizer = true};
  for (const char* family : {"1f1b", "zb-h1", "interleaved-1f1b", "zb-v", "chimera"})
    EXPECT_EQ(Verdict(Programs(family, 4, 8, shards)), "") << family;
  const std::vector<Program> good = Programs("1f1b", 2, 2, shards);
  std::vector<Program> programs = good;
  Erase(programs[0], "GATHER_WEIGHTS(0)");
  EXPECT_THAT(Verdict(programs), HasSubstr("rank 0 has the weights of layer 0 in 0 "
                                           "GATHER_WEIGHTS, must be in 1"));
  programs = good;
  Double(programs[0], "GATHER_WEIGHTS(0)");
  EXPECT_THAT(Verdict(programs), HasSubstr("GATHER_WEIGHTS(0) finds no shards of new weights"));
  programs = good;
  Swap(programs[1], "OPT", "GATHER_WEIGHTS(1)");
  EXPECT_THAT(Verdict(programs), HasSubstr("GATHER_WEIGHTS(1) finds no shards of new weights"));
}

TEST(Prove, ShardsOfASecondCopyAreInTheNorm) {
  auto programs = Programs("chimera", 2, 2, {.reduce_gradients = true, .shard_optimizer = true});
  ASSERT_EQ(Verdict(programs), "");
  Find(programs[0], "NORM_PARTIAL").reads.erase(Find(programs[0], "NORM_PARTIAL").reads.begin());
  EXPECT_THAT(Verdict(programs), HasSubstr("rank 0 counts its layer 0 0 times in the norm"));
}

TEST(Prove, FindsAMessageOrderThatDiffers) {
  auto programs = Programs("gpipe", 2, 2);
  Swap(programs[1], "0RECV_F0", "0RECV_F1");
  EXPECT_THAT(Verdict(programs),
              AllOf(HasSubstr("not received in the order in which they are sent"),
                    HasSubstr("rank 0 0SEND_F0 meets rank 1 0RECV_F1")));
}

// Rank 1 keeps all its actions and loses a message, so that the proof comes as far as the wait.
TEST(Prove, FindsAMessageThatNobodySends) {
  auto programs = Programs("gpipe", 2, 1);
  Erase(programs[1], "1SEND_B0");
  EXPECT_THAT(Verdict(programs), HasSubstr("1RECV_B0 waits for rank 1, which will never send it"));
}

TEST(Prove, FindsAMessageThatNobodyTakes) {
  auto programs = Programs("gpipe", 2, 1);
  Double(programs[0], "0SEND_F0");
  EXPECT_THAT(Verdict(programs), HasSubstr("0SEND_F0 waits for rank 1, which will never take it"));
}

TEST(Prove, SpellsOutACycleBetweenRanks) {
  // Rank 0 wants the first gradient before it makes the second activation. Rank 1 wants the second
  // activation before it makes the first gradient.
  const std::vector<Program> programs = {Programs("naive", 2, 2)[0], Programs("gpipe", 2, 2)[1]};
  const auto cycle = AllOf(HasSubstr("rank 0 0B0 waits for 1RECV_B0"),
                           HasSubstr("rank 0 1RECV_B0 waits for rank 1 to send it"),
                           HasSubstr("rank 1 1SEND_B0 waits for 1B0 behind rank 1 1F1"),
                           HasSubstr("rank 1 1F1 waits for 0RECV_F1"),
                           HasSubstr("rank 1 0RECV_F1 waits for rank 0 to send it"),
                           HasSubstr("rank 0 0SEND_F1 waits for 0F1 behind rank 0 0B0"));
  EXPECT_THAT(Verdict(programs), cycle);
  EXPECT_THAT(Verdict(programs, {.one_fifo_per_pair = true}), cycle);
}

TEST(Prove, MarksTheGuiltyCellOfTheSchedule) {
  const auto schedule =
      schedule::Generate("gpipe", {.num_ranks = 2, .num_microbatches = 2}).value();
  auto programs = program::Lower(schedule, {}).value();
  Swap(programs[1], "0RECV_F0", "0RECV_F1");
  EXPECT_THAT(Verdict(programs, {.schedule = &schedule}), HasSubstr("[1F1]"));
  programs = program::Lower(schedule, {}).value();
  Erase(programs[1], "1SEND_B0");
  EXPECT_THAT(Verdict(programs, {.schedule = &schedule}), HasSubstr("[0B0]"));
}

// A rank takes two messages of different directions in another order than its peer sends them. That
// works with a queue for each direction, and is a deadlock with one for both.
TEST(Prove, KnowsTransportsWithOneQueueForBothDirections) {
  auto programs = Programs("interleaved-1f1b", 2, 2);
  EXPECT_EQ(Verdict(programs), "");
  EXPECT_EQ(Verdict(programs, {.one_fifo_per_pair = true}), "");
  // Rank 0's row ends 2F0 2F1 2B0..., where rank 1 gets 0F... and gradients from one sender.
  std::vector<Instruction>& body = programs[1].body;
  const std::size_t activation = IndexOf(programs[1], "2RECV_F1");
  const std::size_t gradient = IndexOf(programs[1], "2RECV_B0");
  ASSERT_LT(activation, gradient);
  std::rotate(body.begin() + static_cast<std::ptrdiff_t>(activation),
              body.begin() + static_cast<std::ptrdiff_t>(gradient),
              body.begin() + static_cast<std::ptrdiff_t>(gradient) + 1);
  EXPECT_EQ(Verdict(programs), "");
  EXPECT_THAT(Verdict(programs, {.one_fifo_per_pair = true}),
              HasSubstr("rank 0 2SEND_F1 meets rank 1 2RECV_B0"));
}

// With one queue a rank would take the activation for the gradient of the same stage and
// microbatch.
TEST(Prove, TellsAnActivationFromAGradient) {
  const auto schedule =
      schedule::ParseCsv("0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n", "two ranks").value();
  auto programs = program::Lower(schedule, {.optimizer = false}).value();
  // Rank 1 goes backward through stage 1 before it goes through stage 3.
  std::stable_partition(
      programs[1].body.begin(), programs[1].body.end(), [&](const Instruction& instruction) {
        const std::string text = ToString(instruction, programs[1]);
        return text != "2RECV_F0" && text != "3F0" && text != "3B0" && text != "3SEND_B0";
      });
  EXPECT_THAT(Verdict(programs), HasSubstr("rank 1 1B0 waits for 2RECV_B0"));
  EXPECT_THAT(Verdict(programs, {.one_fifo_per_pair = true}),
              HasSubstr("rank 0 2SEND_F0 meets rank 1 2RECV_B0"));
}

TEST(Prove, HoldsEachRankToItsBytes) {
  const auto programs = Programs(
      "gpipe", 2, 3,
      {.stages = {{.output_bytes = 10, .stash_bytes = 100},
                  {.first_layer = LayerId(1), .last_layer = LayerId(2), .stash_bytes = 7}}});
  // Rank 0 has three stashes, two outputs on their way and three gradients. Rank 1 has three
  // inputs, three stashes and two gradients.
  EXPECT_EQ(Verdict(programs, {.byte_limits = {350, 71}}), "");
  EXPECT_THAT(
      Verdict(programs, {.byte_limits = {349, 71}}),
      HasSubstr(
          "rank 0 needs 350 bytes (300 of activations kept, 50 of messages), the limit is 349"));
  EXPECT_THAT(Verdict(programs, {.byte_limits = {350, 70}}), HasSubstr("rank 1 needs 71 bytes"));
  EXPECT_THAT(Verdict(programs, {.byte_limits = {1}}),
              HasSubstr("byte_limits is 1 value: one for each of the 2 ranks"));
}

TEST(Prove, HoldsWeightGradToWhatItsInputGradRecomputed) {
  using Damage = std::function<void(Program&)>;
  const std::pair<const char*, Damage> damages[] = {
      {"0I0 recomputes and has no slot", [](Program& p) { Find(p, "0I0").writes.pop_back(); }},
      {"0W0 does not read what its I recomputed",
       [](Program& p) { std::erase(Find(p, "0W0").reads, Find(p, "0I0").writes.back()); }},
      {"0W0 finds in its slot what was recomputed for another",
       [](Program& p) { Find(p, "0I1").writes.back() = Find(p, "0I0").writes.back(); }}};
  const auto schedule = schedule::ParseCsv("0F0,0F1,0I0,0I1,0W0,0W1\n", "one rank").value();
  for (const auto& [message, damage] : damages) {
    auto programs = program::Lower(schedule, {.stages = {{.recomputed_bytes = 8}}}).value();
    ASSERT_EQ(Verdict(programs), "");
    damage(programs[0]);
    EXPECT_THAT(Verdict(programs), HasSubstr(message));
  }
}

TEST(Prove, FindsEachKindOfDamage) {
  using Damage = std::function<void(Program&)>;
  const std::tuple<const char*, int, Damage> damages[] = {
      // Slots.
      {"1F0 finds another activation", 1, [](Program& p) { Swap(p, "0RECV_F0", "1F0"); }},
      {"0B0 finds another gradient", 0, [](Program& p) { Erase(p, "1RECV_B0"); }},
      {"0F0 comes before LOAD", 0, [](Program& p) { Swap(p, "LOAD", "0F0"); }},
      {"0SEND_F0 finds another message", 0, [](Program& p) { Swap(p, "0F0", "0SEND_F0"); }},
      {"0B1 finds another stash", 0,
       [](Program& p) {
         Erase(p, "0F1");
         Erase(p, "0SEND_F1");
       }},
      {"0B0 leaves its stash in another slot", 0,
       [](Program& p) { Find(p, "0B0").writes[0] = Find(p, "0B1").writes[0]; }},
      {"0B0 does not touch every layer of its stage once", 0,
       [](Program& p) { Find(p, "0B0").writes.pop_back(); }},
      {"0F0 does not touch every layer of its stage once", 0,
       [](Program& p) { std::swap(Find(p, "0F0").reads[1], Find(p, "0F0").reads[2]); }},
      {"NORM_PARTIAL comes before the gradient of layer 2 is complete", 1,
       [](Program& p) { Swap(p, "1B1", "NORM_PARTIAL"); }},
      {"REDUCE_GRAD(1) comes before the gradient of layer 1 is complete", 0,
       [](Program& p) { Swap(p, "0B1", "REDUCE_GRAD(1)"); }},
      {"REDUCE_GRAD(1) sums a second time", 0, [](Program& p) { Double(p, "REDUCE_GRAD(1)"); }},
      {"REDUCE_TIED sums a second time", 0, [](Program& p) { Double(p, "REDUCE_TIED"); }},
      {"REDUCE_TIED comes before the gradient of layer 0 is summed over ranks", 0,
       [](Program& p) { Swap(p, "REDUCE_TIED", "REDUCE_GRAD(0)"); }},
      {"NORM_PARTIAL comes before the gradient of layer 0 has both uses", 0,
       [](Program& p) { Swap(p, "REDUCE_TIED", "NORM_PARTIAL"); }},
      {"NORM_EXCHANGE comes before NORM_PARTIAL", 0,
       [](Program& p) { Swap(p, "NORM_PARTIAL", "NORM_EXCHANGE"); }},
      {"OPT comes before NORM_EXCHANGE", 0, [](Program& p) { Swap(p, "OPT", "NORM_EXCHANGE"); }},
      // Instructions that are there too often, or not at all.
      {"rank 1 1F0 runs a stage's microbatch a second time", 1,
       [](Program& p) { Double(p, "1F0"); }},
      {"no rank runs I or B of stage 1 and microbatch 1", 1,
       [](Program& p) {
         Erase(p, "1B1");
         Erase(p, "1SEND_B1");
       }},
      {"rank 0 loads more than once", 0, [](Program& p) { Double(p, "LOAD"); }},
      {"rank 0 has 0 NORM_PARTIAL; every rank has one where any has", 0,
       [](Program& p) {
         for (const char* text : {"NORM_PARTIAL", "NORM_EXCHANGE", "OPT"}) Erase(p, text);
       }},
      {"rank 0 has 2 NORM_PARTIAL", 0, [](Program& p) { Double(p, "NORM_PARTIAL"); }},
      {"OPT comes before the gradient of layer 0 is complete", 0,
       [](Program& p) { Double(p, "OPT"); }},
      {"rank 0 has the gradient of layer 1 in 0 REDUCE_GRAD, must be in 1", 0,
       [](Program& p) { Erase(p, "REDUCE_GRAD(1)"); }},
      {"rank 0 has the gradient of layer 0 in 0 REDUCE_TIED, must be in 1", 0,
       [](Program& p) { Erase(p, "REDUCE_TIED"); }},
      {"rank 0 OPT does not update every layer and version once, in order", 0,
       [](Program& p) { Find(p, "OPT").writes.pop_back(); }},
      {"layer 0 is counted 0 times in the norm over all ranks", 0,
       [](Program& p) {
         std::vector<SlotId>& reads = Find(p, "NORM_PARTIAL").reads;
         reads.erase(reads.begin());
       }},
  };
  const program::LowerOptions options{
      .stages = {{.last_layer = LayerId(2)}, {.first_layer = LayerId(2), .last_layer = LayerId(3)}},
      .reduce_gradients = true,
      .tied_embeddings = true};
  for (const auto& [message, rank, damage] : damages) {
    auto programs = Programs("gpipe", 2, 2, options);
    ASSERT_EQ(Verdict(programs), "");
    damage(programs[rank]);
    EXPECT_THAT(Verdict(programs), HasSubstr(message));
  }
}

// A family as it would run without a flush.
std::vector<Program> WithoutFlush(const std::string& family, schedule::Updates updates) {
  const bool each = updates == schedule::Updates::kEachBackward;
  auto schedule = schedule::Generate(family, {.num_ranks = 3, .num_microbatches = 5}).value();
  schedule.updates = updates;
  return program::Lower(schedule,
                        {.stages = {{.last_layer = LayerId(2)},
                                    {.first_layer = LayerId(2), .last_layer = LayerId(3)},
                                    {.first_layer = LayerId(3), .last_layer = LayerId(5)}},
                         .reduce_gradients = !each,
                         .tied_embeddings = !each})
      .value();
}

std::vector<Program> Asynchronous(const std::string& family) {
  return WithoutFlush("1f1b", family == "pipedream" ? schedule::Updates::kEachBackward
                                                    : schedule::Updates::kDelayed);
}

SlotId NewestOf(const Program& program, int layer) {
  for (std::size_t i = 0; i < program.slots.size(); ++i) {
    const program::Slot& slot = program.slots[i];
    if (slot.kind == program::SlotKind::kWeights && slot.index == layer && slot.version == 0) {
      return SlotId(static_cast<int>(i));
    }
  }
  return SlotId(-1);
}

TEST(Prove, FindsWhatIsWrongWithoutAFlush) {
  using Damage = std::function<void(Program&)>;
  const std::tuple<const char*, const char*, Damage> damages[] = {
      {"pipedream", "0B0 meets other weights than its F",
       [](Program& p) {
         for (SlotId& slot : Find(p, "0B0").reads) {
           const program::Slot old = p.slots[slot.value()];
           if (old.kind == program::SlotKind::kWeights) slot = NewestOf(p, old.index);
         }
       }},
      {"pipedream", "does not come right after the backward whose gradient it applies",
       [](Program& p) { Find(p, "OPT").microbatch = MicrobatchId(2); }},
      {"pipedream", "OPT comes before the gradient of layer 0 is complete",
       [](Program& p) { Swap(p, "0B0", "OPT"); }},
      {"pipedream-2bw", "prologue: 0F0 does not read every layer of its stage in one version",
       [](Program& p) { p.prologue.erase(p.prologue.begin()); }},
      {"pipedream-2bw", "0F2 finds other tokens",
       [](Program& p) { Find(p, "LOAD").step_ahead = 1; }},
      {"pipedream-2bw", "OPT comes before the gradient of layer 0 is summed over ranks",
       [](Program& p) { Swap(p, "REDUCE_GRAD(0)", "OPT"); }},
      {"pipedream-2bw", "loads more than each microbatch", [](Program& p) { Double(p, "LOAD"); }},
  };
  for (const auto& [family, message, damage] : damages) {
    auto programs = Asynchronous(family);
    ASSERT_EQ(Verdict(programs), "");
    damage(programs[0]);
    EXPECT_THAT(Verdict(programs), HasSubstr(message)) << family;
  }
}

// Damages every instruction of every rank: it is gone, is there twice, is about another microbatch
// or step, or has another slot.
TEST(Prove, FindsEveryDamageWithoutAFlush) {
  int inflicted = 0;
  const auto expect_refusal = [&](const std::vector<Program>& programs, const Program& damaged,
                                  std::size_t i, const std::string& what) {
    ++inflicted;
    EXPECT_NE(Verdict(programs), "")
        << "rank " << damaged.pp_rank.value() << " instruction " << i << ": " << what;
  };
  const std::pair<const char*, schedule::Updates> kinds[] = {
      {"1f1b", schedule::Updates::kEachBackward},
      {"1f1b", schedule::Updates::kDelayed},
      {"zb-h1", schedule::Updates::kEachBackward},
      {"zb-h1", schedule::Updates::kDelayed}};
  for (const auto& [family, updates] : kinds) {
    const auto intact = WithoutFlush(family, updates);
    const bool sums = updates == schedule::Updates::kDelayed;
    const ProofOptions options{.sums = {.gradients = sums, .tied_embeddings = sums}};
    ASSERT_EQ(Verdict(intact, options), "");
    for (std::size_t rank = 0; rank < intact.size(); ++rank) {
      for (std::size_t i = 0; i < intact[rank].body.size(); ++i) {
        const Instruction& original = intact[rank].body[i];
        const std::string name = ToString(original, intact[rank]);
        const auto inflict = [&](const std::string& what,
                                 const std::function<void(std::vector<Instruction>&)>& damage) {
          auto programs = intact;
          damage(programs[rank].body);
          expect_refusal(programs, programs[rank], i, name + " " + what);
        };
        const auto at = static_cast<std::ptrdiff_t>(i);
        inflict("dropped", [&](auto& body) { body.erase(body.begin() + at); });
        inflict("doubled", [&](auto& body) { body.insert(body.begin() + at, original); });
        if (original.microbatch.value() >= 0) {
          inflict("of another microbatch", [&](auto& body) {
            body[i].microbatch = MicrobatchId((original.microbatch.value() + 1) % 5);
          });
        }
        if (original.microbatch.value() >= 0 && original.op != program::Op::kOptimizer) {
          inflict("of another step",
                  [&](auto& body) { body[i].step_ahead = 1 - original.step_ahead; });
        }
        const int num_slots = static_cast<int>(intact[rank].slots.size());
        for (const bool written : {false, true}) {
          const std::size_t count = (written ? original.writes : original.reads).size();
          for (std::size_t k = 0; k < count; ++k) {
            inflict("with another slot", [&](auto& body) {
              SlotId& slot = (written ? body[i].writes : body[i].reads)[k];
              slot = SlotId((slot.value() + 1) % num_slots);
            });
          }
        }
      }
    }
  }
  EXPECT_GT(inflicted, 1000);
}

TEST(Prove, SpendsNoMemoryOnSizesThatNobodyRuns) {
  auto programs = Programs("gpipe", 1, 1);
  programs[0].num_microbatches = 1 << 24;
  EXPECT_THAT(Verdict(programs), HasSubstr("instructions for 1 stages of 16777216 microbatches"));
}

TEST(Prove, KnowsWhichSumsThereMustBe) {
  const auto plain = Programs("gpipe", 1, 1);
  EXPECT_EQ(Verdict(plain, {.sums = {.gradients = false, .tied_embeddings = false}}), "");
  EXPECT_THAT(Verdict(plain, {.sums = {.gradients = true}}), HasSubstr("in 0 REDUCE_GRAD"));
  EXPECT_THAT(Verdict(plain, {.sums = {.tied_embeddings = true}}), HasSubstr("in 0 REDUCE_TIED"));
  const auto reduced = Programs("gpipe", 1, 1, {.reduce_gradients = true});
  EXPECT_THAT(Verdict(reduced, {.sums = {.gradients = false}}), HasSubstr("in 1 REDUCE_GRAD"));
}

// Both ranks hold layers 0 and 1, as a bidirectional placement has it.
TEST(Prove, FindsSumsThatMeetInAnotherOrder) {
  // Two pipelines of one rank each are made into one of two ranks, which share nothing but sums.
  const auto schedule =
      schedule::Generate("gpipe", {.num_ranks = 1, .num_microbatches = 1}).value();
  const program::LowerOptions options{.stages = {{.last_layer = LayerId(2)}},
                                      .reduce_gradients = true};
  auto programs = program::Lower(schedule, options).value();
  programs.push_back(programs[0]);
  for (int rank = 0; rank < 2; ++rank) {
    programs[rank].pp_rank = PpRank(rank);
    programs[rank].pp_size = programs[rank].num_microbatches = 2;
  }
  for (Instruction& instruction : programs[1].body) {
    if (program::IsCompute(instruction.op)) instruction.microbatch = MicrobatchId(1);
  }
  std::erase_if(Find(programs[1], "NORM_PARTIAL").reads, [&](SlotId slot) {
    return programs[1].slots[slot.value()].kind == program::SlotKind::kGradient;
  });
  ASSERT_EQ(Verdict(programs), "");
  Swap(programs[1], "REDUCE_GRAD(0)", "REDUCE_GRAD(1)");
  EXPECT_THAT(Verdict(programs), AllOf(HasSubstr("rank 0 REDUCE_GRAD(1) waits for rank 1"),
                                       HasSubstr("rank 1 REDUCE_GRAD(0) waits for rank 0")));
  for (const char* text : {"REDUCE_GRAD(0)", "REDUCE_GRAD(1)"}) {
    for (Program& program : programs) Erase(program, text);
  }
  EXPECT_THAT(Verdict(programs), HasSubstr("in 0 REDUCE_GRAD, must be in 1"));
}

}  // namespace
}  // namespace takt::sim
