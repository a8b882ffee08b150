// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/published_cases.h"

#include <cstddef>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/bench/csv_table.h"

namespace takt::bench {
namespace {

constexpr double kMillisecond = 1e-3;

using Models = std::map<std::string, model::ModelConfig>;  // by name; without layers and context

absl::StatusOr<std::vector<CsvRow>> ReadTable(const std::string& folder, const std::string& name) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(absl::StrCat(folder, "/", name)));
  return ParseCsv(text, name);
}

model::ModelConfig ModelFrom(CsvRow& row) {
  const std::string family = row.Text("family");
  const bool is_gpt2 = family == "gpt2";
  if (!is_gpt2 && family != "llama") row.Refuse("family", "must be gpt2 or llama", "correct it");
  return {.family = is_gpt2 ? model::Family::kGpt2 : model::Family::kLlama,
          .hidden = row.Count("hidden"),
          .heads = row.Count("heads"),
          .kv_heads = row.Count("kv_heads"),
          .inner = row.Count("inner"),
          .vocab = row.Count("vocab"),
          .tied_head = is_gpt2};
}

absl::StatusOr<Models> ReadModels(const std::string& folder) {
  ASSIGN_OR_RETURN(std::vector<CsvRow> rows, ReadTable(folder, "models.csv"));
  Models models;
  for (CsvRow& row : rows) {
    models[row.Text("model")] = ModelFrom(row);
    RETURN_IF_ERROR(row.status());
  }
  return models;
}

// Returns the model that the row names, with so many layers and with the row's context.
model::ModelConfig NamedModel(CsvRow& row, const Models& models, int layers) {
  const auto found = models.find(row.Text("model"));
  if (found == models.end()) {
    row.Refuse("model", "is not in models.csv", "add it there");
    return {};
  }
  model::ModelConfig config = found->second;
  config.layers = layers;
  config.context = row.Count("context");
  config.positions = config.context;
  return config;
}

model::Recompute RecomputeFrom(CsvRow& row) {
  const std::string name = row.Text("recompute");
  for (const model::Recompute mode :
       {model::Recompute::kNone, model::Recompute::kSelective, model::Recompute::kFull}) {
    if (name == model::Name(mode)) return mode;
  }
  row.Refuse("recompute", "must be none, selective or full", "correct it");
  return model::Recompute::kNone;
}

// Returns the blocks of each stage.
std::vector<int> SplitFrom(CsvRow& row, int layers, int stages) {
  const std::string split = row.Text("split");
  if (stages < 1) return {};
  if (split == "even" && layers % stages == 0)
    return std::vector<int>(static_cast<std::size_t>(stages), layers / stages);
  if (split == "lighter-ends" && stages >= 2 && (layers + 2) % stages == 0) {
    std::vector<int> blocks(static_cast<std::size_t>(stages), (layers + 2) / stages);
    --blocks.front();
    --blocks.back();
    return blocks;
  }
  if (split != "even" && split != "lighter-ends") {
    std::vector<int> blocks;
    for (const double count : row.Numbers("split")) blocks.push_back(static_cast<int>(count));
    const bool complete = std::ssize(blocks) == stages;
    if (complete && std::accumulate(blocks.begin(), blocks.end(), 0) == layers) return blocks;
  }
  row.Refuse("split", absl::StrCat("must cut ", layers, " blocks into ", stages, " stages"),
             "use even, lighter-ends, or the blocks of each stage");
  return {};
}

bool ComesFromMeasuredLayers(CsvRow& row) {
  const std::string from = row.Text("layers_from");
  if (from != "fit" && from != "measured")
    row.Refuse("layers_from", "must be fit or measured", "correct it");
  return from == "measured";
}

absl::StatusOr<PublishedRun> RunFrom(CsvRow& row, const Models& models) {
  PublishedRun run{.group = row.Text("group"),
                   .cluster = row.Text("cluster"),
                   .model_name = row.Text("model"),
                   .model = NamedModel(row, models, row.Count("layers")),
                   .tensor = row.Count("tensor"),
                   .context_parallel = row.Count("context_parallel"),
                   .data = row.Count("data"),
                   .pipeline = row.Count("pipeline"),
                   .chunks = row.Count("chunks"),
                   .microbatch = row.Count("microbatch"),
                   .global_batch = row.Count("global_batch"),
                   .recompute = RecomputeFrom(row),
                   .measured_layers = ComesFromMeasuredLayers(row),
                   .seconds = row.Positive("seconds")};
  run.stage_layers = SplitFrom(row, run.model.layers, run.pipeline * run.chunks);
  RETURN_IF_ERROR(row.status());
  if (run.global_batch % (run.microbatch * run.data) != 0) {
    row.Refuse("global_batch", "must be divisible by microbatch x data", "correct one of them");
    return row.status();
  }
  return run;
}

absl::StatusOr<std::vector<PublishedRun>> ReadRuns(const std::string& folder,
                                                   const Models& models) {
  ASSIGN_OR_RETURN(std::vector<CsvRow> rows, ReadTable(folder, "runs.csv"));
  std::vector<PublishedRun> runs;
  for (CsvRow& row : rows) {
    ASSIGN_OR_RETURN(PublishedRun run, RunFrom(row, models));
    runs.push_back(std::move(run));
  }
  return runs;
}

MeasuredLayerKind KindFrom(CsvRow& row) {
  const std::string name = row.Text("layer");
  if (name == "embedding") return MeasuredLayerKind::kEmbedding;
  if (name == "head") return MeasuredLayerKind::kHead;
  if (name != "block") row.Refuse("layer", "must be embedding, block or head", "correct it");
  return MeasuredLayerKind::kBlock;
}

// Returns the seconds of a cell with one number of milliseconds, which may be 0.
double SecondsFrom(CsvRow& row, const std::string& column) {
  const std::vector<double> milliseconds = row.Numbers(column);
  if (milliseconds.size() == 1) return milliseconds.front() * kMillisecond;
  row.Refuse(column, "must be one number", "correct it");
  return 0;
}

absl::StatusOr<std::vector<MeasuredLayer>> ReadLayers(const std::string& folder,
                                                      const Models& models) {
  ASSIGN_OR_RETURN(std::vector<CsvRow> rows, ReadTable(folder, "layer_times.csv"));
  std::vector<MeasuredLayer> layers;
  for (CsvRow& row : rows) {
    layers.push_back({.cluster = row.Text("cluster"),
                      .model = NamedModel(row, models, 1),
                      .microbatch = row.Count("microbatch"),
                      .kind = KindFrom(row),
                      .forward_seconds = SecondsFrom(row, "forward_ms"),
                      .input_grad_seconds = SecondsFrom(row, "input_grad_ms"),
                      .weight_grad_seconds = SecondsFrom(row, "weight_grad_ms")});
    RETURN_IF_ERROR(row.status());
  }
  return layers;
}

absl::StatusOr<std::vector<MeasuredStages>> ReadStages(const std::string& folder) {
  ASSIGN_OR_RETURN(std::vector<CsvRow> rows, ReadTable(folder, "stage_times.csv"));
  std::vector<MeasuredStages> all;
  for (CsvRow& row : rows) {
    MeasuredStages stages{.group = row.Text("group"),
                          .ranks = row.Count("ranks"),
                          .blocks = row.Count("blocks"),
                          .microbatches = row.Count("microbatches"),
                          .microbatch = row.Count("microbatch"),
                          .forward_seconds = SecondsFrom(row, "forward_ms"),
                          .input_grad_seconds = SecondsFrom(row, "input_grad_ms"),
                          .weight_grad_seconds = SecondsFrom(row, "weight_grad_ms"),
                          .message_seconds = SecondsFrom(row, "message_ms")};
    const double samples_per_gpu =
        static_cast<double>(stages.microbatches) * stages.microbatch / stages.ranks;
    for (const char* const schedule : {"1f1b", "interleaved-1f1b", "zb-1p", "zb-2p"}) {
      const std::string name = schedule;
      stages.runs.push_back({.schedule = name,
                             .barrier = !name.starts_with("zb-"),
                             .seconds = samples_per_gpu / row.Positive(name)});
    }
    RETURN_IF_ERROR(row.status());
    all.push_back(std::move(stages));
  }
  return all;
}

std::vector<double> SecondsOfRanks(CsvRow& row, const std::string& column) {
  std::vector<double> seconds = row.Numbers(column);
  for (double& each : seconds) each *= kMillisecond;
  return seconds;
}

absl::StatusOr<std::vector<MeasuredRanks>> ReadRanks(const std::string& folder) {
  ASSIGN_OR_RETURN(std::vector<CsvRow> rows, ReadTable(folder, "rank_times.csv"));
  std::vector<MeasuredRanks> all;
  for (CsvRow& row : rows) {
    MeasuredRanks ranks{.name = row.Text("name"),
                        .microbatches = row.Count("microbatches"),
                        .forward_seconds = SecondsOfRanks(row, "forward_ms"),
                        .backward_seconds = SecondsOfRanks(row, "backward_ms"),
                        .seconds = row.Positive("seconds")};
    if (ranks.forward_seconds.size() != ranks.backward_seconds.size())
      row.Refuse("backward_ms", "must have a number for each of forward_ms", "correct one of them");
    RETURN_IF_ERROR(row.status());
    all.push_back(std::move(ranks));
  }
  return all;
}

absl::StatusOr<std::vector<LeftOutCase>> ReadLeftOut(const std::string& folder) {
  ASSIGN_OR_RETURN(std::vector<CsvRow> rows, ReadTable(folder, "left_out.csv"));
  std::vector<LeftOutCase> cases;
  for (CsvRow& row : rows) {
    cases.push_back({.what = row.Text("case"), .why = row.Text("reason")});
    RETURN_IF_ERROR(row.status());
  }
  return cases;
}

}  // namespace

std::string PublishedRun::Name() const {
  std::string name = absl::StrCat("tp", tensor);
  if (context_parallel > 1) absl::StrAppend(&name, " cp", context_parallel);
  absl::StrAppend(&name, " dp", data, " pp", pipeline);
  if (chunks > 1) absl::StrAppend(&name, "x", chunks);
  absl::StrAppend(&name, " mb", microbatch);
  return name;
}

bool DoTheSameWork(const PublishedRun& a, const PublishedRun& b) {
  return a.cluster == b.cluster && a.model_name == b.model_name &&
         a.model.layers == b.model.layers && a.model.context == b.model.context &&
         a.global_batch == b.global_batch && a.gpus() == b.gpus();
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  return std::string(std::istreambuf_iterator<char>(in), {});
}

absl::StatusOr<PublishedCases> ReadPublishedCases(const std::string& folder) {
  PublishedCases cases;
  ASSIGN_OR_RETURN(const Models models, ReadModels(folder));
  ASSIGN_OR_RETURN(cases.runs, ReadRuns(folder, models));
  ASSIGN_OR_RETURN(cases.layers, ReadLayers(folder, models));
  ASSIGN_OR_RETURN(cases.stages, ReadStages(folder));
  ASSIGN_OR_RETURN(cases.ranks, ReadRanks(folder));
  ASSIGN_OR_RETURN(cases.left_out, ReadLeftOut(folder));
  return cases;
}

}  // namespace takt::bench
