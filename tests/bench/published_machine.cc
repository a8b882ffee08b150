// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/published_machine.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/device.h"
#include "common/base/memory_kind.h"
#include "common/base/status.h"
#include "common/cluster/cluster_serde.h"
#include "common/cluster/known_devices.h"
#include "common/cost/costs.h"
#include "common/profile/layer_shape.h"
#include "common/profile/profile.h"
#include "common/program/lowering.h"
#include "common/schedule/generate.h"
#include "common/sim/executed.h"
#include "common/sim/simulate.h"

namespace takt::bench {
namespace {

using model::Layer;
using model::Recompute;

constexpr double kSentBytes = 2, kPlannedBytes = 4;  // of a value in a message
constexpr double kSumsOfPass = 2;                    // of F or I of a block over its tensor group
constexpr int kStepsInARow = 4;  // without a barrier the first steps are not yet like the others

// Returns how many bytes each rank of an all-reduce sends, per byte of the sum.
double SentPerByte(int num_ranks) { return 2.0 * (num_ranks - 1) / num_ranks; }

// Returns the rate at which a host's GPUs together send to other hosts.
double HostRate(const Hardware& hardware) {
  return hardware.gpus_per_host * hardware.between_hosts.bytes_per_second;
}

double TensorSumSecondsPerByte(const Hardware& hardware, const DeviceGroup& group) {
  const double within = hardware.same_host.bytes_per_second;
  const double rate =
      group.tensor <= hardware.gpus_per_host ? within : std::min(within, HostRate(hardware));
  return SentPerByte(group.tensor) / rate / group.context_parallel;
}

double GradientSumSecondsPerByte(const Hardware& hardware, const DeviceGroup& group,
                                 int num_ranks) {
  const bool one_host = group.gpus() * num_ranks <= hardware.gpus_per_host;
  const double hosts_of_device =
      std::max(1.0, static_cast<double>(group.gpus()) / hardware.gpus_per_host);
  const double rate = one_host ? group.gpus() * hardware.same_host.bytes_per_second
                               : hosts_of_device * HostRate(hardware);
  return SentPerByte(num_ranks) / rate;
}

cluster::Cluster ClusterOf(const MachineModel& machine, const DeviceGroup& group, int num_devices) {
  const Hardware& hardware = machine.hardware;
  const int gpus = group.gpus();
  const int per_host = std::max(1, hardware.gpus_per_host / gpus);
  const double rate = gpus * hardware.peak * machine.constants.peak_share;
  const auto joined = [&](const cluster::Link& link) {
    return cluster::Link{
        .latency_seconds = link.latency_seconds,
        .bytes_per_second = gpus * link.bytes_per_second * kPlannedBytes / kSentBytes};
  };
  cluster::Cluster cluster{.same_host = joined(hardware.same_host),
                           .between_hosts = joined(hardware.between_hosts)};
  for (int i = 0; i < num_devices; ++i) {
    cluster.offers.push_back(
        {.host = absl::StrCat("host-", i / per_host),
         .device = takt::Device{.name = hardware.device,
                                .uuid = absl::StrCat("device-", i),
                                .memory_bytes = hardware.memory_bytes * group.tensor,
                                .matmul_rates = {.f32 = rate, .bf16 = rate}}});
  }
  return cluster;
}

// Returns what the passes of a block or a head take by the formulas of the header.
profile::Passes FittedSeconds(const Layer& layer, Recompute recompute, const MachineModel& machine,
                              const DeviceGroup& group) {
  const double rate = group.gpus() * machine.hardware.peak * machine.constants.peak_share;
  const profile::Passes work = profile::WorkOf(layer, recompute);
  profile::Passes seconds{.forward = work.forward / rate,
                          .input_grad = work.input_grad / rate,
                          .weight_grad = work.weight_grad / rate};
  if (layer.block < 0) return seconds;
  const double values = static_cast<double>(layer.cost.output_bytes) / kPlannedBytes;
  const double beside_products =
      values * (machine.constants.seconds_per_value / group.gpus() +
                kSumsOfPass * kSentBytes * TensorSumSecondsPerByte(machine.hardware, group));
  seconds.forward += beside_products;
  seconds.input_grad += (recompute == Recompute::kFull ? 2 : 1) * beside_products;
  return seconds;
}

void AddFittedLayers(const model::Model& model, const MachineModel& machine,
                     const DeviceGroup& group, const profile::Conditions& conditions,
                     profile::Profile& profile) {
  for (const Layer& layer : model.layers) {
    if (layer.kind == model::LayerKind::kEmbedding) continue;
    for (const Recompute mode : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      profile.AddLayer({profile::ShapeOf(model, layer, mode), conditions},
                       {.work = profile::WorkOf(layer, mode),
                        .seconds = FittedSeconds(layer, mode, machine, group)});
    }
  }
}

// Returns the layer of the model that was measured: it has one block.
const Layer& LayerOf(const model::Model& model, MeasuredLayerKind kind) {
  switch (kind) {
    case MeasuredLayerKind::kEmbedding:
      return model.layers.front();
    case MeasuredLayerKind::kHead:
      return model.layers.back();
    case MeasuredLayerKind::kBlock:
      break;
  }
  return model.layers[1];
}

absl::Status AddMeasuredLayers(const std::vector<MeasuredLayer>& layers,
                               const model::Precisions& precisions,
                               const profile::Conditions& conditions, profile::Profile& profile) {
  for (const MeasuredLayer& measured : layers) {
    ASSIGN_OR_RETURN(const model::Model model,
                     model::BuildModel(measured.model, measured.microbatch, precisions));
    const Layer& layer = LayerOf(model, measured.kind);
    profile.AddLayer({profile::ShapeOf(model, layer, Recompute::kNone), conditions},
                     {.work = profile::WorkOf(layer, Recompute::kNone),
                      .seconds = {.forward = measured.forward_seconds,
                                  .input_grad = measured.input_grad_seconds,
                                  .weight_grad = measured.weight_grad_seconds}});
  }
  return absl::OkStatus();
}

// Adds what sums over replicas take, and those of a tied embedding over two ranks.
void AddSums(const Hardware& hardware, const DeviceGroup& group, int data,
             profile::Profile& profile) {
  for (const int num_ranks : {2, data}) {
    if (num_ranks < 2) continue;
    const double seconds = GradientSumSecondsPerByte(hardware, group, num_ranks);
    for (const bool same_host : {true, false})
      profile.AddSum({.same_host = same_host, .num_ranks = num_ranks}, seconds);
  }
}

// Returns the job of a run with everything named as it ran.
config::JobSpec NamedJobOf(const PublishedRun& run) {
  config::JobSpec job = OpenJobOf(run);
  config::Parallelism& parallelism = job.parallelism;
  parallelism.pipeline = run.pipeline;
  parallelism.data = run.data;
  if (run.chunks > 1) parallelism.chunks = run.chunks;
  parallelism.schedule = run.chunks > 1 ? "interleaved-1f1b" : "1f1b";
  parallelism.stage_layers = run.stage_layers;
  parallelism.recompute = {run.recompute};
  return job;
}

}  // namespace

absl::StatusOr<Hardware> ReadHardware(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  ASSIGN_OR_RETURN(const cluster::Cluster cluster, cluster::ParseCluster(text, path));
  const plan::WorkerOffer& first = cluster.offers.front();
  const cluster::KnownDevice* const known =
      first.device ? cluster::FindKnownDevice(first.device->name) : nullptr;
  if (known == nullptr || !cluster.same_host || !cluster.between_hosts) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": must have workers with a known GPU, and both links"));
  }
  const auto on_first_host = [&](const plan::WorkerOffer& offer) {
    return offer.host == first.host;
  };
  return Hardware{
      .device = first.device->name,
      .gpus_per_host = static_cast<int>(std::ranges::count_if(cluster.offers, on_first_host)),
      .memory_bytes = first.device->memory_bytes,
      .peak = known->peak.bf16,
      .same_host = *cluster.same_host,
      .between_hosts = *cluster.between_hosts};
}

absl::StatusOr<plan::PlanOptions> OptionsOn(const MachineModel& machine, const config::JobSpec& job,
                                            const DeviceGroup& group, int num_devices) {
  ASSIGN_OR_RETURN(plan::PlanOptions options,
                   cluster::PlanOptionsFor(job, ClusterOf(machine, group, num_devices)));
  const model::Precisions precisions = config::PrecisionsOf(job, options.device);
  const profile::Conditions conditions =
      options.host.ConditionsOf(num_devices, std::nullopt, options.device);
  const auto profile = std::make_shared<profile::Profile>();
  if (machine.layers.empty()) {
    ASSIGN_OR_RETURN(const model::Model model,
                     model::BuildModel(job.model, job.microbatch, precisions));
    AddFittedLayers(model, machine, group, conditions, *profile);
  } else {
    RETURN_IF_ERROR(AddMeasuredLayers(machine.layers, precisions, conditions, *profile));
  }
  AddSums(machine.hardware, group, job.parallelism.data.value_or(1), *profile);
  options.profile = profile;
  return options;
}

config::JobSpec OpenJobOf(const PublishedRun& run) {
  config::JobSpec job;
  job.name = run.group;
  job.model = run.model;
  job.global_batch = run.global_batch;
  job.microbatch = run.microbatch;
  job.precision = model::Precision::kBf16;
  job.parallelism.device = config::DeviceKind::kCuda;
  return job;
}

absl::StatusOr<RunPrediction> PredictRun(const PublishedRun& run, const MachineModel& machine) {
  const config::JobSpec job = NamedJobOf(run);
  const DeviceGroup group{.tensor = run.tensor, .context_parallel = run.context_parallel};
  ASSIGN_OR_RETURN(plan::PlanOptions options, OptionsOn(machine, job, group, run.devices()));
  const std::int64_t limit = std::exchange(options.worker_memory_bytes, 0);
  ASSIGN_OR_RETURN(const plan::Plan plan, plan::MakePlan(job, options));
  RunPrediction prediction{.seconds = plan.predicted_step_seconds, .limit_bytes = limit};
  for (const MemoryBytes& memory : plan.memory)
    prediction.memory_bytes = std::max(prediction.memory_bytes, memory.total());
  return prediction;
}

absl::StatusOr<plan::Plan> PlanStages(const MeasuredStages& stages, const std::string& schedule) {
  config::JobSpec job;
  job.name = stages.group;
  job.model = {.family = model::Family::kEmulated,
               .layers = stages.ranks * stages.blocks,
               .context = 1,
               .forward_seconds = stages.forward_seconds / stages.blocks,
               .input_grad_seconds = stages.input_grad_seconds / stages.blocks,
               .weight_grad_seconds = stages.weight_grad_seconds / stages.blocks,
               .activation_bytes = 1};
  job.global_batch = stages.microbatches;
  job.parallelism.pipeline = stages.ranks;
  job.parallelism.schedule = schedule;
  if (schedule == "interleaved-1f1b") job.parallelism.chunks = stages.blocks;
  job.barrier = config::Barrier::kAlways;  // runs that were measured without one are simulated so
  return plan::MakePlan(job, {.max_workers = stages.ranks,
                              .link_latency_seconds = stages.message_seconds,
                              .link_seconds_per_byte = 0});
}

absl::StatusOr<double> PredictStages(const MeasuredStages& stages, const MeasuredRun& run) {
  ASSIGN_OR_RETURN(const plan::Plan plan, PlanStages(stages, run.schedule));
  if (run.barrier) return plan.predicted_step_seconds;
  ASSIGN_OR_RETURN(
      const sim::Report report,
      sim::SimulateExecuted(plan.programs, plan.costs, {.steps = kStepsInARow, .barrier = false}));
  return report.step_time;
}

absl::StatusOr<double> PredictRanks(const MeasuredRanks& ranks) {
  ASSIGN_OR_RETURN(
      const schedule::Schedule schedule,
      schedule::Generate("1f1b", {.num_ranks = static_cast<int>(std::ssize(ranks.forward_seconds)),
                                  .num_microbatches = ranks.microbatches}));
  ASSIGN_OR_RETURN(const std::vector<program::Program> programs, program::Lower(schedule, {}));
  const cost::Costs costs{.forward = ranks.forward_seconds, .backward = ranks.backward_seconds};
  ASSIGN_OR_RETURN(const sim::Report report, sim::Simulate(programs, costs));
  return report.makespan;
}

}  // namespace takt::bench
