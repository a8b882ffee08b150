// SPDX-License-Identifier: Apache-2.0
// Measures whether the plan that is chosen is the fastest: it runs the best candidates of a job,
// and others that were taken at random.
#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/schedule/generate.h"
#include "common/schedule/text.h"
#include "tests/bench/plan_truth.h"
#include "tests/bench/plan_truth_jobs.h"
#include "tests/bench/plan_truth_machine.h"
#include "tests/bench/plan_truth_report.h"
#include "tests/bench/table.h"

namespace takt::bench {
namespace {

constexpr int kBest = 5, kRandom = 3;
constexpr double kTolerance = 0.03;  // by which the chosen plan may be slower than the best
constexpr std::array kPlain = {"1f1b", "zb-h1", "zb-v"};  // `auto` must be as fast as each

struct Candidate {
  std::string why;  // it is run: "best 1", "random", "named"
  plan::Plan plan;
  std::array<std::vector<double>, 2> runs;  // the times of steps

  std::string name() const {
    return absl::StrCat("pp", plan.mesh.pp_size, " ", plan.schedule.name, " x",
                        plan.schedule.num_stages / plan.mesh.pp_size);
  }
  MeasuredWay way() const { return {.name = name(), .timing = TimingOf(runs[0], runs[1])}; }
};

// Candidates of one job that differ.
class Candidates {
 public:
  // Returns the index of the new candidate, or that of the one that runs in the same order.
  std::size_t Add(std::string why, plan::Plan plan) {
    const std::string order = schedule::FormatCsv(plan.schedule);
    const auto same = std::ranges::find_if(all_, [&](const Candidate& known) {
      return schedule::FormatCsv(known.plan.schedule) == order;
    });
    if (same != all_.end()) return same - all_.begin();
    all_.push_back({.why = std::move(why), .plan = std::move(plan)});
    return all_.size() - 1;
  }

  std::vector<Candidate>& all() { return all_; }
  std::size_t size() const { return all_.size(); }

 private:
  std::vector<Candidate> all_;
};

config::JobSpec WithSchedule(config::JobSpec job, std::string_view schedule) {
  job.parallelism.schedule = std::string(schedule);
  return job;
}

// Returns the job with each family, pipeline and number of chunks that `auto` considers, in a
// random order.
std::vector<config::JobSpec> Ways(const config::JobSpec& job, int most_ranks,
                                  std::mt19937& random) {
  std::vector<config::JobSpec> ways;
  for (const schedule::Family& family : schedule::Families()) {
    if (family.updates != schedule::Updates::kFlush ||
        family.placement == schedule::Placement::kBidirectional) {
      continue;
    }
    for (int ranks = 1; ranks <= most_ranks; ++ranks) {
      for (const int chunks : {1, 2, 4}) {
        if (chunks != family.num_chunks && !family.uses_chunks) continue;
        config::JobSpec way = WithSchedule(job, family.name);
        way.parallelism.pipeline = ranks;
        way.parallelism.chunks = chunks;
        ways.push_back(std::move(way));
      }
    }
  }
  std::shuffle(ways.begin(), ways.end(), random);
  return ways;
}

// A job whose candidates are run.
struct Choice {
  Candidates candidates;           // the first is the chosen one
  std::vector<std::size_t> plain;  // those of kPlain
};

absl::StatusOr<Choice> CandidatesOf(const config::JobSpec& job, const plan::PlanOptions& options,
                                    std::mt19937& random) {
  Choice choice;
  ASSIGN_OR_RETURN(plan::Forecasts forecasts, plan::MakeForecasts(job, options, kBest));
  if (forecasts.candidates.empty()) return forecasts.fits;
  for (plan::Forecast& forecast : forecasts.candidates) {
    choice.candidates.Add(absl::StrCat("best ", choice.candidates.size() + 1),
                          std::move(forecast.plan));
  }
  for (const char* const name : kPlain) {
    ASSIGN_OR_RETURN(plan::Plan plan, plan::MakePlan(WithSchedule(job, name), options));
    choice.plain.push_back(choice.candidates.Add("named", std::move(plan)));
  }
  const std::size_t full = choice.candidates.size() + kRandom;
  for (const config::JobSpec& way : Ways(job, options.max_workers, random)) {
    if (choice.candidates.size() == full) break;
    absl::StatusOr<plan::Plan> plan = plan::MakePlan(way, options);
    if (plan.ok()) choice.candidates.Add("random", *std::move(plan));
  }
  return choice;
}

// The second run goes through the candidates in the opposite order, so that a machine that becomes
// slower meets all alike.
absl::Status RunAll(const config::JobSpec& job, int steps, const TruthMachine& machine,
                    std::vector<Candidate>& candidates) {
  for (std::size_t run = 0; run < 2; ++run) {
    for (Candidate& candidate : candidates) {
      ASSIGN_OR_RETURN(candidate.runs[run], machine.StepSeconds(job, candidate.plan, steps));
    }
    std::ranges::reverse(candidates);
  }
  return absl::OkStatus();
}

nlohmann::json ToJson(const Comparison& comparison) {
  return {{"best", comparison.best},
          {"ratio", comparison.ratio},
          {"limit", comparison.limit},
          {"holds", comparison.holds()}};
}

nlohmann::json ToJson(const Candidate& candidate) {
  const StepTiming timing = candidate.way().timing;
  return {{"candidate", candidate.name()},
          {"why", candidate.why},
          {"ranks", candidate.plan.mesh.pp_size},
          {"schedule", candidate.plan.schedule.name},
          {"predicted_seconds", candidate.plan.predicted_step_seconds},
          {"measured_seconds", timing.seconds},
          {"spread", timing.spread}};
}

void PrintVerdict(const char* what, const Comparison& comparison) {
  absl::PrintF("%s: %.3f of %s (limit %.3f)%s\n", what, comparison.ratio, comparison.best,
               comparison.limit, comparison.holds() ? "" : "  over");
}

// Prints the candidates of one job, and what follows from them.
nlohmann::json Report(const config::JobSpec& job, Choice& choice, bool json) {
  std::vector<MeasuredWay> ways, plain;
  for (const Candidate& candidate : choice.candidates.all()) ways.push_back(candidate.way());
  for (const std::size_t index : choice.plain) plain.push_back(ways[index]);
  const Comparison chosen = Compare(ways.front(), ways, kTolerance);
  const Comparison beside_plain = Compare(ways.front(), plain, 0);
  nlohmann::json row = ToJson(chosen);
  row["name"] = job.name;
  row["chosen"] = ways.front().name;
  row["measured_seconds"] = ways.front().timing.seconds;
  row["beside_plain"] = ToJson(beside_plain);
  Table table(json, {{job.name, "candidate", 26},
                     {"why", "why", 8},
                     {"predicted ms", "predicted_seconds", 0, 1, 1e3},
                     {"step ms", "measured_seconds", 7, 1, 1e3},
                     {"spread %", "spread", 0, 1, 100}});
  for (const Candidate& candidate : choice.candidates.all()) {
    row["candidates"].push_back(ToJson(candidate));
    table.Add(row["candidates"].back());
  }
  if (json) return row;
  PrintVerdict("the chosen one", chosen);
  PrintVerdict("beside 1f1b, zb-h1 and zb-v", beside_plain);
  absl::PrintF("\n");
  return row;
}

absl::StatusOr<nlohmann::json> MeasureJob(config::JobSpec job, const PlanTruthOptions& options,
                                          TruthMachine& machine, std::mt19937& random) {
  const auto profile = std::make_shared<profile::Profile>();
  const int most_ranks = RanksOf(job);
  for (int ranks = 1; ranks <= most_ranks; ++ranks)
    RETURN_IF_ERROR(machine.Learn(job, ranks, *profile));
  const plan::PlanOptions plan_options = TruthMachine::OptionsFor(job, profile);
  job.parallelism.pipeline.reset();
  ASSIGN_OR_RETURN(Choice choice, CandidatesOf(job, plan_options, random));
  RETURN_IF_ERROR(RunAll(job, options.steps, machine, choice.candidates.all()));
  return Report(job, choice, options.json());
}

}  // namespace

absl::Status MeasureChoice(const PlanTruthOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<config::JobSpec> jobs,
                   Select(ChoiceJobs(), options.jobs, options.only));
  const TruthTokens tokens(jobs);
  TruthMachine machine(tokens.path());
  std::mt19937 random(options.seed);
  nlohmann::json rows = nlohmann::json::array();
  int chosen = 0, beside_plain = 0;
  for (const config::JobSpec& job : jobs) {
    absl::StatusOr<nlohmann::json> row = MeasureJob(job, options, machine, random);
    if (!row.ok()) return Annotate(row.status(), absl::StrCat("job ", job.name));
    chosen += row->at("holds").get<bool>() ? 1 : 0;
    beside_plain += row->at("beside_plain").at("holds").get<bool>() ? 1 : 0;
    rows.push_back(*std::move(row));
  }
  const nlohmann::json summary = {
      {"jobs", jobs.size()}, {"chosen_holds", chosen}, {"beside_plain_holds", beside_plain}};
  if (options.json()) {
    const nlohmann::json object = {{"rows", rows}, {"summary", summary}};
    absl::PrintF("%s\n", object.dump());
  } else {
    absl::PrintF("of %d jobs, %d chose the best, %d were as fast as 1f1b, zb-h1 and zb-v\n",
                 jobs.size(), chosen, beside_plain);
  }
  return absl::OkStatus();
}

}  // namespace takt::bench
