// SPDX-License-Identifier: Apache-2.0
// What the runtime adds to a schedule: emulated stages on worker processes, beside the simulator's
// makespan for the operation times and the link latency that the same run measured.
#include <unistd.h>

#include <algorithm>
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
#include "common/schedule/generate.h"
#include "common/sim/simulate.h"
#include "tests/bench/commands.h"
#include "tests/bench/instruction_cost.h"
#include "tests/bench/process_group.h"
#include "worker/engine/engine.h"
#include "worker/train/trainer.h"
#include "worker/transport/collective.h"
#include "worker/transport/create.h"
#include "worker/transport/wake_word.h"

namespace takt::bench {

namespace {

using program::Op;
using transport::MonotonicNanos;

constexpr double kOpSeconds = 5e-3;  // F, I and W; B is I and W
constexpr std::int64_t kActivationBytes = 256 * 1024;
constexpr int kWarmupSteps = 3;
constexpr double kLimit = 1.02;

struct Options {
  std::vector<int> ranks = {2, 4, 8};
  std::vector<std::string> schedules = {"1f1b", "interleaved-1f1b"};
  std::vector<std::string> transports = {"shm", "gloo"};
  int steps = 20;
  std::string output = "text";
};

struct Case {
  int num_ranks = 0;
  std::string schedule, transport;
  int num_microbatches() const { return 4 * num_ranks; }
  int num_chunks() const { return schedule == "interleaved-1f1b" ? 2 : 1; }
};

// Everything that is the same on all ranks.
struct Setup {
  model::Model model;
  config::JobSpec job;
  mesh::Partition partition;
  std::vector<program::Program> programs;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

absl::StatusOr<Setup> MakeSetup(const Case& c) {
  Setup setup;
  schedule::GenerateOptions sizes{.num_ranks = c.num_ranks,
                                  .num_microbatches = c.num_microbatches()};
  if (c.num_chunks() > 1) sizes.num_chunks = c.num_chunks();
  ASSIGN_OR_RETURN(const schedule::Schedule schedule, schedule::Generate(c.schedule, sizes));
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
  return setup;
}

// What one rank measured.
struct RankResult {
  std::vector<double> step_seconds;
  double forward_seconds = 0, backward_seconds = 0;  // means
  double latency_seconds = 0;                        // of an activation from its neighbour
};

// One way, under the traffic of a step: where forwards meet backwards, every pair of neighbours
// (0 and 1, 2 and 3, ...) exchanges messages in both directions at once, all pairs at the same
// moments, an operation apart, so that every receiver sleeps. Without the engine.
absl::StatusOr<double> MeasureLatency(transport::Transport& transport, Rank rank, int num_ranks,
                                      engine::Collective& barrier) {
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
      // The sender's clock goes along: all ranks are on one machine.
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

absl::StatusOr<RankResult> RunRank(const Case& c, const Setup& setup, int steps, Rank rank,
                                   transport::Rendezvous& rendezvous) {
  const auto kind =
      c.transport == "shm" ? config::TransportKind::kShm : config::TransportKind::kGloo;
  ASSIGN_OR_RETURN(
      const std::unique_ptr<transport::Transport> transport,
      transport::CreateTransport(LoopbackOptions(rank, c.num_ranks), kind, rendezvous));
  transport::CollectiveOptions group{.name = "pp", .index = rank.value()};
  for (int r = 0; r < c.num_ranks; ++r) group.ranks.push_back(Rank(r));
  ASSIGN_OR_RETURN(const std::unique_ptr<engine::Collective> barrier,
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
  RankResult result;
  ASSIGN_OR_RETURN(result.latency_seconds, MeasureLatency(*transport, rank, c.num_ranks, *barrier));
  ASSIGN_OR_RETURN(
      const std::unique_ptr<engine::Engine> engine,
      engine::Engine::Create(program, *trainer,
                             {.transport = transport.get(),
                              .rank_of = [](PpRank pp_rank) { return Rank(pp_rank.value()); },
                              .generation = 1}));
  double seconds[2] = {};
  int counts[2] = {};
  const auto on_step = [&](const engine::StepTiming& timing) {
    if (timing.step <= StepId(kWarmupSteps)) return;
    result.step_seconds.push_back(static_cast<double>(timing.end_nanos - timing.start_nanos) *
                                  1e-9);
    for (std::size_t i = 0; i < program.body.size(); ++i) {
      if (!program::IsCompute(program.body[i].op)) continue;
      const engine::InstructionTiming& t = (*timing.timings)[i];
      const int which = program.body[i].op == Op::kForward ? 0 : 1;
      seconds[which] += static_cast<double>(t.end_nanos - t.start_nanos) * 1e-9;
      ++counts[which];
    }
  };
  RETURN_IF_ERROR(engine->Run(StepId(1), StepId(kWarmupSteps + steps), on_step));
  result.forward_seconds = seconds[0] / counts[0];
  result.backward_seconds = seconds[1] / counts[1];
  return result;
}

nlohmann::json ToJson(const RankResult& result) {
  return {{"steps", result.step_seconds},
          {"forward", result.forward_seconds},
          {"backward", result.backward_seconds},
          {"latency", result.latency_seconds}};
}

struct Row {
  Case c;
  double op_seconds = 0, latency_seconds = 0, measured_seconds = 0, simulated_seconds = 0;
  double ratio() const { return measured_seconds / simulated_seconds; }
};

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
  cost::Costs costs{.forward = {}, .input_grad = {}, .weight_grad = {}, .backward = {}};
  std::vector<nlohmann::json> ranks;
  for (const std::string& text : texts) ranks.push_back(nlohmann::json::parse(text));
  for (const mesh::Stage& stage : setup.partition) {
    const nlohmann::json& rank = ranks[stage.pp_rank.value()];
    costs.forward.push_back(rank["forward"]);
    costs.backward.push_back(rank["backward"]);
    row.op_seconds += (costs.forward.back() + costs.backward.back()) / 3 / setup.partition.size();
  }
  costs.input_grad = costs.weight_grad = costs.forward;  // these schedules have none
  const int num_paired = c.num_ranks / 2 * 2;
  for (int r = 0; r < num_paired; ++r) {
    row.latency_seconds += ranks[r]["latency"].get<double>() / num_paired;
  }
  costs.link.latency = row.latency_seconds;
  ASSIGN_OR_RETURN(const sim::Report report, sim::Simulate(setup.programs, costs));
  row.simulated_seconds = report.makespan;
  // The step ends together on all ranks; rank 0 has the first and the last instruction.
  row.measured_seconds = Median(ranks[0]["steps"].get<std::vector<double>>());
  return row;
}

void PrintRow(const Row& row) {
  absl::PrintF("%5d  %-17s %-5s %4d  %8.3f  %8.1f  %9.2f  %9.2f  %6.4f%s\n", row.c.num_ranks,
               row.c.schedule, row.c.transport, row.c.num_microbatches(), row.op_seconds * 1e3,
               row.latency_seconds * 1e6, row.measured_seconds * 1e3, row.simulated_seconds * 1e3,
               row.ratio(), row.ratio() > kLimit ? "  over" : "");
  std::fflush(stdout);
}

nlohmann::json RowJson(const Row& row) {
  return {{"ranks", row.c.num_ranks},
          {"schedule", row.c.schedule},
          {"transport", row.c.transport},
          {"microbatches", row.c.num_microbatches()},
          {"op_milliseconds", row.op_seconds * 1e3},
          {"latency_microseconds", row.latency_seconds * 1e6},
          {"measured_seconds", row.measured_seconds},
          {"simulated_seconds", row.simulated_seconds},
          {"ratio", row.ratio()}};
}

absl::Status Run(const Options& options) {
  const bool json = options.output == "json";
  nlohmann::json result = {{"rows", nlohmann::json::array()}};
  if (!json) {
    absl::PrintF(
        "ranks  schedule          link     M     op ms  latency us  step ms  simulated   ratio "
        "(limit %.2f)\n",
        kLimit);
  }
  for (const int num_ranks : options.ranks) {
    for (const std::string& schedule : options.schedules) {
      for (const std::string& transport : options.transports) {
        ASSIGN_OR_RETURN(const Row row, RunCase({num_ranks, schedule, transport}, options.steps));
        if (json) {
          result["rows"].push_back(RowJson(row));
        } else {
          PrintRow(row);
        }
      }
    }
  }
  // Last: it starts threads, and the ranks are forked from this process.
  const InstructionCost cost = MeasureInstructionCost();
  result["instruction_nanoseconds"] = cost.instruction_nanoseconds;
  result["handoff_nanoseconds"] = cost.handoff_nanoseconds;
  if (json) {
    absl::PrintF("%s\n", result.dump());
  } else {
    absl::PrintF(
        "one instruction with nothing to do: %.0f ns (limit 2000); with a wait for another lane "
        "each time: %.0f ns\n",
        cost.instruction_nanoseconds, cost.handoff_nanoseconds);
  }
  return absl::OkStatus();
}

}  // namespace

void AddRuntimeCommand(CLI::App& app, absl::Status& result) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "runtime",
      "Step time of emulated stages on worker processes against the simulator's makespan");
  command->add_option("--ranks", options->ranks, "Worker processes of each row")
      ->delimiter(',')
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  command->add_option("--schedule", options->schedules, "Schedules")
      ->delimiter(',')
      ->check(CLI::IsMember({"1f1b", "interleaved-1f1b"}))
      ->capture_default_str();
  command->add_option("--transport", options->transports, "Links")
      ->delimiter(',')
      ->check(CLI::IsMember({"shm", "gloo"}))
      ->capture_default_str();
  command->add_option("--steps", options->steps, "Steps of which the median is taken")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_option("-o,--output", options->output, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  command->callback([options, &result] { result = Run(*options); });
}

}  // namespace takt::bench
