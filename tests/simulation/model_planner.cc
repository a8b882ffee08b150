// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/model_planner.h"

#include <optional>

#include "common/mesh/mesh.h"
#include "tests/simulation/kept_copies.h"

namespace takt::simulation {
namespace {

// A step takes so long on one rank, and less on more, as the plans predict it. So each job gains by
// growing.
constexpr double kStepSeconds = 100;

// Returns the largest mesh of the job that has at most so many ranks, else its smallest one.
mesh::Mesh MeshFor(const config::JobSpec& spec, int max_workers) {
  const auto sizes = [](const std::optional<int>& given,
                        const std::optional<config::SizeRange>& range) {
    if (given) return config::SizeRange{.min = *given, .max = *given};
    return range.value_or(config::SizeRange{.min = 1, .max = 1});
  };
  const config::SizeRange pipeline = sizes(spec.parallelism.pipeline, spec.elastic.pipeline);
  const config::SizeRange data = sizes(spec.parallelism.data, spec.elastic.data);
  mesh::Mesh best{.pp_size = spec.LeastPipeline(), .dp_size = spec.LeastData()};
  for (int p = pipeline.min; p <= pipeline.max; ++p) {
    for (int d = data.min; d <= data.max; ++d) {
      const mesh::Mesh mesh{.pp_size = p, .dp_size = d};
      if (!spec.DividesBatch(d) || mesh.size() > max_workers) continue;
      if (mesh.size() > best.size()) best = mesh;
    }
  }
  return best;
}

}  // namespace

plan::Plan PlanOf(const config::JobSpec& spec, const plan::PlanOptions& options) {
  plan::Plan plan;
  plan.microbatch = spec.microbatch;
  plan.mesh = MeshFor(spec, options.max_workers);
  plan.schedule.name = "1f1b";
  plan.predicted_step_seconds = kStepSeconds / plan.mesh.size();
  plan.programs.resize(plan.mesh.pp_size);
  for (int p = 0; p < plan.mesh.pp_size; ++p) {
    const LayerRange layers = LayersOf(PpRank(p), plan.mesh.pp_size);
    plan.partition.push_back({StageId(p), PpRank(p), layers.first, layers.end});
  }
  return plan;
}

}  // namespace takt::simulation
