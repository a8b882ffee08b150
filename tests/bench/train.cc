// SPDX-License-Identifier: Apache-2.0
// Measures training steps on one device, planned and executed like those of a job. The steps of one
// rank stand beside the time that their matmuls need alone, and those of several ranks that share
// the device beside those of one rank.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/plan/plan.h"
#include "common/schedule/generate.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/costs_file.h"
#include "tests/bench/device.h"
#include "tests/bench/reference_rates.h"
#include "tests/bench/statistics.h"
#include "tests/bench/train_job.h"
#include "tests/bench/training_run.h"
#include "worker/backend/backend.h"

namespace takt::bench::train_command {
namespace {

struct Options : CommonOptions, TrainJobOptions {
  int virtual_ranks = 1;
  std::string schedule = "1f1b", costs;
};

struct Measurement {
  PlannedJob planned;
  TrainingRun run;
  double model_flops = 0;      // of a step, with causal attention
  double attention_flops = 0;  // the part of attention; without a mask it would be twice that

  const plan::Plan& plan() const { return planned.plan; }
};

absl::StatusOr<PlannedJob> PlanFor(const Options& options, int num_ranks) {
  PlannedJob planned{.job = TrainJob(options)};
  config::Parallelism& parallelism = planned.job.parallelism;
  parallelism.pipeline = num_ranks;
  parallelism.schedule = num_ranks == 1 ? "1f1b" : options.schedule;
  parallelism.chunks = std::nullopt;  // the family's default
  const auto families = schedule::Families();
  const auto family = std::ranges::find(families, parallelism.schedule, &schedule::Family::name);
  // Without a flush there is no norm to clip to.
  if (family->updates != schedule::Updates::kFlush) planned.job.adamw.clip_norm = 0;
  ASSIGN_OR_RETURN(
      planned.plan,
      plan::MakePlan(planned.job, {.max_workers = num_ranks,
                                   .device = options.on_gpu() ? config::DeviceKind::kCuda
                                                              : config::DeviceKind::kCpu}));
  return planned;
}

// Measures the numbers of ranks one after the other on one device, which chooses its kernels once.
absl::StatusOr<std::vector<Measurement>> MeasureSteps(const Options& options,
                                                      const std::vector<int>& numbers_of_ranks) {
  std::vector<Measurement> all;
  MemoryBytes predicted;
  for (const int num_ranks : numbers_of_ranks) {
    ASSIGN_OR_RETURN(all.emplace_back().planned, PlanFor(options, num_ranks));
    const MemoryBytes needed = all.back().planned.device_bytes();
    for (std::size_t i = 0; i < kNumMemoryKinds; ++i) {
      const auto kind = static_cast<MemoryKind>(i);
      predicted[kind] = std::max(predicted[kind], needed[kind]);
    }
  }
  backend::MemoryLedger ledger;
  ASSIGN_OR_RETURN(const auto device, OpenDevice({.device = options.device,
                                                  .threads = options.threads,
                                                  .predicted = predicted,
                                                  .ledger = &ledger}));
  const TokenFolder tokens(options);
  const double tokens_per_step = static_cast<double>(options.batch) * options.context;
  for (Measurement& measured : all) {
    ASSIGN_OR_RETURN(measured.run,
                     RunTraining(measured.planned, options, *device, ledger, tokens.path()));
    const model::ModelConfig& model = measured.planned.job.model;
    const model::Model& planned = measured.plan().model;
    measured.model_flops = planned.FlopsPerMicrobatch() * options.batch / planned.microbatch;
    measured.attention_flops =
        6.0 * model.layers * model.hidden * options.context * tokens_per_step;
  }
  return all;
}

// The time that the matmuls of a step need alone, forward and for both gradients. On the CPU they
// are oneDNN's; on a GPU they run at the rate of a large product.
struct MatmulLimit {
  double flops = 0, forward_seconds = 0, backward_seconds = 0;
  double seconds() const { return forward_seconds + backward_seconds; }
};

absl::StatusOr<MatmulLimit> MeasureLimit(const Options& options) {
  double gpu_rate = 0;
  if (options.on_gpu()) {
    ASSIGN_OR_RETURN(const auto backends, OpenDevice({.device = options.device}));
    ASSIGN_OR_RETURN(const auto backend, backends->CreateCompute());
    gpu_rate = MatmulFlopsPerSecond(*backend, options.precision == "bf16", 5);
  }
  const int microbatches = options.batch / options.Microbatch();
  MatmulLimit limit;
  for (const StepMatmul& matmul :
       StepMatmuls(ModelOf(options), std::int64_t{options.Microbatch()} * options.context)) {
    const double once = options.on_gpu()
                            ? matmul.flops() / gpu_rate
                            : OneDnnSeconds(matmul, options.Precision(), options.threads, 3);
    const double seconds = once * matmul.count * microbatches;
    limit.flops += matmul.flops() * matmul.count * microbatches;
    (matmul.name.ends_with(" F") ? limit.forward_seconds : limit.backward_seconds) += seconds;
  }
  return limit;
}

nlohmann::json Parts(const TrainingRun& run, const MatmulLimit& limit) {
  nlohmann::json parts = nlohmann::json::array();
  for (const auto& [kind, seconds] : run.op_seconds) {
    const double matmuls = kind == "F"   ? limit.forward_seconds
                           : kind == "B" ? limit.backward_seconds
                                         : 0;
    parts.push_back(
        {{"instruction", kind}, {"seconds", seconds}, {"matmul_seconds_at_limit", matmuls}});
  }
  return parts;
}

nlohmann::json Report(const Options& options, const Measurement& measured,
                      const MatmulLimit& limit) {
  const TrainingRun& run = measured.run;
  const double step = Median(run.step_seconds);
  const double model_rate = measured.model_flops / step,
               matmul_rate = limit.flops / limit.seconds();
  double accounted = 0;
  for (const auto& [kind, seconds] : run.op_seconds) accounted += seconds;
  return {{"model", options.model},
          {"device", options.device},
          {"precision", options.precision},
          {"residual", options.residual},
          {"batch", options.batch},
          {"microbatch", options.Microbatch()},
          {"context", options.context},
          {"threads", options.threads},
          {"virtual_ranks", options.virtual_ranks},
          {"schedule", measured.plan().schedule.name},
          {"model_flops_per_second", model_rate},
          {"matmul_flops_per_second", matmul_rate},
          {"ratio", model_rate / matmul_rate},
          {"tokens_per_second", options.batch * options.context / step},
          {"step_seconds", step},
          {"all_step_seconds", run.step_seconds},
          {"model_flops", measured.model_flops},
          {"attention_flops", measured.attention_flops},
          {"peak_bytes", run.peak_bytes},
          {"allocated_bytes", run.allocated_bytes},
          {"predicted_bytes", measured.planned.device_bytes().total()},
          {"matmul_flops", limit.flops},
          {"losses", run.losses},
          {"first_loss", run.losses.front()},
          {"last_loss", run.losses.back()},
          {"parts", Parts(run, limit)},
          {"outside_instructions_seconds", step - accounted}};
}

MeasuredCosts CostsOf(const Options& options, const Measurement& measured) {
  const auto tied = measured.run.op_seconds.find(std::string(Name(program::Op::kReduceTied)));
  return {.measured_on = absl::StrFormat(
              "%s %s on %s, %d virtual ranks, %s, microbatches of %d x %d tokens", options.model,
              options.precision, options.device, options.virtual_ranks,
              measured.plan().schedule.name, options.Microbatch(), options.context),
          .stages = measured.run.stages,
          .optimizer_seconds = measured.run.optimizer_seconds,
          .tied_seconds = tied == measured.run.op_seconds.end() ? 0 : tied->second};
}

// Adds how long several ranks take on the device, beside one rank, and how long they would take on
// devices of their own.
absl::Status AddPipeline(const Options& options, const Measurement& alone,
                         const Measurement& measured, const MeasuredCosts& costs,
                         nlohmann::json& report) {
  const double single = Median(alone.run.step_seconds);
  report["single_rank_step_seconds"] = single;
  report["overhead"] = Median(measured.run.step_seconds) / single - 1;
  report["same_losses"] = measured.run.losses == alone.run.losses;
  nlohmann::json& stages = report["stages"] = nlohmann::json::array();
  for (const mesh::Stage& stage : measured.plan().partition) {
    nlohmann::json& entry = stages.emplace_back();
    entry["stage"] = stage.id.value();
    for (const program::Op kind : StageTimes::kKinds) {
      const double seconds = costs.stages.MeanSeconds(kind, stage.id);
      if (seconds > 0) entry[std::string(program::Name(kind))] = seconds;
    }
  }
  ASSIGN_OR_RETURN(const Prediction prediction, Predict(costs, measured.plan()));
  report["prediction"] = {{"devices", options.virtual_ranks},
                          {"step_seconds", prediction.step_seconds},
                          {"bubble_fraction", prediction.bubble_fraction}};
  return absl::OkStatus();
}

void PrintPipeline(const nlohmann::json& report) {
  absl::PrintF(
      "%d ranks take turns on the device, %s: step %.3f s beside %.3f s of one rank, %+.1f %%; "
      "losses %s\n",
      report["virtual_ranks"].get<int>(), report["schedule"].get<std::string>(),
      report["step_seconds"].get<double>(), report["single_rank_step_seconds"].get<double>(),
      100 * report["overhead"].get<double>(),
      report["same_losses"].get<bool>() ? "equal to the bit" : "differ");
  for (const nlohmann::json& stage : report["stages"]) {
    absl::PrintF("  stage %-3d", stage["stage"].get<int>());
    for (const program::Op op : StageTimes::kKinds) {
      const std::string kind(program::Name(op));
      if (stage.contains(kind)) absl::PrintF("  %s %.3f ms", kind, 1e3 * stage[kind].get<double>());
    }
    absl::PrintF("\n");
  }
  const nlohmann::json& prediction = report["prediction"];
  absl::PrintF(
      "prediction, not measured: on %d devices, messages free, a step takes %.3f s, bubble %.1f "
      "%%\n",
      prediction["devices"].get<int>(), prediction["step_seconds"].get<double>(),
      100 * prediction["bubble_fraction"].get<double>());
}

void PrintText(const nlohmann::json& report) {
  const auto number = [&](const char* key) { return report[key].get<double>(); };
  absl::PrintF("model    %7.1f GFLOP/s (attention counted causally)\n",
               number("model_flops_per_second") * 1e-9);
  absl::PrintF(
      "limit    %7.1f GFLOP/s: the same matmuls by oneDNN, or at the GPU's rate of large ones\n",
      number("matmul_flops_per_second") * 1e-9);
  absl::PrintF("ratio    %7.3f\n", number("ratio"));
  absl::PrintF("step     %7.3f s, %.0f tokens/s, %d threads\n", number("step_seconds"),
               number("tokens_per_second"), report["threads"].get<int>());
  const double predicted = number("predicted_bytes");
  absl::PrintF("memory   %7.1f MiB allocated, %.1f MiB predicted by the plan (%+.1f %%)\n",
               number("allocated_bytes") / (1 << 20), predicted / (1 << 20),
               100 * (number("allocated_bytes") / predicted - 1));
  absl::PrintF("where a step goes:        s   of which matmuls at the limit\n");
  for (const nlohmann::json& part : report["parts"]) {
    absl::PrintF("  %-16s %8.3f %10.3f\n", part["instruction"].get<std::string>(),
                 part["seconds"].get<double>(), part["matmul_seconds_at_limit"].get<double>());
  }
  absl::PrintF("  %-16s %8.3f\n", "(between)", number("outside_instructions_seconds"));
  if (report.contains("prediction")) PrintPipeline(report);
}

absl::Status Run(const Options& options) {
  if (options.batch % options.Microbatch() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--microbatch ", options.microbatch,
                                                   " does not divide --batch ", options.batch));
  }
  std::vector<int> numbers_of_ranks = {options.virtual_ranks};
  if (options.virtual_ranks > 1) numbers_of_ranks.insert(numbers_of_ranks.begin(), 1);
  ASSIGN_OR_RETURN(const std::vector<Measurement> all, MeasureSteps(options, numbers_of_ranks));
  const Measurement& measured = all.back();
  const MeasuredCosts costs = CostsOf(options, measured);
  if (!options.costs.empty())
    RETURN_IF_ERROR(WriteCostsFile(options.costs, costs, measured.plan()));
  ASSIGN_OR_RETURN(const MatmulLimit limit, MeasureLimit(options));
  nlohmann::json report = Report(options, measured, limit);
  if (all.size() > 1) {
    RETURN_IF_ERROR(AddPipeline(options, all.front(), measured, costs, report));
  }
  if (options.json()) {
    absl::PrintF("%s\n", report.dump());
  } else {
    PrintText(report);
  }
  return absl::OkStatus();
}

std::vector<std::string> FamilyNames() {
  std::vector<std::string> names;
  for (const schedule::Family& family : schedule::Families()) names.emplace_back(family.name);
  return names;
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "train", "Model FLOP/s of training steps over those of their matmuls alone",
      [](CLI::App& command, Options& options) {
        command.add_option("--model", options.model)->check(CLI::IsMember(&Models()));
        command.add_option("--device", options.device, "cpu, or cuda: the first GPU")
            ->check(CLI::IsMember({"cpu", "cuda"}));
        command.add_option("--batch", options.batch, "Sequences of a step")
            ->check(CLI::Range(1, 4096));
        command
            .add_option("--microbatch", options.microbatch,
                        "Sequences of a microbatch; 0: the whole batch")
            ->check(CLI::Range(0, 4096));
        command.add_option("--context", options.context, "Tokens of a sequence")
            ->check(CLI::Range(1, 65536));
        command.add_option("--precision", options.precision)->check(CLI::IsMember({"f32", "bf16"}));
        command
            .add_option("--residual", options.residual,
                        "Of what layers pass on; bf16 needs --precision bf16")
            ->check(CLI::IsMember({"f32", "bf16"}));
        command.add_option("--threads", options.threads, "Threads, of oneDNN's own run too")
            ->check(CLI::Range(1, 1024));
        command
            .add_option("--virtual-ranks", options.virtual_ranks,
                        "Ranks of a pipeline, all in this process and on the one device, where "
                        "they take turns; beside the step of a single rank")
            ->check(CLI::Range(1, 64));
        command.add_option("--schedule", options.schedule, "Of that pipeline")
            ->check(CLI::IsMember(FamilyNames()));
        command
            .add_option("--costs", options.costs,
                        "Write what each stage took, for `takt schedule simulate --costs`")
            ->type_name("FILE.json");
        command.add_option("--steps", options.steps, "Steps that count")
            ->check(CLI::Range(1, 1000));
        command.add_option("--warmup", options.warmup, "Steps before them")
            ->check(CLI::Range(1, 1000));
      },
      Run);
}

}  // namespace takt::bench::train_command
