// SPDX-License-Identifier: Apache-2.0
// Prints what the fullest rank of large models needs on several meshes, as plans predict it.
// Nothing runs. docs/memory.md has the table.
#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/memory_kind.h"
#include "common/base/status.h"
#include "common/mesh/mesh.h"
#include "common/model/recompute.h"
#include "common/plan/plan.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/table.h"

namespace takt::bench::mesh_memory_command {
namespace {

struct Options : CommonOptions {
  std::string recompute = "full", device = "cpu";

  config::DeviceKind kind() const {
    return device == "cuda" ? config::DeviceKind::kCuda : config::DeviceKind::kCpu;
  }
};

struct Mesh {
  int pipeline = 1, data = 1, tensor = 1;
};

struct Case {
  std::string model;
  model::ModelConfig config;
  std::vector<Mesh> meshes;  // all of equally many ranks
};

model::ModelConfig Llama(int layers, int hidden, int heads, int inner) {
  return {.family = model::Family::kLlama,
          .layers = layers,
          .hidden = hidden,
          .heads = heads,
          .kv_heads = 8,
          .inner = inner,
          .context = 8192,
          .positions = 8192,
          .vocab = 128256,
          .tied_head = false,
          .rope_theta = 500000};
}

// The shapes are those of Llama 3.1.
std::vector<Case> Cases() {
  return {{.model = "llama-70b",
           .config = Llama(80, 8192, 64, 28672),
           .meshes = {{.pipeline = 16, .data = 4, .tensor = 1},
                      {.pipeline = 8, .data = 4, .tensor = 2},
                      {.pipeline = 4, .data = 4, .tensor = 4},
                      {.pipeline = 2, .data = 4, .tensor = 8},
                      {.pipeline = 4, .data = 2, .tensor = 8}}},
          {.model = "llama-405b",
           .config = Llama(126, 16384, 128, 53248),
           .meshes = {{.pipeline = 64, .data = 16, .tensor = 1},
                      {.pipeline = 32, .data = 16, .tensor = 2},
                      {.pipeline = 16, .data = 16, .tensor = 4},
                      {.pipeline = 8, .data = 16, .tensor = 8},
                      {.pipeline = 16, .data = 8, .tensor = 8}}}};
}

// Each replica has four microbatches for each stage, of one sequence each.
config::JobSpec JobOf(const Case& each, const Mesh& mesh, config::Shard shard,
                      const Options& options) {
  config::JobSpec job;
  job.name = each.model;
  job.model = each.config;
  job.precision = config::Precision::kBf16;
  job.microbatch = 1;
  job.global_batch = 4 * mesh.pipeline * mesh.data;
  job.steps = 1;
  job.parallelism.pipeline = mesh.pipeline;
  job.parallelism.data = mesh.data;
  job.parallelism.tensor = mesh.tensor;
  job.parallelism.schedule = "1f1b";
  job.parallelism.shard = shard;
  job.parallelism.vocabulary = config::Vocabulary::kLast;
  using enum model::Recompute;
  for (const model::Recompute mode : {kNone, kSelective, kFull}) {
    if (Name(mode) == options.recompute) job.parallelism.recompute = {mode};
  }
  return job;
}

absl::StatusOr<nlohmann::json> Predict(const config::JobSpec& job, config::DeviceKind device) {
  const config::Parallelism& p = job.parallelism;
  const int ranks = *p.pipeline * *p.data * p.tensor;
  ASSIGN_OR_RETURN(const plan::Plan plan,
                   plan::MakePlan(job, {.max_workers = ranks, .device = device}));
  const MemoryBytes& fullest = *std::ranges::max_element(
      plan.memory, {}, [](const MemoryBytes& bytes) { return bytes.total(); });
  nlohmann::json row = {{"model", job.name},
                        {"ranks", ranks},
                        {"mesh", mesh::ToString(plan.mesh)},
                        {"shard", plan::SharesOptimizer(plan) ? "optimizer" : "none"},
                        {"total", fullest.total()}};
  for (std::size_t i = 0; i < kNumMemoryKinds; ++i) {
    const auto kind = static_cast<MemoryKind>(i);
    row[std::string(Name(kind))] = fullest[kind];
  }
  return row;
}

absl::Status Run(const Options& options) {
  constexpr double kGib = 1.0 / static_cast<double>(std::int64_t{1} << 30);
  if (!options.json()) {
    absl::PrintF("GiB of the fullest rank; bf16 on %s, 8192 tokens, recompute %s, 1f1b\n",
                 options.device == "cuda" ? "GPUs" : "CPUs", options.recompute);
  }
  std::vector<Column> columns = {{.heading = "model", .key = "model", .width = 10},
                                 {.heading = "ranks", .key = "ranks"},
                                 {.heading = "pp x dp", .key = "mesh", .width = 18},
                                 {.heading = "shard", .key = "shard", .width = 9}};
  for (const char* const kind :
       {"weights", "gradients", "optimizer", "stash", "messages", "scratch", "total"}) {
    columns.push_back({.heading = kind, .key = kind, .precision = 1, .scale = kGib});
  }
  Table table(options.json(), std::move(columns));
  for (const Case& each : Cases()) {
    for (const Mesh& mesh : each.meshes) {
      for (const config::Shard shard : {config::Shard::kNone, config::Shard::kOptimizer}) {
        ASSIGN_OR_RETURN(const nlohmann::json row,
                         Predict(JobOf(each, mesh, shard, options), options.kind()));
        table.Add(row);
      }
    }
  }
  table.End({{"recompute", options.recompute}, {"device", options.device}});
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "mesh-memory", "Memory that plans predict for models of 70B and 405B on meshes",
      [](CLI::App& command, Options& options) {
        command.add_option("--recompute", options.recompute, "none, selective or full")
            ->check(CLI::IsMember({"none", "selective", "full"}));
        command.add_option("--device", options.device, "cpu or cuda: where the sizes are of")
            ->check(CLI::IsMember({"cpu", "cuda"}));
      },
      Run);
}

}  // namespace takt::bench::mesh_memory_command
