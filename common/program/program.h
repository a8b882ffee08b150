// SPDX-License-Identifier: Apache-2.0
// A program is what one pp rank executes in every step: instructions with buffer slots, peers and
// lanes resolved. It names logical ranks, which a binding (takt.v1.Binding) maps to processes.
//
// Lanes run beside each other. The instructions of one lane run one at a time in list order.
// Between lanes only slots order: an instruction waits for the writers of the slots it reads, and
// for the readers and writers of the slots it writes. Dependencies below derives these waits, so no
// program carries them. The body repeats once a step and slots carry over from one step to the
// next, so step k+1 may begin on a lane while step k still runs on another.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "common/model/parts.h"

namespace takt::program {

// The newest version of the stored form. Version 2 adds kOverlap and `mirror`, 3 adds versions of
// weights and work for the next step, 4 adds kRecomputed, 5 adds W of several microbatches, 6 adds
// the vocabulary over all ranks, 7 adds shards of the optimizer's state, 8 adds tokens that stages
// between the first and the last read, 9 adds parts, 10 adds weights that a rank frees, 11 adds
// steps that overlap, 12 adds these of programs that spread the vocabulary.
inline constexpr int kProgramVersion = 12;

using model::Part;
using model::PartGroup;
using model::PartKind;

// The numbers equal takt.v1.Op and are stored. 12 and 16 were never used and stay free.
enum class Op : std::uint8_t {
  kLoad = 1,  // tokens of the step's microbatches into kTokens
  kForward = 2,
  kInputGrad = 3,
  kWeightGrad = 4,
  kBackward = 5,  // kInputGrad then kWeightGrad of one microbatch
  kSend = 6,
  kRecv = 7,
  kReduceGrad = 8,     // sum one layer's gradients over dp ranks, in dp-rank order
  kReduceTied = 9,     // add the two uses of a tied embedding
  kNormPartial = 10,   // sums of squares of this rank's gradients, one double per parameter
  kNormExchange = 11,  // these sums, the loss and the counts, over pp (and dp) ranks
  kOptimizer = 13,
  kSnapshot = 14,  // all versions of the weights become the newest
  kEval = 15,      // the loss and the counts of a validation, over pp (and dp) ranks
  kOverlap = 17,   // kForward and kBackward of two microbatches, their layers in turns
  // Under a schedule that spreads the vocabulary. The first five are meetings of all pp ranks.
  kRows = 18,                // rows of the embedding's table, from their owners to stage 0
  kShare = 19,               // the final norm's output, from the root to all
  kGather = 20,              // what each block adds to the softmax, from all to all
  kReturn = 21,              // partial gradients of the norm's output, from all to the root
  kRowsGrad = 22,            // gradients of the embedding's rows, from stage 0 to their owners
  kVocabularyForward = 23,   // S: logits of the rank's blocks
  kVocabularyBackward = 24,  // T: the loss, and the gradients of the head
  kLoss = 25,                // the root's T where there are no gradients
  // Where replicas share the optimizer's state, kReduceGrad gives each its shard of the sum, and
  // this copies each shard of one layer's new weights to all of them.
  kGatherWeights = 26,
  // Where replicas share the weights too. A rank keeps shards of them, and has the whole weights of
  // some of its stages at a time.
  kUnshard = 27,  // makes the weights of one stage whole, from the shards of all replicas
  kReshard = 28,  // frees them
  // Where steps overlap (remove_barrier.h), this makes the weights that OPT will make if nothing is
  // clipped. They are beside the true ones, which stay as they are. If its stage is num_stages, it
  // is of the rank's rows of the embedding, and on the lane of meetings; else of all stages.
  kSpeculate = 29,
};

enum class SlotKind : std::uint8_t {
  kTokens = 1,       // token ids and targets of all microbatches of the step
  kInput = 2,        // a stage's input activation; read by F, I and W
  kOutput = 3,       // a stage's output activation on its way to another rank
  kStash = 4,        // what F keeps for I and W, and I for W
  kOutputGrad = 5,   // gradient of a stage's output; read by I and W
  kInputGrad = 6,    // gradient of a stage's input on its way to another rank
  kGradient = 7,     // accumulated weight gradients of one layer (`index` is the layer)
  kWeights = 8,      // weights and optimizer state of one layer (`index` is the layer)
  kScalars = 9,      // loss, counts, norm of the step
  kRecomputed = 10,  // what F does not keep, and I computes again and keeps for W
  // The stage of these is num_stages, as that of the rows of the tables is, which are kGradient and
  // kWeights with index 0 (the embedding's use) and 1 (the head's).
  kHeadInput = 11,        // the final norm's output, from F or SHARE to T
  kVocabularyStash = 12,  // logits, and the parts of the softmax, from S to T
  kPartialGrad = 13,      // a rank's part of the gradient of the norm's output
  kHeadGrad = 14,         // the whole of it, on the root; read by I
  // The rank's shard of one layer (`index`), where kWeights has the whole layer only between
  // kUnshard and kReshard. The stage is the layer's.
  kShard = 15,
};

// The uses of a rank's rows of the vocabulary, which are the indices of their slots.
inline constexpr std::int32_t kEmbeddingRows = 0, kHeadRows = 1;

// The version of weights that SPECULATE makes.
inline constexpr std::int32_t kForeseen = -1;

struct Slot {
  SlotKind kind = SlotKind::kTokens;
  StageId stage{-1};
  std::int32_t index = 0;
  std::int64_t bytes = 0;  // 0: sized by whoever executes
  // kWeights: how many updates ago these were the newest; 0: they still are; or kForeseen.
  std::int32_t version = 0;
};

enum class LaneKind : std::uint8_t {
  kCompute = 1,
  kLoad = 2,
  kReduce = 3,
  kSend = 4,
  kRecv = 5,
  kVocabulary = 6,
};
enum class Direction : std::uint8_t { kNone = 0, kActivation = 1, kGradient = 2 };

// One compute lane, one load lane, one reduce lane, one lane per (peer, direction) of SEND and of
// RECV, and one vocabulary lane for the five meetings and foreseen rows.
struct Lane {
  LaneKind kind = LaneKind::kCompute;
  PpRank peer{-1};
  Direction direction = Direction::kNone;
};

struct Instruction {
  Op op = Op::kLoad;
  LaneId lane;
  StageId stage{-1};  // SEND and RECV: the stage whose F or I *made* the message
  MicrobatchId microbatch{-1};
  // kWeightGrad: how many microbatches it is of, `microbatch` and those that follow it.
  std::int32_t num_microbatches = 1;
  // Its microbatch is this many steps later: 1 where a forward runs while the step before it ends.
  std::int32_t step_ahead = 0;
  LayerId layer{-1};  // kReduceGrad, kGatherWeights: the bucket
  // The five meetings of the vocabulary: the bytes that this rank passes on, for costs alone.
  std::int64_t bytes = 0;
  // In a kOverlap these are its B's, and `stage` and `microbatch` are its F's.
  StageId backward_stage{-1};
  MicrobatchId backward_microbatch{-1};
  // The slots that it touches, in its implementation's order. docs/programs.md has the table.
  std::vector<SlotId> reads;
  std::vector<SlotId> writes;
};

// The parts of every instruction of one op and stage, whose meetings all ranks of a group come to
// in this order. The list depends on nothing else, so all ranks of a pp rank have the same one, and
// one chain of ranks proves that all chains complete (docs/adr/0010-mesh-of-more-axes.md). Where no
// ranks meet there is no list.
struct PartList {
  Op op = Op::kForward;        // F, I, W, B, O or NORM_PARTIAL
  StageId stage;               // -1: NORM_PARTIAL
  StageId backward_stage{-1};  // of an O
  std::vector<Part> parts;
};

struct Program {
  PpRank pp_rank;
  int pp_size = 1;
  int num_stages = 1;
  int num_microbatches = 1;
  // The rank with the other copy of every stage of this one; -1: there is one copy of each. The
  // copy of stage s on pp rank s is the primary one.
  PpRank mirror{-1};
  std::string schedule;
  std::vector<Slot> slots;
  std::vector<Lane> lanes;
  std::vector<PartList> part_lists;   // ascending by op and stages; see part_lists.h
  std::vector<Instruction> prologue;  // once, before the first step
  std::vector<Instruction> body;      // every step
  std::vector<Instruction> epilogue;  // once, after the last step
};

// "F", "SEND", "REDUCE_GRAD": without stage, direction and microbatch. Metrics have it as their
// label `kind`.
std::string_view Name(Op op);

// "1F3", "1W3-5", "(1F3;0B1)", "0SEND_F2", "3RECV_B1", "REDUCE_GRAD(4)", "OPT": the text form of
// logs, traces and errors.
std::string ToString(const Instruction& instruction, const Program& program);

// "F" for activations, "B" for gradients. Messages and channels have it in their names.
const char* DirectionName(Direction direction);

// "compute", "load", "reduce", "send F to 1", "recv B from 2".
std::string LaneName(const Lane& lane);

// F, I, W, B, O, S, T or LOSS.
bool IsCompute(Op op);

// ROWS, SHARE, GATHER, RETURN or ROWS_GRAD: the meetings of all pp ranks on the vocabulary lane.
bool IsMeeting(Op op);

// S, T, LOSS or a meeting: what there is only where the vocabulary is spread.
bool IsOfVocabulary(Op op);

// Returns whether every rank has a part of the vocabulary.
bool SpreadsVocabulary(const Program& program);

// Returns whether a rank frees weights within a step, of which it keeps shards.
bool FreesWeights(const Program& program);

// Returns of how many stages a program that frees weights has the whole ones at a time.
int MostUnsharded(const Program& program);

// Returns whether replicas share the optimizer's state, or the weights with it.
bool ShardsOptimizer(const Program& program);

// Returns whether steps overlap, without a barrier between them (remove_barrier.h).
bool OverlapsSteps(const Program& program);

// Returns whether any W is of several microbatches.
bool MergesWeightGrads(const Program& program);

// Returns whether it runs without a flush: tokens come or weights change once a microbatch, or the
// weights have several versions.
bool IsAsynchronous(const Program& program);

// Returns whether every microbatch's gradient is applied on its own.
bool UpdatesEachMicrobatch(const Program& program);

// Returns how many versions of the weights it keeps, at least 1.
int NumWeightVersions(const Program& program);

// Returns whether norms count this rank's copy of `stage`. Without a mirror they always do.
bool IsPrimary(const Program& program, StageId stage);

// The slot of this kind and stage among `slots` (an instruction's reads or writes); SlotId(-1):
// there is none. `index` matters for kGradient and kWeights, where it is the layer; -1 takes the
// first.
SlotId FindSlot(const Program& program, std::span<const SlotId> slots, SlotKind kind, StageId stage,
                std::int32_t index = -1);

// The stages whose weights this rank holds. Rows of the tables are of no stage.
std::set<StageId> HeldStages(const Program& program);

// Checks that indices are in range, that ops are on the lanes where they belong, and that peers and
// slots are as docs/programs.md says. Everything that executes or simulates a program may rely on
// it. kInvalidArgument names the instruction.
absl::Status CheckProgram(const Program& program);

// An instruction starts when `lane` has completed its instruction number `position` (from 0, within
// the lane's part of the body). A negative position counts from the end of the previous iteration:
// -1 is that iteration's last instruction on the lane. In the first iteration it is no wait.
struct Wait {
  LaneId lane;
  std::int32_t position = 0;
};

// The waits of each instruction of a body, in one piece of memory.
class WaitLists {
 public:
  std::size_t size() const { return ends_.size(); }
  std::span<const Wait> operator[](std::size_t instruction) const {
    const std::size_t begin = instruction == 0 ? 0 : ends_[instruction - 1];
    return std::span(waits_).subspan(begin, ends_[instruction] - begin);
  }

  // The next instruction's waits are added one by one, then End closes its list.
  void Add(Wait wait) { waits_.push_back(wait); }
  void End() { ends_.push_back(waits_.size()); }

 private:
  std::vector<Wait> waits_;
  std::vector<std::size_t> ends_;  // by instruction
};

// For each instruction of the body, the waits on other lanes that its slots imply. There is at most
// one per lane (the latest), and none that an earlier instruction of the same lane already has.
WaitLists Dependencies(const Program& program);

}  // namespace takt::program
