// SPDX-License-Identifier: Apache-2.0
#include "cli/job/follow.h"

#include <signal.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/base/report.h"
#include "cli/base/signals.h"
#include "cli/job/job_text.h"
#include "cli/job/step_printer.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

// A stream is opened again after this time. This bounds how long a dead connection can look like a
// quiet job.
constexpr absl::Duration kStreamTimeout = absl::Seconds(60);
constexpr absl::Duration kReconnectPause = absl::Milliseconds(250);

// Collects what the streams of one job have said so far.
class Follower {
 public:
  explicit Follower(const FollowOptions& options)
      : options_(options), last_step_(options.after_step) {}

  bool OnEvent(const v1::WatchJobResponse& event) {
    OnAnswer();
    if (event.has_job()) {
      if (event.job().state() != job_.state()) last_sign_ = absl::Now();
      job_ = event.job();
      options_.on_job(job_);
      return true;
    }
    if (event.has_split()) options_.on_split(event.split());
    if (!event.has_step() || event.step().step() <= last_step_) return true;
    last_step_ = event.step().step();
    last_sign_ = absl::Now();
    return options_.on_step(event.step());
  }

  void OnAnswer() {
    if (away_since_.has_value()) options_.say("the coordinator is back");
    away_since_.reset();
  }

  // Returns false when the coordinator has been away for too long.
  bool OnAway() {
    const absl::Time now = absl::Now();
    if (!away_since_.has_value()) {
      away_since_ = now;
      options_.say("the coordinator is away; waiting for it (the job goes on)");
    }
    return now - *away_since_ < options_.patience;
  }

  // Returns how much longer the job may be silent.
  absl::Duration Left() const { return options_.longest_silence - (absl::Now() - last_sign_); }
  std::int64_t last_step() const { return last_step_; }
  const v1::Job& job() const { return job_; }

 private:
  const FollowOptions& options_;
  std::int64_t last_step_;
  absl::Time last_sign_ = absl::Now();  // the last step or change of state
  v1::Job job_;
  std::optional<absl::Time> away_since_;
};

}  // namespace

absl::StatusOr<v1::Job> FollowJob(Client& client, Client::StreamStop& stop,
                                  const FollowOptions& options) {
  Follower follower(options);
  while (true) {
    const absl::Duration left = follower.Left();
    if (left <= absl::ZeroDuration())
      return absl::DeadlineExceededError(
          absl::StrCat(options.job, " has reported no step in time"));
    const absl::Status status =
        client.WatchJob(options.job, follower.last_step(), std::min(kStreamTimeout, left), stop,
                        [&](const v1::WatchJobResponse& event) { return follower.OnEvent(event); });
    if (stop.stopped()) return absl::CancelledError("stopped watching");
    if (status.ok() && HasEnded(follower.job().state())) return follower.job();
    if (absl::IsUnavailable(status)) {
      if (!follower.OnAway()) return status;
      absl::SleepFor(kReconnectPause);
    } else if (!status.ok() && !absl::IsDeadlineExceeded(status)) {
      return status;
    } else if (status.ok()) {
      absl::SleepFor(kReconnectPause);  // the coordinator closed it early: it is stopping
    }
  }
}

absl::StatusOr<v1::Job> FollowUntilInterrupted(Client& client, const FollowOptions& options) {
  Client::StreamStop stop;
  return FollowUntilInterrupted(client, stop, options);
}

absl::StatusOr<v1::Job> FollowUntilInterrupted(Client& client, Client::StreamStop& stop,
                                               const FollowOptions& options) {
  const SignalThread signals({SIGINT, SIGTERM}, [&](int) { stop.Stop(); });
  absl::StatusOr<v1::Job> job = FollowJob(client, stop, options);
  if (!job.ok() && stop.stopped()) {
    return absl::UnknownError(absl::StrCat("no longer watching; ", options.job,
                                           " goes on (takt watch ", options.job,
                                           " looks again, takt cancel ", options.job, " ends it)"));
  }
  return job;
}

absl::StatusOr<ExitCode> WatchUntilEnd(const Context& context, Client& client,
                                       const std::string& name, std::int64_t after_step) {
  StepPrinter printer(context, Clock::Real());
  const FollowOptions options = {
      .job = name,
      .after_step = after_step,
      .on_job = [&](const v1::Job& job) { printer.OnJob(job); },
      .on_step = [&](const v1::StepReport& step) { return printer.OnStep(step); },
      .say = [&](std::string_view line) { printer.Say(line); }};
  const absl::StatusOr<v1::Job> job = FollowUntilInterrupted(client, options);
  if (!job.ok() && !context.terminal.out.good())
    return ExitCode::kDone;  // the reader closed stdout
  if (!job.ok()) return job.status();
  printer.OnEnd(*job);
  if (context.json()) RETURN_IF_ERROR(ErrorOf(*job));
  return VerdictOf(*job);
}

absl::StatusOr<ExitCode> WaitUntilEnd(const Context& context, Client& client,
                                      const std::string& name) {
  bool paused = false;
  const auto on_job = [&](const v1::Job& job) {
    const bool pauses = job.state() == v1::JOB_STATE_PAUSED;
    if (pauses && !paused) {
      Say(context, absl::StrCat(name, " is PAUSED; waiting on (takt resume ", name,
                                " lets it go on, takt cancel ", name, " ends it)"));
    }
    paused = pauses;
  };
  ASSIGN_OR_RETURN(
      const v1::Job job,
      FollowUntilInterrupted(
          client, {.job = name, .on_job = on_job, .say = [&](auto line) { Say(context, line); }}));
  PrintJob(context, job);
  return VerdictOf(job);
}

}  // namespace takt::cli
