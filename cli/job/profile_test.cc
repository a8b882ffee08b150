// SPDX-License-Identifier: Apache-2.0
// Tests takt profile against a coordinator that learns at once from every job.
#include <signal.h>

#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/job/follow.h"
#include "cli/job/measure.h"
#include "cli/testing/fake_coordinator.h"
#include "cli/testing/test_directory.h"
#include "common/config/job_file.h"
#include "common/config/job_spec_serde.h"
#include "common/profile/profile_serde.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace takt::cli {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kJob[] =
    "name: j\n"
    "model: {family: gpt2, layers: 8, hidden: 64, heads: 4, context: 32, vocab: 256}\n"
    "data: {train: {path: tokens.bin, format: bytes}}\n"
    "batch: {global: 16, microbatch: 2}\n"
    "steps: 10\n";

v1::WatchJobResponse StateEvent(const std::string& name, v1::JobState state,
                                const std::string& reason = "") {
  v1::WatchJobResponse event;
  event.mutable_job()->set_name(name);
  event.mutable_job()->set_state(state);
  event.mutable_job()->set_reason(reason);
  return event;
}

class ProfileTest : public testing::Test {
 protected:
  ProfileTest() {
    coordinator_.workers = [this](auto&, auto&, v1::ListWorkersResponse& response) {
      for (int i = 0; i < num_workers_; ++i) {
        v1::Worker& worker = *response.add_workers();
        worker.set_state(state_of_workers_);
        worker.set_host("h");
        worker.set_processor("a processor");
        worker.set_cores(num_workers_);
        worker.set_matmul_flops_per_second(1e10);
      }
      return grpc::Status::OK;
    };
    coordinator_.get = [this](auto&, const v1::GetJobRequest& request,
                              v1::GetJobResponse& response) {
      if (!present_.contains(request.name())) return grpc::Status(grpc::StatusCode::NOT_FOUND, "");
      response.mutable_job()->set_state(state_of_present_);
      *response.mutable_job()->mutable_spec() = spec_of_present_;
      return grpc::Status::OK;
    };
    coordinator_.submit = [this](auto&, const v1::SubmitJobRequest& request, auto&) {
      submitted_.push_back(request.spec().name());
      spec_of_present_ = request.spec();
      present_.insert(request.spec().name());
      Learn(*config::ToJobSpec(request.spec()));
      return grpc::Status::OK;
    };
    coordinator_.watch = [](auto&, const v1::WatchJobRequest& request, auto& writer) {
      writer.Write(StateEvent(request.name(), v1::JOB_STATE_SUCCEEDED));
      return grpc::Status::OK;
    };
    coordinator_.remove = [this](auto&, const v1::DeleteJobRequest& request, auto&) {
      present_.erase(request.name());
      return grpc::Status::OK;
    };
    coordinator_.get_profile = [this](auto&, auto&, v1::GetProfileResponse& response) {
      *response.mutable_profile() = profile::ToProto(known_);
      return grpc::Status::OK;
    };
  }

  // Learns from a job on one host whose ranks share the workers' cores.
  void Learn(const config::JobSpec& job) {
    if (job.model.family == model::Family::kEmulated) {
      const std::int64_t bytes = job.model.activation_bytes;
      known_.AddMessage(profile::KeyOfMessage(true, bytes), {.bytes = bytes, .seconds = 1e-4});
      known_.AddLink(profile::KeyOfLink("h", "g", bytes), {.bytes = bytes, .seconds = 3e-4});
      return;
    }
    const model::Model model = *model::BuildModel(job.model, job.microbatch);
    const profile::Conditions conditions{
        .machine = "a processor", .threads = 1, .ranks_per_host = job.parallelism.data.value_or(1)};
    for (const model::Layer& layer : model.layers) {
      known_.AddLayer({profile::ShapeOf(model, layer, model::Recompute::kNone), conditions},
                      {.work = profile::WorkOf(layer, model::Recompute::kNone),
                       .seconds = {.forward = 1e-3, .input_grad = 2e-3, .weight_grad = 3e-3}});
    }
    known_.AddRank(conditions, {.update_seconds = 1e-9, .dispatch_seconds = 2e-6});
  }

  Outcome Profile(std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"profile", directory_.Write("job.yaml", text_), "--time", "0.1"});
    return RunTakt(coordinator_, more);
  }

  TestDirectory directory_;
  FakeCoordinator coordinator_;
  std::string text_ = kJob;
  int num_workers_ = 2;
  v1::WorkerState state_of_workers_ = v1::WORKER_STATE_IDLE;
  std::set<std::string> present_;
  v1::JobState state_of_present_ = v1::JOB_STATE_SUCCEEDED;
  v1::JobSpec spec_of_present_;
  std::vector<std::string> submitted_;
  profile::Profile known_;
};

TEST_F(ProfileTest, MeasuresWithEachNumberOfRanksAndLeavesNoJob) {
  num_workers_ = 3;
  const Outcome outcome = Profile({"-o", "json"});
  EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  EXPECT_THAT(submitted_,
              ElementsAre("profile-j-1", "profile-j-2", "profile-j-3", "profile-j-messages"));
  EXPECT_THAT(present_, IsEmpty());
  const json known = json::parse(outcome.out);
  ASSERT_EQ(known["layers"].size(), 3 * 3u);  // embedding, block, head
  for (const json& layer : known["layers"]) {
    EXPECT_EQ(layer["machine"], "a processor");
    EXPECT_EQ(layer["threads"], 1);
    EXPECT_EQ(layer["forward_seconds"], 1e-3);
    EXPECT_EQ(layer["input_grad_seconds"], 2e-3);
    EXPECT_EQ(layer["weight_grad_seconds"], 3e-3);
    EXPECT_EQ(layer["origin"], "measured");
  }
  EXPECT_EQ(known["layers"][1]["ranks_per_host"], 2);
  EXPECT_EQ(known["ranks"].size(), 3u);
  EXPECT_EQ(known["ranks"][0]["update_seconds"], 1e-9);
  ASSERT_EQ(known["messages"].size(), 1u);
  EXPECT_EQ(known["messages"][0]["bytes"], 2 * 32 * 64 * 4);
  ASSERT_EQ(known["links"].size(), 1u);
  EXPECT_EQ(known["links"][0]["from_host"], "h");
  EXPECT_EQ(known["links"][0]["to_host"], "g");
  EXPECT_EQ(known["links"][0]["bytes"], 2 * 32 * 64 * 4);
  EXPECT_EQ(known["links"][0]["seconds"], 3e-4);
}

TEST_F(ProfileTest, MeasuresOnlyWithTheJobsOwnNumberOfRanks) {
  num_workers_ = 4;
  EXPECT_EQ(Profile({"--set", "parallelism={pipeline: 1, data: 2}"}).code, ExitCode::kDone);
  EXPECT_THAT(submitted_, ElementsAre("profile-j-2", "profile-j-messages"));
}

TEST_F(ProfileTest, MeasuresWhatAPlanMayChoose) {
  num_workers_ = 4;
  const Outcome outcome = Profile({"--set", "parallelism={pipeline: 2, data: auto}", "--set",
                                   "batch={global: 64, microbatch: auto}", "-o", "json"});
  EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  EXPECT_THAT(submitted_, ElementsAre("profile-j-2-of-1", "profile-j-2-of-4", "profile-j-4-of-1",
                                      "profile-j-4-of-4", "profile-j-messages"));
  EXPECT_EQ(json::parse(outcome.out)["layers"].size(), 2 * 2 * 3u);
  submitted_.clear();
  EXPECT_EQ(Profile({"--set", "parallelism.pipeline=1", "--set", "batch.microbatch=auto"}).code,
            ExitCode::kDone);
  EXPECT_THAT(submitted_, ElementsAre("profile-j-1-of-1"));  // of 16 sequences
}

TEST_F(ProfileTest, JobOfOneRankHasNoMessages) {
  EXPECT_EQ(Profile({"--set", "parallelism.pipeline=1"}).code, ExitCode::kDone);
  EXPECT_THAT(submitted_, ElementsAre("profile-j-1"));
}

TEST_F(ProfileTest, PrintsATable) {
  const Outcome outcome = Profile();
  EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("GFLOP/S"));
  EXPECT_THAT(outcome.out,
              HasSubstr("a processor, 1 thread, 2 ranks on the host  1     2     3     "));
  EXPECT_THAT(outcome.out, HasSubstr("measured"));
  EXPECT_THAT(outcome.out, HasSubstr("on a host  16 KiB  100\n"));
  EXPECT_THAT(outcome.out, HasSubstr("h          g        16 KiB  300\n"));
  EXPECT_THAT(outcome.err, HasSubstr("measuring: profile-j-2\n"));
}

TEST_F(ProfileTest, NamesOfItsJobsAreLegalForTheLongestName) {
  text_ = absl::StrCat("name: ", std::string(63, 'n'), std::string(kJob).substr(7));
  EXPECT_EQ(Profile().code, ExitCode::kDone);
  ASSERT_EQ(submitted_.size(), 3u);
  for (const std::string& name : submitted_) EXPECT_EQ(name.size(), 63u);
  EXPECT_TRUE(absl::EndsWith(submitted_.back(), "n-messages"));
}

TEST_F(ProfileTest, EmulatedJobSaysItselfWhatItsLayersTake) {
  text_ =
      "name: e\nmodel: {family: emulated, layers: 4, forward_ms: 1, input_grad_ms: 1, "
      "weight_grad_ms: 1, activation_bytes: 64}\nbatch: {global: 4, microbatch: 1}\nsteps: 3\n";
  const Outcome outcome = Profile({"-o", "json"});
  EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("e is emulated"));
  EXPECT_EQ(json::parse(outcome.out)["layers"].size(), 0u);
  EXPECT_THAT(submitted_, IsEmpty());
}

TEST_F(ProfileTest, NeedsAWorker) {
  num_workers_ = 0;
  const Outcome outcome = Profile();
  EXPECT_EQ(outcome.code, ExitCode::kFailed);
  EXPECT_THAT(outcome.err, HasSubstr("no worker is attached"));
}

TEST_F(ProfileTest, OlderCoordinatorIsNamedBeforeAnythingRuns) {
  coordinator_.get_profile = nullptr;
  const Outcome outcome = Profile();
  EXPECT_EQ(outcome.code, ExitCode::kFailed);
  EXPECT_THAT(outcome.err, HasSubstr("older than this command"));
  // A coordinator that knows its callers refuses requests that it does not know.
  coordinator_.get_profile = [](auto&, auto&, auto&) {
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "");
  };
  const Outcome refused = Profile();
  EXPECT_EQ(refused.code, ExitCode::kFailed);
  EXPECT_THAT(refused.err, HasSubstr("older than this command"));
  EXPECT_THAT(submitted_, IsEmpty());
}

TEST_F(ProfileTest, NewerCoordinatorIsNamedWithItsVersion) {
  coordinator_.get_profile = [](auto&, auto&, v1::GetProfileResponse& response) {
    response.mutable_profile()->set_program_version("9.9.9");
    response.mutable_profile()->add_layers()->mutable_shape()->set_kind(99);
    return grpc::Status::OK;
  };
  const Outcome outcome = Profile();
  EXPECT_EQ(outcome.code, ExitCode::kFailed);
  EXPECT_THAT(outcome.err, HasSubstr("the coordinator (9.9.9)"));
  EXPECT_THAT(submitted_, IsEmpty());
}

TEST_F(ProfileTest, FailedJobEndsTheCommandWithItsReasonAndIsDeleted) {
  coordinator_.watch = [](auto&, const v1::WatchJobRequest& request, auto& writer) {
    writer.Write(StateEvent(request.name(), v1::JOB_STATE_FAILED, "worker w lost"));
    return grpc::Status::OK;
  };
  const Outcome outcome = Profile();
  EXPECT_EQ(outcome.code, ExitCode::kFailed);
  EXPECT_THAT(outcome.err, HasSubstr("profile-j-1: worker w lost"));
  EXPECT_THAT(submitted_, ElementsAre("profile-j-1"));
  EXPECT_THAT(present_, IsEmpty());
}

TEST_F(ProfileTest, LostWorkerEndsTheCommandAndWhatWasMeasuredIsKept) {
  coordinator_.watch = [](auto&, const v1::WatchJobRequest& request, auto& writer) {
    const bool lost = request.name() == "profile-j-2";
    writer.Write(lost ? StateEvent(request.name(), v1::JOB_STATE_FAILED,
                                   "worker w1 (rank 1) lost: its stream ended")
                      : StateEvent(request.name(), v1::JOB_STATE_SUCCEEDED));
    return grpc::Status::OK;
  };
  const Outcome outcome = Profile();
  EXPECT_EQ(outcome.code, ExitCode::kFailed);
  EXPECT_THAT(outcome.err,
              HasSubstr("profile-j-2: worker w1 (rank 1) lost: its stream ended; measured before "
                        "it: profile-j-1"));
  EXPECT_THAT(submitted_, ElementsAre("profile-j-1", "profile-j-2"));
  EXPECT_THAT(present_, IsEmpty());
}

// Its workers were there when it was submitted, and have left before it began.
TEST_F(ProfileTest, JobWhoseWorkersAreGoneIsCancelled) {
  std::vector<std::string> cancelled;
  coordinator_.watch = [&](grpc::ServerContext& context, const v1::WatchJobRequest& request,
                           auto& writer) {
    const std::string& name = request.name();
    if (name == "profile-j-1" || !cancelled.empty()) {
      writer.Write(
          StateEvent(name, cancelled.empty() ? v1::JOB_STATE_SUCCEEDED : v1::JOB_STATE_CANCELLED));
      return grpc::Status::OK;
    }
    writer.Write(StateEvent(name, v1::JOB_STATE_QUEUED, "needs 2 workers, 1 idle"));
    while (!context.IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  };
  coordinator_.cancel = [&](auto&, const v1::CancelJobRequest& request, auto&) {
    cancelled.push_back(request.name());
    return grpc::Status::OK;
  };
  const config::JobSpec job = *config::ToJobSpec(*config::ParseJobFile(kJob, {}));
  const plan::PlanOptions workers{.max_workers = 2,
                                  .host = {.machine = "a processor", .threads = 1, .workers = 2}};
  const auto client = Client::Connect({.address = coordinator_.address()});
  ASSERT_TRUE(client.ok()) << client.status();
  Client::StreamStop stop;
  const absl::Status status =
      Measure(**client, stop,
              {.job = job, .workers = workers, .seconds = 0.1, .patience = absl::Seconds(1)})
          .status();
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("profile-j-2 has trained no step for 1s"),
                    HasSubstr(", as it waits: needs 2 workers, 1 idle; it is cancelled; measured "
                              "before it: profile-j-1")));
  EXPECT_THAT(cancelled, ElementsAre("profile-j-2"));
  EXPECT_THAT(present_, IsEmpty());
}

TEST_F(ProfileTest, SaysWhatItWaitsFor) {
  coordinator_.watch = [](auto&, const v1::WatchJobRequest& request, auto& writer) {
    writer.Write(StateEvent(request.name(), v1::JOB_STATE_QUEUED, "needs 1 worker, 0 idle"));
    writer.Write(StateEvent(request.name(), v1::JOB_STATE_SUCCEEDED));
    return grpc::Status::OK;
  };
  const Outcome outcome = Profile();
  EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("profile-j-1 waits: needs 1 worker, 0 idle\n"));
}

TEST_F(ProfileTest, DeletesWhatAnEarlierCommandLeftButNotWhatRuns) {
  EXPECT_EQ(Profile({"--set", "parallelism.pipeline=1"}).code, ExitCode::kDone);
  present_ = {"profile-j-1"};
  EXPECT_EQ(Profile({"--set", "parallelism.pipeline=1"}).code, ExitCode::kDone);
  present_ = {"profile-j-1"};
  state_of_present_ = v1::JOB_STATE_RUNNING;
  submitted_.clear();
  const Outcome outcome = Profile({"--set", "parallelism.pipeline=1"});
  EXPECT_EQ(outcome.code, ExitCode::kFailed);
  EXPECT_THAT(outcome.err, HasSubstr("takt cancel profile-j-1"));
  EXPECT_THAT(submitted_, IsEmpty());
}

TEST_F(ProfileTest, DeletesNoJobThatMeasuresNothing) {
  EXPECT_EQ(Profile({"--set", "parallelism.pipeline=1"}).code, ExitCode::kDone);
  spec_of_present_.mutable_checkpoint()->set_directory("saved");
  present_ = {"profile-j-1"};
  submitted_.clear();
  const Outcome outcome = Profile({"--set", "parallelism.pipeline=1"});
  EXPECT_EQ(outcome.code, ExitCode::kFailed);
  EXPECT_THAT(outcome.err, HasSubstr("takt delete profile-j-1"));
  EXPECT_THAT(present_, ElementsAre("profile-j-1"));
  EXPECT_THAT(submitted_, IsEmpty());
}

TEST_F(ProfileTest, InterruptCancelsTheJob) {
  std::vector<std::string> cancelled;
  coordinator_.watch = [&](grpc::ServerContext& context, const v1::WatchJobRequest& request,
                           auto& writer) {
    if (!cancelled.empty()) {
      writer.Write(StateEvent(request.name(), v1::JOB_STATE_CANCELLED));
      return grpc::Status::OK;
    }
    raise(SIGINT);
    while (!context.IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  };
  coordinator_.cancel = [&](auto&, const v1::CancelJobRequest& request, auto&) {
    cancelled.push_back(request.name());
    return grpc::Status::OK;
  };
  const Outcome outcome = Profile();
  EXPECT_EQ(outcome.code, ExitCode::kFailed);
  EXPECT_THAT(outcome.err, HasSubstr("interrupted; profile-j-1 is cancelled"));
  EXPECT_THAT(cancelled, ElementsAre("profile-j-1"));
  EXPECT_THAT(present_, IsEmpty());
}

TEST_F(ProfileTest, PlanMeasuresFirstWhatWasNeverMeasured) {
  const auto plan = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", directory_.Write("job.yaml", text_), "--set",
                               "parallelism.pipeline=1", "-o", "json"});
    const Outcome outcome = RunTakt(coordinator_, more);
    EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
    return json::parse(outcome.out)["profile"]["measured"].size();
  };
  EXPECT_EQ(plan({"--no-measure"}), 0u);
  EXPECT_EQ(plan({"--no-profile"}), 0u);
  state_of_workers_ = v1::WORKER_STATE_BUSY;
  EXPECT_EQ(plan({}), 0u);
  EXPECT_THAT(submitted_, IsEmpty());
  state_of_workers_ = v1::WORKER_STATE_IDLE;
  EXPECT_GT(plan({}), 0u);
  EXPECT_GT(plan({}), 0u);
  EXPECT_THAT(submitted_, ElementsAre("profile-j-1"));  // once
}

TEST_F(ProfileTest, PlanGoesOnIfItMayNotMeasure) {
  coordinator_.submit = [](auto&, auto&, auto&) {
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "needs the role user");
  };
  const Outcome outcome = RunTakt(coordinator_, {"plan", directory_.Write("job.yaml", text_)});
  EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("planning from what is known"));
  EXPECT_THAT(outcome.err, HasSubstr("needs the role user"));
}

// Its steps take longer together than it may be silent.
TEST(FollowJob, GoesOnWhileThereAreSteps) {
  FakeCoordinator coordinator;
  coordinator.watch = [](auto&, const v1::WatchJobRequest& request, auto& writer) {
    for (std::int64_t step = request.after_step() + 1; step <= 10; ++step) {
      absl::SleepFor(absl::Milliseconds(150));
      v1::WatchJobResponse event;
      event.mutable_step()->set_step(step);
      writer.Write(event);
    }
    writer.Write(StateEvent("j", v1::JOB_STATE_SUCCEEDED));
    return grpc::Status::OK;
  };
  const auto client = Client::Connect({.address = coordinator.address()});
  ASSERT_TRUE(client.ok()) << client.status();
  Client::StreamStop stop;
  const auto job = FollowJob(**client, stop, {.job = "j", .longest_silence = absl::Seconds(1)});
  EXPECT_TRUE(job.ok()) << job.status();
}

TEST(FollowJob, EndsWhenItHearsOfNoStep) {
  FakeCoordinator coordinator;
  coordinator.watch = [](grpc::ServerContext& context, auto&, auto&) {
    while (!context.IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  };
  const auto client = Client::Connect({.address = coordinator.address()});
  ASSERT_TRUE(client.ok()) << client.status();
  Client::StreamStop stop;
  const absl::Status status =
      FollowJob(**client, stop, {.job = "j", .longest_silence = absl::Milliseconds(100)}).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
}

}  // namespace
}  // namespace takt::cli
