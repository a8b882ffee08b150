// SPDX-License-Identifier: Apache-2.0
#include "cli/job/forecast_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/base/report.h"
#include "cli/base/text.h"
#include "common/mesh/mesh.h"

namespace takt::cli {
namespace {

using plan::Forecast;

// Reasons, and times that were guessed, beyond these are only in the JSON and on the page.
constexpr std::size_t kRefusalsShown = 10, kGuessesShown = 10;
// The same of the messages between two ranks.
constexpr std::size_t kLinksShown = 10;

// Returns the largest cause besides computing, or "compute" if all others are under a twentieth of
// the step.
const char* LimitedBy(const Forecast& forecast) {
  const char* name = "compute";
  double largest = forecast.plan.predicted_step_seconds / 20;
  for (const auto& [cause, seconds] : CausesOf(forecast.parts)) {
    if (std::string_view(cause) == "compute" || seconds <= largest) continue;
    name = cause;
    largest = seconds;
  }
  return name;
}

int ChunksOf(const plan::Plan& plan) {
  return static_cast<int>(plan.partition.size()) / plan.mesh.pp_size;
}

std::vector<std::string> RecomputeOf(const plan::Plan& plan) {
  std::vector<std::string> modes;
  for (const mesh::Stage& stage : plan.partition) modes.emplace_back(model::Name(stage.recompute));
  return modes;
}

const char* VocabularyText(bool spread) { return spread ? "spread" : "last"; }

const char* ShardText(const config::JobSpec& job, bool shares) {
  if (!shares) return "none";
  return job.parallelism.shard == config::Shard::kParameters ? "parameters" : "optimizer";
}

// Returns the schedule with a word about the vocabulary, where that is spread.
std::string ScheduleText(const std::string& schedule, bool spread) {
  return spread ? absl::StrCat(schedule, ", vocabulary spread") : schedule;
}

double TokensPerSecond(const config::JobSpec& job, const plan::Plan& plan) {
  return static_cast<double>(job.global_batch) * plan.model.config.context /
         plan.predicted_step_seconds;
}

double Mfu(const config::JobSpec& job, const plan::PlanOptions& options, const plan::Plan& plan) {
  const double flops = plan.model.FlopsPerMicrobatch() * job.global_batch / plan.microbatch;
  return flops / (plan.predicted_step_seconds * plan.mesh.size() * options.matmul_flops_per_second);
}

Json ForecastJson(const config::JobSpec& job, const plan::PlanOptions& options,
                  const plan::Forecasts& forecasts, std::size_t index) {
  const Forecast& forecast = forecasts.candidates[index];
  const plan::Plan& plan = forecast.plan;
  Json memory = Json::array(), messages = Json::array(), parts = Json::object();
  for (const MemoryBytes& rank : plan.memory) memory.push_back(rank.total());
  for (const auto& [cause, seconds] : CausesOf(forecast.parts)) parts[cause] = seconds;
  for (const plan::Messages& link : plan::MessagesOf(plan.programs)) {
    messages.push_back({{"from", link.from.value()},
                        {"to", link.to.value()},
                        {"bytes", link.bytes},
                        {"count", link.count}});
  }
  return {{"pipeline", plan.mesh.pp_size},
          {"data", plan.mesh.dp_size},
          {"tensor", plan.mesh.tp_size},
          {"context", plan.mesh.cp_size},
          {"expert", plan.model.experts.size},
          {"shard", ShardText(job, plan::SharesOptimizer(plan))},
          {"barrier", !plan::OverlapsSteps(plan)},
          {"microbatch", plan.microbatch},
          {"chunks", ChunksOf(plan)},
          {"schedule", plan.schedule.name},
          {"recompute", RecomputeOf(plan)},
          {"stage_layers", plan::StageLayers(plan.model, plan.partition)},
          {"vocabulary", VocabularyText(!plan.vocabulary_ends.empty())},
          {"mfu", Mfu(job, options, plan)},
          {"limited_by", LimitedBy(forecast)},
          {"predicted_step_seconds", plan.predicted_step_seconds},
          {"predicted_tokens_per_second", TokensPerSecond(job, plan)},
          {"predicted_bubble_fraction", plan.predicted_bubble_fraction},
          {"lower_bound_seconds", forecast.parts.lower_bound},
          {"checkpoint_pause_seconds", forecast.checkpoint_pause_seconds},
          {"memory_bytes", std::move(memory)},
          {"messages", std::move(messages)},
          {"parts", std::move(parts)},
          {"why", WhyOf(forecasts.candidates, index)}};
}

const char* DivisionHeader(const config::JobSpec& job) {
  return job.microbatch_auto ? "PIPELINE, MICROBATCH" : "PIPELINE";
}

// Returns e.g. "2", "2 x 4" for four replicas, "2 x 4 shared" if they share the optimizer's state,
// or, if the plan chooses that, "2 x 4, 8" for microbatches of eight sequences.
std::string DivisionText(const config::JobSpec& job, const mesh::Mesh& mesh, bool shares,
                         int microbatch) {
  std::string text = absl::StrCat(mesh.pp_size);
  if (mesh.dp_size > 1) absl::StrAppend(&text, " x ", mesh.dp_size);
  text += mesh::OtherAxes(mesh);
  if (job.parallelism.expert > 1) absl::StrAppend(&text, ", expert ", job.parallelism.expert);
  if (shares) text += " shared";
  if (job.microbatch_auto) absl::StrAppend(&text, ", ", microbatch);
  return text;
}

std::string RecomputeText(const std::vector<model::Recompute>& modes) {
  std::vector<std::string> names;
  for (const model::Recompute mode : modes) names.emplace_back(model::Name(mode));
  return absl::StrJoin(names, ", ");
}

void PrintForecastsJson(const Context& context, const config::JobSpec& job,
                        const plan::PlanOptions& options, const plan::Forecasts& forecasts) {
  Json candidates = Json::array(), refused = Json::array();
  for (std::size_t i = 0; i < forecasts.candidates.size(); ++i)
    candidates.push_back(ForecastJson(job, options, forecasts, i));
  for (const plan::Refusal& refusal : forecasts.refused) {
    Json chunks, stage_layers;  // null where there are no stages
    Json recompute = Json::array();
    // One mode is that of all stages. Without stages nobody knows how many there would be.
    const bool of_all = refusal.recompute.size() == 1;
    const std::size_t entries =
        of_all ? std::max<std::size_t>(1, refusal.stage_layers.size()) : refusal.recompute.size();
    for (std::size_t i = 0; i < entries; ++i)
      recompute.push_back(model::Name(refusal.recompute[of_all ? 0 : i]));
    if (!refusal.stage_layers.empty()) {
      chunks = static_cast<int>(refusal.stage_layers.size()) / refusal.mesh.pp_size;
      stage_layers = refusal.stage_layers;
    }
    refused.push_back({{"pipeline", refusal.mesh.pp_size},
                       {"data", refusal.mesh.dp_size},
                       {"tensor", refusal.mesh.tp_size},
                       {"context", refusal.mesh.cp_size},
                       {"expert", job.parallelism.expert},
                       {"microbatch", refusal.microbatch},
                       {"chunks", std::move(chunks)},
                       {"schedule", refusal.schedule},
                       {"recompute", std::move(recompute)},
                       {"stage_layers", std::move(stage_layers)},
                       {"vocabulary", VocabularyText(refusal.spread)},
                       {"shard", ShardText(job, refusal.shares)},
                       {"reason", refusal.reason}});
  }
  const plan::Origins& origins = forecasts.origins;
  Json profile = {{"measured", origins.measured},
                  {"interpolated", origins.interpolated},
                  {"guessed", origins.guessed}};
  PrintJson(context, {{"candidates", std::move(candidates)},
                      {"refused", std::move(refused)},
                      {"profile", std::move(profile)}});
}

void PrintCandidates(std::ostream& out, const config::JobSpec& job,
                     const plan::PlanOptions& options, const std::vector<Forecast>& candidates) {
  out << CandidateTable(job, options, candidates).ToString() << '\n';
  for (std::size_t i = 0; i < candidates.size(); ++i)
    out << i + 1 << ": " << WhyOf(candidates, i) << '\n';
}

// Prints what the first candidate sends between its ranks.
void PrintMessages(std::ostream& out, const plan::Plan& plan) {
  const std::vector<plan::Messages> messages = plan::MessagesOf(plan.programs);
  if (messages.empty()) return;
  out << '\n' << MessageTable(messages, kLinksShown).ToString();
  if (messages.size() > kLinksShown)
    out << "and " << messages.size() - kLinksShown << " more, which -o json lists\n";
}

void PrintRefusals(std::ostream& out, const config::JobSpec& job,
                   const std::vector<plan::Refusal>& refused) {
  if (refused.empty()) return;
  out << '\n' << RefusalTable(job, refused, kRefusalsShown).ToString();
  if (refused.size() > kRefusalsShown)
    out << "and " << refused.size() - kRefusalsShown << " more, which -o json lists\n";
}

}  // namespace

std::array<std::pair<const char*, double>, 5> CausesOf(const plan::Parts& parts) {
  return {{{"compute", parts.compute},
           {"imbalance", parts.imbalance},
           {"schedule", parts.schedule},
           {"communication", parts.communication},
           {"sync", parts.sync}}};
}

std::string WhyOf(const std::vector<Forecast>& all, std::size_t index) {
  const double step = all[index].plan.predicted_step_seconds;
  if (index == 0) {
    const bool shortest = std::ranges::all_of(
        all, [&](const Forecast& other) { return other.plan.predicted_step_seconds >= step; });
    return shortest ? "its step is the shortest"
                    : "it has the fewest ranks, then the fewest stages, of those within 1 % of the "
                      "shortest step";
  }
  const double first = all.front().plan.predicted_step_seconds;
  std::vector<std::string> parts;
  const auto causes = CausesOf(all[index].parts), of_first = CausesOf(all.front().parts);
  for (std::size_t i = 0; i < causes.size(); ++i) {
    const double more = causes[i].second - of_first[i].second;
    if (std::abs(more) < first / 200) continue;
    parts.push_back(absl::StrCat(FormatSeconds(std::abs(more)), more > 0 ? " more " : " less ",
                                 causes[i].first));
  }
  return absl::StrFormat("%.1f %% %s%s%s", 100 * std::abs(step / first - 1),
                         step < first ? "faster, but larger" : "slower", parts.empty() ? "" : ": ",
                         absl::StrJoin(parts, ", "));
}

Table CandidateTable(const config::JobSpec& job, const plan::PlanOptions& options,
                     const std::vector<Forecast>& candidates) {
  Table table({"", "STEP", "TOKENS/S", "MFU", "BUBBLE", "MEMORY", DivisionHeader(job), "SCHEDULE",
               "STAGE LAYERS", "RECOMPUTE", "LIMITED BY"});
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const plan::Plan& plan = candidates[i].plan;
    const MemoryBytes& largest = *std::ranges::max_element(plan.memory, {}, &MemoryBytes::total);
    std::vector<std::string> recompute = RecomputeOf(plan);
    if (std::ranges::count(recompute, recompute.front()) == std::ssize(recompute))
      recompute.resize(1);
    table.Add({absl::StrCat(i + 1), FormatSeconds(plan.predicted_step_seconds),
               FormatCount(TokensPerSecond(job, plan)), FormatPercent(Mfu(job, options, plan)),
               FormatPercent(plan.predicted_bubble_fraction),
               FormatBytes(static_cast<double>(largest.total())),
               DivisionText(job, plan.mesh, plan::SharesOptimizer(plan), plan.microbatch),
               absl::StrCat(ScheduleText(plan.schedule.name, !plan.vocabulary_ends.empty()),
                            plan::OverlapsSteps(plan) ? ", no barrier" : ""),
               absl::StrJoin(plan::StageLayers(plan.model, plan.partition), ","),
               absl::StrJoin(recompute, ","), LimitedBy(candidates[i])});
  }
  return table;
}

Table MessageTable(const std::vector<plan::Messages>& messages, std::size_t most) {
  Table table({"MESSAGES OF A STEP", "COUNT", "OF EACH", "IN ALL"});
  for (std::size_t i = 0; i < std::min(most, messages.size()); ++i) {
    const plan::Messages& link = messages[i];
    const auto bytes = static_cast<double>(link.bytes), count = static_cast<double>(link.count);
    table.Add({absl::StrCat("rank ", link.from.value(), " to ", link.to.value()),
               absl::StrCat(link.count), FormatBytes(bytes / count), FormatBytes(bytes)});
  }
  return table;
}

Table RefusalTable(const config::JobSpec& job, const std::vector<plan::Refusal>& refused,
                   std::size_t most) {
  Table table({"NOT HERE", DivisionHeader(job), "RECOMPUTE", "WHY"});
  for (std::size_t i = 0; i < std::min(most, refused.size()); ++i) {
    const plan::Refusal& refusal = refused[i];
    table.Add({ScheduleText(refusal.schedule, refusal.spread),
               DivisionText(job, refusal.mesh, refusal.shares, refusal.microbatch),
               RecomputeText(refusal.recompute), refusal.reason});
  }
  return table;
}

namespace {

// Says where the times come from, and which are guesses. The layers of emulated jobs come from
// nowhere else than the job.
void PrintOrigins(std::ostream& out, const plan::Origins& origins) {
  const std::vector<std::string>& guessed = origins.guessed;
  if (origins.measured.empty() && origins.interpolated.empty() && guessed.empty()) return;
  out << "\ntimes: measured " << origins.measured.size() << ", interpolated "
      << origins.interpolated.size() << ", guessed " << guessed.size() << '\n';
  const std::size_t shown = std::min(kGuessesShown, guessed.size());
  for (std::size_t i = 0; i < shown; ++i) out << "  guessed: " << OneLine(guessed[i]) << '\n';
  if (guessed.size() > shown)
    out << "  and " << guessed.size() - shown << " more, which -o json lists\n";
}

}  // namespace

void PrintForecasts(const Context& context, const config::JobSpec& job,
                    const plan::PlanOptions& options, const plan::Forecasts& forecasts) {
  if (context.json()) return PrintForecastsJson(context, job, options, forecasts);
  std::ostream& out = context.terminal.out;
  if (!forecasts.candidates.empty()) {
    PrintCandidates(out, job, options, forecasts.candidates);
    PrintMessages(out, forecasts.candidates.front().plan);
  }
  PrintRefusals(out, job, forecasts.refused);
  PrintOrigins(out, forecasts.origins);
  out << std::flush;
}

}  // namespace takt::cli
