// SPDX-License-Identifier: Apache-2.0
// Tests commands against a fake coordinator: requests, output and exit codes.
#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "cli/testing/fake_coordinator.h"
#include "cli/testing/test_directory.h"
#include "common/base/status.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "proto/rpc_status.h"

namespace takt::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

grpc::Status NotFound() { return {grpc::StatusCode::NOT_FOUND, "no job called j"}; }

v1::WatchJobResponse StateEvent(v1::JobState state) {
  v1::WatchJobResponse event;
  event.mutable_job()->set_name("j");
  event.mutable_job()->set_state(state);
  event.mutable_job()->set_steps(3);
  return event;
}

v1::WatchJobResponse StepEvent(std::int64_t step) {
  v1::WatchJobResponse event;
  event.mutable_step()->set_step(step);
  event.mutable_step()->set_loss(1.0 / static_cast<double>(step));
  return event;
}

TEST(Commands, JobThatIsNotThereExitsWith4) {
  FakeCoordinator coordinator;
  coordinator.get = [](auto&, auto&, auto&) { return NotFound(); };
  const Outcome outcome = RunTakt(coordinator, {"job", "j"});
  EXPECT_EQ(outcome.code, ExitCode::kNotFound);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "error: no job called j\n");
}

TEST(Commands, MissingPermissionExitsWith5) {
  FakeCoordinator coordinator;
  coordinator.drain = [](auto&, auto&, auto&) {
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "needs the role admin");
  };
  EXPECT_EQ(RunTakt(coordinator, {"drain", "w"}).code, ExitCode::kRefused);
}

TEST(Commands, UnreachableCoordinatorExitsWith3) {
  const Outcome outcome =
      RunTakt({"--coordinator", "unix:/nonexistent/s", "--timeout", "0.2", "jobs"});
  EXPECT_EQ(outcome.code, ExitCode::kUnreachable);
  EXPECT_THAT(outcome.err, HasSubstr("unix:/nonexistent/s"));
}

TEST(Commands, ACallGoesToTheCoordinatorThatAnswersIt) {
  FakeCoordinator follower, leader;
  follower.drain = [](auto&, auto&, auto&) {
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "this coordinator follows");
  };
  int drained = 0;
  leader.drain = [&](auto&, auto&, auto&) {
    ++drained;
    return grpc::Status::OK;
  };
  const std::string all = "unix:/nonexistent/s," + follower.address() + "," + leader.address();
  EXPECT_EQ(RunTakt({"--coordinator", all, "drain", "w"}).code, ExitCode::kDone);
  EXPECT_EQ(drained, 1);
}

TEST(Commands, TheLeaderIsAskedFirst) {
  FakeCoordinator follower, leader;
  follower.version = [](auto&, auto&, v1::GetVersionResponse& response) {
    response.set_follows(true);
    return grpc::Status::OK;
  };
  leader.get = [](auto&, auto&, v1::GetJobResponse& response) {
    response.mutable_job()->set_name("j");
    return grpc::Status::OK;
  };
  follower.get = [](auto&, auto&, auto&) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "it is a little behind");
  };
  for (const auto& [first, second] :
       {std::pair(&follower, &leader), std::pair(&leader, &follower)}) {
    const std::string all = first->address() + "," + second->address();
    EXPECT_EQ(RunTakt({"--coordinator", all, "job", "j"}).code, ExitCode::kDone);
  }
}

TEST(Commands, QuestionWithoutAnswerExitsWith3) {
  FakeCoordinator coordinator;
  coordinator.get = [](grpc::ServerContext& context, auto&, auto&) {
    while (!context.IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  };
  EXPECT_EQ(RunTakt(coordinator, {"--timeout", "0.3", "job", "j"}).code, ExitCode::kUnreachable);
}

TEST(Commands, ChangeWithoutAnswerExitsWith6) {
  FakeCoordinator coordinator;
  coordinator.cancel = [](grpc::ServerContext& context, auto&, auto&) {
    while (!context.IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  };
  const Outcome outcome = RunTakt(coordinator, {"--timeout", "0.3", "cancel", "j"});
  EXPECT_EQ(outcome.code, ExitCode::kOutcomeUnknown);
  EXPECT_THAT(outcome.err, HasSubstr("may or may not have happened"));
}

TEST(Commands, ChangeIsRepeatedUnderTheSameRequestId) {
  FakeCoordinator coordinator;
  std::vector<std::string> ids;
  coordinator.cancel = [&](auto&, const v1::CancelJobRequest& request, v1::CancelJobResponse&) {
    ids.push_back(request.request_id());
    return ids.size() < 3 ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "starting")
                          : grpc::Status::OK;
  };
  EXPECT_EQ(RunTakt(coordinator, {"cancel", "j"}).code, ExitCode::kDone);
  ASSERT_EQ(ids.size(), 3u);
  EXPECT_GE(ids[0].size(), 16u);
  EXPECT_EQ(ids[1], ids[0]);
  EXPECT_EQ(ids[2], ids[0]);
}

TEST(Commands, EveryChangeHasARequestIdOfItsOwn) {
  FakeCoordinator coordinator;
  std::vector<std::string> ids;
  coordinator.cancel = [&](auto&, const v1::CancelJobRequest& request, v1::CancelJobResponse&) {
    ids.push_back(request.request_id());
    return grpc::Status::OK;
  };
  RunTakt(coordinator, {"cancel", "j"});
  RunTakt(coordinator, {"cancel", "j"});
  ASSERT_EQ(ids.size(), 2u);
  EXPECT_NE(ids[0], ids[1]);
}

TEST(Commands, PauseAndResumeShowTheJob) {
  FakeCoordinator coordinator;
  coordinator.pause = [](auto&, const v1::PauseJobRequest& request,
                         v1::PauseJobResponse& response) {
    response.mutable_job()->set_name(request.name());
    response.mutable_job()->set_state(v1::JOB_STATE_PAUSED);
    response.mutable_job()->set_steps(100);
    response.mutable_job()->set_resumed_step(40);
    response.mutable_job()->set_kernel_plan("12 shapes");
    response.mutable_job()->set_replan_gain_ratio(0.19);
    response.mutable_job()->mutable_checkpoint()->set_step(60);
    response.mutable_job()->mutable_spec()->mutable_checkpoint()->set_directory("/c");
    return grpc::Status::OK;
  };
  coordinator.resume = [](auto&, const v1::ResumeJobRequest&, auto&) {
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "job j is RUNNING, not PAUSED");
  };
  const Outcome paused = RunTakt(coordinator, {"pause", "j"});
  EXPECT_EQ(paused.code, ExitCode::kDone);
  EXPECT_THAT(paused.out, HasSubstr("name: j\nstate: PAUSED\nsteps: 40/100\n"));
  EXPECT_THAT(paused.out,
              HasSubstr("resumed after step: 40\nkernel plan: 12 shapes\ncheckpoint: step 60 ("));
  EXPECT_THAT(paused.out, HasSubstr(") in /c\n"));
  EXPECT_THAT(paused.out, HasSubstr("another plan: saves 19.0% of a step; see takt explain j\n"));
  const Outcome resumed = RunTakt(coordinator, {"resume", "j"});
  EXPECT_EQ(resumed.code, ExitCode::kFailed);
  EXPECT_EQ(resumed.err, "error: job j is RUNNING, not PAUSED\n");
}

TEST(Commands, PauseWaitsForTheCheckpointIfAsked) {
  FakeCoordinator coordinator;
  coordinator.pause = [](auto&, const v1::PauseJobRequest&, v1::PauseJobResponse& response) {
    *response.mutable_job() = StateEvent(v1::JOB_STATE_RUNNING).job();
    return grpc::Status::OK;
  };
  coordinator.watch = [](grpc::ServerContext& context, auto&, auto& writer) {
    writer.Write(StateEvent(v1::JOB_STATE_RUNNING));
    writer.Write(StateEvent(v1::JOB_STATE_PAUSED));
    while (!context.IsCancelled()) std::this_thread::yield();  // the stream of a job stays open
    return grpc::Status::CANCELLED;
  };
  EXPECT_THAT(RunTakt(coordinator, {"pause", "j"}).out, HasSubstr("state: RUNNING\n"));
  const Outcome waited = RunTakt(coordinator, {"pause", "j", "--wait"});
  EXPECT_EQ(waited.code, ExitCode::kDone) << waited.err;
  EXPECT_THAT(waited.out, HasSubstr("state: PAUSED\n"));
}

TEST(Commands, PauseOfAJobThatEndsFirstExitsWithItsVerdict) {
  FakeCoordinator coordinator;
  coordinator.pause = [](auto&, const v1::PauseJobRequest&, v1::PauseJobResponse&) {
    return grpc::Status::OK;
  };
  coordinator.watch = [](auto&, auto&, auto& writer) {
    writer.Write(StateEvent(v1::JOB_STATE_FAILED));
    return grpc::Status::OK;
  };
  const Outcome outcome = RunTakt(coordinator, {"pause", "j", "--wait"});
  EXPECT_EQ(outcome.code, ExitCode::kFailed);
  EXPECT_THAT(outcome.out, HasSubstr("state: FAILED\n"));
  EXPECT_THAT(outcome.err, HasSubstr("j ended before it could be paused\n"));
}

TEST(Commands, LogsShowWhoWroteALineAndAtWhichStepAndNothingThatATerminalActsOn) {
  FakeCoordinator coordinator;
  std::vector<int> ranks;
  coordinator.logs = [&](auto&, const v1::GetJobLogsRequest& request, auto& writer) {
    ranks.assign(request.ranks().begin(), request.ranks().end());
    v1::GetJobLogsResponse response;
    v1::LogLine& line = *response.mutable_line();
    line.set_worker("w3");
    line.set_rank(3);
    line.set_step(12);
    line.set_level("warning");
    line.set_text("a\x1b[2J\nb");
    line.set_unix_nanos(1'700'000'000'250'000'000);
    writer.Write(response);
    return grpc::Status::OK;
  };
  const Outcome text = RunTakt(coordinator, {"logs", "j", "--rank", "3,4"});
  EXPECT_EQ(text.code, ExitCode::kDone);
  EXPECT_EQ(text.out, "2023-11-14T22:13:20.250Z w3 rank=3 step=12 warning a?[2J b\n");
  EXPECT_EQ(ranks, (std::vector<int>{3, 4}));
  const json line = json::parse(RunTakt(coordinator, {"-o", "json", "logs", "j"}).out);
  EXPECT_EQ(line["worker"], "w3");
  EXPECT_EQ(line["rank"], 3);
  EXPECT_EQ(line["step"], 12);
  EXPECT_EQ(line["level"], "warning");
  EXPECT_EQ(line["unix_nanos"], 1'700'000'000'250'000'000);
  EXPECT_TRUE(ranks.empty());
  EXPECT_EQ(RunTakt(coordinator, {"logs", "j", "--rank", "-1"}).code, ExitCode::kInvalidInput);
}

TEST(Commands, JobShowsTheFlightRecordersOfItsFault) {
  FakeCoordinator coordinator;
  coordinator.get = [](auto&, auto&, v1::GetJobResponse& response) {
    v1::RankStatus& rank = *response.mutable_job()->add_fault();
    rank.set_worker("w0");
    rank.set_last_step(61);
    rank.set_instruction("0B1");
    rank.set_instruction_step(62);
    rank.set_instruction_seconds(4.9);
    rank.set_waiting_for("RECV 1B1 from pp rank 1");
    for (const auto& [instruction, step] : {std::pair{"0B7", 61}, {"OPT", 61}, {"0F0", 62}}) {
      v1::DoneInstruction& done = *rank.add_recent();
      done.set_instruction(instruction);
      done.set_step(step);
      done.set_ended_seconds_ago(4.95);
    }
    return grpc::Status::OK;
  };
  EXPECT_THAT(RunTakt(coordinator, {"job", "j"}).out,
              HasSubstr("fault: rank 0 (w0): last step 61, at 0B1 of step 62 for 4.9 s, waiting "
                        "for RECV 1B1 from pp rank 1\n"
                        "    last done: step 61: 0B7 OPT; step 62: 0F0 (4.95 s before)\n"));
  const json job = json::parse(RunTakt(coordinator, {"-o", "json", "job", "j"}).out);
  EXPECT_EQ(job["fault"][0]["recent"][2]["instruction"], "0F0");
  EXPECT_EQ(job["fault"][0]["instruction_seconds"], 4.9);
}

TEST(Commands, JobShowsTheMemoryThatEachRankWillNeed) {
  FakeCoordinator coordinator;
  coordinator.get = [](auto&, auto&, v1::GetJobResponse& response) {
    for (const int weights : {1 << 20, 3 << 20}) {
      v1::MemoryBytes& memory = *response.mutable_job()->add_memory();
      memory.set_weights(weights);
      memory.set_process(44 << 20);
    }
    return grpc::Status::OK;
  };
  EXPECT_THAT(RunTakt(coordinator, {"job", "j"}).out,
              HasSubstr("PP RANK  MEMORY  WEIGHTS  PROCESS\n"
                        "0        45 MiB  1 MiB    44 MiB\n"
                        "1        47 MiB  3 MiB    44 MiB\n"));
  const json job = json::parse(RunTakt(coordinator, {"-o", "json", "job", "j"}).out);
  EXPECT_EQ(job["memory"][1]["weights"], 3 << 20);
}

TEST(Commands, WaitGoesOnWaitingForAPausedJobAndSaysSo) {
  FakeCoordinator coordinator;
  coordinator.watch = [](auto&, auto&, auto& writer) {
    writer.Write(StateEvent(v1::JOB_STATE_PAUSED));
    writer.Write(StateEvent(v1::JOB_STATE_SUCCEEDED));
    return grpc::Status::OK;
  };
  const Outcome outcome = RunTakt(coordinator, {"wait", "j"});
  EXPECT_EQ(outcome.code, ExitCode::kDone);
  EXPECT_EQ(outcome.err,
            "j is PAUSED; waiting on (takt resume j lets it go on, takt cancel j ends it)\n");
}

TEST(Commands, JobsReadsEveryPage) {
  FakeCoordinator coordinator;
  coordinator.list = [](auto&, const v1::ListJobsRequest& request, v1::ListJobsResponse& response) {
    response.add_jobs()->set_name(request.page_token().empty() ? "a" : "b");
    if (request.page_token().empty()) response.set_next_page_token("2");
    return grpc::Status::OK;
  };
  const Outcome outcome = RunTakt(coordinator, {"jobs", "-o", "json"});
  const json jobs = json::parse(outcome.out)["jobs"];
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0]["name"], "a");
  EXPECT_EQ(jobs[1]["name"], "b");
}

TEST(Commands, JobsCutALongReason) {
  FakeCoordinator coordinator;
  std::string reason;
  for (int fault = 0; fault < 40; ++fault) absl::StrAppend(&reason, "rank ", fault, " «ended»\n");
  const auto fill = [&](v1::Job& job) {
    job.set_name("j");
    job.set_reason(reason);
  };
  coordinator.list = [&](auto&, const v1::ListJobsRequest&, v1::ListJobsResponse& response) {
    fill(*response.add_jobs());
    return grpc::Status::OK;
  };
  coordinator.get = [&](auto&, const v1::GetJobRequest&, v1::GetJobResponse& response) {
    fill(*response.mutable_job());
    return grpc::Status::OK;
  };
  const std::string jobs = RunTakt(coordinator, {"jobs"}).out;
  EXPECT_THAT(jobs,
              ::testing::AllOf(HasSubstr("rank 0 «ended» rank 1"), ::testing::EndsWith("...\n")));
  EXPECT_THAT(jobs, ::testing::Not(HasSubstr("rank 20")));
  EXPECT_EQ(json::parse(RunTakt(coordinator, {"jobs", "-o", "json"}).out)["jobs"][0]["reason"],
            reason);
  EXPECT_THAT(RunTakt(coordinator, {"job", "j"}).out, HasSubstr("rank 39"));
}

TEST(Commands, JobsAndJobShowThePriority) {
  FakeCoordinator coordinator;
  coordinator.list = [](auto&, const v1::ListJobsRequest&, v1::ListJobsResponse& response) {
    response.add_jobs()->set_name("usual");
    response.add_jobs()->mutable_spec()->set_priority(80);
    return grpc::Status::OK;
  };
  coordinator.get = [](auto&, const v1::GetJobRequest&, v1::GetJobResponse& response) {
    response.mutable_job()->mutable_spec()->set_priority(0);
    return grpc::Status::OK;
  };
  const std::string jobs = RunTakt(coordinator, {"jobs"}).out;
  EXPECT_THAT(jobs, HasSubstr("PRIORITY"));
  EXPECT_THAT(jobs, HasSubstr(" 50 "));
  EXPECT_THAT(jobs, HasSubstr(" 80 "));
  EXPECT_THAT(RunTakt(coordinator, {"job", "j"}).out, HasSubstr("\npriority: 0\n"));
}

TEST(Commands, JobSaysWhatBecomesOfDocuments) {
  v1::DataSpec data;
  data.add_train()->set_path("a.bin");
  const auto shown = [&] {
    FakeCoordinator coordinator;
    coordinator.get = [&](auto&, const v1::GetJobRequest&, v1::GetJobResponse& response) {
      *response.mutable_job()->mutable_spec()->mutable_data() = data;
      return grpc::Status::OK;
    };
    return RunTakt(coordinator, {"job", "j"}).out;
  };
  EXPECT_THAT(shown(), HasSubstr("\ndocuments: join\n"));
  data.set_document_end(7);
  EXPECT_THAT(shown(), HasSubstr("\ndocuments: separate, ending with token 7\n"));
  data.clear_document_end();
  data.set_documents(v1::DOCUMENTS_MODE_SEPARATE);
  EXPECT_THAT(shown(), HasSubstr("\ndocuments: separate\n"));
}

TEST(Commands, OutputOptionIsTakenBeforeAndAfterTheCommand) {
  FakeCoordinator coordinator;
  coordinator.workers = [](auto&, auto&, auto&) { return grpc::Status::OK; };
  const Outcome before = RunTakt(coordinator, {"-o", "json", "workers"});
  const Outcome after = RunTakt(coordinator, {"workers", "-o", "json"});
  EXPECT_EQ(before.out, "{\"workers\":[]}\n");
  EXPECT_EQ(after.out, before.out);
}

TEST(Commands, WatchStreamsOneObjectAStepAndExitsWithTheVerdict) {
  FakeCoordinator coordinator;
  coordinator.watch = [](auto&, const v1::WatchJobRequest& request, auto& writer) {
    EXPECT_EQ(request.after_step(), 1);
    writer.Write(StateEvent(v1::JOB_STATE_RUNNING));
    writer.Write(StepEvent(2));
    writer.Write(StepEvent(3));
    writer.Write(StateEvent(v1::JOB_STATE_FAILED));
    return grpc::Status::OK;
  };
  const Outcome outcome = RunTakt(coordinator, {"-o", "json", "watch", "j", "--after-step", "1"});
  EXPECT_EQ(outcome.code, ExitCode::kFailed);
  std::istringstream lines(outcome.out);
  std::string line;
  std::vector<json> steps;
  while (std::getline(lines, line)) steps.push_back(json::parse(line));
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0]["step"], 2);
  EXPECT_EQ(steps[1]["loss"].get<double>(), 1.0 / 3);
}

TEST(Commands, WatchGoesOnWhereABrokenStreamEnded) {
  FakeCoordinator coordinator;
  std::vector<std::int64_t> starts;
  coordinator.watch = [&](auto&, const v1::WatchJobRequest& request, auto& writer) {
    starts.push_back(request.after_step());
    writer.Write(StateEvent(v1::JOB_STATE_RUNNING));
    if (starts.size() == 1) {
      writer.Write(StepEvent(1));
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "restarting");
    }
    writer.Write(StepEvent(1));  // a server may repeat a step
    writer.Write(StepEvent(2));
    writer.Write(StateEvent(v1::JOB_STATE_SUCCEEDED));
    return grpc::Status::OK;
  };
  const Outcome outcome = RunTakt(coordinator, {"-o", "json", "watch", "j"});
  EXPECT_EQ(outcome.code, ExitCode::kDone);
  EXPECT_EQ(starts, (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 2);
}

TEST(Commands, WaitPrintsTheJobAtItsEndAndExitsWith2ForInvalidInput) {
  FakeCoordinator coordinator;
  coordinator.watch = [](auto&, auto&, auto& writer) {
    writer.Write(StepEvent(1));
    v1::WatchJobResponse end = StateEvent(v1::JOB_STATE_FAILED);
    end.mutable_job()->set_invalid_input(true);
    writer.Write(end);
    return grpc::Status::OK;
  };
  const Outcome outcome = RunTakt(coordinator, {"wait", "j", "-o", "json"});
  EXPECT_EQ(outcome.code, ExitCode::kInvalidInput);
  EXPECT_EQ(json::parse(outcome.out)["state"], "FAILED");
}

class SubmitTest : public testing::Test {
 protected:
  static constexpr char kEmulated[] =
      "name: j\nmodel: {family: emulated, layers: 4, forward_ms: 1, input_grad_ms: 1, "
      "weight_grad_ms: 1, "
      "activation_bytes: 64}\nbatch: {global: 4, microbatch: 1}\nsteps: 3\n"
      "parallelism: {pipeline: 2, schedule: gpipe}\n";

  std::string Write(const std::string& text) { return directory_.Write("job.yaml", text); }

  TestDirectory directory_;
  FakeCoordinator coordinator_;
};

TEST_F(SubmitTest, SendsTheSpecWithItsOverrides) {
  v1::SubmitJobRequest sent;
  coordinator_.submit = [&](auto&, const v1::SubmitJobRequest& request,
                            v1::SubmitJobResponse& response) {
    sent = request;
    response.mutable_job()->set_name(request.spec().name());
    return grpc::Status::OK;
  };
  const Outcome outcome = RunTakt(coordinator_, {"submit", Write(kEmulated), "--set", "steps=7",
                                                 "--set", "name=k", "-o", "json"});
  EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  EXPECT_EQ(sent.spec().steps(), 7);
  EXPECT_FALSE(sent.validate_only());
  EXPECT_EQ(json::parse(outcome.out)["name"], "k");
}

TEST_F(SubmitTest, ErrorOfTheServerIsShownWithItsPlaceInTheFile) {
  coordinator_.submit = [](grpc::ServerContext& context, auto&, auto&) {
    return ToGrpc(InvalidField({.field = "parallelism.pipeline",
                                .value = "2",
                                .rule = "must not be even",
                                .fix = "try 3"}),
                  context);
  };
  const Outcome outcome = RunTakt(coordinator_, {"submit", Write(kEmulated), "--validate-only"});
  EXPECT_EQ(outcome.code, ExitCode::kInvalidInput);
  EXPECT_THAT(outcome.err, HasSubstr("job.yaml:5:25: parallelism.pipeline is 2: must not "
                                     "be even; try 3"));
}

TEST_F(SubmitTest, FindsAllThatIsWrongBeforeItCallsAnybody) {
  const Outcome outcome = RunTakt(coordinator_, {"-o", "json", "submit", Write(kEmulated), "--set",
                                                 "batch.global=0", "--set", "steps=0"});
  EXPECT_EQ(outcome.code, ExitCode::kInvalidInput);
  const json error = json::parse(outcome.err)["error"];
  EXPECT_EQ(error["exit_code"], 2);
  ASSERT_EQ(error["violations"].size(), 2u) << error;
  for (const json& violation : error["violations"]) {
    for (const char* key : {"where", "field", "value", "rule", "fix"}) {
      EXPECT_FALSE(violation[key].get<std::string>().empty()) << key;
    }
  }
}

}  // namespace
}  // namespace takt::cli
