// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/training_run.h"

#include <algorithm>
#include <memory>

#include "common/base/status.h"
#include "tests/bench/process_usage.h"
#include "tests/bench/statistics.h"
#include "tests/bench/turns.h"
#include "tests/testing/virtual_ranks.h"

namespace takt::bench {
namespace {

using program::Instruction;

// An instruction that ran.
struct Span {
  const Instruction* instruction = nullptr;
  StepId step;
  int pp_rank = 0;
  std::int64_t start_nanos = 0, end_nanos = 0;
};

// The measurements of one rank.
struct RankRecord {
  std::vector<Span> computed;     // spans of its compute lane
  std::map<StepId, double> tied;  // seconds of the sum of a tied embedding
  std::vector<double> step_seconds, losses;
  std::int64_t most_allocated = 0;  // bytes on the device, by all ranks, at the end of a step
};

double SecondsOf(std::int64_t nanos) { return 1e-9 * static_cast<double>(nanos); }

void Record(const engine::StepTiming& step, const program::Program& program, RankRecord& record) {
  for (std::size_t i = 0; i < program.body.size(); ++i) {
    const Instruction& instruction = program.body[i];
    const engine::InstructionTiming& timing = (*step.timings)[i];
    if (program.lanes[instruction.lane.value()].kind == program::LaneKind::kCompute) {
      record.computed.push_back(
          {&instruction, step.step, program.pp_rank.value(), timing.start_nanos, timing.end_nanos});
    } else if (instruction.op == program::Op::kReduceTied) {
      record.tied[step.step] = SecondsOf(timing.end_nanos - timing.start_nanos);
    }
  }
}

// A rank's clock also runs while the rank waits for its turn. A turn begins when the one before it
// ends, so only the time from there on counts. Steps that warm up are left out.
void SumTurns(std::vector<Span> computed, const TrainJobOptions& options, TrainingRun& run) {
  std::ranges::sort(computed, {}, &Span::end_nanos);
  std::map<int, double> optimizer_of;
  std::int64_t free_nanos = 0;
  for (const Span& span : computed) {
    const double seconds = SecondsOf(span.end_nanos - std::max(span.start_nanos, free_nanos));
    free_nanos = span.end_nanos;
    if (span.step <= StepId(options.warmup)) continue;
    run.stages.Add(*span.instruction, seconds);
    run.op_seconds[std::string(program::Name(span.instruction->op))] += seconds / options.steps;
    if (!program::IsCompute(span.instruction->op))
      optimizer_of[span.pp_rank] += seconds / options.steps;
  }
  for (const auto& [rank, seconds] : optimizer_of)
    run.optimizer_seconds = std::max(run.optimizer_seconds, seconds);
}

// The shortest time is that of the last rank to arrive, which does not wait.
void SumTied(const std::vector<RankRecord>& ranks, TrainingRun& run) {
  std::map<StepId, double> shortest;
  for (const RankRecord& rank : ranks) {
    for (const auto& [step, seconds] : rank.tied) {
      const auto [it, first] = shortest.try_emplace(step, seconds);
      it->second = std::min(it->second, seconds);
    }
  }
  if (shortest.empty()) return;
  std::vector<double> all;
  for (const auto& [step, seconds] : shortest) all.push_back(seconds);
  run.op_seconds[std::string(program::Name(program::Op::kReduceTied))] = Median(std::move(all));
}

absl::Status RunRank(testing::VirtualRank& rank, engine::Compute& compute,
                     const config::JobSpec& job, int warmup, const backend::MemoryLedger& ledger,
                     RankRecord& record) {
  ASSIGN_OR_RETURN(const std::unique_ptr<engine::Engine> engine,
                   rank.MakeEngine(rank.program(), compute, "train/"));
  return engine->Run(StepId(1), StepId(job.steps), [&](const engine::StepTiming& step) {
    record.losses.push_back(rank.trainer().result(step.step).loss);
    Record(step, rank.program(), record);
    record.most_allocated = std::max(record.most_allocated, ledger.Read().total());
    if (step.step > StepId(warmup))
      record.step_seconds.push_back(SecondsOf(step.end_nanos - step.start_nanos));
  });
}

}  // namespace

MemoryBytes PlannedJob::device_bytes() const {
  MemoryBytes sum;
  for (const MemoryBytes& rank : plan.memory) {
    for (std::size_t i = 0; i < kNumMemoryKinds; ++i) {
      const auto kind = static_cast<MemoryKind>(i);
      if (kind != MemoryKind::kProcess) sum[kind] += rank[kind];
    }
  }
  return sum;
}

absl::StatusOr<TrainingRun> RunTraining(const PlannedJob& planned, const TrainJobOptions& options,
                                        backend::BackendFactory& device,
                                        const backend::MemoryLedger& ledger,
                                        const std::string& data_root) {
  const plan::Plan& plan = planned.plan;
  ASSIGN_OR_RETURN(
      const auto ranks,
      testing::VirtualRanks::Create(
          {.job = &planned.job, .plan = &plan, .data_root = data_root, .device = &device}));
  const std::size_t num_ranks = plan.programs.size();
  Turns turns;
  std::vector<std::unique_ptr<engine::Compute>> computes(num_ranks);
  std::vector<RankRecord> records(num_ranks);
  RETURN_IF_ERROR(ranks->ForAll([&](testing::VirtualRank& rank) {
    computes[rank.rank().value()] = TakeTurns(rank.trainer(), rank.program(), turns);
    return absl::OkStatus();
  }));
  RETURN_IF_ERROR(ranks->ForAll([&](testing::VirtualRank& rank) {
    const int id = rank.rank().value();
    return RunRank(rank, *computes[id], planned.job, options.warmup, ledger, records[id]);
  }));

  // All ranks end a step together; rank 0 has the first and the last instruction.
  TrainingRun run{.step_seconds = records[0].step_seconds,
                  .losses = records[0].losses,
                  .stages = StageTimes(static_cast<int>(plan.partition.size()))};
  std::vector<Span> computed;
  for (const RankRecord& record : records) {
    computed.insert(computed.end(), record.computed.begin(), record.computed.end());
    run.allocated_bytes = std::max(run.allocated_bytes, record.most_allocated);
  }
  SumTurns(std::move(computed), options, run);
  SumTied(records, run);
  run.peak_bytes = options.on_gpu() ? static_cast<double>(run.allocated_bytes)
                                    : static_cast<double>(PeakRssBytes());
  return run;
}

}  // namespace takt::bench
