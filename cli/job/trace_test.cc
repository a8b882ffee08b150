// SPDX-License-Identifier: Apache-2.0
// Tests takt trace and takt explain against a coordinator that has a trace.
#include <fstream>

#include "cli/testing/fake_coordinator.h"
#include "cli/testing/test_directory.h"
#include "common/profile/profile_serde.h"
#include "common/program/program_serde.h"
#include "common/trace/job_trace_serde.h"
#include "common/trace/testing/synthetic_trace.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace takt::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class TraceCommand : public testing::Test {
 protected:
  TraceCommand() : synthetic_("1f1b", 4, 8, {.num_steps = 4}) {
    coordinator_.step_traces = [this](auto&, const v1::GetTraceRequest& request, auto& writer) {
      request_ = request;
      v1::GetTraceResponse response;
      const trace::JobTrace& trace = synthetic_.Get();
      *response.mutable_header() = trace::ToHeader(trace);
      writer.Write(response);
      for (const program::Program& program : trace.programs) {
        *response.mutable_program() = program::ToProto(program);
        writer.Write(response);
      }
      for (const trace::RankTrace& rank : trace.ranks) {
        for (const trace::StepTrace& step : rank.steps) {
          *response.mutable_step() = trace::ToProto(step, rank.clock);
          writer.Write(response);
        }
      }
      return grpc::Status::OK;
    };
  }

  std::string Path(const std::string& name) const { return directory_.Path(name); }
  std::string Read(const std::string& name) const {
    std::stringstream text;
    text << std::ifstream(Path(name)).rdbuf();
    return text.str();
  }

  trace::SyntheticTrace synthetic_;
  FakeCoordinator coordinator_;
  v1::GetTraceRequest request_;
  TestDirectory directory_;
};

TEST_F(TraceCommand, WritesEachFormat) {
  EXPECT_EQ(RunTakt(coordinator_, {"trace", "j", Path("t.html")}).code, ExitCode::kDone);
  EXPECT_EQ(request_.newest_steps(), 3);
  EXPECT_THAT(Read("t.html"), HasSubstr("<!DOCTYPE html>"));
  const Outcome outcome =
      RunTakt(coordinator_, {"trace", "j", "--steps", "1..4", "-f", "perfetto", Path("t.json")});
  EXPECT_EQ(outcome.code, ExitCode::kDone);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("steps 1 to 4 of 4 ranks"));
  EXPECT_EQ(request_.first_step(), 1);
  EXPECT_EQ(request_.last_step(), 4);
  EXPECT_TRUE(json::parse(Read("t.json"))["traceEvents"].is_array());
  const Outcome as_json =
      RunTakt(coordinator_, {"-o", "json", "trace", "j", "-f", "svg", Path("t.svg")});
  EXPECT_THAT(Read("t.svg"), HasSubstr("<svg "));
  EXPECT_EQ(json::parse(as_json.out)["last_step"], 4);
}

TEST_F(TraceCommand, NeverOverwrites) {
  directory_.Write("t.html", "precious");
  const Outcome outcome = RunTakt(coordinator_, {"trace", "j", Path("t.html")});
  EXPECT_EQ(outcome.code, ExitCode::kInvalidInput);
  EXPECT_THAT(outcome.err, HasSubstr("nothing is overwritten"));
  EXPECT_EQ(Read("t.html"), "precious");
  EXPECT_EQ(RunTakt(coordinator_, {"trace", "j", Path("none/t.html")}).code,
            ExitCode::kInvalidInput);
}

TEST_F(TraceCommand, WrongStepsAreWrongUsage) {
  for (const char* steps : {"0..3", "8..5", "a..b", "3..", "..3", "-1", "1...3"}) {
    const Outcome outcome =
        RunTakt(coordinator_, {"trace", "j", std::string("--steps=") + steps, Path("t.html")});
    EXPECT_EQ(outcome.code, ExitCode::kInvalidInput) << steps;
    EXPECT_THAT(outcome.err, HasSubstr("--steps")) << steps;
  }
}

TEST_F(TraceCommand, SaysWhatTheCoordinatorSays) {
  coordinator_.step_traces = [](auto&, auto&, auto&) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "those between 2 and 3 are");
  };
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"trace", "j", Path("t.html")}, {"explain", "j"}}) {
    const Outcome outcome = RunTakt(coordinator_, command);
    EXPECT_EQ(outcome.code, ExitCode::kNotFound);
    EXPECT_EQ(outcome.err, "error: those between 2 and 3 are\n");
  }
  coordinator_.step_traces = [](auto&, auto&, auto&) {
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "no step of it has run yet");
  };
  EXPECT_EQ(RunTakt(coordinator_, {"trace", "j", Path("t.html")}).code, ExitCode::kFailed);
}

TEST_F(TraceCommand, ADamagedTraceIsAnError) {
  coordinator_.step_traces = [](auto&, auto&, auto& writer) {
    v1::GetTraceResponse response;
    response.mutable_header()->set_job("j");
    writer.Write(response);
    return grpc::Status::OK;
  };
  const Outcome outcome = RunTakt(coordinator_, {"explain", "j"});
  EXPECT_EQ(outcome.code, ExitCode::kFailed);
  EXPECT_THAT(outcome.err, HasSubstr("the trace is damaged"));
}

TEST_F(TraceCommand, ExplainAddsUp) {
  const Outcome text = RunTakt(coordinator_, {"explain", "j"});
  EXPECT_EQ(text.code, ExitCode::kDone);
  EXPECT_THAT(text.out, HasSubstr("step 4 took "));
  const Outcome outcome = RunTakt(coordinator_, {"-o", "json", "explain", "j", "--step", "2"});
  const json explanation = json::parse(outcome.out);
  EXPECT_EQ(explanation["step"], 2);
  EXPECT_EQ(explanation["parts"].size(), 7u);
  double sum = 0;
  for (const auto& [name, seconds] : explanation["parts"].items()) sum += seconds.get<double>();
  EXPECT_NEAR(sum, explanation["step_seconds"].get<double>(), 1e-9);
  EXPECT_EQ(explanation["ranks"].size(), 4u);
  EXPECT_TRUE(explanation["ranks"][0]["idle_seconds"].contains("peer"));
  EXPECT_EQ(RunTakt(coordinator_, {"explain", "j", "--step", "9"}).code, ExitCode::kNotFound);
}

// With the same steps the newest one has the same numbers, however it is requested.
TEST_F(TraceCommand, ExplainReadsAsManyStepsBeforeAnyStep) {
  RunTakt(coordinator_, {"explain", "j"});
  EXPECT_EQ(request_.first_step(), 0);
  EXPECT_EQ(request_.newest_steps(), 8);
  RunTakt(coordinator_, {"explain", "j", "--step", "20"});
  EXPECT_EQ(request_.first_step(), 20 - 8 + 1);
  EXPECT_EQ(request_.last_step(), 20 + 8 - 1);
  EXPECT_EQ(request_.around_step(), 20);
  EXPECT_EQ(request_.newest_steps(), 8);
}

// A pass of a layer was measured to take 10 ms; the job says 1 ms.
TEST_F(TraceCommand, ExplainAdvisesAnotherPlan) {
  v1::Job job;
  job.set_name("j");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.set_schedule("naive");
  v1::JobSpec& spec = *job.mutable_spec();
  spec.set_name("j");
  v1::ModelSpec& model = *spec.mutable_model();
  model.set_family(v1::MODEL_FAMILY_EMULATED);
  model.set_layers(4);
  model.set_forward_ms(1);
  model.set_input_grad_ms(1);
  model.set_weight_grad_ms(1);
  model.set_activation_bytes(4096);
  spec.mutable_batch()->set_global(8);
  spec.mutable_batch()->set_microbatch(1);
  spec.set_steps(10);
  spec.mutable_parallelism()->set_pipeline(4);
  coordinator_.get = [&](auto&, auto&, v1::GetJobResponse& response) {
    *response.mutable_job() = job;
    return grpc::Status::OK;
  };
  coordinator_.workers = [](auto&, auto&, v1::ListWorkersResponse& response) {
    for (int i = 0; i < 4; ++i) response.add_workers()->set_state(v1::WORKER_STATE_BUSY);
    return grpc::Status::OK;
  };
  const auto advice = [&] {
    const Outcome outcome = RunTakt(coordinator_, {"-o", "json", "explain", "j"});
    EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
    return json::parse(outcome.out)["advice"].back();
  };
  EXPECT_NE(advice()["kind"], "replan") << "a coordinator that measures nothing";
  coordinator_.get_profile = [](auto&, auto&, v1::GetProfileResponse& response) {
    *response.mutable_profile() = profile::ToProto({});
    return grpc::Status::OK;
  };
  const json replan = advice();
  EXPECT_EQ(replan["kind"], "replan");
  EXPECT_GT(replan["saved_fraction"], 0.1);
  EXPECT_THAT(replan["text"].get<std::string>(), HasSubstr("submit it again"));
  job.mutable_spec()->mutable_checkpoint()->set_directory("saved");
  EXPECT_THAT(advice()["text"].get<std::string>(), HasSubstr("`takt pause j`"));
  job.mutable_spec()->set_replan(v1::REPLAN_MODE_AT_CHECKPOINT);
  EXPECT_THAT(advice()["text"].get<std::string>(), HasSubstr("after its next checkpoint"));
  job.set_state(v1::JOB_STATE_SUCCEEDED);
  EXPECT_NE(advice()["kind"], "replan");
}

}  // namespace
}  // namespace takt::cli
