// SPDX-License-Identifier: Apache-2.0
// `takt plan`: what a job will cost, before it is submitted.
#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/base/report.h"
#include "cli/client/connect.h"
#include "cli/job/commands.h"
#include "cli/job/forecast_text.h"
#include "cli/job/job_input.h"
#include "common/base/device_serde.h"
#include "common/base/status.h"
#include "common/config/job_spec_serde.h"
#include "common/plan/offers.h"

namespace takt::cli {
namespace {

using config::DeviceKind;

struct PlanCommand {
  JobInput job;
  std::optional<int> workers;
  std::optional<std::int64_t> memory_bytes;
  std::string link;
  int top = 5;
};

// Returns what a plan may assume of the coordinator's workers: those that are attached and take
// work, busy ones too.
absl::StatusOr<plan::PlanOptions> AskCoordinator(const Context& context,
                                                 const config::JobSpec& job) {
  ASSIGN_OR_RETURN(const auto client, ConnectToCoordinator(context));
  ASSIGN_OR_RETURN(const std::vector<v1::Worker> workers, client->ListWorkers());
  std::vector<plan::WorkerOffer> offers;
  for (const v1::Worker& worker : workers) {
    if (worker.state() == v1::WORKER_STATE_LOST || worker.drained() || worker.leaving()) continue;
    offers.push_back({.host = worker.host(),
                      .memory_bytes = worker.memory_bytes(),
                      .matmul_rates = {.f32 = worker.matmul_flops_per_second(),
                                       .bf16 = worker.bf16_matmul_flops_per_second()}});
    if (worker.has_device()) offers.back().device = takt::FromProto(worker.device());
  }
  const bool any_gpu = std::ranges::any_of(
      offers, [](const plan::WorkerOffer& offer) { return offer.device.has_value(); });
  const DeviceKind device = plan::DeviceOf(job, DeviceKind::kAuto, any_gpu);
  if (device == DeviceKind::kCuda)
    std::erase_if(offers, [](const plan::WorkerOffer& offer) { return !offer.device; });
  if (offers.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no worker ", device == DeviceKind::kCuda ? "with a GPU " : "",
        "is attached that takes work; start one, or plan without them: takt plan --workers N"));
  }
  return plan::PlanOptionsFor(job, offers, device);
}

absl::Status ReadLink(const std::string& text, plan::PlanOptions& options) {
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  double latency = 0, bytes_per_second = 0;
  const bool valid = parts.size() == 2 && absl::SimpleAtod(parts[0], &latency) &&
                     absl::SimpleAtod(parts[1], &bytes_per_second) && latency >= 0 &&
                     latency <= 3600 && bytes_per_second > 0 && std::isfinite(bytes_per_second);
  if (!valid) {
    return InvalidField({.field = "--link",
                         .value = text,
                         .rule = "must be LATENCY,BYTES_PER_SECOND: seconds of a message, 0 or "
                                 "more, and a rate above 0",
                         .fix = "for example --link 2e-5,2e9"});
  }
  options.link_latency_seconds = latency;
  options.link_seconds_per_byte = 1 / bytes_per_second;
  return absl::OkStatus();
}

absl::StatusOr<plan::PlanOptions> OptionsOf(const Context& context, const PlanCommand& command,
                                            const config::JobSpec& job) {
  plan::PlanOptions options;
  if (command.workers) {
    options.max_workers = *command.workers;
    options.device = plan::DeviceOf(job, DeviceKind::kAuto, /*any_gpu=*/false);
  } else {
    ASSIGN_OR_RETURN(options, AskCoordinator(context, job));
  }
  if (command.memory_bytes) options.worker_memory_bytes = *command.memory_bytes;
  if (!command.link.empty()) RETURN_IF_ERROR(ReadLink(command.link, options));
  return options;
}

absl::StatusOr<ExitCode> Plan(const Context& context, const PlanCommand& command) {
  ASSIGN_OR_RETURN(const PreparedJob input, PrepareJob(command.job));
  ASSIGN_OR_RETURN(const config::JobSpec job, config::ToJobSpec(input.spec));
  ASSIGN_OR_RETURN(const plan::PlanOptions options, OptionsOf(context, command, job));
  const absl::StatusOr<plan::Forecasts> forecasts = plan::MakeForecasts(job, options, command.top);
  if (!forecasts.ok()) return input.locate(forecasts.status());
  PrintForecasts(context, job, options, *forecasts);
  if (forecasts->fits.ok()) return ExitCode::kDone;
  PrintError(context, input.locate(forecasts->fits));
  return ExitCode::kFailed;
}

}  // namespace

void AddPlan(CLI::App& app, Context& context) {
  CLI::App* command = AddCommand<PlanCommand>(
      app, context, "plan", "Rank the ways to run a job, with what each will take",
      [](CLI::App& app, PlanCommand& options) {
        AddJobInput(app, options.job, "parallelism.pipeline=2");
        app.add_option("--workers", options.workers,
                       "Plan for so many workers of a usual rate, and ask no coordinator")
            ->check(CLI::Range(1, 65536));
        app.add_option("--memory", options.memory_bytes,
                       "Bytes that a worker has for a rank, instead of what it has")
            ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 50));
        app.add_option("--link", options.link,
                       "What a message costs: seconds, and bytes per second after that")
            ->type_name("LATENCY,BYTES_PER_SECOND");
        app.add_option("--top", options.top, "Show so many of the best")
            ->check(CLI::Range(1, 100))
            ->default_str("5");
      },
      Plan);
  command->footer(
      "The job may leave open its pipeline, schedule, chunks and recompute; what it names is kept. "
      "The first\n"
      "candidate is what a job submitted to these workers, all idle, gets. Times follow from the "
      "FLOPs of each\n"
      "layer and the rate of products that workers measured; nothing else is measured yet "
      "(\"guessed\").\n"
      "Exit status 1: nothing can run; the reason says which limit.\n\n"
      "Examples:\n"
      "  takt plan job.yaml                                    for the coordinator's workers\n"
      "  takt plan job.yaml --workers 8 --memory 80000000000   what if\n"
      "  takt plan job.yaml --set model.layers=48 -o json");
}

}  // namespace takt::cli
