// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/base/new_file.h"
#include "cli/base/report.h"
#include "cli/base/signals.h"
#include "cli/client/local_address.h"
#include "cli/job/follow.h"
#include "cli/job/job_input.h"
#include "cli/job/step_printer.h"
#include "cli/job/timeline_file.h"
#include "cli/local/commands.h"
#include "cli/local/gpu_check.h"
#include "cli/local/local_cluster.h"
#include "cli/local/local_state.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/config/job_spec_serde.h"
#include "common/plan/offers.h"

namespace takt::cli {
namespace {

struct RunOptions : ProcessOptions {
  JobInput job{.make_paths_absolute = true};
  int workers = 0;  // 0: what the job needs
  std::string state;
  std::string trace;  // file; empty: none
};

constexpr int kDefaultWorkers = 4;
// The time from the first Ctrl-C until everything is killed, if the job does not end by itself.
constexpr unsigned kCancelSeconds = 15;

// Nothing waits for what a rank measured of a step, so it may come after the end of the job.
constexpr absl::Duration kTracePatience = absl::Seconds(5), kTracePause = absl::Milliseconds(50);

constexpr absl::Duration kAttachPause = absl::Milliseconds(50);

// A run replaces ended workers at most this often.
constexpr int kMaxRestarts = 20;

bool HasTrained(const v1::Job& job) {
  return std::any_of(job.transitions().begin(), job.transitions().end(),
                     [](const auto& t) { return t.state() == v1::JOB_STATE_RUNNING; });
}

// Errors: kInvalidArgument (FieldError on --workers: the cluster, which does not grow, is too
// small).
absl::StatusOr<int> WorkersFor(const RunOptions& options, const v1::JobSpec& proto) {
  ASSIGN_OR_RETURN(const config::JobSpec job, config::ToJobSpec(proto));
  const int least = LeastRanks(job);
  if (options.workers > 0 && options.workers < least) {
    return InvalidField(
        {.field = "--workers",
         .value = absl::StrCat(options.workers),
         .rule = absl::StrCat("must be at least ", least, ", as many ranks as the job begins with"),
         .fix = "leave it out, or change parallelism"});
  }
  if (options.workers > 0) return options.workers;
  const bool open = job.LeavesSizeOpen() || proto.has_elastic();
  return open ? std::max(kDefaultWorkers, least) : least;
}

// Returns whether the job may wait for GPUs that the workers do not have. One that leaves the
// choice of a device open computes on GPUs if there are any, of which some do not multiply FP8.
bool MayLackGpus(const config::JobSpec& job) {
  const bool any_gpu = job.fp8 != model::Fp8Recipe::kNone;
  return plan::DeviceOf(job, config::DeviceKind::kAuto, any_gpu) == config::DeviceKind::kCuda;
}

bool IsAttached(const v1::Worker& worker) {
  return worker.state() != v1::WORKER_STATE_LOST && worker.state() != v1::WORKER_STATE_AWAY;
}

// Runs one job on a cluster of its own. Everything happens on the thread that calls Run; the signal
// thread only sets flags and wakes that thread.
class LocalRun {
 public:
  // trace_file: gets the timeline of the last steps; empty: none is written.
  LocalRun(const Context& context, LocalState& state, PreparedJob job, std::string trace_file)
      : context_(context),
        state_(state),
        trace_file_(std::move(trace_file)),
        job_input_(std::move(job)),
        spec_(job_input_.spec),
        printer_(context, Clock::Real()) {}

  // Returns the job when it has ended.
  absl::StatusOr<v1::Job> Run(const LocalClusterOptions& options) {
    num_workers_ = options.num_workers;
    const SignalThread signals({SIGINT, SIGTERM, SIGHUP, SIGALRM, SIGCHLD},
                               [this](int signal) { OnSignal(signal); });
    ASSIGN_OR_RETURN(cluster_, LocalCluster::Start(state_, options));
    running_cluster_ = cluster_.get();
    const absl::StatusOr<v1::Job> job = SubmitAndFollow();
    if (job.ok()) printer_.OnEnd(*job);
    if (job.ok() && !trace_file_.empty()) traced_ = Trace();
    cluster_->Stop();
    return job;
  }
  // The error of writing the timeline, if it was requested and some step was measured.
  const absl::Status& traced() const { return traced_; }

 private:
  // Writes the timeline while the cluster still runs. If there is none, it says so.
  absl::Status Trace() {
    const TimelineFileOptions wanted{.job = spec_.name(), .file = trace_file_};
    const absl::Time deadline =
        last_step_ > 0 ? absl::Now() + kTracePatience : absl::InfinitePast();
    absl::StatusOr<TimelineFile> written = WriteTimeline(context_, cluster_->client(), wanted);
    while (absl::IsFailedPrecondition(written.status()) && absl::Now() < deadline) {
      absl::SleepFor(kTracePause);
      written = WriteTimeline(context_, cluster_->client(), wanted);
    }
    if (absl::IsFailedPrecondition(written.status())) {
      Say(context_, absl::StrCat(trace_file_, " is not written: ", written.status().message()));
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(written.status());
    SayTimeline(context_, wanted, *written);
    return absl::OkStatus();
  }

  // Runs on the signal thread.
  void OnSignal(int signal) {
    if (signal == SIGCHLD) {
      child_ended_ = true;
    } else if (++num_interrupts_ > 1 || signal == SIGALRM) {
      // This is the second Ctrl-C, or cancelling the job took too long.
      if (const LocalCluster* cluster = running_cluster_) cluster->Kill();
      static constexpr char kText[] = "\nkilled\n";
      [[maybe_unused]] const auto written = write(STDERR_FILENO, kText, sizeof(kText) - 1);
      _exit(static_cast<int>(ExitCode::kFailed));
    } else {
      alarm(kCancelSeconds);
    }
    stop_.Stop();
  }

  absl::StatusOr<v1::Job> SubmitAndFollow() {
    RETURN_IF_ERROR(MakeWayForName());
    RETURN_IF_ERROR(WaitForGpus());
    const absl::Status submitted = cluster_->client().SubmitJob(spec_, false).status();
    if (!submitted.ok()) return job_input_.locate(submitted);
    while (true) {
      stop_.Clear();
      RETURN_IF_ERROR(HeedSignals());
      absl::StatusOr<v1::Job> job =
          FollowJob(cluster_->client(), stop_,
                    {.job = spec_.name(),
                     .after_step = last_step_,
                     .patience = absl::Seconds(10),
                     .on_job =
                         [this](const v1::Job& now) {
                           job_ = now;
                           printer_.OnJob(now);
                         },
                     .on_step =
                         [this](const v1::StepReport& step) {
                           last_step_ = step.step();
                           return printer_.OnStep(step);
                         },
                     .say = [this](std::string_view line) { printer_.Say(line); }});
      if (job.ok() || !stop_.stopped()) {
        if (!absl::IsCancelled(job.status())) return job;
        ++num_interrupts_;  // stdout is closed: this counts as an interrupt
      }
    }
  }

  // The cluster does not grow, so a job for which its GPUs do not suffice would wait for ever.
  // Waits until those that are attached suffice, or all workers are attached. A signal, or a worker
  // that ended, is heeded later.
  absl::Status WaitForGpus() {
    const absl::StatusOr<config::JobSpec> job = config::ToJobSpec(spec_);
    if (!job.ok() || !MayLackGpus(*job)) return absl::OkStatus();
    while (!stop_.stopped() && cluster_->num_live_workers() >= num_workers_) {
      ASSIGN_OR_RETURN(std::vector<v1::Worker> workers, cluster_->client().ListWorkers());
      std::erase_if(workers, [](const v1::Worker& worker) { return !IsAttached(worker); });
      if (!workers.empty()) {
        const absl::Status enough = CheckGpus(*job, workers);
        if (enough.ok() || std::ssize(workers) >= num_workers_) return job_input_.locate(enough);
      }
      absl::SleepFor(kAttachPause);
    }
    return absl::OkStatus();
  }

  // Ends and deletes a job of the same name from an earlier run on this state.
  absl::Status MakeWayForName() {
    Client& client = cluster_->client();
    absl::StatusOr<v1::Job> earlier = client.GetJob(spec_.name());
    if (absl::IsNotFound(earlier.status())) return absl::OkStatus();
    RETURN_IF_ERROR(earlier.status());
    if (!HasEnded(earlier->state())) {
      printer_.Say(absl::StrCat("cancelling ", spec_.name(), ", left from an earlier run"));
      RETURN_IF_ERROR(client.CancelJob(spec_.name()).status());
      RETURN_IF_ERROR(FollowJob(client, stop_, {.job = spec_.name()}).status());
    }
    return client.DeleteJob(spec_.name());
  }

  absl::Status HeedSignals() {
    if (child_ended_.exchange(false)) RETURN_IF_ERROR(HeedEndedChildren());
    if (num_interrupts_ > 0 && !cancelled_) {
      cancelled_ = true;
      printer_.Say(absl::StrCat("cancelling ", spec_.name(), "; Ctrl-C again kills it at once"));
      const absl::Status status = cluster_->client().CancelJob(spec_.name()).status();
      // The job may have ended by itself meanwhile.
      if (!status.ok() && !absl::IsFailedPrecondition(status)) return status;
    }
    return absl::OkStatus();
  }

  absl::Status HeedEndedChildren() {
    absl::Status unusable = absl::InternalError("a worker ended before the job could start");
    for (const LocalCluster::End& end : cluster_->TakeEnds()) {
      if (end.is_coordinator) return absl::InternalError(end.text);
      printer_.Say(end.text);
      if (absl::IsInvalidArgument(end.status)) unusable = end.status;
    }
    // A job with checkpoints goes on when all its workers are attached again.
    if (HasTrained(job_) && spec_.has_checkpoint() && num_restarts_ < kMaxRestarts) {
      ++num_restarts_;
      return cluster_->RestartWorkers();
    }
    // The coordinator decides about a running job. A job that waits for workers would wait for
    // ever.
    const bool waiting = job_.state() == v1::JOB_STATE_UNSPECIFIED ||
                         job_.state() == v1::JOB_STATE_QUEUED ||
                         job_.state() == v1::JOB_STATE_PLANNING;
    if (waiting && cluster_->num_live_workers() < num_workers_) return unusable;
    return absl::OkStatus();
  }

  const Context& context_;
  LocalState& state_;
  const std::string trace_file_;
  absl::Status traced_;
  const PreparedJob job_input_;
  const v1::JobSpec& spec_;
  int num_workers_ = 0;
  StepPrinter printer_;
  std::unique_ptr<LocalCluster> cluster_;
  v1::Job job_;
  std::int64_t last_step_ = 0;
  bool cancelled_ = false;
  int num_restarts_ = 0;

  // Shared with the signal thread.
  Client::StreamStop stop_;
  std::atomic<const LocalCluster*> running_cluster_ = nullptr;
  std::atomic<bool> child_ended_ = false;
  std::atomic<int> num_interrupts_ = 0;
};

absl::StatusOr<ExitCode> RunLocally(const Context& context, const RunOptions& options) {
  ASSIGN_OR_RETURN(const PreparedJob job, PrepareJob(options.job));
  if (!options.trace.empty()) RETURN_IF_ERROR(CheckNewFile(options.trace));
  const absl::StatusOr<int> num_workers = WorkersFor(options, job.spec);
  if (!num_workers.ok()) return job.locate(num_workers.status());
  const bool temporary = options.state.empty();
  ASSIGN_OR_RETURN(LocalState state, temporary ? LocalState::OpenTemporary(context)
                                               : LocalState::Open(options.state));
  LocalRun run(context, state, job, options.trace);
  const absl::StatusOr<v1::Job> ended = run.Run({.program_directory = context.program_directory,
                                                 .num_workers = *num_workers,
                                                 .threads = options.threads,
                                                 .device = options.device,
                                                 .kernel_plans = KernelPlanDirectory(context)});
  const absl::Status error = job.locate(ended.ok() ? ErrorOf(*ended) : ended.status());
  const ExitCode code = ExitCodeOf(error);
  if (temporary && (code == ExitCode::kDone || code == ExitCode::kInvalidInput)) {
    state.Remove();
  } else if (code != ExitCode::kDone) {
    Say(context, absl::StrCat("logs are in ", state.directory(), "/logs"));
  }
  // The text above says how the job ended, but not what to change in its file.
  if (code != ExitCode::kDone && ended.ok() && !ended->invalid_input() && !context.json()) {
    return code;
  }
  if (!error.ok()) return error;
  RETURN_IF_ERROR(run.traced());
  return code;
}

}  // namespace

void AddLocalRun(CLI::App& local, Context& context) {
  CLI::App* command = AddCommand<RunOptions>(
      local, context, "run", "Train one job on this machine, from start to end",
      [](CLI::App& app, RunOptions& options) {
        AddJobInput(app, options.job, "optimizer.adamw.learning_rate=1e-3");
        app.add_option("--workers", options.workers,
                       "Worker processes; default: as many as the job names ranks, else 4")
            ->type_name("N")
            ->check(CLI::Range(1, 1024));
        app.add_option("--state", options.state,
                       "Directory for state and logs; default: a temporary one, removed on success")
            ->type_name("DIR");
        app.add_option(
               "--trace", options.trace,
               "Write the timeline of the last steps to this file, as `takt trace` does; it must "
               "not exist yet")
            ->type_name("FILE.html");
        AddProcessOptions(app, options);
      },
      RunLocally);
  command->footer(
      "The command starts a coordinator and workers, submits the job, shows its steps and stops "
      "everything.\nRelative paths in the job are relative to the job's file. Ctrl-C cancels the "
      "job; "
      "a second one kills it.\nThe exit status is that of the job (0 succeeded, 1 failed or "
      "cancelled, 2 invalid input).\n\n"
      "Examples:\n"
      "  takt init tiny && takt local run tiny.yaml\n"
      "  takt -o json local run job.yaml --set steps=10 | jq .loss\n"
      "  takt local run job.yaml --workers 8 --state /tmp/state\n"
      "  takt local run job.yaml --trace timeline.html");
}

}  // namespace takt::cli
