// SPDX-License-Identifier: Apache-2.0
#include "cli/job/forecast_page.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cli/base/new_file.h"
#include "cli/base/report.h"
#include "cli/base/text.h"
#include "cli/job/forecast_page_html.h"
#include "cli/job/forecast_picture.h"
#include "cli/job/forecast_text.h"
#include "common/base/counted.h"
#include "common/base/memory_kind.h"
#include "common/base/status.h"
#include "common/schedule/svg_parts.h"

namespace takt::cli {
namespace {

using plan::Forecast;
using plan::Plan;
using schedule::Escape;

constexpr std::size_t kPictures = 5;
// The page stays small with so many rows of a table and texts of a list. The JSON has all.
constexpr std::size_t kMostRefusals = 500, kMostRows = 200, kMostTexts = 200;

void AppendRow(const std::vector<std::string>& cells, bool is_header, std::string& html) {
  html += "<tr>";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const bool is_name = is_header ? !cells[i].empty() : i == 0;
    const char* const scope = is_header ? "col" : "row";
    if (is_name) {
      absl::StrAppend(&html, "<th scope=\"", scope, "\">", Escape(cells[i]), "</th>");
    } else {
      absl::StrAppend(&html, "<td>", Escape(cells[i]), "</td>");
    }
  }
  html += "</tr>\n";
}

// caption: also what the table's region is called; no quotes.
void AppendTable(const Table& table, const std::string& caption, std::string& html) {
  absl::StrAppend(&html, "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"",
                  caption, "\">\n<table><caption>", caption, "</caption>\n<thead>");
  AppendRow(table.rows().front(), /*is_header=*/true, html);
  html += "</thead>\n<tbody>\n";
  for (std::size_t i = 1; i < table.rows().size(); ++i)
    AppendRow(table.rows()[i], /*is_header=*/false, html);
  html += "</tbody></table>\n</div>\n";
}

// Says that a table or list has fewer entries than there are.
void AppendRest(std::size_t all, std::size_t shown, std::string& html) {
  if (all > shown) absl::StrAppend(&html, "<p class=\"quiet\">and ", all - shown, " more</p>\n");
}

void AppendHead(const config::JobSpec& job, const plan::PlanOptions& options, std::string& html) {
  const bool is_gpu = options.device == config::DeviceKind::kCuda;
  absl::StrAppend(&html, "<h1>Plan of job ", Escape(job.name), "</h1>\n<p class=\"quiet\">For ",
                  Counted(options.max_workers, "worker"), " that compute on ",
                  is_gpu ? "GPUs" : "cores of CPUs");
  if (options.worker_memory_bytes > 0) {
    absl::StrAppend(&html, ", with ", FormatBytes(static_cast<double>(options.worker_memory_bytes)),
                    " of memory for a rank");
  }
  absl::StrAppend(&html, ". Where nothing was measured, products run at ",
                  FormatCount(options.matmul_flops_per_second), "FLOP/s and a message takes ",
                  FormatSeconds(options.link_latency_seconds), " and ",
                  absl::StrFormat("%.3g", options.link_seconds_per_byte * 1e9),
                  " ns a byte.</p>\n");
}

void AppendCandidates(const config::JobSpec& job, const plan::PlanOptions& options,
                      const std::vector<Forecast>& candidates, std::string& html) {
  html += "<h2>Candidates</h2>\n";
  AppendTable(CandidateTable(job, options, candidates),
              "Ways to run the job; the first is what a submitted job gets", html);
  html += "<ol>\n";
  for (std::size_t i = 0; i < candidates.size(); ++i)
    absl::StrAppend(&html, "<li>", Escape(WhyOf(candidates, i)), "</li>\n");
  html += "</ol>\n";
}

void AppendOrigins(const plan::Origins& origins, std::string& html) {
  html += "<h2>Where times come from</h2>\n";
  const std::array<std::pair<const char*, const std::vector<std::string>*>, 3> lists = {
      {{"Measured", &origins.measured},
       {"Interpolated", &origins.interpolated},
       {"Guessed", &origins.guessed}}};
  for (const auto& [name, texts] : lists) {
    absl::StrAppend(&html, "<h3>", name, ": ", texts->size(), "</h3>\n");
    if (texts->empty()) continue;
    html += "<ul>\n";
    const std::size_t shown = std::min(kMostTexts, texts->size());
    for (std::size_t i = 0; i < shown; ++i)
      absl::StrAppend(&html, "<li>", Escape(OneLine((*texts)[i])), "</li>\n");
    html += "</ul>\n";
    AppendRest(texts->size(), shown, html);
  }
}

void AppendRefusals(const config::JobSpec& job, const std::vector<plan::Refusal>& refused,
                    std::string& html) {
  if (refused.empty()) return;
  html += "<h2>What was refused</h2>\n";
  AppendTable(RefusalTable(job, refused, kMostRefusals),
              "What was considered and left out, and why", html);
  AppendRest(refused.size(), kMostRefusals, html);
}

// Returns "embedding, blocks 0 to 2".
std::string LayersOf(const model::Model& model, const mesh::Stage& stage) {
  std::vector<std::string> parts;
  int first_block = -1, last_block = -1;
  for (int i = stage.first_layer.value(); i < stage.last_layer.value(); ++i) {
    const model::Layer& layer = model.layers[i];
    if (layer.block < 0) continue;
    if (first_block < 0) first_block = layer.block;
    last_block = layer.block;
  }
  const auto num_layers = static_cast<int>(model.layers.size());
  const bool has_head = stage.last_layer.value() == num_layers && model.layers.back().block < 0;
  if (stage.first_layer.value() == 0 && model.layers.front().block < 0)
    parts.emplace_back("embedding");
  if (first_block >= 0 && first_block == last_block)
    parts.push_back(absl::StrCat("block ", first_block));
  if (first_block < last_block)
    parts.push_back(absl::StrCat("blocks ", first_block, " to ", last_block));
  if (has_head) parts.emplace_back("head");
  return absl::StrJoin(parts, ", ");
}

Table StageTable(const Plan& plan) {
  Table table({"STAGE", "RANK", "LAYERS", "BLOCKS", "RECOMPUTE", "F", "I", "W"});
  const std::vector<int> blocks = plan::StageLayers(plan.model, plan.partition);
  for (std::size_t i = 0; i < std::min(kMostRows, plan.partition.size()); ++i) {
    const mesh::Stage& stage = plan.partition[i];
    std::string ranks = absl::StrCat(stage.pp_rank.value());
    if (plan.schedule.placement == schedule::Placement::kBidirectional)
      absl::StrAppend(&ranks, " and ", plan.mesh.pp_size - 1 - stage.pp_rank.value());
    table.Add({absl::StrCat(stage.id.value()), std::move(ranks), LayersOf(plan.model, stage),
               absl::StrCat(blocks[i]), std::string(model::Name(stage.recompute)),
               FormatSeconds(plan.costs.F(stage.id)), FormatSeconds(plan.costs.I(stage.id)),
               FormatSeconds(plan.costs.W(stage.id))});
  }
  return table;
}

// Lists the words of each rank, and what they take in a microbatch.
Table WordTable(const Plan& plan) {
  Table table({"RANK", "WORDS", "S", "T"});
  for (std::size_t i = 0; i < std::min(kMostRows, plan.vocabulary_ends.size()); ++i) {
    const PpRank rank(static_cast<std::int32_t>(i));
    const mesh::WordRun run = mesh::WordsOf(plan.vocabulary_ends, rank, plan.model.config.vocab);
    table.Add({absl::StrCat(i), absl::StrCat(run.words), FormatSeconds(plan.costs.S(rank)),
               FormatSeconds(plan.costs.T(rank))});
  }
  return table;
}

Table MemoryTable(const Plan& plan, const plan::PlanOptions& options) {
  std::vector<std::string> header = {"RANK", "ALL"};
  const auto worker_bytes = static_cast<double>(options.worker_memory_bytes);
  if (worker_bytes > 0) header.emplace_back("OF A WORKER");
  for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind)
    header.emplace_back(Name(static_cast<MemoryKind>(kind)));
  Table table(std::move(header));
  for (std::size_t rank = 0; rank < std::min(kMostRows, plan.memory.size()); ++rank) {
    const MemoryBytes& bytes = plan.memory[rank];
    std::vector<std::string> row = {absl::StrCat(rank),
                                    FormatBytes(static_cast<double>(bytes.total()))};
    const auto counted = static_cast<double>(plan::CountedBytes(bytes, options.device));
    if (worker_bytes > 0) row.push_back(FormatPercent(counted / worker_bytes));
    for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind)
      row.push_back(FormatBytes(static_cast<double>(bytes[static_cast<MemoryKind>(kind)])));
    table.Add(std::move(row));
  }
  return table;
}

std::string StepText(const Forecast& forecast, const std::vector<plan::Messages>& messages) {
  const double step = forecast.plan.predicted_step_seconds;
  std::vector<std::string> causes;
  for (const auto& [cause, seconds] : CausesOf(forecast.parts)) {
    const double shown = std::max(0.0, seconds);
    causes.push_back(absl::StrCat(FormatSeconds(shown), " ", cause, " (",
                                  FormatPercent(step > 0 ? shown / step : 0), ")"));
  }
  std::string text =
      absl::StrCat("A step takes ", FormatSeconds(step), ": ", absl::StrJoin(causes, ", "), ". ");
  if (forecast.parts.lower_bound > 0) {
    absl::StrAppend(&text, "No schedule of these stages takes less than ",
                    FormatSeconds(forecast.parts.lower_bound), ". ");
  }
  if (forecast.checkpoint_pause_seconds > 0) {
    absl::StrAppend(&text, "A checkpoint pauses training for ",
                    FormatSeconds(forecast.checkpoint_pause_seconds), ". ");
  }
  std::int64_t count = 0;
  for (const plan::Messages& link : messages) count += link.count;
  absl::StrAppend(&text, "Each pipeline sends ", count, " messages.");
  return text;
}

absl::Status AppendCandidate(const Forecast& forecast, std::size_t number,
                             const plan::PlanOptions& options, std::string& html) {
  const Plan& plan = forecast.plan;
  const std::vector<plan::Messages> messages = plan::MessagesOf(plan.programs);
  absl::StrAppend(
      &html, "<section>\n<h2>", number, ": ", Escape(plan.schedule.name), ", pipeline ",
      plan.mesh.pp_size, plan.mesh.dp_size > 1 ? absl::StrCat(" x data ", plan.mesh.dp_size) : "",
      mesh::OtherAxes(plan.mesh), plan::SharesOptimizer(plan) ? ", optimizer's state shared" : "",
      plan.vocabulary_ends.empty() ? "" : ", vocabulary spread",
      plan::OverlapsSteps(plan) ? ", no barrier" : "", "</h2>\n<p>",
      Escape(StepText(forecast, messages)), "</p>\n");
  ASSIGN_OR_RETURN(const std::string picture, DrawStep(plan, options.worker_memory_bytes));
  html += picture;
  html += "<details><summary>Stages: layers, recompute, times of a microbatch</summary>\n";
  AppendTable(StageTable(plan), absl::StrCat("Stages of candidate ", number), html);
  AppendRest(plan.partition.size(), kMostRows, html);
  if (!plan.vocabulary_ends.empty()) {
    html += "</details>\n<details><summary>Words of each rank, times of a microbatch</summary>\n";
    AppendTable(WordTable(plan), absl::StrCat("Words of candidate ", number), html);
    AppendRest(plan.vocabulary_ends.size(), kMostRows, html);
  }
  html += "</details>\n<details><summary>Memory of each rank, by kind</summary>\n";
  AppendTable(MemoryTable(plan, options), absl::StrCat("Memory of candidate ", number), html);
  AppendRest(plan.memory.size(), kMostRows, html);
  html += "</details>\n";
  if (!messages.empty()) {
    html += "<details><summary>Messages between the ranks of a pipeline</summary>\n";
    AppendTable(MessageTable(messages, kMostRows), absl::StrCat("Messages of candidate ", number),
                html);
    AppendRest(messages.size(), kMostRows, html);
    html += "</details>\n";
  }
  html += "</section>\n";
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> RenderForecastPage(const config::JobSpec& job,
                                               const plan::PlanOptions& options,
                                               const plan::Forecasts& forecasts) {
  std::string html;
  AppendHead(job, options, html);
  if (!forecasts.fits.ok()) {
    const std::string why(forecasts.fits.message());
    absl::StrAppend(&html, "<p class=\"refusal\">Nothing can run: ", Escape(OneLine(why)),
                    "</p>\n");
  }
  const std::vector<Forecast>& candidates = forecasts.candidates;
  if (!candidates.empty()) {
    AppendCandidates(job, options, candidates, html);
    AppendOrigins(forecasts.origins, html);
  }
  for (std::size_t i = 0; i < std::min(kPictures, candidates.size()); ++i) {
    RETURN_IF_ERROR(AppendCandidate(candidates[i], i + 1, options, html));
  }
  AppendRefusals(job, forecasts.refused, html);
  return absl::StrReplaceAll(
      kForecastPageHtml,
      {{"TAKT_TITLE", absl::StrCat("Plan of job ", Escape(job.name))}, {"TAKT_BODY", html}});
}

absl::Status WriteForecastPage(const Context& context, const std::string& file,
                               const config::JobSpec& job, const plan::PlanOptions& options,
                               const plan::Forecasts& forecasts) {
  if (file.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string page, RenderForecastPage(job, options, forecasts));
  RETURN_IF_ERROR(WriteNewFile(file, page));
  if (!context.json()) {
    Say(context,
        absl::StrFormat("%s: %d of %d candidates with pictures, %.1f MB", file,
                        std::min(kPictures, forecasts.candidates.size()),
                        forecasts.candidates.size(), 1e-6 * static_cast<double>(page.size())));
  }
  return absl::OkStatus();
}

}  // namespace takt::cli
