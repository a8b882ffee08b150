// SPDX-License-Identifier: Apache-2.0
// takt-simulate runs simulated clusters with random faults, one for each seed, and says which
// promise a seed breaks.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/lock_checks.h"
#include "common/base/log.h"
#include "tests/simulation/simulation.h"

namespace takt::simulation {
namespace {

// So many seeds that failed are printed in full.
constexpr std::size_t kMostPrinted = 3;

struct Options {
  std::int64_t seeds = 100;
  std::uint64_t from = 1;
  std::uint64_t seed = 0;  // 0: many seeds
  double seconds = 0;      // 0: no limit
  std::string output = "text";
  std::string mutation = "none";
  std::int64_t kill_coordinator_at = 0, kill_worker_at_call = 0;
};

struct Failure {
  Config config;
  Outcome outcome;
};

struct Summary {
  std::int64_t seeds = 0, steps = 0, events = 0;
  double virtual_seconds = 0, seconds = 0;
  std::vector<Failure> failures;
  std::vector<std::uint64_t> failed_seeds;
};

Config ConfigOf(const Options& options, std::uint64_t seed) {
  Config config = DrawConfig(seed);
  config.mutation = FindMutation(options.mutation).value_or(Mutation::kNone);
  config.kill_coordinator_at = options.kill_coordinator_at;
  config.kill_worker_at_call = options.kill_worker_at_call;
  return config;
}

Summary RunAll(const Options& options) {
  const auto now = [] { return static_cast<double>(Clock::Real().SteadyNanos()) * 1e-9; };
  const double began = now();
  const bool one = options.seed > 0;
  const std::int64_t seeds = options.seconds > 0 ? std::numeric_limits<std::int64_t>::max()
                             : one               ? 1
                                                 : options.seeds;
  const auto print = [](const std::string& line) { std::printf("%s\n", line.c_str()); };
  Summary summary;
  while (summary.seeds < seeds && (options.seconds <= 0 || now() - began < options.seconds)) {
    const std::uint64_t seed =
        one ? options.seed : options.from + static_cast<std::uint64_t>(summary.seeds);
    const Config config = ConfigOf(options, seed);
    const bool traces = one && options.output == "text";
    Outcome outcome = traces ? Simulate(config, print) : Simulate(config);
    ++summary.seeds;
    summary.steps += outcome.steps;
    summary.events += outcome.events;
    summary.virtual_seconds += outcome.virtual_seconds;
    if (outcome.violation) {
      summary.failed_seeds.push_back(seed);
      if (summary.failures.size() < kMostPrinted)
        summary.failures.push_back({config, std::move(outcome)});
    }
    if (one) break;
  }
  summary.seconds = std::max(now() - began, 1e-9);
  return summary;
}

void PrintText(const Options& options, const Summary& summary) {
  for (const auto& [config, outcome] : summary.failures) {
    std::printf("seed %llu failed\n", static_cast<unsigned long long>(config.seed));
    std::printf("  configuration: %s\n", ToString(config).c_str());
    std::printf("  invariant:     %s\n", outcome.violation->invariant.c_str());
    std::printf("  what:          %s\n", outcome.violation->what.c_str());
    if (options.seed == 0) {
      std::printf("  last events:\n");
      for (const std::string& line : outcome.last_events) std::printf("  %s\n", line.c_str());
    }
    std::printf("  again:         takt-simulate --seed %llu\n",
                static_cast<unsigned long long>(config.seed));
  }
  if (!summary.failed_seeds.empty()) {
    std::string seeds;
    for (const std::uint64_t seed : summary.failed_seeds) absl::StrAppend(&seeds, " ", seed);
    std::printf("failed seeds:%s\n", seeds.c_str());
  }
  std::printf("%lld seeds, %lld failed; %lld steps, %.0f simulated hours, %.1f seeds per second\n",
              static_cast<long long>(summary.seeds),
              static_cast<long long>(summary.failed_seeds.size()),
              static_cast<long long>(summary.steps), summary.virtual_seconds / 3600,
              static_cast<double>(summary.seeds) / summary.seconds);
}

void PrintJson(const Summary& summary) {
  nlohmann::ordered_json json;
  json["seeds"] = summary.seeds;
  json["failed_seeds"] = summary.failed_seeds;
  json["steps"] = summary.steps;
  json["events"] = summary.events;
  json["simulated_seconds"] = summary.virtual_seconds;
  json["seconds"] = summary.seconds;
  json["seeds_per_second"] = static_cast<double>(summary.seeds) / summary.seconds;
  json["failures"] = nlohmann::ordered_json::array();
  for (const auto& [config, outcome] : summary.failures) {
    json["failures"].push_back({{"seed", config.seed},
                                {"configuration", ToString(config)},
                                {"invariant", outcome.violation->invariant},
                                {"what", outcome.violation->what},
                                {"last_events", outcome.last_events}});
  }
  std::printf("%s\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

int Main(int argc, char** argv) {
  takt::SkipLockChecks();
  Options options;
  CLI::App app("Simulates clusters with random faults, and checks what Takt promises.",
               "takt-simulate");
  app.option_defaults()->always_capture_default();
  app.add_option("--seeds", options.seeds, "how many seeds to run");
  app.add_option("--from", options.from, "the first seed");
  app.add_option("--seed", options.seed, "run this seed alone, and print all that happens");
  app.add_option("--seconds", options.seconds, "run as many seeds as fit into this time");
  app.add_option("-o,--output", options.output, "text or json")
      ->check(CLI::IsMember({"text", "json"}));
  // These are for those who change the simulation, so --help leaves them out.
  app.add_option("--mutation", options.mutation, "break this rule")
      ->check([](const std::string& name) {
        return FindMutation(name) ? std::string() : absl::StrCat("there is no rule ", name);
      })
      ->group("");
  app.add_option("--kill-coordinator-at", options.kill_coordinator_at, "boundary")->group("");
  app.add_option("--kill-worker-at-call", options.kill_worker_at_call, "call")->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  InitLogging({.level = LogLevel::kError});
  const Summary summary = RunAll(options);
  if (options.output == "json") {
    PrintJson(summary);
  } else {
    PrintText(options, summary);
  }
  return summary.failed_seeds.empty() ? 0 : 1;
}

}  // namespace
}  // namespace takt::simulation

int main(int argc, char** argv) { return takt::simulation::Main(argc, argv); }
