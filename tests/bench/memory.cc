// SPDX-License-Identifier: Apache-2.0
// Measures the peak resident bytes of real workers beside the bytes that the plan predicts.
#include <cmath>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/config/job_spec_serde.h"
#include "common/layout/rank_layout.h"
#include "common/plan/plan.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/process_usage.h"
#include "tests/testing/cluster.h"

namespace takt::bench::memory_command {
namespace {

constexpr int kRanks = 2;
constexpr absl::Duration kPatience = absl::Minutes(20);

struct Options : CommonOptions {
  std::vector<std::string> shapes = {"gpt2-56m", "llama-85m", "gpt2-wide-vocab"};
  std::vector<std::string> recompute = {"none", "selective", "full"};
  std::vector<std::string> precisions = {"f32"};
  std::vector<std::string> meshes = {"pipeline"};
  std::string residual = "f32";
  double limit = 0.05;
  bool layout = false;  // print where everything lies, and run nothing
};

// Returns one of three shapes, in which layers, tables or logits are large. They need few FLOPs for
// their bytes.
config::JobSpec ShapeOf(const std::string& name) {
  config::JobSpec job;
  job.name = name;
  job.global_batch = 4;
  job.microbatch = 2;
  job.steps = 1;
  job.parallelism.pipeline = kRanks;
  job.parallelism.schedule = "1f1b";
  model::ModelConfig& model = job.model;
  if (name == "gpt2-56m") {
    model = {.layers = 8, .hidden = 768, .heads = 12, .kv_heads = 12, .inner = 3072, .vocab = 256};
    model.context = 512;
  } else if (name == "llama-85m") {
    model = {.family = model::Family::kLlama,
             .layers = 6,
             .hidden = 768,
             .heads = 12,
             .kv_heads = 4,
             .inner = 2048,
             .vocab = 32000,
             .tied_head = false};
    model.context = 256;
    job.parallelism.schedule = "zb-h1";
  } else {
    model = {.layers = 8, .hidden = 512, .heads = 8, .kv_heads = 8, .inner = 2048, .vocab = 50257};
    model.context = 512;
    job.microbatch = 1;
    job.parallelism.schedule = "zb-v";
  }
  model.positions = model.context;
  return job;
}

// Lays the two ranks along the axis of this name. Along `shard` replicas share the optimizer's
// state.
void SetMesh(const std::string& mesh, config::Parallelism& parallelism) {
  if (mesh == "pipeline") return;
  parallelism.pipeline = 1;
  parallelism.schedule = "1f1b";
  if (mesh == "tensor") {
    parallelism.tensor = kRanks;
  } else if (mesh == "context") {
    parallelism.context = kRanks;
  } else {
    parallelism.data = kRanks;
    parallelism.shard = mesh == "shard" ? config::Shard::kOptimizer : config::Shard::kNone;
  }
}

model::Recompute RecomputeOf(std::string_view name) {
  using enum model::Recompute;
  return name == Name(kFull) ? kFull : name == Name(kSelective) ? kSelective : kNone;
}

struct Row {
  std::string shape, mesh, recompute, precision;
  int rank = 0;
  MemoryBytes predicted;
  std::int64_t measured = 0;

  double difference() const {
    return static_cast<double>(measured) / static_cast<double>(predicted.total()) - 1;
  }
};

std::string PrecisionName(const config::JobSpec& job) {
  return job.precision == config::Precision::kBf16 ? "bf16" : "f32";
}

// Prints where every tensor of each rank lies.
absl::Status PrintLayouts(const config::JobSpec& job) {
  ASSIGN_OR_RETURN(const plan::Plan plan, plan::MakePlan(job, {.max_workers = kRanks}));
  for (int rank = 0; rank < plan.mesh.pp_size; ++rank) {
    const layout::RankLayout layout = layout::LayOutRank({.model = plan.model,
                                                          .partition = plan.partition,
                                                          .program = plan.programs[rank],
                                                          .vocabulary_ends = plan.vocabulary_ends});
    absl::PrintF("%s %s recompute %s, pp rank %d: %s\n", job.name, PrecisionName(job),
                 std::string(Name(job.parallelism.recompute.front())), rank, ToString(layout));
  }
  return absl::OkStatus();
}

// Runs the job on fresh workers, because a peak never falls.
absl::StatusOr<std::vector<Row>> Measure(config::JobSpec job, const std::string& mesh) {
  testing::Cluster cluster(kRanks);
  job.train = {{.path = cluster.directory() + "/data.txt", .format = config::DataFormat::kBytes}};
  ASSIGN_OR_RETURN(const plan::Plan plan, plan::MakePlan(job, {.max_workers = kRanks}));
  cluster.Submit(config::ToProto(job));
  std::map<int, std::string> worker_of;
  const v1::Job ended = cluster.AwaitJob(
      job.name,
      [&](const v1::Job& now) {
        for (const v1::BoundRank& bound : now.ranks()) worker_of[bound.rank()] = bound.worker();
        return testing::HasEnded(now);
      },
      kPatience);
  if (ended.state() != v1::JOB_STATE_SUCCEEDED) {
    return absl::InternalError(absl::StrCat("job ", job.name, ": ", ended.reason()));
  }
  std::vector<Row> rows;
  for (const auto& [rank, worker] : worker_of) {
    ASSIGN_OR_RETURN(const std::int64_t measured, PeakRssBytes(cluster.worker(worker).pid()));
    rows.push_back({.shape = job.name,
                    .mesh = mesh,
                    .recompute = std::string(Name(job.parallelism.recompute.front())),
                    .precision = PrecisionName(job),
                    .rank = rank,
                    .predicted = plan.memory[plan.mesh.PpRankOf(Rank(rank)).value()],
                    .measured = measured});
  }
  return rows;
}

void PrintText(const std::vector<Row>& rows) {
  constexpr double kMebi = 1 << 20;
  absl::PrintF("%-16s %-8s %-5s %-10s %4s", "shape", "mesh", "", "recompute", "rank");
  for (std::size_t i = 0; i < kNumMemoryKinds; ++i) {
    absl::PrintF(" %9s", std::string(Name(static_cast<MemoryKind>(i))));
  }
  absl::PrintF(" %9s %9s %7s\n", "predicted", "measured", "");
  for (const Row& row : rows) {
    absl::PrintF("%-16s %-8s %-5s %-10s %4d", row.shape, row.mesh, row.precision, row.recompute,
                 row.rank);
    for (std::size_t i = 0; i < kNumMemoryKinds; ++i) {
      const std::int64_t bytes = row.predicted[static_cast<MemoryKind>(i)];
      absl::PrintF(" %9.1f", static_cast<double>(bytes) / kMebi);
    }
    absl::PrintF(" %9.1f %9.1f %+6.1f%%\n", static_cast<double>(row.predicted.total()) / kMebi,
                 static_cast<double>(row.measured) / kMebi, 100 * row.difference());
  }
}

nlohmann::json ToJson(const Row& row) {
  nlohmann::json predicted;
  for (std::size_t i = 0; i < kNumMemoryKinds; ++i) {
    const auto kind = static_cast<MemoryKind>(i);
    predicted[std::string(Name(kind))] = row.predicted[kind];
  }
  return {{"shape", row.shape},
          {"mesh", row.mesh},
          {"precision", row.precision},
          {"recompute", row.recompute},
          {"rank", row.rank},
          {"predicted_bytes", row.predicted.total()},
          {"predicted_bytes_by_kind", predicted},
          {"measured_bytes", row.measured}};
}

// Returns all jobs that the options ask for, each with the name of its mesh.
std::vector<std::pair<config::JobSpec, std::string>> JobsOf(const Options& options) {
  std::vector<std::pair<config::JobSpec, std::string>> jobs;
  for (const std::string& shape : options.shapes) {
    for (const std::string& mesh : options.meshes) {
      for (const std::string& precision : options.precisions) {
        for (const std::string& recompute : options.recompute) {
          config::JobSpec& job = jobs.emplace_back(ShapeOf(shape), mesh).first;
          SetMesh(mesh, job.parallelism);
          job.parallelism.recompute = {RecomputeOf(recompute)};
          if (precision == "bf16") job.precision = config::Precision::kBf16;
          if (options.residual == "bf16") job.residual = job.precision;
        }
      }
    }
  }
  return jobs;
}

absl::Status Run(const Options& options) {
  std::vector<Row> all;
  for (const auto& [job, mesh] : JobsOf(options)) {
    if (options.layout) {
      RETURN_IF_ERROR(PrintLayouts(job));
      continue;
    }
    ASSIGN_OR_RETURN(const std::vector<Row> rows, Measure(job, mesh));
    all.insert(all.end(), rows.begin(), rows.end());
  }
  if (options.layout) return absl::OkStatus();
  if (options.json()) {
    nlohmann::json rows = nlohmann::json::array();
    for (const Row& row : all) rows.push_back(ToJson(row));
    absl::PrintF("%s\n", rows.dump());
  } else {
    PrintText(all);
  }
  for (const Row& row : all) {
    if (std::abs(row.difference()) <= options.limit) continue;
    return absl::InternalError(absl::StrCat(row.shape, " ", row.mesh, " recompute ", row.recompute,
                                            " rank ", row.rank, " is not within the limit"));
  }
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "memory",
      "Peak resident MiB of workers beside the prediction of the plan, by kind",
      [](CLI::App& command, Options& options) {
        command.add_option("--shape", options.shapes)
            ->check(CLI::IsMember({"gpt2-56m", "llama-85m", "gpt2-wide-vocab"}));
        command.add_option("--recompute", options.recompute)
            ->check(CLI::IsMember({"none", "selective", "full"}));
        command.add_option("--mesh", options.meshes, "The axis along which the two ranks lie")
            ->check(CLI::IsMember({"pipeline", "data", "shard", "tensor", "context"}));
        command.add_option("--precision", options.precisions)
            ->check(CLI::IsMember({"f32", "bf16"}));
        command
            .add_option("--residual", options.residual,
                        "Of what layers of the jobs in bf16 pass on: f32 or bf16")
            ->check(CLI::IsMember({"f32", "bf16"}));
        command.add_option("--limit", options.limit, "Difference that is allowed, as a share")
            ->check(CLI::Range(0.0, 1.0));
        command.add_flag("--layout", options.layout,
                         "Print where every tensor of each rank lies, and run nothing");
      },
      Run);
}

}  // namespace takt::bench::memory_command
