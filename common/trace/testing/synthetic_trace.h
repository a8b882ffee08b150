// SPDX-License-Identifier: Apache-2.0
// Makes job traces for tests: what ranks would measure if every instruction took as long as the
// test says.
#pragma once

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "common/program/lowering.h"
#include "common/program/part_lists.h"
#include "common/schedule/generate.h"
#include "common/sim/executed.h"
#include "common/sim/replay.h"
#include "common/sim/testing/program_edit.h"
#include "common/trace/job_trace.h"
#include "gtest/gtest.h"

namespace takt::trace {

// Seconds.
struct SyntheticOptions {
  int dp_size = 1;
  int tp_size = 1;    // with more than 1, the ranks that share a stage gather before each F
  int num_steps = 2;  // at least
  bool merge_weight_grads = false;
  bool halves_run_beside = true;  // of pairs in which ranks gather
  // A stage computes for as long as one layer does, times its layers. Empty: one layer each.
  std::vector<int> stage_layers;
  double forward = 0.010, input_grad = 0.010, weight_grad = 0.010;
  double message = 50e-6, load = 100e-6, reduction = 200e-6, exchange = 100e-6;
  double norm = 20e-6, optimizer = 500e-6;
  double logits = 0.005;  // S; T takes twice as long
  double meeting = 0;     // each inside an instruction, once all are there
};

class SyntheticTrace {
 public:
  SyntheticTrace(std::string_view family, int ranks, int microbatches,
                 const SyntheticOptions& options = {})
      : SyntheticTrace(ProgramsOf(family, ranks, microbatches, options), options) {}

  // Traces programs that exist already. It reads options.dp_size, and ignores the options with
  // which the programs were lowered.
  SyntheticTrace(std::vector<program::Program> programs, const SyntheticOptions& options)
      : options_(options) {
    trace_.programs = std::move(programs);
    trace_.job = "synthetic";
    trace_.generation = Generation(1);
    trace_.mesh = {.pp_size = static_cast<int>(trace_.programs.size()),
                   .dp_size = options.dp_size,
                   .tp_size = options.tp_size};
    trace_.predicted = {.forward = {options.forward},
                        .input_grad = {options.input_grad},
                        .weight_grad = {options.weight_grad},
                        .backward = {options.input_grad + options.weight_grad},
                        .link = {.latency = options.message},
                        .halves_run_beside = options.halves_run_beside};
    spread_ = sim::SpreadOverCopies(trace_.programs, trace_.mesh.num_chains());
    executed_ = sim::AsExecuted(spread_, trace_.predicted.halves_run_beside);
    for (const program::Program& program : spread_) {
      meetings_.emplace_back(NumMeetings(program), options.meeting);
      std::vector<double>& of_rank = durations_.emplace_back();
      for (const program::Instruction& instruction : program.body)
        of_rank.push_back(UsualSeconds(instruction));
    }
    trace_.ranks.resize(spread_.size());
  }

  // The index of the instruction that prints so.
  double& Duration(int rank, std::string_view text) {
    return durations_[rank][sim::IndexOf(spread_[rank], text)];
  }
  // Makes all instructions of `op` on `rank` take `factor` times as long.
  void Slow(int rank, program::Op op, double factor) {
    for (std::size_t i = 0; i < spread_[rank].body.size(); ++i) {
      if (spread_[rank].body[i].op == op) durations_[rank][i] *= factor;
    }
  }
  // Makes all messages from one rank to another take so much longer.
  void Delay(int from, int to, double seconds) {
    for (std::size_t i = 0; i < spread_[to].body.size(); ++i) {
      const program::Instruction& instruction = spread_[to].body[i];
      if (instruction.op == program::Op::kRecv &&
          spread_[to].lanes[instruction.lane.value()].peer == PpRank(from)) {
        durations_[to][i] += seconds;
      }
    }
  }

  // Adds a step with the durations as they are now. After a pause nothing of it runs ahead, and
  // each rank's prologue, if it has one, takes the second half of the pause.
  void AddStep(double pause = 0) {
    const sim::Replayed replayed = sim::Replay(executed_.programs, DurationsOfHalves(),
                                               {.meetings = &meetings_, .tensor = options_.tp_size})
                                       .value();
    const double prologue_begin = now_ + pause / 2;
    now_ += pause;
    const double begin = now_ - (pause > 0 ? FirstStart(replayed) : replayed.end_of_previous);
    ++step_;
    for (std::size_t rank = 0; rank < spread_.size(); ++rank) {
      StepTrace& step = trace_.ranks[rank].steps.emplace_back();
      step.rank = Rank(static_cast<std::int32_t>(rank));
      step.step = StepId(step_);
      step.start_nanos = Nanos(now_);
      for (const auto& span : replayed.spans[rank]) {
        step.body.push_back({Nanos(begin + span.start), Nanos(begin + span.end)});
      }
      BeginWhenReady(executed_.programs[rank], step);
      JoinHalves(rank, step);
      AddMeetings(rank, step);
      if (pause > 0) AddPrologue(spread_[rank], prologue_begin, step);
    }
    now_ = begin + replayed.end_of_previous + replayed.step_time;
  }

  // The trace, with steps added until there are `num_steps`.
  JobTrace& Get() {
    while (step_ < options_.num_steps) AddStep();
    return trace_;
  }
  const std::vector<program::Program>& spread() const { return spread_; }

 private:
  static std::vector<program::Program> ProgramsOf(std::string_view family, int ranks,
                                                  int microbatches,
                                                  const SyntheticOptions& options) {
    program::LowerOptions lower{.reduce_gradients = options.dp_size > 1,
                                .merge_weight_grads = options.merge_weight_grads};
    const schedule::GenerateOptions sizes{.num_ranks = ranks, .num_microbatches = microbatches};
    std::vector<int> stage_layers = options.stage_layers;
    if (stage_layers.empty() && options.tp_size > 1)
      stage_layers.assign(schedule::Generate(family, sizes).value().num_stages, 1);
    int first_layer = 0;
    for (const int layers : stage_layers) {
      lower.stages.push_back({LayerId(first_layer), LayerId(first_layer + layers)});
      first_layer += layers;
      if (options.tp_size == 1) continue;
      const program::Part gather = {program::PartKind::kGather, program::PartGroup::kTensor, 8};
      lower.stages.back().layers.assign(layers, {.forward = {gather, program::Part{}}});
    }
    return sim::Programs(family, ranks, microbatches, lower);
  }

  // The halves of a pair take the shares that they usually have.
  sim::Durations DurationsOfHalves() const {
    return sim::OfHalves(executed_, durations_, [&](std::size_t rank, std::size_t i) {
      const program::Instruction& pair = spread_[rank].body[i];
      return PassSeconds(program::Op::kForward, pair.stage) / UsualSeconds(pair);
    });
  }

  // Workers report a pair as one instruction, without the time between its halves.
  void JoinHalves(std::size_t rank, StepTrace& step) const {
    std::vector<Span> joined;
    for (std::size_t i = 0; i < step.body.size(); ++i) {
      const Span& span = step.body[i];
      if (i == 0 || !executed_.BeginsPair(rank, i - 1)) {
        joined.push_back(span);
        continue;
      }
      joined.back() = {joined.back().start_nanos + span.start_nanos - joined.back().end_nanos,
                       span.end_nanos};
    }
    step.body = std::move(joined);
  }

  static double FirstStart(const sim::Replayed& replayed) {
    double first = replayed.end_of_previous;
    for (const auto& spans : replayed.spans) {
      for (const auto& span : spans) first = std::min(first, span.start);
    }
    return first;
  }

  // Fills the time from `begin` to where the body begins, one instruction after the other.
  void AddPrologue(const program::Program& program, double begin, StepTrace& step) const {
    const double each = (now_ - begin) / static_cast<double>(program.prologue.size());
    for (std::size_t i = 0; i < program.prologue.size(); ++i) {
      const double start = begin + static_cast<double>(i) * each;
      step.prologue.push_back({Nanos(start), Nanos(start + each)});
    }
    if (!step.prologue.empty()) step.start_nanos = step.prologue.front().start_nanos;
  }

  // The simulator begins messages and sums when all ends are there. A rank begins its own end when
  // it comes to it.
  static void BeginWhenReady(const program::Program& program, StepTrace& step) {
    const program::WaitLists waits = program::Dependencies(program);
    std::vector<std::vector<std::int64_t>> ends(program.lanes.size());  // by lane and position
    for (std::size_t i = 0; i < program.body.size(); ++i) {
      ends[program.body[i].lane.value()].push_back(step.body[i].end_nanos);
    }
    std::vector<std::size_t> done(program.lanes.size());
    for (std::size_t i = 0; i < program.body.size(); ++i) {
      const std::size_t lane = program.body[i].lane.value();
      std::int64_t ready = done[lane] == 0 ? step.start_nanos : ends[lane][done[lane] - 1];
      for (const program::Wait& wait : waits[i]) {
        if (wait.position >= 0) {
          ready = std::max(ready, ends[wait.lane.value()][wait.position]);
        }
      }
      ++done[lane];
      step.body[i].start_nanos =
          std::min(step.body[i].start_nanos, std::max<std::int64_t>(ready, 0));
    }
  }

  // A rank that comes early waits in its first meeting.
  void AddMeetings(std::size_t rank, StepTrace& step) const {
    const program::Program& program = spread_[rank];
    for (std::size_t i = 0; i < program.body.size(); ++i) {
      const std::span<const program::Part> parts = PartListOf(program.body[i], program);
      const auto meetings = std::ranges::count_if(parts, &program::Part::meets);
      if (meetings == 0) continue;
      const auto [start, end] = step.body[i];
      const std::int64_t meeting = Nanos(options_.meeting), compute = Nanos(durations_[rank][i]);
      std::int64_t wait = std::max<std::int64_t>(end - start - compute - meetings * meeting, 0);
      std::int64_t at = start;
      for (const program::Part& part : parts) {
        if (!part.meets()) {
          at += compute / (std::ssize(parts) - meetings);
          continue;
        }
        step.meetings.push_back({at, at + wait + meeting});
        at += std::exchange(wait, 0) + meeting;
      }
    }
  }

  double UsualSeconds(const program::Instruction& instruction) const {
    using program::Op;
    if (instruction.op == Op::kOverlap) {
      return PassSeconds(Op::kForward, instruction.stage) +
             PassSeconds(Op::kBackward, instruction.backward_stage);
    }
    return PassSeconds(instruction.op, instruction.stage) * instruction.num_microbatches;
  }
  double PassSeconds(program::Op op, StageId stage) const {
    const bool of_stage =
        !options_.stage_layers.empty() && program::IsCompute(op) && !program::IsOfVocabulary(op);
    return Usual(op) * (of_stage ? options_.stage_layers[stage.value()] : 1);
  }
  static std::int64_t Nanos(double seconds) { return std::llround(seconds * 1e9); }

  double Usual(program::Op op) const {
    switch (op) {
      case program::Op::kForward:
        return options_.forward;
      case program::Op::kInputGrad:
        return options_.input_grad;
      case program::Op::kWeightGrad:
        return options_.weight_grad;
      case program::Op::kBackward:
        return options_.input_grad + options_.weight_grad;
      case program::Op::kSend:
      case program::Op::kRecv:
        return options_.message;
      case program::Op::kLoad:
        return options_.load;
      case program::Op::kReduceGrad:
      case program::Op::kReduceTied:
      case program::Op::kGatherWeights:
      case program::Op::kUnshard:
        return options_.reduction;
      case program::Op::kNormExchange:
        return options_.exchange;
      case program::Op::kVocabularyForward:
        return options_.logits;
      case program::Op::kVocabularyBackward:
        return 2 * options_.logits;
      case program::Op::kNormPartial:
        return options_.norm;
      case program::Op::kOptimizer:
        return options_.optimizer;
      default:
        return program::IsMeeting(op) ? options_.message : 0;
    }
  }

  SyntheticOptions options_;
  JobTrace trace_;
  std::vector<program::Program> spread_;
  sim::ExecutedPrograms executed_;  // what spread_ is when it runs
  sim::Durations durations_;        // without the meetings inside
  sim::Durations meetings_;
  double now_ = 1;  // when the step before ended
  std::int64_t step_ = 0;
};

}  // namespace takt::trace
