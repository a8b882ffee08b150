// SPDX-License-Identifier: Apache-2.0
// Measures the cost of always-on measurement. The same training runs with it and without it, in
// turns, so that other load on the machine affects both.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/metrics/registry.h"
#include "common/plan/plan.h"
#include "common/trace/encoding.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/statistics.h"
#include "worker/backend/backend.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/engine/engine.h"
#include "worker/session/bulk_outbox.h"
#include "worker/session/stall_watch.h"
#include "worker/session/step_metrics.h"
#include "worker/train/trainer.h"

namespace takt::bench::tracing_command {
namespace {

constexpr double kLimit = 0.01;

struct Options : CommonOptions {
  int turns = 60, steps = 4, microbatches = 32;
};

// Returns a job with the example job's model and one sequence at a time, because no useful training
// has shorter instructions.
config::JobSpec SmallJob(const Options& options, const std::string& tokens) {
  config::JobSpec job;
  job.name = "bench";
  job.model = {.layers = 4, .hidden = 160, .heads = 5, .kv_heads = 5, .inner = 640, .vocab = 256};
  job.model.context = job.model.positions = 64;
  job.train = {{.path = tokens, .format = config::DataFormat::kBytes}};
  job.global_batch = options.microbatches;
  job.microbatch = 1;
  job.steps = 1'000'000;
  job.parallelism.pipeline = 1;
  job.parallelism.schedule = "1f1b";
  return job;
}

struct Seconds {
  double wall = 0, cpu = 0;
};

Seconds Now() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return {.wall = 1e-9 * static_cast<double>(Clock::Real().SteadyNanos()),
          .cpu = seconds(usage.ru_utime) + seconds(usage.ru_stime)};
}

// Does what a worker does with a measured step, up to handing it to the stream.
class Recorder {
 public:
  explicit Recorder(const program::Program& program)
      : metrics_(registry_, "bench", mesh::Coordinates(), program) {
    outbox_.BeginJob({"bench", Generation(1)}, Rank(0));
  }

  void Take(const engine::StepTiming& timing, session::StallLog& stalls) {
    metrics_.Record(*timing.timings);
    trace::StepTrace trace{.step = timing.step, .start_nanos = timing.start_nanos};
    trace.body.reserve(timing.timings->size());
    for (const engine::InstructionTiming& each : *timing.timings) {
      trace.body.push_back({each.start_nanos, each.end_nanos});
    }
    trace.stalls = stalls.Between(timing.start_nanos, timing.end_nanos);
    std::string encoded = trace::Encode(trace);
    encoded_bytes_ = encoded.size();
    outbox_.AddTrace(std::move(encoded));
  }
  std::size_t encoded_bytes() const { return encoded_bytes_; }

 private:
  metrics::Registry registry_;
  session::StepMetrics metrics_;
  session::BulkOutbox outbox_;
  std::size_t encoded_bytes_ = 0;
};

struct Result {
  std::size_t instructions = 0, trace_bytes = 0;
  double step_seconds = 0;                  // without measurement
  std::vector<double> wall_cost, cpu_cost;  // by turn: time with it over time without it, minus 1
};

absl::StatusOr<Result> Measure(const Options& options) {
  const std::string tokens =
      absl::StrCat(std::filesystem::temp_directory_path().string(), "/takt-bench-", getpid());
  std::ofstream(tokens) << std::string(1 << 16, 'a');
  const config::JobSpec job = SmallJob(options, tokens);
  ASSIGN_OR_RETURN(const plan::Plan plan, plan::MakePlan(job, {}));
  const program::Program& program = plan.programs.front();
  const auto backends = backend::CreateCpuBackends({.threads = 1});
  ASSIGN_OR_RETURN(const std::unique_ptr<train::Trainer> trainer,
                   train::CreateTrainer({.job = &job,
                                         .model = &plan.model,
                                         .partition = &plan.partition,
                                         .program = &program,
                                         .mesh = plan.mesh,
                                         .backends = backends.get(),
                                         .data_root = "/"}));
  std::filesystem::remove(tokens);
  ASSIGN_OR_RETURN(const auto measured, engine::Engine::Create(program, *trainer, {}));
  ASSIGN_OR_RETURN(const auto bare,
                   engine::Engine::Create(program, *trainer, {.times_instructions = false}));
  Recorder recorder(program);
  StepId done(0);
  const auto run = [&](engine::Engine& engine, bool records) -> absl::StatusOr<Seconds> {
    const StepId last(done.value() + options.steps);
    session::StallLog stalls(Clock::Real());
    std::optional<session::StallWatch> watch;
    if (records) watch.emplace(stalls);
    const Seconds before = Now();
    RETURN_IF_ERROR(
        engine.Run(StepId(done.value() + 1), last, [&](const engine::StepTiming& timing) {
          if (records) recorder.Take(timing, stalls);
        }));
    const Seconds after = Now();
    done = last;
    return Seconds{.wall = after.wall - before.wall, .cpu = after.cpu - before.cpu};
  };
  RETURN_IF_ERROR(run(*bare, false).status());  // touches the memory for the first time
  Result result{.instructions = program.body.size()};
  std::vector<double> step_seconds;
  for (int turn = 0; turn < options.turns; ++turn) {
    Seconds with, without;
    for (const bool records : {turn % 2 == 0, turn % 2 != 0}) {
      ASSIGN_OR_RETURN((records ? with : without), run(records ? *measured : *bare, records));
    }
    result.wall_cost.push_back(with.wall / without.wall - 1);
    result.cpu_cost.push_back(with.cpu / without.cpu - 1);
    step_seconds.push_back(without.wall / options.steps);
  }
  result.step_seconds = Median(step_seconds);
  result.trace_bytes = recorder.encoded_bytes();
  return result;
}

absl::Status Run(const Options& options) {
  ASSIGN_OR_RETURN(const Result result, Measure(options));
  if (options.json()) {
    const nlohmann::json json = {
        {"instructions", result.instructions},          {"trace_bytes", result.trace_bytes},
        {"step_seconds", result.step_seconds},          {"wall_cost", Median(result.wall_cost)},
        {"wall_cost_spread", Spread(result.wall_cost)}, {"cpu_cost", Median(result.cpu_cost)},
        {"cpu_cost_spread", Spread(result.cpu_cost)},   {"limit", kLimit}};
    absl::PrintF("%s\n", json.dump());
    return absl::OkStatus();
  }
  absl::PrintF("step of %d instructions: %.2f ms; its trace: %d bytes\n", result.instructions,
               1e3 * result.step_seconds, result.trace_bytes);
  const auto print = [&](const char* what, const std::vector<double>& cost) {
    absl::PrintF("%-9s %+.2f %% +- %.2f (median of %d pairs; limit %.0f %%)%s\n", what,
                 100 * Median(cost), 100 * Spread(cost), cost.size(), 100 * kLimit,
                 Median(cost) > kLimit ? "  over" : "");
  };
  print("wall time", result.wall_cost);
  print("CPU time", result.cpu_cost);
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "tracing", "What timing every instruction and keeping it costs training",
      [](CLI::App& command, Options& options) {
        command.add_option("--turns", options.turns, "Pairs of runs, with and without")
            ->check(CLI::Range(2, 100000));
        command.add_option("--steps", options.steps, "Steps of each run")
            ->check(CLI::Range(1, 1000));
        command
            .add_option("--microbatches", options.microbatches, "Of each step, one sequence each")
            ->check(CLI::Range(1, 1024));
      },
      Run);
}

}  // namespace takt::bench::tracing_command
