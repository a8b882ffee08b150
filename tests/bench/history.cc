// SPDX-License-Identifier: Apache-2.0
// Measures a coordinator that remembers many ended jobs and one job of many steps: how long its
// state takes to write and to load, what clients wait for, and how it forgets.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "coordinator/store/sqlite_store.h"
#include "takt/v1/job_service.grpc.pb.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/process_usage.h"
#include "tests/bench/table.h"
#include "tests/testing/cluster.h"
#include "tests/testing/emulated_spec.h"

namespace takt::bench::history_command {
namespace {

using testing::Cluster;

constexpr char kState[] = "full", kLong[] = "long";
constexpr std::int64_t kJobsAtOnce = 1000, kStepsAtOnce = 10'000;  // in a commit
constexpr absl::Duration kPatience = absl::Minutes(30), kIdle = absl::Seconds(5);
// A client's call may take so long, and one of the last pages so many times as long as a first one.
constexpr double kMostCallSeconds = 1, kMostPageRatio = 2;

struct Options : CommonOptions {
  std::int64_t jobs = 100'000, steps = 10'000'000;
  int page = 100;
  std::int64_t kept = 1000;
};

double SecondsSince(absl::Time start) { return absl::ToDoubleSeconds(absl::Now() - start); }

double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

store::StepRecord StepOf(const std::string& job, StepId step, absl::Time time) {
  return {.job_id = job,
          .generation = Generation(1),
          .step = step,
          .loss = 2.5,
          .grad_norm = 1.25,
          .learning_rate = 3e-4,
          .tokens = 4096,
          .step_seconds = 0.25,
          .bubble_by_pp_rank = {0.1, 0.1},
          .bubble_fraction = 0.1,
          .schedule = "1f1b",
          .time = time};
}

store::JobRecord EndedJob(std::int64_t number, const std::string& name, absl::Time end) {
  store::JobRecord job{.number = number,
                       .id = absl::StrFormat("%016x", number),
                       .name = name,
                       .spec = testing::EmulatedSpec(name, 2, 100).SerializeAsString(),
                       .state = store::JobState::kSucceeded,
                       .reason = "all 100 steps are done",
                       .create_time = end - absl::Minutes(1),
                       .end_time = end,
                       .generation = Generation(1),
                       .steps = 100};
  using enum store::JobState;
  job.transitions = {{kQueued, job.create_time, "submitted"},
                     {kPlanning, job.create_time, "planning for up to 2 workers"},
                     {kStarting, job.create_time, "preparing 2 ranks"},
                     {kRunning, job.create_time, "all 2 ranks admitted"},
                     {kSucceeded, end, job.reason}};
  job.plan.schedule = "1f1b";
  job.plan.mesh.pp_size = 2;
  return job;
}

// Writes the jobs, each with its last step, in the order in which they ended.
absl::Status WriteJobs(store::Store& store, const Options& options, absl::Time now) {
  for (std::int64_t first = 1; first <= options.jobs; first += kJobsAtOnce) {
    store::Changes changes;
    for (std::int64_t i = first; i < std::min(first + kJobsAtOnce, options.jobs + 1); ++i) {
      const absl::Time end = now - absl::Seconds(options.jobs - i + 1);
      changes.jobs.push_back(EndedJob(i, absl::StrCat("job-", i), end));
      changes.steps.push_back(StepOf(changes.jobs.back().id, StepId(100), end));
    }
    RETURN_IF_ERROR(store.Commit(changes));
  }
  return absl::OkStatus();
}

// Writes the steps of the long job. Returns the most seconds for each step of a commit, among those
// of the first tenth and of the last one.
absl::StatusOr<std::pair<double, double>> WriteSteps(store::Store& store, const Options& options,
                                                     absl::Time now) {
  const store::JobRecord job = EndedJob(options.jobs + 1, kLong, now);
  RETURN_IF_ERROR(store.Commit({.jobs = {job}}));
  const std::int64_t tenth = std::max<std::int64_t>(options.steps / 10, 1);
  double first = 0, last = 0;
  for (std::int64_t done = 0; done < options.steps; done += kStepsAtOnce) {
    store::Changes changes;
    for (std::int64_t i = done; i < std::min(done + kStepsAtOnce, options.steps); ++i)
      changes.steps.push_back(StepOf(job.id, StepId(i + 1), now));
    const absl::Time start = absl::Now();
    RETURN_IF_ERROR(store.Commit(changes));
    const double each = SecondsSince(start) / static_cast<double>(changes.steps.size());
    if (done < tenth) first = std::max(first, each);
    if (done + kStepsAtOnce > options.steps - tenth) last = std::max(last, each);
  }
  return std::pair(first, last);
}

class Client {
 public:
  explicit Client(const std::string& address)
      : jobs_(v1::JobService::NewStub(
            grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))) {}

  // Returns the seconds that each page of all jobs took, and the names.
  absl::StatusOr<std::pair<std::vector<double>, std::vector<std::string>>> List(int page) {
    std::pair<std::vector<double>, std::vector<std::string>> listed;
    v1::ListJobsRequest request;
    request.set_page_size(page);
    do {
      grpc::ClientContext context;
      v1::ListJobsResponse response;
      const absl::Time start = absl::Now();
      const grpc::Status status = jobs_->ListJobs(&context, request, &response);
      listed.first.push_back(SecondsSince(start));
      if (!status.ok()) return absl::InternalError("list: " + status.error_message());
      for (const v1::Job& job : response.jobs()) listed.second.push_back(job.name());
      request.set_page_token(response.next_page_token());
    } while (!request.page_token().empty());
    return listed;
  }

  // Returns whether there is a job of that name, and adds the seconds that the answer took.
  bool Has(const std::string& name, std::vector<double>& seconds) {
    grpc::ClientContext context;
    v1::GetJobRequest request;
    request.set_name(name);
    v1::GetJobResponse response;
    const absl::Time start = absl::Now();
    const bool found = jobs_->GetJob(&context, request, &response).ok();
    seconds.push_back(SecondsSince(start));
    return found;
  }

 private:
  const std::unique_ptr<v1::JobService::Stub> jobs_;
};

// Fills `row` with what clients of a coordinator wait for that has loaded the state.
absl::Status MeasureCalls(const Options& options, Cluster& cluster, nlohmann::json& row) {
  Client client(cluster.address());
  ASSIGN_OR_RETURN(const auto listed, client.List(options.page));
  const std::vector<double>& pages = listed.first;
  const auto some = std::max<std::ptrdiff_t>(std::ssize(pages) / 10, 1);
  row["pages"] = pages.size();
  row["first_pages_seconds"] = Quantile({pages.begin(), pages.begin() + some}, 0.5);
  row["last_pages_seconds"] = Quantile({pages.end() - some, pages.end()}, 0.5);
  row["page_seconds_p99"] = Quantile(pages, 0.99);
  std::vector<double> calls;
  for (std::size_t i = 0; i < listed.second.size(); i += listed.second.size() / 100 + 1)
    client.Has(listed.second[i], calls);
  row["job_seconds_p99"] = Quantile(calls, 0.99);
  absl::Time start = absl::Now();
  row["step_rows"] = cluster.Steps(kLong).size();
  row["steps_seconds"] = SecondsSince(start);
  start = absl::Now();
  cluster.Submit(testing::EmulatedSpec("new", 2, 10));
  row["submit_seconds"] = SecondsSince(start);
  cluster.Cancel("new");
  const double cpu = CpuSeconds(cluster.coordinator().pid());
  absl::SleepFor(kIdle);
  row["idle_cpu"] = (CpuSeconds(cluster.coordinator().pid()) - cpu) / absl::ToDoubleSeconds(kIdle);
  ASSIGN_OR_RETURN(row["coordinator_bytes"], PeakRssBytes(cluster.coordinator().pid()));
  return absl::OkStatus();
}

// A coordinator that keeps fewer jobs forgets the others, while clients call.
absl::Status MeasureForgetting(const Options& options, Cluster& cluster, nlohmann::json& row) {
  cluster.Kill(cluster.coordinator());
  cluster.StartCoordinator(kState, {"--keep-ended-jobs", absl::StrCat(options.kept)});
  cluster.Job(kLong);
  Client client(cluster.address());
  std::vector<double> calls;
  const absl::Time start = absl::Now();
  // The long job and the one that was cancelled ended last.
  const std::string last = absl::StrCat("job-", options.jobs + 2 - options.kept);
  while (client.Has(last, calls)) {
    if (absl::Now() - start > kPatience)
      return absl::DeadlineExceededError("the coordinator does not forget its ended jobs");
    absl::SleepFor(absl::Milliseconds(20));
  }
  row["forget_seconds"] = SecondsSince(start);
  row["forget_call_seconds_p99"] = Quantile(calls, 0.99);
  const absl::Time begin = absl::Now();
  cluster.Delete(kLong);
  row["delete_long_seconds"] = SecondsSince(begin);
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  Cluster cluster(0);
  cluster.Kill(cluster.coordinator());
  const std::string state = cluster.directory() + "/" + kState;
  const std::string file = state + "/coordinator.sqlite";
  std::filesystem::create_directory(state);
  nlohmann::json row = {{"jobs", options.jobs}, {"steps", options.steps}};
  {
    const absl::Time now = absl::Now();
    ASSIGN_OR_RETURN(const std::unique_ptr<store::Store> store, store::OpenSqliteStore(file));
    RETURN_IF_ERROR(WriteJobs(*store, options, now));
    row["write_jobs_seconds"] = SecondsSince(now);
    ASSIGN_OR_RETURN(const auto tenths, WriteSteps(*store, options, now));
    row["first_step_seconds"] = tenths.first;
    row["last_step_seconds"] = tenths.second;
  }
  row["file_bytes"] = std::filesystem::file_size(file);
  const absl::Time start = absl::Now();
  cluster.StartCoordinator(kState, {"--keep-ended-jobs", "0", "--keep-ended-days", "0"});
  cluster.Job(kLong);
  row["start_seconds"] = SecondsSince(start);
  RETURN_IF_ERROR(MeasureCalls(options, cluster, row));
  RETURN_IF_ERROR(MeasureForgetting(options, cluster, row));
  const bool holds = row["page_seconds_p99"] <= kMostCallSeconds &&
                     row["forget_call_seconds_p99"] <= kMostCallSeconds &&
                     row["last_pages_seconds"].get<double>() <=
                         kMostPageRatio * row["first_pages_seconds"].get<double>();
  row["holds"] = holds;
  Table table(options.json(),
              {{"jobs", "jobs"},
               {"steps", "steps"},
               {"MB of the file", "file_bytes", 0, 0, 1e-6},
               {"s to start", "start_seconds", 0, 2},
               {"MB of the coordinator", "coordinator_bytes", 0, 0, 1e-6},
               {"idle CPU %", "idle_cpu", 0, 1, 100},
               {"ms of a first page", "first_pages_seconds", 0, 2, 1e3},
               {"of a last page", "last_pages_seconds", 0, 2, 1e3},
               {"of a job, p99", "job_seconds_p99", 0, 2, 1e3},
               {"to submit", "submit_seconds", 0, 2, 1e3},
               {"rows of steps", "step_rows"},
               {"s to read them", "steps_seconds", 0, 2},
               {"us to write a first step", "first_step_seconds", 0, 1, 1e6},
               {"a last one", "last_step_seconds", 0, 1, 1e6},
               {"s to forget", "forget_seconds", 0, 1},
               {"ms of a call meanwhile, p99", "forget_call_seconds_p99", 0, 2, 1e3},
               {"to delete the long job", "delete_long_seconds", 0, 2, 1e3}});
  table.Add(row, holds ? "" : "over a limit");
  table.End({{"page", options.page},
             {"kept", options.kept},
             {"limit", {{"call_seconds", kMostCallSeconds}, {"page_ratio", kMostPageRatio}}},
             {"holds", holds}});
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "history", "A coordinator with many ended jobs and one job of many steps",
      [](CLI::App& command, Options& options) {
        command.add_option("--jobs", options.jobs, "Ended jobs")->check(CLI::Range(100, 1'000'000));
        command.add_option("--steps", options.steps, "Steps of the long job")
            ->check(CLI::Range(1, 100'000'000));
        command.add_option("--page", options.page, "Jobs of a page")->check(CLI::Range(1, 1000));
        command
            .add_option("--kept", options.kept,
                        "Jobs that a coordinator keeps which forgets the others")
            ->check(CLI::Range(10, 1'000'000));
      },
      Run);
}

}  // namespace takt::bench::history_command
