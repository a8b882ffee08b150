// SPDX-License-Identifier: Apache-2.0
#include "cli/job/live_watch.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cli/client/connect.h"
#include "cli/job/follow.h"
#include "cli/job/step_printer.h"
#include "cli/job/watch_view.h"
#include "cli/terminal/live_screen.h"
#include "common/base/clock.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

// Draws at least this often, since the window may have changed although the job did not.
constexpr absl::Duration kRedraw = absl::Milliseconds(250);
constexpr absl::Duration kAskWorkers = absl::Seconds(2);
constexpr double kAskSeconds = 1;

bool SpeaksUtf8(const Context& context) {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string value = context.environment(name).value_or("");
    if (value.empty()) continue;
    const std::string lower = absl::AsciiStrToLower(value);
    return absl::StrContains(lower, "utf-8") || absl::StrContains(lower, "utf8");
  }
  return false;
}

// Draws, and asks for the workers, on threads of its own until it is destroyed. The thread that
// follows the job passes the events.
class LiveWatch {
 public:
  // Borrows both. It asks `client` for the workers, and uses `stop` when the terminal is gone.
  LiveWatch(const Context& context, Client& client, Client::StreamStop& stop, const v1::Job& job)
      : client_(client),
        stop_(stop),
        unicode_(SpeaksUtf8(context)),
        color_(context.environment("NO_COLOR").value_or("").empty()),
        screen_(STDOUT_FILENO),
        state_{.job = job},
        drawing_([this] { DrawUntilEnd(); }),
        asking_([this] { AskUntilEnd(); }) {}

  ~LiveWatch() {
    {
      absl::MutexLock lock(&mutex_);
      ended_ = true;
    }
    drawing_.join();
    asking_.join();
  }

  void OnJob(const v1::Job& job) {
    absl::MutexLock lock(&mutex_);
    state_.job = job;
    state_.notice.clear();
  }
  void OnStep(const v1::StepReport& step) {
    absl::MutexLock lock(&mutex_);
    state_.TakeStep(step);
    state_.notice.clear();
  }
  void OnSplit(const v1::StepSplit& split) {
    absl::MutexLock lock(&mutex_);
    state_.split = split;
  }
  void Say(std::string_view line) {
    absl::MutexLock lock(&mutex_);
    state_.notice = std::string(line);
  }
  // "step 31/40  loss ..."; empty before the first step.
  std::string LastLine() const {
    absl::MutexLock lock(&mutex_);
    return state_.step ? StepLine(*state_.step, state_.job.steps()) + "\n" : "";
  }

 private:
  // Returns false when the watching is over.
  bool Sleep(absl::Duration duration) {
    absl::MutexLock lock(&mutex_);
    return !mutex_.AwaitWithTimeout(absl::Condition(&ended_), duration);
  }

  void DrawUntilEnd() {
    do {
      const LiveScreen::Size size = screen_.size();
      std::vector<std::string> lines;
      {
        absl::MutexLock lock(&mutex_);
        lines = RenderWatch(
            state_,
            {.columns = size.columns, .rows = size.rows, .unicode = unicode_, .color = color_});
      }
      if (screen_.Draw(std::move(lines), size)) continue;
      stop_.Stop();
      return;
    } while (Sleep(kRedraw));
  }

  // Without an answer the view shows no states of workers.
  void AskUntilEnd() {
    do {
      absl::StatusOr<std::vector<v1::Worker>> workers = client_.ListWorkers();
      absl::MutexLock lock(&mutex_);
      state_.workers = workers.ok() ? *std::move(workers) : std::vector<v1::Worker>();
    } while (Sleep(kAskWorkers));
  }

  Client& client_;
  Client::StreamStop& stop_;
  const bool unicode_, color_;
  LiveScreen screen_;
  mutable absl::Mutex mutex_;
  WatchState state_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread drawing_, asking_;  // declared last because they use everything above
};

}  // namespace

bool CanWatchLive(const Context& context) {
  const std::string term = context.environment("TERM").value_or("dumb");
  return context.terminal.out_is_tty && !context.json() && term != "dumb" && !term.empty();
}

absl::StatusOr<ExitCode> WatchLive(const Context& context, Client& client, const std::string& name,
                                   std::int64_t after_step) {
  // If there is no such job, or no coordinator, no screen is needed.
  ASSIGN_OR_RETURN(const v1::Job first, client.GetJob(name));
  // After Ctrl-C this waits for the request that is under way.
  Context brief = context;
  brief.timeout_seconds = std::min(context.timeout_seconds, kAskSeconds);
  ASSIGN_OR_RETURN(const auto asking, ConnectToCoordinator(brief));
  std::string last_line;
  absl::StatusOr<v1::Job> job = [&] {
    Client::StreamStop stop;
    LiveWatch watch(context, *asking, stop, first);
    const FollowOptions options = {
        .job = name,
        .after_step = after_step,
        .on_job = [&](const v1::Job& now) { watch.OnJob(now); },
        .on_step =
            [&](const v1::StepReport& step) {
              watch.OnStep(step);
              return true;
            },
        .on_split = [&](const v1::StepSplit& split) { watch.OnSplit(split); },
        .say = [&](std::string_view line) { watch.Say(line); }};
    absl::StatusOr<v1::Job> followed = FollowUntilInterrupted(client, stop, options);
    last_line = watch.LastLine();
    return followed;
  }();
  context.terminal.out << last_line << std::flush;
  RETURN_IF_ERROR(job.status());
  StepPrinter(context, Clock::Real()).OnEnd(*job);
  return VerdictOf(*job);
}

}  // namespace takt::cli
