// SPDX-License-Identifier: Apache-2.0
#include "worker/engine/engine.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/program/part_lists.h"
#include "common/program/split_pairs.h"
#include "worker/engine/bind_program.h"
#include "worker/engine/devices.h"
#include "worker/engine/lane.h"
#include "worker/engine/lane_waits.h"
#include "worker/engine/progress.h"
#include "worker/engine/side_thread.h"
#include "worker/engine/step_times.h"
#include "worker/engine/timing_ring.h"

namespace takt::engine {

namespace {

using program::Instruction;
using transport::kNoDeadline;
using transport::MonotonicNanos;

constexpr std::uint64_t kNoIteration = std::numeric_limits<std::uint64_t>::max();

absl::Status NoThread(const Lane& lane, const std::system_error& error) {
  return absl::ResourceExhaustedError(
      absl::StrCat("lane ", lane.name, " gets no thread: ", error.what(),
                   "; raise the limit of processes (ulimit -u, pids.max)"));
}

class ProgramEngine final : public Engine {
 public:
  ProgramEngine(const program::Program& program, EngineOptions options)
      : split_(program::HasPairs(program) ? std::optional(program::SplitPairs(program))
                                          : std::nullopt),
        program_(split_.has_value() ? split_->program : program),
        options_(std::move(options)),
        norm_check_(NormCheckOf(program_)),
        timings_(program_.body.size(), program::NumMeetings(program_)),
        step_times_(program, split_.has_value() ? split_->origins : std::vector<std::int32_t>()) {}

  absl::Status Open(Compute& compute);
  absl::Status Run(StepId first, StepId last,
                   std::function<void(const StepTiming&)> on_step) override;
  void EndAfter(StepId step) override;
  void Abort(absl::Status reason) override {
    Fail(absl::AbortedError(reason.ok() ? "aborted" : reason.message()));
  }
  std::vector<LaneStatus> Status() const override { return progress().Status(); }
  std::vector<DoneInstruction> LastDone(std::size_t most) const override {
    return progress().LastDone(most);
  }

 private:
  using BoundList = std::vector<std::unique_ptr<BoundInstruction>>;

  // Runs the prologue, and iterations up to the end, or until what ran ahead must run again.
  void RunStretch(std::int64_t& previous_end,
                  const std::function<void(const StepTiming&)>& on_step);
  void RunLane(Lane& lane, std::uint64_t begin);
  // These return false if the engine was stopped.
  bool RunEntry(Lane& lane, std::uint64_t iteration, std::uint64_t position);
  bool RunPair(Lane& lane, std::uint64_t iteration, std::uint64_t position, SideThread& side);
  bool RunHalf(Lane& lane, std::uint64_t iteration, std::uint64_t position, PairHalf half);
  // Runs the instruction, whose waits are over, and measures its time. half: set if it is a half of
  // a pair whose halves run side by side.
  bool RunTimed(Lane& lane, const LaneEntry& entry, std::uint64_t iteration,
                std::optional<PairHalf> half = std::nullopt);
  // Counts the instruction as done, and wakes the threads that wait for it.
  void Complete(Lane& lane, std::uint64_t iteration, std::uint64_t position);
  absl::Status RunOnDevice(Lane& lane, const LaneEntry& entry, std::uint64_t iteration,
                           StepId step);
  // Runs the instruction, and follows its parts if it has some.
  absl::Status RunBound(const LaneEntry& entry, std::uint64_t iteration, StepId step,
                        std::optional<PairHalf> half = std::nullopt);
  static absl::Status RunParts(BoundInstruction& bound, PartCursor& cursor, const PartRun& run,
                               StepId step);
  PartCursor* CursorOf(std::optional<PairHalf> half) const {
    return half == PairHalf::kBackward ? beside_.cursor : cursor_;
  }
  // Waits until the iteration's norm is known. Precondition: steps overlap.
  bool AwaitNorm(Lane& lane, std::uint64_t iteration);
  bool AwaitReports(Lane& lane, std::uint64_t iteration);
  void RunList(const std::vector<Instruction>& list, const BoundList& bound, StepId iteration_step,
               std::vector<InstructionTiming>& timings);
  void Report(std::uint64_t begin, std::int64_t& previous_end,
              const std::function<void(const StepTiming&)>& on_step);
  bool AwaitDevices(std::uint64_t iteration);
  // Call it before you use what a stream did: an aborted transport ends the work of its streams as
  // if it were done.
  absl::Status TransportStatus() const {
    return options_.transport == nullptr ? absl::OkStatus() : options_.transport->status();
  }
  // cursor: of whoever runs the instruction now; null: nobody does.
  absl::Status Named(const absl::Status& status, const Instruction& instruction, StepId step,
                     const PartCursor* cursor) const;
  Progress progress() const {
    return {.program = program_,
            .lanes = bound_.lanes,
            .timings = timings_,
            .part = cursor_ == nullptr ? -1 : cursor_->current(),
            .part_beside = beside_.cursor == nullptr ? -1 : beside_.cursor->current(),
            .first_step = first_step_.load(std::memory_order_relaxed),
            .run_nanos = run_nanos_.load(std::memory_order_relaxed)};
  }

  // Returns true for the first failure, which is the one that counts.
  bool Fail(absl::Status status);
  absl::Status failure() const {
    std::lock_guard lock(mutex_);
    return failure_;
  }
  bool stopped() const { return stopped_.load(std::memory_order_seq_cst); }
  std::uint64_t end() const { return end_.load(std::memory_order_seq_cst); }
  std::uint64_t stretch_end() const {
    return std::min(end(), redo_from_.load(std::memory_order_seq_cst));
  }
  StepId StepOf(std::uint64_t iteration) const {
    return StepId(first_step_.load(std::memory_order_relaxed) +
                  static_cast<std::int64_t>(iteration));
  }

  const std::optional<program::SplitProgram> split_;  // nullopt: there are no pairs
  const program::Program& program_;                   // what runs
  const EngineOptions options_;
  const std::optional<program::Wait> norm_check_;  // nullopt: steps do not overlap
  Compute* compute_ = nullptr;                     // constant after Open
  PartCursor* cursor_ = nullptr;  // constant after Open, and not null if instructions have parts
  Beside beside_;                 // constant after Open
  BoundProgram bound_;            // constant after Open, except the progress of its lanes
  Devices devices_;

  // Iterations are counted from 0 over all calls of Run; iteration i is step first_step_ + i.
  std::uint64_t iterations_ = 0, run_begin_ = 0;  // only the caller of Run uses them
  std::atomic<std::int64_t> first_step_{1};
  std::atomic<std::uint64_t> end_{0};  // the first iteration that Run leaves out
  // The iteration before which the prologue runs again. NORM_EXCHANGE of the one before sets it.
  std::atomic<std::uint64_t> redo_from_{kNoIteration};
  std::atomic<std::int64_t> run_nanos_{0};  // when the last Run began
  TimingRing timings_;
  StepTimes step_times_;                             // only the caller of Run uses it
  std::vector<InstructionTiming> prologue_timings_;  // only the caller of Run uses it
  std::atomic<std::uint64_t> reported_{0};           // iterations whose timings were handed over
  transport::WakeWord reported_moved_;

  std::atomic<bool> stopped_{false};
  const LaneWaits waits_{bound_.lanes, stopped_};
  mutable std::mutex mutex_;
  absl::Status failure_;  // guarded by mutex_; the first one stays
};

absl::Status ProgramEngine::Open(Compute& compute) {
  compute_ = &compute;
  cursor_ = compute.part_cursor();
  beside_ = compute.beside();
  if (cursor_ == nullptr && !program_.part_lists.empty()) {
    return absl::InvalidArgumentError(
        "ranks meet inside the instructions of the program, which what computes cannot follow");
  }
  std::span<const std::int32_t> origins;
  if (split_.has_value()) origins = split_->origins;
  ASSIGN_OR_RETURN(bound_, BindProgram(program_, origins, compute, options_));
  return devices_.Open(bound_);
}

absl::Status ProgramEngine::Run(StepId first, StepId last,
                                std::function<void(const StepTiming&)> on_step) {
  RETURN_IF_ERROR(failure());
  if (last < first) return absl::OkStatus();
  const std::uint64_t begin = iterations_;
  first_step_.store(first.value() - static_cast<std::int64_t>(begin), std::memory_order_relaxed);
  end_.store(begin + static_cast<std::uint64_t>(last.value() - first.value()) + 1,
             std::memory_order_seq_cst);

  const std::int64_t now = MonotonicNanos();
  run_nanos_.store(now, std::memory_order_relaxed);
  run_begin_ = begin;
  std::int64_t previous_end = program_.prologue.empty() ? 0 : now;
  do {
    RunStretch(previous_end, on_step);
  } while (iterations_ < end() && !stopped());
  std::vector<InstructionTiming> epilogue_timings;  // belong to no step
  RunList(program_.epilogue, bound_.epilogue, StepOf(iterations_ - 1), epilogue_timings);
  return failure();
}

void ProgramEngine::RunStretch(std::int64_t& previous_end,
                               const std::function<void(const StepTiming&)>& on_step) {
  const std::uint64_t begin = iterations_;
  redo_from_.store(kNoIteration, std::memory_order_seq_cst);
  RunList(program_.prologue, bound_.prologue, StepOf(begin), prologue_timings_);
  {
    std::vector<std::jthread> threads;
    for (const auto& lane : bound_.lanes) {
      if (lane->entries.empty()) continue;
      try {
        threads.emplace_back([this, &lane, begin] { RunLane(*lane, begin); });
      } catch (const std::system_error& error) {
        Fail(NoThread(*lane, error));
        break;
      }
    }
    Report(begin, previous_end, on_step);
  }
  // What was given to a device before a failure still uses the slots.
  if (!devices_.DrainAll()) {
    Log(LogLevel::kError, "a device hangs: it has not done what it was given",
        {{"after", absl::FormatDuration(options_.device_grace)},
         {"pp_rank", absl::StrCat(program_.pp_rank.value())}});
  }
  iterations_ = stretch_end();
}

void ProgramEngine::EndAfter(StepId step) {
  const auto wanted =
      static_cast<std::uint64_t>(step.value() - first_step_.load(std::memory_order_relaxed) + 1);
  std::uint64_t end = this->end();
  while (wanted < end && !end_.compare_exchange_weak(end, wanted, std::memory_order_seq_cst)) {
  }
}

void ProgramEngine::RunLane(Lane& lane, std::uint64_t begin) {
  std::string thread_name = absl::StrCat("takt/", lane.name);
  // The kernel keeps 15 characters.
  thread_name.resize(std::min<std::size_t>(thread_name.size(), 15));
  pthread_setname_np(pthread_self(), thread_name.c_str());
  std::optional<SideThread> side;
  try {
    if (std::ranges::any_of(lane.entries, &LaneEntry::with_next)) side.emplace();
  } catch (const std::system_error& error) {
    Fail(NoThread(lane, error));
    return;
  }
  for (std::uint64_t iteration = begin;; ++iteration) {
    if (norm_check_.has_value() && iteration > begin && !AwaitNorm(lane, iteration - 1)) return;
    if (!AwaitReports(lane, iteration)) return;
    // The end is read only now: the step whose report came may have moved it (EndAfter), and so may
    // the norm of the step before.
    if (iteration >= stretch_end()) break;
    for (std::uint64_t position = 0; position < lane.length(); ++position) {
      if (!lane.entries[position].with_next) {
        if (!RunEntry(lane, iteration, position)) return;
        continue;
      }
      if (!RunPair(lane, iteration, position, *side)) return;
      ++position;  // past the B
    }
  }
  lane.own.activity.store(kIdle, std::memory_order_relaxed);
}

bool ProgramEngine::RunEntry(Lane& lane, std::uint64_t iteration, std::uint64_t position) {
  const LaneEntry& entry = lane.entries[position];
  const program::Op op = entry.instruction->op;
  const StepId step = WorksFor(*entry.instruction, StepOf(iteration));
  const bool holds =
      op == program::Op::kSpeculate && norm_check_.has_value() && compute_->HoldsIn(step);
  if (holds && !AwaitNorm(lane, iteration)) return false;
  if (!waits_.AwaitOthers(lane.own, entry, iteration)) return false;
  if (!RunTimed(lane, entry, iteration)) return false;
  if (norm_check_.has_value() && op == program::Op::kNormExchange &&
      compute_->ForesawWrongly(step)) {
    redo_from_.store(iteration + 1, std::memory_order_seq_cst);
  }
  Complete(lane, iteration, position);
  return true;
}

// The F counts as done before the B even if it ends later, so whatever waits for the B waits for
// both.
bool ProgramEngine::RunPair(Lane& lane, std::uint64_t iteration, std::uint64_t position,
                            SideThread& side) {
  bool backward = false;
  side.Start([&] { backward = RunHalf(lane, iteration, position + 1, PairHalf::kBackward); });
  const bool forward = RunHalf(lane, iteration, position, PairHalf::kForward);
  if (forward) Complete(lane, iteration, position);
  side.Await();
  if (!forward || !backward) return false;
  Complete(lane, iteration, position + 1);
  return true;
}

bool ProgramEngine::RunHalf(Lane& lane, std::uint64_t iteration, std::uint64_t position,
                            PairHalf half) {
  const LaneEntry& entry = lane.entries[position];
  Waiter& waiter = half == PairHalf::kForward ? lane.own : lane.side;
  if (!waits_.AwaitOthers(waiter, entry, iteration)) return false;
  beside_.turns->Begin(half, entry.num_meetings);
  const bool ran = RunTimed(lane, entry, iteration, half);
  beside_.turns->End(half);
  return ran;
}

bool ProgramEngine::RunTimed(Lane& lane, const LaneEntry& entry, std::uint64_t iteration,
                             std::optional<PairHalf> half) {
  const StepId step = WorksFor(*entry.instruction, StepOf(iteration));
  if (options_.times_instructions) timings_.SetStart(iteration, entry.body_index, MonotonicNanos());
  const absl::Status status = entry.device == nullptr ? RunBound(entry, iteration, step, half)
                                                      : RunOnDevice(lane, entry, iteration, step);
  if (options_.times_instructions) timings_.SetEnd(iteration, entry.body_index, MonotonicNanos());
  if (status.ok()) return true;
  if (Fail(Named(status, *entry.instruction, step, CursorOf(half))))
    lane.failed.store(true, std::memory_order_relaxed);
  return false;
}

void ProgramEngine::Complete(Lane& lane, std::uint64_t iteration, std::uint64_t position) {
  const std::uint64_t done = iteration * lane.length() + position + 1;
  lane.done.store(done, std::memory_order_seq_cst);
  waits_.WakeWaiters(lane, done);
  if (position + 1 == lane.length()) lane.iteration_ended.Wake();
}

// An entry with a stream leaves its work there. Until the report waits for the device and learns
// when it ran, its times are those of giving the work to the stream.
absl::Status ProgramEngine::RunOnDevice(Lane& lane, const LaneEntry& entry, std::uint64_t iteration,
                                        StepId step) {
  const DevicePart& part = *entry.device;
  lane.own.activity.store(kAwaitingDevice, std::memory_order_relaxed);
  if (part.stream != nullptr) {
    constexpr std::int64_t kPoints = 2;  // its start and its end
    RETURN_IF_ERROR(part.stream->MakeRoom(kPoints + std::ssize(part.waits)));
  }
  RETURN_IF_ERROR(AwaitPoints(bound_.lanes, part, iteration, [this] { return stopped(); }));
  lane.own.activity.store(kRunning, std::memory_order_relaxed);
  if (part.stream == nullptr) {
    RETURN_IF_ERROR(TransportStatus());
    if (options_.times_instructions)
      timings_.SetStart(iteration, entry.body_index, MonotonicNanos());
    return RunBound(entry, iteration, step);
  }
  RETURN_IF_ERROR(part.stream->Record(*part.PointsOf(iteration).start));
  RETURN_IF_ERROR(RunBound(entry, iteration, step));
  return part.stream->Record(*part.PointsOf(iteration).end);
}

absl::Status ProgramEngine::RunBound(const LaneEntry& entry, std::uint64_t iteration, StepId step,
                                     std::optional<PairHalf> half) {
  if (entry.parts.empty()) return entry.bound->Run(step);
  PartRun run{.parts = entry.parts, .stream = entry.bound->stream()};
  if (half.has_value()) {
    run.turns = beside_.turns;
    run.half = *half;
  }
  if (options_.times_instructions)
    run.times = timings_.Meetings(iteration, entry.first_meeting, entry.num_meetings);
  if (run.stream != nullptr) run.events = entry.device->PointsOf(iteration).meetings;
  return RunParts(*entry.bound, *CursorOf(half), run, step);
}

absl::Status ProgramEngine::RunParts(BoundInstruction& bound, PartCursor& cursor,
                                     const PartRun& run, StepId step) {
  cursor.Begin(run);
  absl::Status status = bound.Run(step);
  status.Update(cursor.End());
  return status;
}

bool ProgramEngine::AwaitNorm(Lane& lane, std::uint64_t iteration) {
  Lane& other = *bound_.lanes[norm_check_->lane.value()];
  const std::uint64_t count =
      iteration * other.length() + static_cast<std::uint64_t>(norm_check_->position) + 1;
  if (other.done.load(std::memory_order_acquire) >= count) return !stopped();
  lane.own.activity.store(kAwaitingNorm, std::memory_order_relaxed);
  return waits_.AwaitLane(lane.own, other, count);
}

// The timings of `iteration` go where those of `iteration` - kKept were.
bool ProgramEngine::AwaitReports(Lane& lane, std::uint64_t iteration) {
  const auto reported = [&] {
    return reported_.load(std::memory_order_seq_cst) + TimingRing::kKept > iteration;
  };
  if (reported()) return !stopped();
  lane.own.activity.store(kReporting, std::memory_order_relaxed);
  reported_moved_.Await([&] { return reported() || stopped(); }, kNoDeadline, kSpinNanos);
  return !stopped();
}

void ProgramEngine::RunList(const std::vector<Instruction>& list, const BoundList& bound,
                            StepId iteration_step, std::vector<InstructionTiming>& timings) {
  timings.assign(list.size(), {});
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (stopped()) return;
    const StepId step = WorksFor(list[i], iteration_step);
    timings[i].start_nanos = MonotonicNanos();
    const std::span<const program::Part> parts = program::PartListOf(list[i], program_);
    absl::Status status =
        parts.empty() ? bound[i]->Run(step) : RunParts(*bound[i], *cursor_, {.parts = parts}, step);
    if (backend::Stream* const stream = bound[i]->stream(); stream != nullptr) {
      status.Update(devices_.Drain(*stream));
      status.Update(TransportStatus());
    }
    timings[i].end_nanos = MonotonicNanos();
    if (!status.ok()) Fail(Named(status, list[i], step, cursor_));
  }
}

// previous_end: when the first prologue of the Run began, 0 if there is none, or the last step
// before ended. It becomes the end of the last step.
void ProgramEngine::Report(std::uint64_t begin, std::int64_t& previous_end,
                           const std::function<void(const StepTiming&)>& on_step) {
  for (std::uint64_t iteration = begin; iteration < stretch_end(); ++iteration) {
    for (const auto& lane : bound_.lanes) {
      const std::uint64_t count = (iteration + 1) * lane->length();
      lane->iteration_ended.Await(
          [&] { return lane->done.load(std::memory_order_seq_cst) >= count || stopped(); },
          kNoDeadline, kSpinNanos);
      // A step that was complete when the engine stopped is reported all the same.
      if (lane->done.load(std::memory_order_acquire) < count) return;
    }
    if (!devices_.none() && !AwaitDevices(iteration)) return;
    StepTiming timing = step_times_.Summarize(StepOf(iteration), timings_.Of(iteration),
                                              timings_.MeetingsOf(iteration), previous_end);
    if (iteration == begin && !prologue_timings_.empty()) timing.prologue = &prologue_timings_;
    timing.redone = iteration == begin && begin > run_begin_;
    previous_end = timing.end_nanos;
    if (on_step) on_step(timing);
    reported_.store(iteration + 1, std::memory_order_seq_cst);
    reported_moved_.Wake();
  }
}

// Waits for all that an iteration left on streams. Returns false if an error of a device, or of
// what it sent and received, stopped the engine.
bool ProgramEngine::AwaitDevices(std::uint64_t iteration) {
  for (const auto& lane : bound_.lanes) {
    for (const LaneEntry& entry : lane->entries) {
      if (entry.device == nullptr || entry.device->stream == nullptr) continue;
      absl::Status status =
          devices_.Await(entry, iteration, options_.times_instructions ? &timings_ : nullptr);
      status.Update(TransportStatus());
      if (status.ok()) continue;
      const StepId step = WorksFor(*entry.instruction, StepOf(iteration));
      // The lane is elsewhere by now.
      if (Fail(Named(status, *entry.instruction, step, nullptr)))
        lane->failed.store(true, std::memory_order_relaxed);
      return false;
    }
  }
  return true;
}

absl::Status ProgramEngine::Named(const absl::Status& status, const Instruction& instruction,
                                  StepId step, const PartCursor* cursor) const {
  std::string name = program::ToString(instruction, program_);
  const std::span<const program::Part> parts = program::PartListOf(instruction, program_);
  const int part = cursor != nullptr ? cursor->current() : -1;
  if (part >= 0 && part < std::ssize(parts))
    absl::StrAppend(&name, " ", program::PartName(parts, static_cast<std::size_t>(part)));
  return Annotate(status, absl::StrCat("step ", step.value(), ", pp rank ",
                                       program_.pp_rank.value(), ", ", name));
}

bool ProgramEngine::Fail(absl::Status status) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return false;
    failure_ = std::move(status);
  }
  devices_.GiveUpAt(MonotonicNanos() + absl::ToInt64Nanoseconds(options_.device_grace));
  stopped_.store(true, std::memory_order_seq_cst);
  devices_.EndWaits();
  for (const auto& lane : bound_.lanes) {
    lane->own.woken.Wake();
    lane->side.woken.Wake();
    lane->iteration_ended.Wake();
  }
  reported_moved_.Wake();
  if (options_.transport != nullptr) options_.transport->Abort();
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const program::Program& program,
                                                       Compute& compute, EngineOptions options) {
  auto engine = std::make_unique<ProgramEngine>(program, std::move(options));
  RETURN_IF_ERROR(engine->Open(compute));
  return engine;
}

}  // namespace takt::engine
