// SPDX-License-Identifier: Apache-2.0
#include "cli/ui/sources.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/base/message_json.h"
#include "cli/job/follow.h"
#include "cli/ui/cluster_json.h"
#include "cli/ui/pace.h"
#include "cli/ui/seen_lines.h"
#include "common/base/status.h"
#include "common/trace/overview.h"

namespace takt::cli {
namespace {

constexpr absl::Duration kClusterPause = absl::Seconds(1);
constexpr absl::Duration kTimelinePause = absl::Milliseconds(400);
// A timeline whose newest step stays the same is read less and less often, down to this.
constexpr absl::Duration kLongestTimelinePause = absl::Seconds(4);
constexpr absl::Duration kRetryPause = absl::Seconds(1);
// After an answer that will hardly change: there is no such job, or the caller may not see it.
constexpr absl::Duration kRefusedPause = absl::Seconds(10);
// A job has ended. Another one of its name may be submitted.
constexpr absl::Duration kEndedPause = absl::Seconds(2);
constexpr absl::Duration kLogTimeout = absl::Hours(24);
// The page lists so many of the newest jobs.
constexpr std::size_t kMostJobs = 300;
// The newest steps that curves begin with. The hub keeps as many.
constexpr std::int64_t kMostSteps = 20'000;
// The overview of a timeline has so many letters, for all ranks together.
constexpr int kOverviewLetters = 96'000, kFewestBins = 96, kMostBins = 480;

// Returns what the page draws of a step, in this order: step, loss, gradient norm, learning rate,
// tokens/s, seconds, bubble, validation loss or null, bubbles by pp rank.
Json StepValues(const v1::StepReport& step) {
  Json bubbles = Json::array();
  for (const double bubble : step.bubble_by_pp_rank()) bubbles.push_back(bubble);
  return Json::array({step.step(), step.loss(), step.grad_norm(), step.learning_rate(),
                      step.tokens_per_second(), step.step_seconds(), step.bubble_fraction(),
                      step.has_validation_loss() ? Json(step.validation_loss()) : Json(nullptr),
                      std::move(bubbles)});
}

}  // namespace

std::optional<ViewName> ParseView(std::string_view view) {
  if (view == "cluster") return ViewName{.what = "cluster"};
  const std::size_t colon = view.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  ViewName name = {.what = std::string(view.substr(0, colon)),
                   .job = std::string(view.substr(colon + 1))};
  const bool known = name.what == "job" || name.what == "timeline" || name.what == "logs";
  // The coordinator decides which names are names of jobs.
  if (!known || name.job.empty() || name.job.size() > 256) return std::nullopt;
  return name;
}

void Sources::Follow(const std::string& view, const std::stop_token& stop) {
  const std::optional<ViewName> name = ParseView(view);
  if (!name.has_value()) return;
  if (name->what == "cluster") FollowCluster(view, stop);
  if (name->what == "job") FollowSteps(view, name->job, stop);
  if (name->what == "timeline") FollowTimeline(view, name->job, stop);
  if (name->what == "logs") FollowLogs(view, name->job, stop);
  hub_.Forget(view);
}

void Sources::SetProblem(const std::string& view, const absl::Status& status) {
  Json problem;  // null
  if (!status.ok()) problem["text"] = std::string(status.message());
  hub_.Set(view, "problem", Dump(problem));
}

absl::Status Sources::UpdateCluster(const std::string& view) {
  ASSIGN_OR_RETURN(const std::vector<v1::Worker> workers, client_.ListWorkers());
  ASSIGN_OR_RETURN(const std::vector<v1::Job> jobs, client_.ListJobs(kMostJobs));
  ASSIGN_OR_RETURN(const std::vector<v1::HeldJob> held, client_.ListHeldJobs());
  hub_.Set(view, "workers", Dump(WorkersJson(workers)));
  hub_.Set(view, "jobs", Dump(JobsJson(jobs)));
  hub_.Set(view, "held", Dump(HeldJobsJson(held)));
  return absl::OkStatus();
}

void Sources::FollowCluster(const std::string& view, const std::stop_token& stop) {
  absl::Duration used = absl::ZeroDuration();
  do {
    const absl::Duration begin = ProcessorTime();
    SetProblem(view, UpdateCluster(view));
    used = ProcessorTime() - begin;
  } while (Pause(stop, PauseAfter(used, kClusterPause)));
}

bool Sources::AwaitNextJob(const std::string& job, const std::string& id,
                           const std::stop_token& stop) {
  while (Pause(stop, kEndedPause)) {
    const absl::StatusOr<v1::Job> now = client_.GetJob(job);
    if (now.ok() && now->id() != id) return true;
  }
  return false;
}

absl::StatusOr<std::string> Sources::WatchSteps(const std::string& view, const std::string& job,
                                                Client::StreamStop& stop) {
  ASSIGN_OR_RETURN(const v1::Job now, client_.GetJob(job));
  SetProblem(view, absl::OkStatus());
  const FollowOptions options = {
      .job = job,
      .after_step = std::max<std::int64_t>(0, now.last_step().step() - kMostSteps),
      .patience = absl::InfiniteDuration(),
      .on_job =
          [&](const v1::Job& changed) {
            SetProblem(view, absl::OkStatus());
            hub_.Set(view, "job", Dump(ToJson(changed)));
          },
      .on_step =
          [&](const v1::StepReport& step) {
            hub_.Append(view, "steps", Dump(StepValues(step)));
            return true;
          },
      .on_split = [&](const v1::StepSplit& split) { hub_.Set(view, "split", Dump(ToJson(split))); },
      .say =
          [&](std::string_view line) {
            SetProblem(view, absl::UnavailableError(absl::string_view(line.data(), line.size())));
          }};
  ASSIGN_OR_RETURN(const v1::Job ended, FollowJob(client_, stop, options));
  return ended.id();
}

void Sources::FollowSteps(const std::string& view, const std::string& job,
                          const std::stop_token& stop) {
  Client::StreamStop stream;
  const std::stop_callback end(stop, [&] { stream.Stop(); });
  while (!stop.stop_requested()) {
    const absl::StatusOr<std::string> ended = WatchSteps(view, job, stream);
    if (stop.stop_requested()) return;
    if (ended.ok()) {
      if (!AwaitNextJob(job, *ended, stop)) return;
    } else {
      SetProblem(view, ended.status());
      if (!Pause(stop, absl::IsUnavailable(ended.status()) ? kRetryPause : kRefusedPause)) return;
    }
    hub_.Forget(view);  // the next watch begins with the first step again
    SetProblem(view, ended.status());
  }
}

void Sources::FollowTimeline(const std::string& view, const std::string& job,
                             const std::stop_token& stop) {
  std::shared_ptr<const Timelines::Loaded> shown;
  absl::Duration shortest = kTimelinePause, used = absl::ZeroDuration();
  do {
    const absl::Duration begin = ProcessorTime();
    const auto newest = timelines_.ReadNewest(job);
    SetProblem(view, newest.status());
    if (newest.ok() && *newest != shown) {
      shown = *newest;
      const int num_bins =
          std::clamp(kOverviewLetters / shown->trace.num_ranks(), kFewestBins, kMostBins);
      hub_.Set(view, "overview", trace::OverviewData(shown->timeline, num_bins));
      shortest = kTimelinePause;
    } else {
      shortest = std::min(2 * shortest, kLongestTimelinePause);
    }
    used = ProcessorTime() - begin;
  } while (Pause(stop, PauseAfter(used, shortest)));
}

void Sources::FollowLogs(const std::string& view, const std::string& job,
                         const std::stop_token& stop) {
  Client::StreamStop stream;
  const std::stop_callback end(stop, [&] { stream.Stop(); });
  v1::GetJobLogsRequest request;
  request.set_name(job);
  request.set_follow(true);
  // Another stream begins with the oldest line that the coordinator still keeps.
  std::optional<SeenLines> seen(std::in_place);
  while (!stop.stop_requested()) {
    bool has_begun = false;
    const absl::StatusOr<v1::Job> now = client_.GetJob(job);
    const absl::Status status =
        !now.ok() ? now.status()
                  : client_.GetJobLogs(request, kLogTimeout, stream, [&](const v1::LogLine& line) {
                      if (!std::exchange(has_begun, true)) SetProblem(view, absl::OkStatus());
                      std::string text = Dump(ToJson(line));
                      if (seen->IsNew(text)) hub_.Append(view, "lines", std::move(text));
                      return true;
                    });
    if (stop.stop_requested()) return;
    SetProblem(view, status);
    if (status.ok()) {
      if (!AwaitNextJob(job, now->id(), stop)) return;
      hub_.Forget(view);
      seen.emplace();
    } else if (!Pause(stop, absl::IsUnavailable(status) ? kRetryPause : kRefusedPause)) {
      return;
    }
  }
}

}  // namespace takt::cli
