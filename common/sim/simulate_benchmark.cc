// SPDX-License-Identifier: Apache-2.0
// Measures the planner's inner loop on one thread: sim_benchmark [--benchmark_filter=...].
#include "benchmark/benchmark.h"
#include "common/base/status.h"
#include "common/program/lowering.h"
#include "common/schedule/generate.h"
#include "common/sim/prove.h"
#include "common/sim/simulate.h"

namespace takt::sim {
namespace {

schedule::Schedule Interleaved(const benchmark::State& state) {
  return schedule::Generate("interleaved-1f1b",
                            {.num_ranks = static_cast<int>(state.range(0)),
                             .num_microbatches = static_cast<int>(state.range(1)),
                             .num_chunks = 4})
      .value();
}

void Sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->Args({16, 64})->Args({16, 256})->Unit(benchmark::kMillisecond);
}

void BM_Generate(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(Interleaved(state));
}
BENCHMARK(BM_Generate)->Apply(Sizes);

void BM_Lower(benchmark::State& state) {
  const auto schedule = Interleaved(state);
  for (auto _ : state) benchmark::DoNotOptimize(program::Lower(schedule, {}));
}
BENCHMARK(BM_Lower)->Apply(Sizes);

void BM_Prove(benchmark::State& state) {
  const auto programs = program::Lower(Interleaved(state), {}).value();
  for (auto _ : state) benchmark::DoNotOptimize(Prove(programs));
}
BENCHMARK(BM_Prove)->Apply(Sizes);

void BM_Simulate(benchmark::State& state) {
  const auto programs = program::Lower(Interleaved(state), {}).value();
  for (auto _ : state) benchmark::DoNotOptimize(Simulate(programs, {}));
}
BENCHMARK(BM_Simulate)->Apply(Sizes);

// Measures all four steps, as a plan takes them.
void BM_WholePath(benchmark::State& state) {
  std::int64_t instructions = 0;
  for (auto _ : state) {
    const auto programs = program::Lower(Interleaved(state), {}).value();
    TAKT_CHECK(Prove(programs).ok());
    benchmark::DoNotOptimize(Simulate(programs, {}).value());
    instructions = 0;
    for (const auto& program : programs)
      instructions += static_cast<std::int64_t>(program.body.size());
  }
  state.counters["instructions"] = static_cast<double>(instructions);
}
BENCHMARK(BM_WholePath)->Apply(Sizes);

}  // namespace
}  // namespace takt::sim
