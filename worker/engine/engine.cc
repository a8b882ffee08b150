// SPDX-License-Identifier: Apache-2.0
#include "worker/engine/engine.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/engine/lane.h"
#include "worker/engine/timing_ring.h"

namespace takt::engine {

namespace {

using program::Instruction;
using program::LaneKind;
using program::Op;
using transport::kNoDeadline;
using transport::MonotonicNanos;

// Another lane is usually milliseconds away, or just finishing. Cores are shared by many ranks.
constexpr std::int64_t kSpinNanos = 2'000;

StepId WorksFor(const Instruction& instruction, StepId iteration_step) {
  return StepId(iteration_step.value() + instruction.step_ahead);
}

class ProgramEngine final : public Engine {
 public:
  ProgramEngine(const program::Program& program, Compute& compute, EngineOptions options)
      : program_(program),
        compute_(compute),
        options_(std::move(options)),
        timings_(program.body.size()) {}

  absl::Status Open();
  absl::Status Run(StepId first, StepId last,
                   std::function<void(const StepTiming&)> on_step) override;
  void EndAfter(StepId step) override;
  void Abort(absl::Status reason) override {
    Fail(absl::AbortedError(reason.ok() ? "aborted" : reason.message()));
  }
  std::vector<LaneStatus> Status() const override;
  std::vector<DoneInstruction> LastDone(std::size_t most) const override;

 private:
  absl::Status OpenChannels();
  absl::Status OpenStreams();
  std::span<std::byte> MessageOf(const Instruction& instruction);  // of SEND and RECV
  backend::Stream* StreamOf(const Lane& lane, const Instruction& instruction);
  void RunLane(Lane& lane, std::uint64_t begin);
  // False: the engine was stopped.
  bool RunEntry(Lane& lane, std::uint64_t iteration, std::uint64_t position);
  absl::Status ExecuteOnDevice(Lane& lane, const LaneEntry& entry, std::uint64_t iteration,
                               StepId step);
  bool AwaitOthers(Lane& lane, const LaneEntry& entry, std::uint64_t iteration);
  bool AwaitReports(Lane& lane, std::uint64_t iteration);
  bool AwaitLane(Lane& lane, Lane& other, std::uint64_t count);
  void WakeWaiters(const Lane& lane, std::uint64_t done);
  absl::Status Execute(Lane& lane, const Instruction& instruction, std::span<std::byte> message,
                       StepId step);
  void RunList(const std::vector<Instruction>& list, StepId iteration_step,
               std::vector<InstructionTiming>& timings);
  void Report(std::uint64_t begin, std::int64_t previous_end,
              const std::function<void(const StepTiming&)>& on_step);
  bool AwaitDevices(std::uint64_t iteration);
  absl::Status AwaitDevice(const LaneEntry& entry, std::uint64_t iteration);
  absl::Status Drain(backend::Stream* stream);
  void DrainAll();
  // An error or Abort was longer ago than devices are waited for.
  bool GivesUpDevices() const;
  // Ask before using what a stream did: an aborted transport ends its streams' work as if it were
  // done.
  absl::Status TransportStatus() const {
    return options_.transport == nullptr ? absl::OkStatus() : options_.transport->status();
  }
  absl::Status Named(const absl::Status& status, const Instruction& instruction, StepId step) const;
  StepTiming Summarize(std::uint64_t iteration, std::int64_t previous_end) const;
  // When the lane came to its entry number `done`, which may be waiting for others.
  std::int64_t ArrivedNanos(const Lane& lane, std::uint64_t done) const;

  // True for the first failure, which is the one that counts.
  bool Fail(absl::Status status);
  absl::Status failure() const {
    std::lock_guard lock(mutex_);
    return failure_;
  }
  bool stopped() const { return stopped_.load(std::memory_order_seq_cst); }
  std::uint64_t end() const { return end_.load(std::memory_order_seq_cst); }
  StepId StepOf(std::uint64_t iteration) const {
    return StepId(first_step_.load(std::memory_order_relaxed) +
                  static_cast<std::int64_t>(iteration));
  }

  const program::Program& program_;
  Compute& compute_;
  const EngineOptions options_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // constant after Open
  // Of all instructions, each with an event to drain it by.
  std::map<backend::Stream*, std::unique_ptr<backend::Event>> streams_;

  // Iterations count from 0 over all calls of Run; iteration i is step first_step_ + i.
  std::uint64_t iterations_ = 0;  // of the caller of Run
  std::atomic<std::int64_t> first_step_{1};
  std::atomic<std::uint64_t> end_{0};       // of Run: the first iteration that it does not do
  std::atomic<std::int64_t> run_nanos_{0};  // when the last Run began
  TimingRing timings_;
  std::vector<InstructionTiming> prologue_timings_;  // of the caller of Run
  std::atomic<std::uint64_t> reported_{0};           // iterations whose timings were handed over
  transport::WakeWord reported_moved_;

  std::atomic<bool> stopped_{false};
  std::atomic<std::int64_t> devices_given_up_nanos_{0};  // once stopped
  mutable std::mutex mutex_;
  absl::Status failure_;  // guarded by mutex_; the first one, for good
};

absl::Status ProgramEngine::Open() {
  ASSIGN_OR_RETURN(lanes_, MakeLanes(program_));
  for (const auto& lane : lanes_) {
    for (LaneEntry& entry : lane->entries) entry.message = MessageOf(*entry.instruction);
  }
  RETURN_IF_ERROR(OpenChannels());
  return OpenStreams();
}

absl::Status ProgramEngine::OpenStreams() {
  for (const auto* list : {&program_.prologue, &program_.body, &program_.epilogue}) {
    for (const Instruction& instruction : *list) {
      backend::Stream* const stream = StreamOf(*lanes_[instruction.lane.value()], instruction);
      if (stream == nullptr || streams_.contains(stream)) continue;
      ASSIGN_OR_RETURN(streams_[stream], stream->CreateEvent());
    }
  }
  return AddDeviceParts(
      program_,
      [this](const Lane& lane, const Instruction& instruction) {
        return StreamOf(lane, instruction);
      },
      lanes_);
}

backend::Stream* ProgramEngine::StreamOf(const Lane& lane, const Instruction& instruction) {
  if (instruction.op == Op::kSend) return lane.send->stream();
  return instruction.op == Op::kRecv ? lane.recv->stream() : compute_.StreamOf(instruction);
}

std::span<std::byte> ProgramEngine::MessageOf(const Instruction& instruction) {
  if (instruction.op == Op::kSend) return compute_.SlotBytes(instruction.reads[0]);
  if (instruction.op == Op::kRecv) return compute_.SlotBytes(instruction.writes[0]);
  return {};
}

// In an order that all ranks share: an opening waits for its peer, and would otherwise be part of a
// circle of waits.
absl::Status ProgramEngine::OpenChannels() {
  const auto sender_receiver_direction = [&](const Lane* lane) {
    const bool sends = lane->description->kind == LaneKind::kSend;
    return std::tuple(sends ? program_.pp_rank : lane->description->peer,
                      sends ? lane->description->peer : program_.pp_rank,
                      lane->description->direction);
  };
  std::map<Lane*, std::size_t> max_bytes;
  for (const auto* list : {&program_.prologue, &program_.body, &program_.epilogue}) {
    for (const Instruction& instruction : *list) {
      if (instruction.op != Op::kSend && instruction.op != Op::kRecv) continue;
      std::size_t& most = max_bytes[lanes_[instruction.lane.value()].get()];
      most = std::max(most, MessageOf(instruction).size());
    }
  }
  std::vector<Lane*> links;
  for (const auto& [lane, bytes] : max_bytes) links.push_back(lane);
  if (!links.empty() && (options_.transport == nullptr || !options_.rank_of)) {
    return absl::InvalidArgumentError("a program with messages needs a transport");
  }
  std::sort(links.begin(), links.end(), [&](const Lane* a, const Lane* b) {
    return sender_receiver_direction(a) < sender_receiver_direction(b);
  });
  for (Lane* const lane : links) {
    const Rank peer = options_.rank_of(lane->description->peer);
    const std::string name =
        absl::StrCat(options_.channel_prefix, DirectionName(lane->description->direction));
    if (lane->description->kind == LaneKind::kSend) {
      ASSIGN_OR_RETURN(lane->send, options_.transport->OpenSend(peer, name, max_bytes[lane]));
    } else {
      ASSIGN_OR_RETURN(lane->recv, options_.transport->OpenRecv(peer, name, max_bytes[lane]));
    }
  }
  return absl::OkStatus();
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
  const std::int64_t start = program_.prologue.empty() ? 0 : now;
  RunList(program_.prologue, first, prologue_timings_);
  {
    std::vector<std::jthread> threads;
    for (const auto& lane : lanes_) {
      if (!lane->entries.empty())
        threads.emplace_back([this, &lane, begin] { RunLane(*lane, begin); });
    }
    Report(begin, start, on_step);
  }
  // What was given to a device before a failure still uses the slots.
  DrainAll();
  iterations_ = end();
  std::vector<InstructionTiming> epilogue_timings;  // belong to no step
  RunList(program_.epilogue, StepOf(iterations_ - 1), epilogue_timings);
  return failure();
}

void ProgramEngine::EndAfter(StepId step) {
  const auto wanted =
      static_cast<std::uint64_t>(step.value() - first_step_.load(std::memory_order_relaxed) + 1);
  std::uint64_t end = this->end();
  while (wanted < end && !end_.compare_exchange_weak(end, wanted, std::memory_order_seq_cst)) {
  }
}

void ProgramEngine::RunLane(Lane& lane, std::uint64_t begin) {
  std::string thread_name = absl::StrCat(options_.thread_name_prefix, "/", lane.name);
  thread_name.resize(std::min<std::size_t>(thread_name.size(), 15));  // what the kernel keeps
  pthread_setname_np(pthread_self(), thread_name.c_str());
  for (std::uint64_t iteration = begin;; ++iteration) {
    if (!AwaitReports(lane, iteration)) return;
    // Only now: the step whose report came may have moved the end (EndAfter).
    if (iteration >= end()) break;
    for (std::uint64_t position = 0; position < lane.length(); ++position) {
      if (!RunEntry(lane, iteration, position)) return;
    }
  }
  lane.activity.store(kIdle, std::memory_order_relaxed);
}

bool ProgramEngine::RunEntry(Lane& lane, std::uint64_t iteration, std::uint64_t position) {
  const LaneEntry& entry = lane.entries[position];
  if (!AwaitOthers(lane, entry, iteration)) return false;
  const StepId step = WorksFor(*entry.instruction, StepOf(iteration));
  if (options_.times_instructions) timings_.SetStart(iteration, entry.body_index, MonotonicNanos());
  const absl::Status status = entry.device == nullptr
                                  ? Execute(lane, *entry.instruction, entry.message, step)
                                  : ExecuteOnDevice(lane, entry, iteration, step);
  if (options_.times_instructions) timings_.SetEnd(iteration, entry.body_index, MonotonicNanos());
  if (!status.ok()) {
    const bool first = Fail(Named(status, *entry.instruction, step));
    if (first) lane.failed.store(true, std::memory_order_relaxed);
    return false;
  }
  const std::uint64_t done = iteration * lane.length() + position + 1;
  lane.done.store(done, std::memory_order_seq_cst);
  WakeWaiters(lane, done);
  if (position + 1 == lane.length()) lane.iteration_ended.Wake();
  return true;
}

// With a stream: to the stream. Its times are those of giving until AwaitDevice knows better.
absl::Status ProgramEngine::ExecuteOnDevice(Lane& lane, const LaneEntry& entry,
                                            std::uint64_t iteration, StepId step) {
  const DevicePart& part = *entry.device;
  lane.activity.store(kAwaitingDevice, std::memory_order_relaxed);
  RETURN_IF_ERROR(AwaitPoints(lanes_, part, iteration, [this] { return stopped(); }));
  lane.activity.store(kRunning, std::memory_order_relaxed);
  if (part.stream == nullptr) {
    RETURN_IF_ERROR(TransportStatus());
    if (options_.times_instructions)
      timings_.SetStart(iteration, entry.body_index, MonotonicNanos());
    return Execute(lane, *entry.instruction, entry.message, step);
  }
  RETURN_IF_ERROR(part.stream->Record(*part.PointsOf(iteration).start));
  RETURN_IF_ERROR(Execute(lane, *entry.instruction, entry.message, step));
  return part.stream->Record(*part.PointsOf(iteration).end);
}

bool ProgramEngine::AwaitOthers(Lane& lane, const LaneEntry& entry, std::uint64_t iteration) {
  for (std::size_t i = 0; i < entry.waits.size(); ++i) {
    const program::Wait wait = entry.waits[i];
    Lane& other = *lanes_[wait.lane.value()];
    // A negative position reaches into the iteration before; there is none before the first.
    const std::int64_t count =
        static_cast<std::int64_t>(iteration * other.length()) + wait.position + 1;
    if (count <= 0 ||
        other.done.load(std::memory_order_acquire) >= static_cast<std::uint64_t>(count)) {
      continue;
    }
    lane.activity.store(static_cast<std::int32_t>(i), std::memory_order_relaxed);
    if (!AwaitLane(lane, other, static_cast<std::uint64_t>(count))) return false;
  }
  lane.activity.store(kRunning, std::memory_order_relaxed);
  return !stopped_.load(std::memory_order_relaxed);
}

// Until `other` has done `count`. What it waits for is written before it looks for the last time,
// and `done` before WakeWaiters looks who waits: one of the two sees the other.
bool ProgramEngine::AwaitLane(Lane& lane, Lane& other, std::uint64_t count) {
  std::atomic<std::uint64_t>& awaited = other.awaited[lane.id.value()];
  awaited.store(count, std::memory_order_seq_cst);
  lane.woken.Await([&] { return other.done.load(std::memory_order_seq_cst) >= count || stopped(); },
                   kNoDeadline, kSpinNanos);
  awaited.store(kNothingAwaited, std::memory_order_relaxed);
  return !stopped();
}

void ProgramEngine::WakeWaiters(const Lane& lane, std::uint64_t done) {
  for (std::size_t i = 0; i < lane.awaited.size(); ++i) {
    if (lane.awaited[i].load(std::memory_order_seq_cst) <= done) lanes_[i]->woken.Wake();
  }
}

// The timings of `iteration` go where those of `iteration` - kKept were.
bool ProgramEngine::AwaitReports(Lane& lane, std::uint64_t iteration) {
  const auto reported = [&] {
    return reported_.load(std::memory_order_seq_cst) + TimingRing::kKept > iteration;
  };
  if (reported()) return !stopped();
  lane.activity.store(kReporting, std::memory_order_relaxed);
  reported_moved_.Await([&] { return reported() || stopped(); }, kNoDeadline, kSpinNanos);
  return !stopped();
}

absl::Status ProgramEngine::Execute(Lane& lane, const Instruction& instruction,
                                    std::span<std::byte> message, StepId step) {
  if (instruction.op != Op::kSend && instruction.op != Op::kRecv)
    return compute_.Run(instruction, step);
  const transport::MessageTag tag{
      .generation = options_.generation,
      .step = step.value(),
      .stage = instruction.stage.value(),
      .microbatch = instruction.microbatch.value(),
      .direction = static_cast<std::int32_t>(lane.description->direction)};
  return instruction.op == Op::kSend ? lane.send->Send(tag, message)
                                     : lane.recv->Recv(tag, message);
}

void ProgramEngine::RunList(const std::vector<Instruction>& list, StepId iteration_step,
                            std::vector<InstructionTiming>& timings) {
  timings.assign(list.size(), {});
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (stopped()) return;
    const Instruction& instruction = list[i];
    const StepId step = WorksFor(instruction, iteration_step);
    Lane& lane = *lanes_[instruction.lane.value()];
    timings[i].start_nanos = MonotonicNanos();
    absl::Status status = Execute(lane, instruction, MessageOf(instruction), step);
    if (backend::Stream* const stream = StreamOf(lane, instruction); stream != nullptr) {
      status.Update(Drain(stream));
      status.Update(TransportStatus());
    }
    timings[i].end_nanos = MonotonicNanos();
    if (!status.ok()) Fail(Named(status, instruction, step));
  }
}

// previous_end: when the prologue began; 0: there is none.
void ProgramEngine::Report(std::uint64_t begin, std::int64_t previous_end,
                           const std::function<void(const StepTiming&)>& on_step) {
  for (std::uint64_t iteration = begin; iteration < end(); ++iteration) {
    for (const auto& lane : lanes_) {
      const std::uint64_t count = (iteration + 1) * lane->length();
      lane->iteration_ended.Await(
          [&] { return lane->done.load(std::memory_order_seq_cst) >= count || stopped(); },
          kNoDeadline, kSpinNanos);
      // A step that was complete when the engine stopped is reported all the same.
      if (lane->done.load(std::memory_order_acquire) < count) return;
    }
    if (!streams_.empty() && !AwaitDevices(iteration)) return;
    StepTiming timing = Summarize(iteration, previous_end);
    if (iteration == begin && !prologue_timings_.empty()) timing.prologue = &prologue_timings_;
    previous_end = timing.end_nanos;
    if (on_step) on_step(timing);
    reported_.store(iteration + 1, std::memory_order_seq_cst);
    reported_moved_.Wake();
  }
}

// The whole of an iteration; false: the engine was stopped by an error of a device, or of what it
// sent and received.
bool ProgramEngine::AwaitDevices(std::uint64_t iteration) {
  for (const auto& lane : lanes_) {
    for (const LaneEntry& entry : lane->entries) {
      if (entry.device == nullptr || entry.device->stream == nullptr) continue;
      absl::Status status = AwaitDevice(entry, iteration);
      status.Update(TransportStatus());
      if (status.ok()) continue;
      if (Fail(Named(status, *entry.instruction, WorksFor(*entry.instruction, StepOf(iteration)))))
        lane->failed.store(true, std::memory_order_relaxed);
      return false;
    }
  }
  return true;
}

// Until the entry has run; then the ring has the times at which it did.
absl::Status ProgramEngine::AwaitDevice(const LaneEntry& entry, std::uint64_t iteration) {
  const DevicePart::Points& points = entry.device->PointsOf(iteration);
  RETURN_IF_ERROR(points.end->WaitUnless([this] { return GivesUpDevices(); }));
  if (!options_.times_instructions) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::int64_t start, points.start->Nanos());
  ASSIGN_OR_RETURN(const std::int64_t end, points.end->Nanos());
  timings_.SetStart(iteration, entry.body_index, start);
  timings_.SetEnd(iteration, entry.body_index, end);
  return absl::OkStatus();
}

absl::Status ProgramEngine::Drain(backend::Stream* stream) {
  backend::Event& end = *streams_.at(stream);
  RETURN_IF_ERROR(stream->Record(end));
  return end.WaitUnless([this] { return GivesUpDevices(); });
}

void ProgramEngine::DrainAll() {
  for (const auto& [stream, event] : streams_) {
    if (!absl::IsCancelled(Drain(stream))) continue;
    Log(LogLevel::kError, "a device hangs: it has not done what it was given",
        {{"after", absl::FormatDuration(options_.device_grace)},
         {"pp_rank", absl::StrCat(program_.pp_rank.value())}});
    return;
  }
}

bool ProgramEngine::GivesUpDevices() const {
  return stopped() && MonotonicNanos() >= devices_given_up_nanos_.load(std::memory_order_relaxed);
}

absl::Status ProgramEngine::Named(const absl::Status& status, const Instruction& instruction,
                                  StepId step) const {
  return Annotate(status,
                  absl::StrCat("step ", step.value(), ", pp rank ", program_.pp_rank.value(), ", ",
                               program::ToString(instruction, program_)));
}

StepTiming ProgramEngine::Summarize(std::uint64_t iteration, std::int64_t previous_end) const {
  StepTiming summary{.step = StepOf(iteration), .timings = &timings_.Of(iteration)};
  std::int64_t first_start = kNoDeadline;
  for (std::size_t i = 0; i < program_.body.size(); ++i) {
    const InstructionTiming& timing = (*summary.timings)[i];
    first_start = std::min(first_start, timing.start_nanos);
    summary.end_nanos = std::max(summary.end_nanos, timing.end_nanos);
    if (program::IsCompute(program_.body[i].op))
      summary.compute_nanos += timing.end_nanos - timing.start_nanos;
  }
  summary.start_nanos = previous_end != 0 ? previous_end : first_start;
  return summary;
}

bool ProgramEngine::Fail(absl::Status status) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return false;
    failure_ = std::move(status);
  }
  devices_given_up_nanos_.store(MonotonicNanos() + absl::ToInt64Nanoseconds(options_.device_grace),
                                std::memory_order_relaxed);
  stopped_.store(true, std::memory_order_seq_cst);
  for (const auto& lane : lanes_) {
    lane->woken.Wake();
    lane->iteration_ended.Wake();
  }
  reported_moved_.Wake();
  if (options_.transport != nullptr) options_.transport->Abort();
  return true;
}

std::int64_t ProgramEngine::ArrivedNanos(const Lane& lane, std::uint64_t done) const {
  std::int64_t arrived = run_nanos_.load(std::memory_order_relaxed);
  if (done > 0) {
    const std::uint64_t last = done - 1;
    const LaneEntry& entry = lane.entries[last % lane.length()];
    arrived = std::max(arrived, timings_.Peek(last / lane.length(), entry.body_index).end_nanos);
  }
  // Before it has begun, an older iteration's start stands there.
  const LaneEntry& entry = lane.entries[done % lane.length()];
  return std::max(arrived, timings_.Peek(done / lane.length(), entry.body_index).start_nanos);
}

std::vector<LaneStatus> ProgramEngine::Status() const {
  std::vector<LaneStatus> result;
  const std::int64_t now = MonotonicNanos();
  for (const auto& lane : lanes_) {
    LaneStatus status{.lane = lane->id, .failed = lane->failed.load(std::memory_order_relaxed)};
    if (!lane->entries.empty()) {
      const std::uint64_t done = lane->done.load(std::memory_order_acquire);
      const std::int32_t activity = lane->activity.load(std::memory_order_relaxed);
      const std::uint64_t current = activity == kIdle && done > 0 ? done - 1 : done;
      const LaneEntry& entry = lane->entries[current % lane->length()];
      status.step = StepOf(current / lane->length());
      status.instruction = program::ToString(*entry.instruction, program_);
      // `done` may have moved on between the two loads: never index by a mixture.
      if (activity < static_cast<std::int32_t>(entry.waits.size())) {
        status.waiting_for = DescribeWait(program_, lanes_, entry, activity);
        if (activity >= 0) status.waits_for_lane = entry.waits[activity].lane;
      }
      status.nanos = std::max<std::int64_t>(0, now - ArrivedNanos(*lane, done));
    }
    result.push_back(std::move(status));
  }
  return result;
}

std::vector<DoneInstruction> ProgramEngine::LastDone(std::size_t most) const {
  struct Done {
    const Lane* lane;
    std::uint64_t number;  // on its lane
    InstructionTiming timing;
  };
  std::vector<Done> all;
  const std::int64_t now = MonotonicNanos();
  for (const auto& lane : lanes_) {
    const std::uint64_t done = lane->done.load(std::memory_order_acquire);
    const std::uint64_t first = done - std::min<std::uint64_t>(done, most);
    for (std::uint64_t number = first; number < done; ++number) {
      const LaneEntry& entry = lane->entries[number % lane->length()];
      const InstructionTiming timing = timings_.Peek(number / lane->length(), entry.body_index);
      // A lane that has come so far may have written the times of a later iteration over these.
      const bool kept =
          lane->done.load(std::memory_order_acquire) < number + TimingRing::kKept * lane->length();
      if (kept) all.push_back({lane.get(), number, timing});
    }
  }
  std::ranges::sort(all, {}, [](const Done& done) { return done.timing.end_nanos; });
  if (all.size() > most) all.erase(all.begin(), all.end() - static_cast<std::ptrdiff_t>(most));
  std::vector<DoneInstruction> result;
  for (const Done& done : all) {
    const Instruction& instruction =
        *done.lane->entries[done.number % done.lane->length()].instruction;
    result.push_back({.instruction = program::ToString(instruction, program_),
                      .step = WorksFor(instruction, StepOf(done.number / done.lane->length())),
                      .nanos = done.timing.end_nanos - done.timing.start_nanos,
                      .ended_nanos_ago = std::max<std::int64_t>(0, now - done.timing.end_nanos)});
  }
  return result;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const program::Program& program,
                                                       Compute& compute, EngineOptions options) {
  auto engine = std::make_unique<ProgramEngine>(program, compute, std::move(options));
  RETURN_IF_ERROR(engine->Open());
  return engine;
}

}  // namespace takt::engine
