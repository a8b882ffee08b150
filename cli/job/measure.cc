// SPDX-License-Identifier: Apache-2.0
#include "cli/job/measure.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/base/exit_code.h"
#include "cli/base/text.h"
#include "cli/job/follow.h"
#include "common/base/status.h"
#include "common/config/job_spec_serde.h"
#include "common/model/model.h"
#include "common/profile/probe.h"

namespace takt::cli {
namespace {

constexpr absl::Duration kCancelPatience = absl::Seconds(10);
// Traces come after everything that a job waits for. The coordinator has learned from all of them
// when it has learned nothing more for a while.
constexpr absl::Duration kLearnPatience = absl::Seconds(10);
constexpr absl::Duration kLearnQuiet = absl::Milliseconds(1500);
constexpr absl::Duration kPollInterval = absl::Milliseconds(100);

// These values are what a short job measures.
struct Wanted {
  std::set<profile::LayerShape> layers;
  std::optional<int> message_log2_bytes;
};

std::string ProbeName(const std::string& job, std::string_view end) {
  const std::string begin = absl::StrCat("profile-", job);
  return absl::StrCat(begin.substr(0, config::kLongestJobName - 1 - end.size()), "-",
                      std::string(end));
}

// Returns the values that the profile has of what is wanted. They change when it learns.
std::vector<double> ValuesOf(const profile::Profile& profile, const Wanted& wanted) {
  std::vector<double> values;
  for (const auto& [key, sample] : profile.layers()) {
    if (!wanted.layers.contains(key.first)) continue;
    const profile::Passes& seconds = sample.seconds;
    values.insert(values.end(), {seconds.forward, seconds.input_grad, seconds.weight_grad});
  }
  for (const auto& [key, sample] : profile.messages()) {
    if (key.log2_bytes == wanted.message_log2_bytes) values.push_back(sample.seconds);
  }
  return values;
}

// Returns whether the job waits for workers: then its reason says for which.
bool WaitsForWorkers(const v1::Job& job) {
  if (job.state() != v1::JOB_STATE_QUEUED || job.reason().empty()) return false;
  const int last = job.transitions_size() - 1;
  return last < 0 || job.transitions(last).reason() != job.reason();
}

// Returns whether a job does nothing but measure, like this one: then it may be deleted.
bool IsSuchProbe(const v1::JobSpec& job, const config::JobSpec& probe) {
  const v1::JobSpec mine = config::ToProto(probe);
  return job.model().family() == mine.model().family() && !job.has_checkpoint() &&
         job.parallelism().schedule() == mine.parallelism().schedule() &&
         job.parallelism().chunks() == mine.parallelism().chunks();
}

// Returns what is wrong with a job that ended, with its name unless the user's file is wrong.
absl::Status BlameOf(const v1::Job& job) {
  const absl::Status status = ErrorOf(job);
  if (status.ok() || absl::IsInvalidArgument(status)) return status;
  return {status.code(), absl::StrCat(job.name(), ": ", status.message())};
}

// Runs short jobs one after the other.
class Prober {
 public:
  Prober(Client& client, Client::StreamStop& stop, const MeasureOptions& options)
      : client_(client), stop_(stop), options_(options) {}

  // Reads what the coordinator knows before. It has listed its workers for the same caller, so only
  // one that does not know this request refuses it.
  absl::Status Begin() {
    const absl::Status status = Ask();
    if (!absl::IsUnimplemented(status) && !absl::IsPermissionDenied(status)) return status;
    return absl::FailedPreconditionError(
        "the coordinator keeps no profiles: it is older than this command; upgrade it");
  }

  // Runs the job, waits until the coordinator has learned from it, and deletes it.
  absl::Status Run(config::JobSpec job, std::string_view end, const Wanted& wanted) {
    job.name = ProbeName(options_.job.name, end);
    if (stop_.stopped()) return absl::CancelledError("interrupted");
    RETURN_IF_ERROR(MakeWayFor(job));
    options_.say(absl::StrCat("measuring: ", job.name));
    RETURN_IF_ERROR(client_.SubmitJob(config::ToProto(job), /*validate_only=*/false).status());
    absl::Status status = Follow(job.name);
    if (status.ok()) status = AwaitLearning(job.name, wanted);
    const absl::Status deleted = client_.DeleteJob(job.name);
    if (!status.ok()) return WithWhatIsDone(status);
    done_.push_back(job.name);
    return deleted;
  }

  // Returns what the coordinator knew after the last job.
  profile::Profile TakeProfile() { return std::move(known_); }

 private:
  absl::Status Ask() {
    ASSIGN_OR_RETURN(known_, client_.GetProfile());
    return absl::OkStatus();
  }

  // Adds which jobs were done before the one that failed. What is wrong with the user's file stays
  // as it is.
  absl::Status WithWhatIsDone(const absl::Status& status) const {
    if (done_.empty() || absl::IsInvalidArgument(status)) return status;
    return {status.code(),
            absl::StrCat(status.message(), "; measured before it: ", absl::StrJoin(done_, ", "))};
  }

  // Deletes the job of this name that an earlier command left.
  absl::Status MakeWayFor(const config::JobSpec& probe) {
    const std::string& name = probe.name;
    const absl::StatusOr<v1::Job> earlier = client_.GetJob(name);
    if (absl::IsNotFound(earlier.status())) return absl::OkStatus();
    RETURN_IF_ERROR(earlier.status());
    if (!IsSuchProbe(earlier->spec(), probe)) {
      return absl::FailedPreconditionError(
          absl::StrCat("a job with the name ", name,
                       " is there already, and it was not made by takt profile: delete it (takt "
                       "delete ",
                       name, "), or give the job to measure another name"));
    }
    if (HasEnded(earlier->state())) return client_.DeleteJob(name);
    return absl::FailedPreconditionError(absl::StrCat(
        name, " is there already: is this job being measured by another command? takt cancel ",
        name, " ends it"));
  }

  absl::Status Follow(const std::string& name) {
    std::string waits_for;
    const auto on_job = [&](const v1::Job& job) {
      const std::string before = std::exchange(waits_for, WaitsForWorkers(job) ? job.reason() : "");
      if (!waits_for.empty() && waits_for != before)
        options_.say(absl::StrCat(name, " waits: ", OneLine(waits_for)));
    };
    const absl::StatusOr<v1::Job> job = FollowJob(
        client_, stop_,
        {.job = name, .longest_silence = options_.patience, .on_job = on_job, .say = options_.say});
    if (job.ok()) return BlameOf(*job);
    const bool late = absl::IsDeadlineExceeded(job.status());
    if (!stop_.stopped() && !late) return job.status();
    Cancel(name);
    if (!late) return absl::CancelledError(absl::StrCat("interrupted; ", name, " is cancelled"));
    return absl::AbortedError(
        absl::StrCat(name, " has trained no step for ", absl::FormatDuration(options_.patience),
                     waits_for.empty() ? "" : ", as it waits: ", waits_for, "; it is cancelled"));
  }

  // Cancels the job and waits for its end, so that it can be deleted. Steps that it still makes do
  // not prolong the wait.
  void Cancel(const std::string& name) {
    if (!client_.CancelJob(name).ok()) return;  // it has ended meanwhile
    Client::StreamStop never;
    FollowJob(client_, never,
              {.job = name,
               .after_step = std::numeric_limits<std::int64_t>::max(),
               .longest_silence = kCancelPatience})
        .IgnoreError();
  }

  absl::Status AwaitLearning(const std::string& name, const Wanted& wanted) {
    // Short jobs, as tests have them, are learned from in a shorter time.
    const absl::Duration quiet = std::min(kLearnQuiet, absl::Seconds(options_.seconds));
    const absl::Time deadline = absl::Now() + kLearnPatience;
    std::vector<double> values = ValuesOf(known_, wanted);
    std::optional<absl::Time> changed;
    while (true) {
      RETURN_IF_ERROR(Ask());
      std::vector<double> now = ValuesOf(known_, wanted);
      if (now != values) changed = absl::Now();
      values = std::move(now);
      if (changed && absl::Now() - *changed >= quiet) return absl::OkStatus();
      if (stop_.stopped()) return absl::CancelledError("interrupted");
      if (absl::Now() > deadline) break;
      absl::SleepFor(kPollInterval);
    }
    if (!changed) options_.say(absl::StrCat("the coordinator has learned nothing from ", name));
    return absl::OkStatus();
  }

  Client& client_;
  Client::StreamStop& stop_;
  const MeasureOptions& options_;
  profile::Profile known_;
  std::vector<std::string> done_;  // jobs
};

// Returns the sizes of microbatches that are measured. Where a plan chooses the size, these are one
// sequence and some. Other sizes are interpolated from them. A short job has four microbatches on
// each rank, so that with four ranks it reads no more of the data at once than the job does.
std::vector<int> MicrobatchesOf(const config::JobSpec& job) {
  if (!job.microbatch_auto) return {job.microbatch};
  constexpr int kSome = 8, kInAll = 16;
  int some = std::clamp(job.global_batch / kInAll, 1, kSome);
  while (job.global_batch % some != 0) --some;
  if (some == 1) return {1};
  return {1, some};
}

// Returns the model of whole layers, of which short jobs are (profile::ProbeJob). What a rank takes
// for its share of a layer, or of a sequence, follows from the whole one.
model::Model ModelOf(config::JobSpec job, int microbatch, config::DeviceKind device) {
  job.parallelism.tensor = 1;
  job.parallelism.tensor_leaves = 0;
  job.parallelism.expert = 1;
  job.parallelism.context = 1;
  absl::StatusOr<model::Model> model = config::BuildModelOf(job, microbatch, device);
  TAKT_CHECK(model.ok());  // the job was validated
  return *std::move(model);
}

// Returns with how many ranks messages are measured; below 2: the job has none. There is one
// more than a host has workers, so that some messages go to another host.
int RanksForMessages(const config::JobSpec& job, const plan::PlanOptions& workers) {
  if (workers.device == config::DeviceKind::kCuda) return 1;  // emulated layers use no GPU
  const int ranks = job.LeavesSizeOpen() ? workers.max_workers : *job.MostWorkers();
  return std::min({ranks, workers.max_workers, workers.host.workers + 1});
}

}  // namespace

std::vector<JobLayer> LayersOf(const config::JobSpec& job, config::DeviceKind device) {
  std::vector<model::Recompute> modes = job.parallelism.recompute;
  if (modes.empty()) modes = {model::Recompute::kNone};
  std::vector<JobLayer> layers;
  for (const int microbatch : MicrobatchesOf(job)) {
    const model::Model model = ModelOf(job, microbatch, device);
    for (const model::Layer& layer : model.layers) {
      for (const model::Recompute mode : modes) {
        const profile::LayerShape shape = profile::ShapeOf(model, layer, mode);
        if (std::ranges::find(layers, shape, &JobLayer::shape) == layers.end())
          layers.push_back({.shape = shape, .work = profile::WorkOf(layer, mode)});
      }
    }
  }
  return layers;
}

bool NeedsMeasuring(const config::JobSpec& job, const plan::PlanOptions& workers) {
  if (job.model.family == model::Family::kEmulated || workers.host.machine.empty()) return false;
  std::set<profile::LayerShape> measured;
  if (workers.profile != nullptr) {
    for (const auto& [key, sample] : workers.profile->layers()) {
      if (key.second.machine == workers.host.machine) measured.insert(key.first);
    }
  }
  config::JobSpec first = job;  // a short job measures the first way to recompute that is named
  if (!first.parallelism.recompute.empty()) first.parallelism.recompute.resize(1);
  return std::ranges::any_of(LayersOf(first, workers.device), [&](const JobLayer& layer) {
    return !measured.contains(layer.shape);
  });
}

std::vector<profile::Conditions> ConditionsOf(const config::JobSpec& job,
                                              const plan::PlanOptions& workers) {
  std::vector<profile::Conditions> all;
  const auto add = [&](int num_ranks) {
    profile::Conditions conditions =
        workers.host.ConditionsOf(num_ranks, job.parallelism.threads, workers.device);
    if (std::ranges::find(all, conditions) == all.end()) all.push_back(std::move(conditions));
  };
  const int most = std::min(workers.host.workers, workers.max_workers);  // some take no work
  const int least = std::min(job.LeastPipeline() * job.LeastData(), most);
  if (!job.LeavesSizeOpen()) {
    add(least);
    return all;
  }
  for (int ranks = least; ranks < most; ranks *= 2) add(ranks);
  add(most);
  return all;
}

absl::StatusOr<profile::Profile> Measure(Client& client, Client::StreamStop& stop,
                                         const MeasureOptions& options) {
  const config::JobSpec& job = options.job;
  const config::DeviceKind device = options.workers.device;
  Prober prober(client, stop, options);
  RETURN_IF_ERROR(prober.Begin());
  Wanted layers;
  for (const JobLayer& layer : LayersOf(job, device)) layers.layers.insert(layer.shape);
  const std::vector<int> microbatches = MicrobatchesOf(job);
  for (const profile::Conditions& conditions : ConditionsOf(job, options.workers)) {
    const int ranks = conditions.ranks_per_host;
    for (const int microbatch : microbatches) {
      config::JobSpec sized = job;
      sized.microbatch = microbatch;
      const config::JobSpec probe =
          profile::ProbeJob(sized, {.num_ranks = ranks,
                                    .target_seconds = options.seconds,
                                    .flops_per_second = options.workers.matmul_flops_per_second});
      const std::string size = job.microbatch_auto ? absl::StrCat("-of-", microbatch) : "";
      RETURN_IF_ERROR(prober.Run(probe, absl::StrCat(ranks, size), layers));
    }
  }
  if (const int ranks = RanksForMessages(job, options.workers); ranks >= 2) {
    const model::Model model = ModelOf(job, microbatches.front(), device);
    const std::int64_t bytes = model.layers.front().cost.output_bytes;
    const profile::MessageKey key = profile::KeyOfMessage(/*same_host=*/true, bytes);
    RETURN_IF_ERROR(prober.Run(profile::MessageProbeJob(job, ranks, bytes), "messages",
                               {.message_log2_bytes = key.log2_bytes}));
  }
  return prober.TakeProfile();
}

}  // namespace takt::cli
