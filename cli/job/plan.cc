// SPDX-License-Identifier: Apache-2.0
// `takt plan`: what a job will cost, before it is submitted.
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/base/new_file.h"
#include "cli/base/report.h"
#include "cli/base/signals.h"
#include "cli/base/text.h"
#include "cli/client/connect.h"
#include "cli/job/attached_workers.h"
#include "cli/job/cluster_input.h"
#include "cli/job/commands.h"
#include "cli/job/forecast_page.h"
#include "cli/job/forecast_text.h"
#include "cli/job/job_input.h"
#include "cli/job/measure.h"
#include "common/base/status.h"
#include "common/config/job_spec_serde.h"
#include "common/plan/offers.h"

namespace takt::cli {
namespace {

using config::DeviceKind;

// Each short job that measures for a plan trains for about this time.
constexpr double kMeasureSeconds = 2;

struct PlanCommand {
  JobInput job;
  std::optional<int> workers;
  std::optional<std::string> cluster;  // a file
  std::optional<std::int64_t> memory_bytes;
  std::string link;
  bool no_profile = false, no_measure = false;
  int top = 5;
  std::string html;
};

// Measures what plans of the job need, on the workers that `options` describes, and adds it there.
absl::Status AddMeasured(const Context& context, Client& client, Client::StreamStop& stop,
                         const config::JobSpec& job, plan::PlanOptions& options) {
  ASSIGN_OR_RETURN(profile::Profile profile,
                   Measure(client, stop,
                           {.job = job,
                            .workers = options,
                            .seconds = kMeasureSeconds,
                            .say = [&](std::string_view line) { Say(context, line); }}));
  options.profile = std::make_shared<const profile::Profile>(std::move(profile));
  return absl::OkStatus();
}

// Says why the plan goes on without what it wanted to measure.
void SayWhyNotMeasured(const Context& context, std::string_view source,
                       const absl::Status& status) {
  Say(context,
      absl::StrCat("planning from ", std::string(source),
                   ", as not all could be measured: ", Harmless(std::string(status.message()))));
}

// Returns what a plan may assume of the coordinator's workers. If all of them are idle, it first
// measures layers that were never measured.
absl::StatusOr<plan::PlanOptions> AskCoordinator(const Context& context, const PlanCommand& command,
                                                 const config::JobSpec& job) {
  ASSIGN_OR_RETURN(const auto client, ConnectToCoordinator(context));
  ASSIGN_OR_RETURN(const std::vector<v1::Worker> workers, client->ListWorkers());
  ASSIGN_OR_RETURN(plan::PlanOptions options, OptionsForWorkers(job, workers));
  if (command.no_profile) return options;
  ASSIGN_OR_RETURN(options.profile, ReadProfile(*client));
  const bool idle = std::ranges::none_of(
      workers, [](const v1::Worker& worker) { return worker.state() == v1::WORKER_STATE_BUSY; });
  if (command.no_measure || !idle || options.profile == nullptr || !NeedsMeasuring(job, options))
    return options;
  Client::StreamStop stop;
  const SignalThread signals({SIGINT, SIGTERM, SIGHUP}, [&](int) { stop.Stop(); });
  const absl::Status status = AddMeasured(context, *client, stop, job, options);
  if (stop.stopped()) return absl::CancelledError("interrupted");
  if (!status.ok()) SayWhyNotMeasured(context, "what is known", status);
  return options;
}

// Says that the rates of a plan are not those of the GPUs that the job needs.
void SayRatesOfCores(const Context& context) {
  Say(context,
      "the job computes on GPUs, and no worker has one here: times are those of cores; describe "
      "GPUs with --cluster (docs/clusters.md)");
}

// Returns what a plan may assume of `command.workers` workers on this machine. What cannot be
// measured here is assumed to be as usual.
absl::StatusOr<plan::PlanOptions> MeasureHere(const Context& context, const PlanCommand& command,
                                              const config::JobSpec& job,
                                              const WithWorkers& with_local_workers) {
  plan::PlanOptions options{.max_workers = *command.workers,
                            .device = plan::DeviceOf(job, DeviceKind::kAuto, /*any_gpu=*/false)};
  // The layers of an emulated job take what its file says.
  if (job.model.family == model::Family::kEmulated) return options;
  const bool on_gpus = options.device == DeviceKind::kCuda;
  if (command.no_profile || command.no_measure) {
    if (on_gpus) SayRatesOfCores(context);
    return options;
  }
  Client::StreamStop stop;
  const SignalThread signals({SIGINT, SIGTERM, SIGHUP}, [&](int) { stop.Stop(); });
  const absl::Status status =
      with_local_workers(context, *command.workers, [&](Client& client) -> absl::Status {
        ASSIGN_OR_RETURN(const std::vector<v1::Worker> workers, client.ListWorkers());
        ASSIGN_OR_RETURN(options, OptionsForWorkers(job, workers));
        return AddMeasured(context, client, stop, job, options);
      });
  if (stop.stopped()) return absl::CancelledError("interrupted");
  if (on_gpus && absl::IsFailedPrecondition(status)) {
    SayRatesOfCores(context);
  } else if (!status.ok()) {
    SayWhyNotMeasured(context, "usual rates", status);
  }
  return options;
}

// Returns what a plan may assume of the workers that a file describes.
absl::StatusOr<plan::PlanOptions> ReadCluster(const PlanCommand& command,
                                              const config::JobSpec& job) {
  ASSIGN_OR_RETURN(plan::PlanOptions options, OptionsForClusterFile(*command.cluster, job));
  if (command.no_profile) options.profile = nullptr;
  return options;
}

struct Link {
  double latency_seconds = 0, bytes_per_second = 0;
};

absl::StatusOr<Link> ReadLink(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  Link link;
  const bool valid = parts.size() == 2 && absl::SimpleAtod(parts[0], &link.latency_seconds) &&
                     absl::SimpleAtod(parts[1], &link.bytes_per_second) &&
                     link.latency_seconds >= 0 && link.latency_seconds <= 3600 &&
                     link.bytes_per_second > 0 && std::isfinite(link.bytes_per_second);
  if (valid) return link;
  return InvalidField({.field = "--link",
                       .value = text,
                       .rule = "must be LATENCY,BYTES_PER_SECOND: seconds of a message, 0 to 3600, "
                               "and a rate above 0",
                       .fix = "for example --link 2e-5,2e9"});
}

absl::StatusOr<plan::PlanOptions> OptionsOf(const Context& context, const PlanCommand& command,
                                            const config::JobSpec& job,
                                            const WithWorkers& with_local_workers) {
  std::optional<Link> link;
  if (!command.link.empty()) {  // before anything is measured
    ASSIGN_OR_RETURN(link, ReadLink(command.link));
  }
  ASSIGN_OR_RETURN(plan::PlanOptions options,
                   command.workers   ? MeasureHere(context, command, job, with_local_workers)
                   : command.cluster ? ReadCluster(command, job)
                                     : AskCoordinator(context, command, job));
  if (command.memory_bytes) options.worker_memory_bytes = *command.memory_bytes;
  if (link) {
    options.link_latency_seconds = link->latency_seconds;
    options.link_seconds_per_byte = 1 / link->bytes_per_second;
    options.use_measured_links = false;
  }
  return options;
}

absl::StatusOr<ExitCode> Plan(const Context& context, const PlanCommand& command,
                              const WithWorkers& with_local_workers) {
  // Checks the file before any request. It is written at the end.
  if (!command.html.empty()) RETURN_IF_ERROR(CheckNewFile(command.html));
  JobInput job_input = command.job;
  job_input.make_paths_absolute = command.workers.has_value();  // for workers on this machine
  const bool asks = !command.workers && !command.cluster;
  ASSIGN_OR_RETURN(const PreparedJob input,
                   asks ? PrepareJobToSubmit(context, command.job) : PrepareJob(job_input));
  ASSIGN_OR_RETURN(const config::JobSpec job, config::ToJobSpec(input.spec));
  ASSIGN_OR_RETURN(const plan::PlanOptions options,
                   OptionsOf(context, command, job, with_local_workers));
  const absl::StatusOr<plan::Forecasts> forecasts = plan::MakeForecasts(job, options, command.top);
  if (!forecasts.ok()) return input.locate(forecasts.status());
  PrintForecasts(context, job, options, *forecasts);
  RETURN_IF_ERROR(WriteForecastPage(context, command.html, job, options, *forecasts));
  if (forecasts->fits.ok()) return ExitCode::kDone;
  PrintError(context, input.locate(forecasts->fits), ExitCode::kFailed);
  return ExitCode::kFailed;
}

}  // namespace

void AddPlan(CLI::App& app, Context& context, WithWorkers with_local_workers) {
  CLI::App* command = AddCommand<PlanCommand>(
      app, context, "plan", "Rank the ways to run a job, with what each will take",
      [](CLI::App& app, PlanCommand& options) {
        AddJobInput(app, options.job, "parallelism.pipeline=2");
        CLI::Option* workers =
            app.add_option("--workers", options.workers,
                           "Plan for so many workers of this machine, and ask no coordinator")
                ->check(CLI::Range(1, 65536));
        app.add_option("--cluster", options.cluster,
                       "Plan for the workers that a file describes (docs/clusters.md), and ask no "
                       "coordinator; - reads stdin")
            ->type_name("FILE")
            ->excludes(workers);
        app.add_option("--memory", options.memory_bytes,
                       "Bytes that a worker has for a rank, instead of what it has")
            ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 50));
        app.add_option("--link", options.link,
                       "What a message costs: seconds, and bytes per second after that")
            ->type_name("LATENCY,BYTES_PER_SECOND");
        app.add_flag(
            "--no-profile", options.no_profile,
            "Use no measured times; with --workers, start nothing and use usual rates of cores");
        app.add_flag("--no-measure", options.no_measure,
                     "Use times that were measured before, and measure none");
        app.add_option("--top", options.top, "Show so many of the best")
            ->check(CLI::Range(1, 100))
            ->default_str("5");
        app.add_option("--html", options.html,
                       "Write a page with the timelines of the first five and their memory over "
                       "time; the file must not exist yet")
            ->type_name("FILE");
      },
      [with_local_workers = std::move(with_local_workers)](const Context& context,
                                                           const PlanCommand& options) {
        return Plan(context, options, with_local_workers);
      });
  command->footer(
      "The job may leave open its pipeline, schedule, chunks and recompute, and with `auto` its\n"
      "data and microbatch, which change the bits of losses. What it names is kept. The first\n"
      "candidate is what a job submitted to these workers, all idle, gets.\n"
      "Times are those that workers measured. If all are idle and a layer was never measured, a\n"
      "plan begins with short jobs of some seconds, as `takt profile` runs them; every job that\n"
      "runs corrects the times. What was not measured is interpolated from the nearest layer, or\n"
      "guessed from FLOPs and a rate of products; the last lines say what.\n"
      "--workers N starts a coordinator and N workers on this machine, as `takt local run` does,\n"
      "measures for some seconds, and stops them.\n"
      "Exit status 1: nothing can run; the reason says which limit.\n\n"
      "Examples:\n"
      "  takt plan job.yaml                         for the coordinator's workers\n"
      "  takt plan job.yaml --workers 2             for workers of this machine\n"
      "  takt plan job.yaml --workers 8 --no-profile --memory 80000000000\n"
      "  takt plan job.yaml --cluster deploy/examples/clusters/h100-2048.yaml\n"
      "  takt plan job.yaml --html plan.html        with pictures\n"
      "  takt plan job.yaml --set model.layers=48 -o json");
}

}  // namespace takt::cli
