// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/history.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tests/testing/cluster.h"

namespace takt::testing {
namespace {

constexpr std::array kCommandNames = {"submit", "pause", "resume", "cancel", "delete"};

}  // namespace

void History::Acknowledged(Command command, const std::string& job) {
  Note(kCommandNames[static_cast<std::size_t>(command)], job);
  if (command == Command::kSubmit) {
    jobs_[job] = {};
    return;
  }
  if (command == Command::kDelete) {
    jobs_.erase(job);
    return;
  }
  JobModel& model = jobs_[job];
  if (command == Command::kPause) model.wish = Wish::kPause;
  if (command == Command::kResume) model.wish = Wish::kRun;
  if (command == Command::kCancel) model.wish = Wish::kCancel;
  model.was_to_pause = model.was_to_pause || command == Command::kPause;
}

void History::AcknowledgedDrained(const std::string& worker, bool drained) {
  Note(drained ? "drain" : "undrain", worker);
  drained_[worker] = drained;
}

void History::Saw(const v1::Job& job) {
  const auto found = jobs_.find(job.name());
  if (found == jobs_.end()) return;
  JobModel& model = found->second;
  const std::string& name = job.name();
  if (!model.id.empty() && job.id() != model.id) Violation(name, "its id changed");
  model.id = job.id();
  if (job.generation() < model.generation)
    Violation(name, absl::StrCat("generation ", model.generation, " was shown, and now ",
                                 job.generation()));
  if (job.checkpoint().step() < model.checkpoint)
    Violation(name, absl::StrCat("the checkpoint of step ", model.checkpoint,
                                 " was shown, and now that of ", job.checkpoint().step()));
  model.generation = std::max(model.generation, job.generation());
  model.checkpoint = std::max(model.checkpoint, job.checkpoint().step());

  const std::int64_t newest = model.losses.empty() ? 0 : model.losses.rbegin()->first;
  if (job.last_step().step() < newest)
    Violation(name, absl::StrCat("step ", newest, " was shown, and now ", job.last_step().step()));
  if (job.last_step().step() > 0) SawLoss(name, model, job.last_step());

  if (model.end && *model.end != job.state())
    Violation(name, absl::StrCat("it had ended as ", v1::JobState_Name(*model.end), " and is ",
                                 v1::JobState_Name(job.state())));
  if (HasEnded(job)) model.end = job.state();
  if (job.state() == v1::JOB_STATE_PAUSED && !model.was_to_pause)
    Violation(name, "it is paused, and nobody asked for it");
  if (job.state() == v1::JOB_STATE_CANCELLED && model.wish != Wish::kCancel)
    Violation(name, "it is cancelled, and nobody asked for it");
}

void History::Saw(const v1::Worker& worker) {
  const auto wished = drained_.find(worker.name());
  if (wished == drained_.end() || wished->second == worker.drained()) return;
  Violation(worker.name(), worker.drained() ? "it is drained again" : "it is no longer drained");
}

void History::SawSteps(const std::string& job, const std::vector<v1::StepReport>& steps) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  JobModel& model = found->second;
  const std::int64_t newest = model.losses.empty() ? 0 : model.losses.rbegin()->first;
  std::int64_t next = 1;
  for (const v1::StepReport& step : steps) {
    if (step.step() != next)
      Violation(job, absl::StrCat("its log has step ", step.step(), " in place of ", next));
    next = step.step() + 1;
    SawLoss(job, model, step);
  }
  if (next <= newest)
    Violation(job, absl::StrCat("step ", newest, " was shown, and its log ends at ", next - 1));
}

void History::SawAtRest(const v1::Job& job) {
  Saw(job);
  const auto found = jobs_.find(job.name());
  if (found == jobs_.end() || HasEnded(job)) return;
  const bool paused = job.state() == v1::JOB_STATE_PAUSED;
  switch (found->second.wish) {
    case Wish::kRun:
      if (paused) Violation(job.name(), "it is paused, and was to run");
      break;
    case Wish::kPause:
      if (!paused)
        Violation(job.name(),
                  absl::StrCat("it was to pause, and is ", v1::JobState_Name(job.state())));
      break;
    case Wish::kCancel:
      Violation(job.name(),
                absl::StrCat("it was to be cancelled, and is ", v1::JobState_Name(job.state())));
      break;
  }
}

std::vector<std::string> History::JobNames() const {
  std::vector<std::string> names;
  for (const auto& [name, model] : jobs_) names.push_back(name);
  return names;
}

std::string History::ToString() const { return absl::StrJoin(commands_, "\n"); }

void History::Note(std::string_view what, const std::string& of) {
  commands_.push_back(absl::StrFormat("%.3f s: %s %s", absl::ToDoubleSeconds(absl::Now() - begin_),
                                      std::string(what), of));
}

void History::Violation(const std::string& of, std::string_view rule) {
  violations_.push_back(absl::StrFormat(
      "%.3f s: %s: %s", absl::ToDoubleSeconds(absl::Now() - begin_), of, std::string(rule)));
}

void History::SawLoss(const std::string& name, JobModel& model, const v1::StepReport& step) {
  const auto [shown, is_new] = model.losses.try_emplace(step.step(), step.loss());
  const auto bits = [](double loss) { return std::bit_cast<std::uint64_t>(loss); };
  if (is_new || bits(shown->second) == bits(step.loss())) return;
  Violation(name, absl::StrCat("step ", step.step(), " was shown with loss ", shown->second,
                               ", and now with ", step.loss()));
}

}  // namespace takt::testing
