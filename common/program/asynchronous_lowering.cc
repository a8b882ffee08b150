// SPDX-License-Identifier: Apache-2.0
#include "common/program/asynchronous_lowering.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/program/slot_table.h"

namespace takt::program {
namespace {

using schedule::ActionKind;
using schedule::Schedule;
using schedule::Updates;

// Microbatches come round once a step, so the slot of each is fixed: every step is cut into runs of
// at least `alive` microbatches, and one takes the slot of its place in its run. No slot comes
// again before `alive` others have passed.
std::int32_t RingIndex(int microbatch, int num_microbatches, int alive) {
  const int runs = std::max(1, num_microbatches / alive);
  const int length = num_microbatches / runs;
  const int num_longer = num_microbatches % runs;  // these come first and have one more
  const int in_longer = num_longer * (length + 1);
  return microbatch < in_longer ? microbatch % (length + 1) : (microbatch - in_longer) % length;
}

class AsynchronousRank {
 public:
  AsynchronousRank(const Schedule& schedule, const LowerOptions& options, int rank)
      : num_microbatches_(schedule.num_microbatches),
        last_(schedule.num_stages - 1),
        rank_(rank),
        ahead_(last_ - rank),
        per_backward_(schedule.updates == Updates::kEachBackward),
        options_(options),
        program_{.pp_rank = PpRank(rank),
                 .pp_size = schedule.num_ranks(),
                 .num_stages = schedule.num_stages,
                 .num_microbatches = schedule.num_microbatches,
                 .schedule = schedule.name},
        slots_(program_.slots),
        shape_(options.stages[rank]) {
    LaneOf(LaneKind::kCompute);
    const int num_versions = per_backward_ ? ahead_ + 1 : 2;
    for (int version = 0; version < num_versions; ++version) {
      std::vector<SlotId>& weights = weights_.emplace_back();
      for (int layer = shape_.first_layer.value(); layer < shape_.last_layer.value(); ++layer) {
        weights.push_back(Sized(SlotKind::kWeights, layer, 0, version));
      }
    }
    for (int layer = shape_.first_layer.value(); layer < shape_.last_layer.value(); ++layer) {
      gradients_.push_back(Sized(SlotKind::kGradient, layer, 0));
    }
  }

  Program Build() {
    into_ = &program_.prologue;
    if (weights_.size() > 1) AddSnapshot();
    for (int m = 0; m < ahead_; ++m) {
      if (rank_ > 0) AddReceive(Direction::kActivation, m);
      AddForward(m);
    }
    // One more than the forwards, as the rank before runs one more.
    if (rank_ > 0) AddReceive(Direction::kActivation, ahead_);

    into_ = &program_.body;
    for (int m = 0; m < num_microbatches_; ++m) {
      if (rank_ > 0) AddReceive(Direction::kActivation, m + ahead_ + 1);
      AddForward(m + ahead_);
      if (rank_ < last_) AddReceive(Direction::kGradient, m);
      AddBackward(m);
      if (per_backward_ && options_.optimizer) AddUpdate(m);
    }
    if (options_.optimizer) {
      if (!per_backward_) AddStepUpdate();
      AddLossExchange();
    }
    return std::move(program_);
  }

 private:
  // Counted from the step's first microbatch: those from M on are of the next step.
  struct Place {
    MicrobatchId microbatch;
    int step_ahead = 0;
  };
  Place PlaceOf(int m) const {
    return {MicrobatchId(m % num_microbatches_), m / num_microbatches_};
  }

  void AddSnapshot() {
    Instruction& added = Add(Op::kSnapshot, LaneOf(LaneKind::kCompute));
    added.reads = weights_[0];
    for (std::size_t version = 1; version < weights_.size(); ++version) {
      Append(added.writes, weights_[version]);
    }
  }

  void AddReceive(Direction direction, int m) {
    const bool activation = direction == Direction::kActivation;
    Instruction& added =
        Add(Op::kRecv, LaneOf(LaneKind::kRecv, rank_ + (activation ? -1 : 1), direction));
    SetPlace(added, rank_ + (activation ? -1 : 1), m);
    added.writes = {activation ? Input(m) : OutputGrad(m)};
  }

  void AddSend(Direction direction, int m, SlotId slot) {
    const int peer = rank_ + (direction == Direction::kActivation ? 1 : -1);
    Instruction& added = Add(Op::kSend, LaneOf(LaneKind::kSend, peer, direction));
    SetPlace(added, rank_, m);
    added.reads = {slot};
  }

  void AddForward(int m) {
    if (ReadsTokens()) {
      Instruction& load = Add(Op::kLoad, LaneOf(LaneKind::kLoad));
      SetPlace(load, -1, m);
      load.writes = {Tokens(m)};
    }
    const bool is_last = rank_ == last_;
    const SlotId output = is_last ? SlotId(-1) : Ring(SlotKind::kOutput, m, 2, OutputBytes(rank_));
    Instruction& added = Add(Op::kForward, LaneOf(LaneKind::kCompute));
    SetPlace(added, rank_, m);
    if (rank_ > 0) added.reads.push_back(Input(m));
    if (ReadsTokens()) added.reads.push_back(Tokens(m));
    Append(added.reads, weights_[ForwardVersion(m)]);
    if (!is_last) added.writes.push_back(output);
    added.writes.push_back(Stash(m));
    if (is_last) {
      added.reads.push_back(Scalars(0));
      added.writes.push_back(Scalars(0));
    }
    if (!is_last) AddSend(Direction::kActivation, m, output);
  }

  void AddBackward(int m) {
    const SlotId passed =
        rank_ > 0 ? Ring(SlotKind::kInputGrad, m, 2, OutputBytes(rank_ - 1)) : SlotId(-1);
    Instruction& added = Add(Op::kBackward, LaneOf(LaneKind::kCompute));
    SetPlace(added, rank_, m);
    if (rank_ > 0) added.reads.push_back(Input(m));
    if (ReadsTokens()) added.reads.push_back(Tokens(m));
    added.reads.push_back(Stash(m));
    if (rank_ < last_) added.reads.push_back(OutputGrad(m));
    Append(added.reads, weights_.back());
    Append(added.reads, gradients_);
    if (rank_ > 0) added.writes.push_back(passed);
    added.writes.push_back(Stash(m));
    Append(added.writes, gradients_);
    if (rank_ > 0) AddSend(Direction::kGradient, m, passed);
  }

  // The newest of kEachBackward. Of kDelayed the same as the step's other passes: those that run
  // before the step begins meet it when it is still the newest.
  std::size_t ForwardVersion(int m) const {
    return per_backward_ || m >= num_microbatches_ ? 0 : 1;
  }

  void AddStepUpdate() {
    if (options_.reduce_gradients) {
      for (std::size_t i = gradients_.size(); i-- > 0;) {
        Instruction& added = Add(Op::kReduceGrad, LaneOf(LaneKind::kReduce));
        added.stage = StageId(rank_);
        added.layer = LayerId(shape_.first_layer.value() + static_cast<std::int32_t>(i));
        added.reads = added.writes = {gradients_[i]};
      }
    }
    if (options_.tied_embeddings && ReadsTokens()) {
      std::vector<SlotId> tied;
      if (rank_ == 0) tied.push_back(gradients_.front());
      if (rank_ == last_ && (tied.empty() || gradients_.back() != tied[0])) {
        tied.push_back(gradients_.back());
      }
      Instruction& added = Add(Op::kReduceTied, LaneOf(LaneKind::kReduce));
      added.reads = added.writes = tied;
    }
    AddUpdate(-1);
  }

  // microbatch: whose gradient is applied; -1: the step's.
  void AddUpdate(int microbatch) {
    Instruction& added = Add(Op::kOptimizer, LaneOf(LaneKind::kCompute));
    added.microbatch = MicrobatchId(microbatch);
    added.reads = gradients_;
    Append(added.reads, weights_[0]);
    for (const std::vector<SlotId>& version : weights_) Append(added.writes, version);
  }

  // Sums of one step wait in slots of their own, so that the next may begin before all have met.
  void AddLossExchange() {
    Instruction& partial = Add(Op::kNormPartial, LaneOf(LaneKind::kCompute));
    partial.reads = {Scalars(0)};
    partial.writes = {Scalars(0), Scalars(1)};
    Instruction& exchange = Add(Op::kNormExchange, LaneOf(LaneKind::kReduce));
    exchange.reads = exchange.writes = {Scalars(1)};
  }

  bool ReadsTokens() const { return rank_ == 0 || rank_ == last_; }
  std::int64_t OutputBytes(int stage) const { return options_.stages[stage].output_bytes; }

  // Of microbatch m, from F to B: one in flight for each forward that runs ahead, and its own.
  SlotId Stash(int m) { return Ring(SlotKind::kStash, m, ahead_ + 1, shape_.stash_bytes); }
  SlotId Tokens(int m) { return Sized(SlotKind::kTokens, m % num_microbatches_, 0); }
  // From one iteration before F on.
  SlotId Input(int m) { return Ring(SlotKind::kInput, m, ahead_ + 2, OutputBytes(rank_ - 1)); }
  SlotId OutputGrad(int m) { return Ring(SlotKind::kOutputGrad, m, 2, OutputBytes(rank_)); }
  SlotId Scalars(int index) { return Sized(SlotKind::kScalars, index, 0); }

  SlotId Ring(SlotKind kind, int m, int alive, std::int64_t bytes) {
    return Sized(kind, RingIndex(m % num_microbatches_, num_microbatches_, alive), bytes);
  }

  SlotId Sized(SlotKind kind, int index, std::int64_t bytes, int version = 0) {
    const bool of_rank = kind == SlotKind::kTokens || kind == SlotKind::kScalars;
    const SlotId id = slots_.Fixed(kind, StageId(of_rank ? -1 : rank_), index, version);
    program_.slots[id.value()].bytes = bytes;
    return id;
  }

  void SetPlace(Instruction& instruction, int stage, int m) {
    const Place place = PlaceOf(m);
    instruction.stage = StageId(stage);
    instruction.microbatch = place.microbatch;
    instruction.step_ahead = place.step_ahead;
  }

  LaneId LaneOf(LaneKind kind, int peer = -1, Direction direction = Direction::kNone) {
    const auto [entry, is_new] = lanes_.try_emplace({kind, peer, direction});
    if (is_new) {
      entry->second = LaneId(static_cast<std::int32_t>(program_.lanes.size()));
      program_.lanes.push_back({.kind = kind, .peer = PpRank(peer), .direction = direction});
    }
    return entry->second;
  }

  Instruction& Add(Op op, LaneId lane) {
    Instruction& added = into_->emplace_back();
    added.op = op;
    added.lane = lane;
    return added;
  }

  static void Append(std::vector<SlotId>& to, const std::vector<SlotId>& from) {
    to.insert(to.end(), from.begin(), from.end());
  }

  const int num_microbatches_;
  const int last_;   // stage and rank
  const int rank_;   // stage and rank
  const int ahead_;  // forwards that run before the first backward of their step
  const bool per_backward_;
  const LowerOptions& options_;
  Program program_;
  SlotTable slots_;
  const StageShape shape_;
  std::vector<std::vector<SlotId>> weights_;  // by version, by layer
  std::vector<SlotId> gradients_;             // by layer
  std::map<std::tuple<LaneKind, int, Direction>, LaneId> lanes_;
  std::vector<Instruction>* into_ = nullptr;
};

// Row r of 1F1B: P-1-r forwards, then a forward and a backward in turn.
bool IsOneForwardOneBackward(const Schedule& schedule) {
  if (schedule.placement != schedule::Placement::kLoop ||
      schedule.num_stages != schedule.num_ranks()) {
    return false;
  }
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    int forwards = 0, backwards = 0;
    for (const schedule::Action& action : schedule.ranks[rank]) {
      const bool forward = forwards < schedule.num_microbatches &&
                           forwards - backwards < schedule.num_ranks() - rank;
      int& count = forward ? forwards : backwards;
      if (action.kind != (forward ? ActionKind::kForward : ActionKind::kBackward) ||
          action.microbatch.value() != count || action.joins_next) {
        return false;
      }
      ++count;
    }
  }
  return true;
}

absl::Status CheckOptions(const Schedule& schedule, const LowerOptions& options) {
  if (!IsOneForwardOneBackward(schedule)) {
    return InvalidField({.field = "schedule",
                         .value = schedule.name,
                         .rule = "without a flush, each rank runs 1F1B on one stage",
                         .fix = "use pipedream or pipedream-2bw as they are generated"});
  }
  if (schedule.num_microbatches < schedule.num_ranks()) {
    return InvalidField({.field = "microbatches",
                         .value = absl::StrCat(schedule.num_microbatches),
                         .rule = absl::StrCat("without a flush, must be at least the ranks (",
                                              schedule.num_ranks(), ")"),
                         .fix = "use more microbatches"});
  }
  const bool per_backward = schedule.updates == Updates::kEachBackward;
  if (per_backward && (options.reduce_gradients || options.tied_embeddings)) {
    return InvalidField(
        {.field = options.reduce_gradients ? "parallelism.data" : "model.tied_embeddings",
         .value = options.reduce_gradients ? "more than 1" : "true",
         .rule = absl::StrCat(schedule.name,
                              " updates each stage after every backward, so no gradient can wait "
                              "for another rank"),
         .fix = "use pipedream-2bw"});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Program>> LowerWithoutFlush(const Schedule& schedule,
                                                       const LowerOptions& options) {
  RETURN_IF_ERROR(CheckOptions(schedule, options));
  std::vector<Program> programs;
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    programs.push_back(AsynchronousRank(schedule, options, rank).Build());
  }
  return programs;
}

}  // namespace takt::program
