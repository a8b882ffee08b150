// SPDX-License-Identifier: Apache-2.0
// Runs one program: one thread per lane, waits between lanes as the slots imply, and times of every
// instruction.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/id.h"
#include "common/program/program.h"
#include "worker/engine/compute.h"
#include "worker/engine/instruction_timing.h"
#include "worker/transport/transport.h"

namespace takt::engine {

// Says when one step ran on this rank. What it points to is valid only during the callback.
struct StepTiming {
  StepId step;
  // It starts at the previous step's end. The first step of a Run starts with the prologue, or with
  // its own first instruction if there is none.
  std::int64_t start_nanos = 0, end_nanos = 0;
  // Busy with F, I, W, B on the compute lane, without the meetings inside.
  std::int64_t compute_nanos = 0;
  const std::vector<InstructionTiming>* timings = nullptr;  // as program.body
  // The meetings inside the instructions of the body, in the order of program::MeetingOffsets.
  const std::vector<InstructionTiming>* meetings = nullptr;
  // Indexed as program.prologue; null: it did not run right before this step.
  const std::vector<InstructionTiming>* prologue = nullptr;
  // The prologue ran again before this step, because its weights were foreseen wrongly.
  bool redone = false;
};

// What a lane does right now; for status lines and for the report of a fault.
struct LaneStatus {
  LaneId lane;
  StepId step;
  std::string instruction;  // current or last
  std::string waiting_for;  // empty: running or done
  // The lane it waits for; -1: none. Follow these to what a rank really waits for.
  LaneId waits_for_lane{-1};
  bool failed = false;     // its error ended the program
  std::int64_t nanos = 0;  // how long it has been at `instruction`, waiting or running
};

// One instruction that is done, of any lane.
struct DoneInstruction {
  std::string instruction;
  StepId step;
  std::int64_t nanos = 0;            // how long it took
  std::int64_t ended_nanos_ago = 0;  // how long ago it ended
};

struct EngineOptions {
  // Channels to neighbours are opened on it. It may be null if there is no lane for p2p.
  transport::Transport* transport = nullptr;
  // Maps a pp rank of the program to a rank of the transport (same dp_rank as ours).
  std::function<Rank(PpRank)> rank_of;
  std::int64_t generation = 0;
  std::string channel_prefix;  // tells two engines on one transport apart
  // After an error or Abort, how long Run waits for devices to finish what they were given.
  absl::Duration device_grace = absl::Seconds(10);
  // False: no instruction is timed (its timing stays 0), so that what timing costs can be measured.
  bool times_instructions = true;
};

// Thread-safe except Run (one caller, once at a time).
class Engine {
 public:
  // Binds the instructions and opens the channels.  program, compute: borrowed for the engine's
  // life.  Blocks: until all neighbours opened theirs.  Errors: those of BindProgram.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const program::Program& program,
                                                        Compute& compute, EngineOptions options);
  virtual ~Engine() = default;

  // Runs the prologue, steps first..last, and the epilogue. A program without a flush begins each
  // Run as if after one. Where steps overlap, the prologue runs again between two steps if weights
  // were foreseen wrongly, and what ran ahead of the step after the last one is thrown away.
  // on_step: called on one engine thread after each step, in order; keep it short. Errors: the
  // first error of any lane, or kAborted after Abort.  When it returns, no thread touches compute
  // or slots. Nor does a device, unless it hangs: that is logged, and whatever then destroys what
  // the device uses waits for it.
  virtual absl::Status Run(StepId first, StepId last,
                           std::function<void(const StepTiming&)> on_step) = 0;

  // Makes the Run in progress end once `step` is complete, unless it ends sooner anyway. Call it
  // from BoundInstruction::Run, in an instruction of the step before `step`: no lane has begun the
  // step after it then, because it waits for the report of the step before.
  virtual void EndAfter(StepId step) = 0;

  // Ends every wait; Run returns soon. The transport is aborted too.
  virtual void Abort(absl::Status reason) = 0;

  // Says what each lane does. It may be called at any time, also while Run hangs.
  virtual std::vector<LaneStatus> Status() const = 0;

  // The flight recorder: the last instructions that were done, at most `most`, by their ends. It
  // may be called at any time, as Status.
  virtual std::vector<DoneInstruction> LastDone(std::size_t most) const = 0;
};

}  // namespace takt::engine
