// SPDX-License-Identifier: Apache-2.0
// Measures what the runtime adds to a schedule. Worker processes run emulated stages, beside the
// simulator's makespan for the operation times and the link latency that the same run measured.
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/program/lowering.h"
#include "common/program/remove_barrier.h"
#include "common/schedule/generate.h"
#include "common/sim/executed.h"
#include "common/sim/simulate.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/instruction_cost.h"
#include "tests/bench/process_group.h"
#include "tests/bench/stage_times.h"
#include "tests/bench/statistics.h"
#include "tests/bench/table.h"
#include "worker/engine/engine.h"
#include "worker/train/trainer.h"
#include "worker/transport/channel_collective.h"
#include "worker/transport/selection/create.h"
#include "worker/transport/wake_word.h"

namespace takt::bench::runtime_command {

namespace {

using program::Op;
using transport::MonotonicNanos;

constexpr double kOpSeconds = 5e-3;  // of F, I and W; B takes twice as long
constexpr std::int64_t kActivationBytes = 256 * 1024;
constexpr int kWarmupSteps = 3;
constexpr double kLimit = 1.02;
// Several steps are simulated in a row where a step overlaps its neighbours: without a flush, and
// without a barrier.
constexpr int kStepsInARow = 8;

struct Options : CommonOptions {
  std::vector<int> ranks = {2, 4, 8};
  std::vector<std::string> schedules = {"1f1b", "interleaved-1f1b"};
  std::vector<std::string> transports = {"shm", "tcp"};
  int steps = 20, runs = 1;
  bool no_barrier = false;
};

struct Case {
  int num_ranks = 0;
  std::string schedule, transport;
  bool overlaps = false;
  int num_microbatches() const { return 4 * num_ranks; }
};

// The part of a run that is the same on all ranks.
struct Setup {
  model::Model model;
  config::JobSpec job;
  mesh::Partition partition;
  std::vector<program::Program> programs;
};

absl::StatusOr<Setup> MakeSetup(const Case& c) {
  Setup setup;
  ASSIGN_OR_RETURN(const schedule::Schedule schedule,
                   schedule::Generate(c.schedule, {.num_ranks = c.num_ranks,
                                                   .num_microbatches = c.num_microbatches()}));
  ASSIGN_OR_RETURN(setup.model, model::BuildModel({.family = model::Family::kEmulated,
                                                   .layers = schedule.num_stages,
                                                   .forward_seconds = kOpSeconds,
                                                   .input_grad_seconds = kOpSeconds,
                                                   .weight_grad_seconds = kOpSeconds,
                                                   .activation_bytes = kActivationBytes},
                                                  1));
  setup.job.model = setup.model.config;
  setup.job.global_batch = c.num_microbatches();
  program::LowerOptions lowering;
  for (int s = 0; s < schedule.num_stages; ++s) {
    setup.partition.push_back({StageId(s),
                               schedule::RankOfStage(schedule.placement, c.num_ranks, StageId(s)),
                               LayerId(s), LayerId(s + 1)});
    lowering.stages.push_back({.first_layer = LayerId(s),
                               .last_layer = LayerId(s + 1),
                               .output_bytes = kActivationBytes});
  }
  ASSIGN_OR_RETURN(setup.programs, program::Lower(schedule, lowering));
  if (!c.overlaps) return setup;
  setup.job.barrier = config::Barrier::kNever;
  ASSIGN_OR_RETURN(setup.programs, program::RemoveBarrier(setup.programs));
  return setup;
}

// The measurements of one rank.
struct RankResult {
  std::vector<double> step_seconds;
  StageTimes stages{0};
  double latency_seconds = 0;  // of an activation from its neighbour
  // These cover all steps. Emulated operations sleep, so all CPU time is the runtime's.
  double cpu_seconds = 0;
  std::int64_t context_switches = 0;
  std::int64_t messages = 0;  // that it sent
};

struct Usage {
  double cpu_seconds = 0;
  std::int64_t context_switches = 0;
};

// Returns the usage of this process so far.
Usage UsageNow() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return {.cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime),
          .context_switches = usage.ru_nvcsw + usage.ru_nivcsw};
}

// Returns the latency of one way under the traffic of a step, without the engine. Where forwards
// meet backwards, every pair of neighbours (0 and 1, 2 and 3, ...) exchanges messages in both
// directions at once. Here all pairs do so at the same moments, an operation apart, so that every
// receiver sleeps.
absl::StatusOr<double> MeasureLatency(transport::Transport& transport, Rank rank, int num_ranks,
                                      transport::Collective& barrier) {
  constexpr int kMessages = 40;
  const Rank peer(rank.value() ^ 1);
  double start = rank == Rank(0) ? static_cast<double>(MonotonicNanos()) * 1e-9 + 0.2 : 0;
  std::unique_ptr<transport::SendChannel> out;
  std::unique_ptr<transport::RecvChannel> in;
  if (peer.value() < num_ranks) {
    for (const bool sending : {rank<peer, rank> peer}) {
      if (sending) {
        ASSIGN_OR_RETURN(out, transport.OpenSend(peer, "latency", kActivationBytes));
      } else {
        ASSIGN_OR_RETURN(in, transport.OpenRecv(peer, "latency", kActivationBytes));
      }
    }
  }
  RETURN_IF_ERROR(barrier.AllReduceSum(StepId(1), std::span<double>(&start, 1)));
  if (out == nullptr) return 0;

  absl::Status sent;
  std::jthread sender([&] {
    std::vector<std::byte> data(kActivationBytes);
    for (int i = 0; i < kMessages && sent.ok(); ++i) {
      const double due = start + i * kOpSeconds;
      absl::SleepFor(absl::Seconds(due - static_cast<double>(MonotonicNanos()) * 1e-9));
      // The message carries the sender's clock, which is valid here because all ranks are on one
      // machine.
      const std::int64_t now = MonotonicNanos();
      std::memcpy(data.data(), &now, sizeof(now));
      sent = out->Send({.microbatch = i}, data);
    }
  });
  std::vector<std::byte> data(kActivationBytes);
  std::vector<double> seconds;
  for (int i = 0; i < kMessages; ++i) {
    RETURN_IF_ERROR(in->Recv({.microbatch = i}, data));
    std::int64_t stamp;
    std::memcpy(&stamp, data.data(), sizeof(stamp));
    seconds.push_back(static_cast<double>(MonotonicNanos() - stamp) * 1e-9);
  }
  sender.join();
  RETURN_IF_ERROR(sent);
  return Median(std::move(seconds));
}

absl::StatusOr<std::unique_ptr<transport::Transport>> MakeTransport(
    const Case& c, Rank rank, transport::Rendezvous& rendezvous) {
  transport::TransportOptions options = LoopbackOptions(rank, c.num_ranks);
  options.plain_sockets = c.transport == "tcp";
  const auto kind =
      c.transport == "shm" ? config::TransportKind::kShm : config::TransportKind::kTcp;
  return transport::CreateTransport(options, kind, rendezvous);
}

absl::StatusOr<RankResult> RunRank(const Case& c, const Setup& setup, int steps, Rank rank,
                                   transport::Rendezvous& rendezvous) {
  ASSIGN_OR_RETURN(const std::unique_ptr<transport::Transport> transport,
                   MakeTransport(c, rank, rendezvous));
  transport::CollectiveOptions group{.name = "pp", .index = rank.value()};
  for (int r = 0; r < c.num_ranks; ++r) group.ranks.push_back(Rank(r));
  ASSIGN_OR_RETURN(const std::unique_ptr<transport::Collective> barrier,
                   transport::CreateCollective(transport.get(), group));
  const program::Program& program = setup.programs[rank.value()];
  ASSIGN_OR_RETURN(const std::unique_ptr<train::Trainer> trainer,
                   train::CreateTrainer({.job = &setup.job,
                                         .model = &setup.model,
                                         .partition = &setup.partition,
                                         .program = &program,
                                         .mesh = {.pp_size = c.num_ranks, .dp_size = 1},
                                         .rank = rank,
                                         .pp_group = barrier.get()}));
  RankResult result{.stages = StageTimes(program.num_stages)};
  ASSIGN_OR_RETURN(result.latency_seconds, MeasureLatency(*transport, rank, c.num_ranks, *barrier));
  ASSIGN_OR_RETURN(
      const std::unique_ptr<engine::Engine> engine,
      engine::Engine::Create(program, *trainer,
                             {.transport = transport.get(),
                              .rank_of = [](PpRank pp_rank) { return Rank(pp_rank.value()); },
                              .generation = 1}));
  const auto on_step = [&](const engine::StepTiming& timing) {
    if (timing.step <= StepId(kWarmupSteps)) return;
    result.step_seconds.push_back(static_cast<double>(timing.end_nanos - timing.start_nanos) *
                                  1e-9);
    for (std::size_t i = 0; i < program.body.size(); ++i) {
      const engine::InstructionTiming& t = (*timing.timings)[i];
      result.stages.Add(program.body[i], static_cast<double>(t.end_nanos - t.start_nanos) * 1e-9);
    }
  };
  const Usage before = UsageNow();
  RETURN_IF_ERROR(engine->Run(StepId(1), StepId(kWarmupSteps + steps), on_step));
  const Usage after = UsageNow();
  result.cpu_seconds = after.cpu_seconds - before.cpu_seconds;
  result.context_switches = after.context_switches - before.context_switches;
  result.messages = (kWarmupSteps + steps) *
                    std::ranges::count(program.body, Op::kSend, &program::Instruction::op);
  return result;
}

nlohmann::json ToJson(const RankResult& result) {
  return {{"steps", result.step_seconds}, {"stages", result.stages.ToJson()},
          {"cpu", result.cpu_seconds},    {"switches", result.context_switches},
          {"messages", result.messages},  {"latency", result.latency_seconds}};
}

struct Row {
  Case c;
  double op_seconds = 0, latency_seconds = 0, measured_seconds = 0, simulated_seconds = 0;
  double cpu_seconds_per_message = 0, switches_per_message = 0;
  double lowest_ratio = 0, highest_ratio = 0;  // of all runs of the case
  double ratio() const { return measured_seconds / simulated_seconds; }
};

// Returns the mean time of one F, I or W.
double MeanOpSeconds(const StageTimes& stages) {
  constexpr std::array kUnits = {1, 1, 1, 2, 3};  // by StageTimes::kKinds
  double seconds = 0;
  int units = 0;
  for (std::size_t k = 0; k < kUnits.size(); ++k) {
    const double mean = stages.MeanSeconds(StageTimes::kKinds[k]);
    seconds += mean;
    units += mean > 0 ? kUnits[k] : 0;
  }
  return seconds / units;
}

absl::StatusOr<Row> RunCase(const Case& c, int steps) {
  ASSIGN_OR_RETURN(const Setup setup, MakeSetup(c));
  ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      RunProcesses(
          c.num_ranks,
          [&](Rank rank, transport::Rendezvous& rendezvous) -> absl::StatusOr<std::string> {
            ASSIGN_OR_RETURN(const RankResult result, RunRank(c, setup, steps, rank, rendezvous));
            return ToJson(result).dump();
          }));
  Row row{.c = c};
  std::vector<nlohmann::json> ranks;
  StageTimes stages(static_cast<int>(setup.partition.size()));
  for (const std::string& text : texts) {
    ranks.push_back(nlohmann::json::parse(text));
    stages.Add(StageTimes::FromJson(ranks.back()["stages"]));
  }
  cost::Costs costs = stages.Costs();
  row.op_seconds = MeanOpSeconds(stages);
  double messages = 0;
  for (const nlohmann::json& rank : ranks) {
    row.cpu_seconds_per_message += rank["cpu"].get<double>();
    row.switches_per_message += rank["switches"].get<double>();
    messages += rank["messages"].get<double>();
  }
  row.cpu_seconds_per_message /= messages;
  row.switches_per_message /= messages;
  const int num_paired = c.num_ranks / 2 * 2;
  for (int r = 0; r < num_paired; ++r) {
    row.latency_seconds += ranks[r]["latency"].get<double>() / num_paired;
  }
  costs.link.latency = row.latency_seconds;
  const bool alone = !c.overlaps && std::ranges::none_of(setup.programs, program::IsAsynchronous);
  ASSIGN_OR_RETURN(
      const sim::Report report,
      sim::SimulateExecuted(setup.programs, costs, {.steps = alone ? 1 : kStepsInARow}));
  row.simulated_seconds = report.step_time;
  // All ranks end the step together, or, where steps overlap, at one distance; rank 0 has the first
  // and the last instruction.
  row.measured_seconds = Median(ranks[0]["steps"].get<std::vector<double>>());
  return row;
}

// Returns the run with the median ratio.
absl::StatusOr<Row> RunSeveral(const Case& c, const Options& options) {
  std::vector<Row> rows;
  for (int i = 0; i < options.runs; ++i) {
    ASSIGN_OR_RETURN(rows.emplace_back(), RunCase(c, options.steps));
  }
  std::ranges::sort(rows, {}, &Row::ratio);
  Row& median = rows[rows.size() / 2];
  median.lowest_ratio = rows.front().ratio();
  median.highest_ratio = rows.back().ratio();
  return median;
}

nlohmann::json RowJson(const Row& row) {
  return {{"ranks", row.c.num_ranks},
          {"schedule", row.c.schedule},
          {"transport", row.c.transport},
          {"microbatches", row.c.num_microbatches()},
          {"barrier", !row.c.overlaps},
          {"op_milliseconds", row.op_seconds * 1e3},
          {"latency_microseconds", row.latency_seconds * 1e6},
          {"cpu_microseconds_per_message", row.cpu_seconds_per_message * 1e6},
          {"context_switches_per_message", row.switches_per_message},
          {"measured_seconds", row.measured_seconds},
          {"simulated_seconds", row.simulated_seconds},
          {"ratio", row.ratio()},
          {"lowest_ratio", row.lowest_ratio},
          {"highest_ratio", row.highest_ratio}};
}

nlohmann::json RefusedJson(const Case& c) {
  nlohmann::json row = RowJson({.c = c});
  for (auto& [key, value] : row.items()) {
    if (value.is_number_float()) value = nullptr;
  }
  return row;
}

// Replaces "all" by all families.
std::vector<std::string> Expand(const std::vector<std::string>& schedules) {
  std::vector<std::string> expanded;
  for (const std::string& name : schedules) {
    if (name != "all") {
      expanded.push_back(name);
      continue;
    }
    for (const schedule::Family& family : schedule::Families()) expanded.emplace_back(family.name);
  }
  return expanded;
}

absl::Status Run(const Options& options) {
  Table table(options.json(), {{"ranks", "ranks"},
                               {"schedule", "schedule", 17},
                               {"link", "transport", 5},
                               {"M", "microbatches", 4},
                               {"op ms", "op_milliseconds", 8, 3},
                               {"latency us", "latency_microseconds", 0, 1},
                               {"cpu us/msg", "cpu_microseconds_per_message", 0, 1},
                               {"switches/msg", "context_switches_per_message", 0, 1},
                               {"step ms", "measured_seconds", 8, 2, 1e3},
                               {"simulated", "simulated_seconds", 9, 2, 1e3},
                               {absl::StrFormat("ratio (limit %.2f)", kLimit), "ratio", 0, 4},
                               {"lowest", "lowest_ratio", 7, 4},
                               {"highest", "highest_ratio", 7, 4}});
  const bool names_all = std::ranges::find(options.schedules, "all") != options.schedules.end();
  for (const int num_ranks : options.ranks) {
    for (const std::string& schedule : Expand(options.schedules)) {
      for (const std::string& transport : options.transports) {
        const Case c{num_ranks, schedule, transport, options.no_barrier};
        const absl::StatusOr<Row> row = RunSeveral(c, options);
        // Not every family has every size, or a step without a barrier.
        if (names_all && absl::IsInvalidArgument(row.status())) {
          table.Add(RefusedJson(c), std::string(row.status().message()));
          continue;
        }
        RETURN_IF_ERROR(row.status());
        table.Add(RowJson(*row), row->ratio() > kLimit ? "over" : "");
      }
    }
  }
  // This comes last because it starts threads, and the ranks are forks of this process.
  const InstructionCost cost = MeasureInstructionCost();
  table.End({{"instruction_nanoseconds", cost.instruction_nanoseconds},
             {"handoff_nanoseconds", cost.handoff_nanoseconds}});
  if (options.json()) return absl::OkStatus();
  absl::PrintF(
      "one instruction with nothing to do: %.0f ns (limit 2000); with a wait for another lane "
      "each time: %.0f ns\n",
      cost.instruction_nanoseconds, cost.handoff_nanoseconds);
  return absl::OkStatus();
}

std::vector<std::string> FamilyNames() {
  std::vector<std::string> names = Expand({"all"});
  names.emplace_back("all");
  return names;
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "runtime",
      "Step time of emulated stages on worker processes against the simulator's makespan",
      [](CLI::App& command, Options& options) {
        command.add_option("--ranks", options.ranks, "Worker processes of each row")
            ->delimiter(',')
            ->check(CLI::Range(2, 64));
        command.add_option("--schedule,--schedules", options.schedules, "Families, or all")
            ->delimiter(',')
            ->check(CLI::IsMember(FamilyNames()));
        command.add_option("--transport", options.transports, "Links")
            ->delimiter(',')
            ->check(CLI::IsMember({"shm", "gloo", "tcp"}));
        command.add_option("--steps", options.steps, "Steps of which the median is taken")
            ->check(CLI::Range(1, 100000));
        command
            .add_option("--runs", options.runs,
                        "Runs of each row, which shows the one with the median ratio, and the "
                        "lowest and highest ratio of all")
            ->check(CLI::Range(1, 99));
        command.add_flag("--no-barrier", options.no_barrier,
                         "Steps overlap (optimizer.barrier: false); each row says the steady step");
      },
      Run);
}

}  // namespace takt::bench::runtime_command
