// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tracking/mlflow_tracker.h"

#include <cmath>
#include <deque>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::tracking {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Answers with what a test has prepared, in order, and keeps the requests.
class FakeServer final : public HttpClient {
 public:
  absl::StatusOr<HttpResponse> Post(const std::string& path, const std::string& text) override {
    methods.push_back(path.substr(std::string("/api/2.0/mlflow/").size()));
    requests.push_back(json::parse(text));
    if (answers.empty()) return HttpResponse{.status = 200, .body = "{}"};
    HttpResponse answer = std::move(answers.front());
    answers.pop_front();
    return answer;
  }
  void Answer(const std::string& body, int status = 200) {
    answers.push_back({.status = status, .body = body});
  }

  std::deque<HttpResponse> answers;
  std::vector<std::string> methods;
  std::vector<json> requests;
};

constexpr char kExperiment[] = R"({"experiments": [{"name": "gpt", "experiment_id": "7"}]})";

TrackedJob Job() {
  return {.id = "id1",
          .name = "my-job",
          .owner = "user/alice",
          .experiment = "gpt",
          .start = absl::FromUnixMillis(1000),
          .parameters = {{"model.layers", "4"}}};
}

store::StepRecord Step(std::int64_t step, double loss) {
  return {.job_id = "id1",
          .step = StepId(step),
          .loss = loss,
          .tokens = 100,
          .step_seconds = 0.5,
          .time = absl::FromUnixMillis(2000)};
}

TEST(MlflowTracker, MakesARunWithTheFieldsOfTheJob) {
  FakeServer server;
  server.Answer(kExperiment);
  server.Answer("{}");  // runs/search finds none
  server.Answer(R"({"run": {"info": {"run_id": "r1"}}})");
  MlflowTracker tracker(&server);
  const TrackedRun run = tracker.Open(Job()).value();
  EXPECT_EQ(run.id, "r1");
  EXPECT_EQ(run.last, StepId(0));
  EXPECT_THAT(server.methods,
              ElementsAre("experiments/search", "runs/search", "runs/create", "runs/log-batch"));
  EXPECT_EQ(server.requests[0]["filter"], "name = 'gpt'");
  EXPECT_EQ(server.requests[1]["filter"], "tags.takt_job_id = 'id1'");
  EXPECT_EQ(server.requests[2]["experiment_id"], "7");
  EXPECT_EQ(server.requests[2]["run_name"], "my-job");
  EXPECT_EQ(server.requests[2]["start_time"], 1000);
  EXPECT_EQ(server.requests[2]["tags"][0],
            json::parse(R"({"key": "takt_job_id", "value": "id1"})"));
  EXPECT_EQ(server.requests[3],
            json::parse(R"({"run_id": "r1", "params": [{"key": "model.layers", "value": "4"}]})"));
}

TEST(MlflowTracker, MakesAnExperimentThatIsNotThere) {
  FakeServer server;
  server.Answer("{}");
  server.Answer(R"({"experiment_id": "9"})");
  server.Answer("{}");
  server.Answer(R"({"run": {"info": {"run_id": "r1"}}})");
  MlflowTracker tracker(&server);
  ASSERT_TRUE(tracker.Open(Job()).ok());
  EXPECT_EQ(server.methods[1], "experiments/create");
  EXPECT_EQ(server.requests[1], json::parse(R"({"name": "gpt"})"));
  EXPECT_EQ(server.requests[3]["experiment_id"], "9");
}

TEST(MlflowTracker, FindsARunAndTheLastStepThatItHas) {
  FakeServer server;
  server.Answer(kExperiment);
  server.Answer(R"({"runs": [{"info": {"run_id": "r1"}, "data": {"metrics": [
      {"key": "train/loss", "value": 1.5, "step": 40}, {"key": "validation/loss", "step": "20"}]}}]})");
  MlflowTracker tracker(&server);
  const TrackedRun run = tracker.Open(Job()).value();
  EXPECT_EQ(run.id, "r1");
  EXPECT_EQ(run.last, StepId(40));
  EXPECT_EQ(server.methods.size(), 2u);
}

TEST(MlflowTracker, SendsWhatIsFiniteOfEachStep) {
  FakeServer server;
  MlflowTracker tracker(&server);
  store::StepRecord second = Step(2, std::nan(""));
  second.validation_loss = 3;
  ASSERT_TRUE(tracker.Append("r1", {Step(1, 1.25), second}).ok());
  EXPECT_EQ(server.requests[0]["run_id"], "r1");
  std::vector<std::string> sent;
  for (const json& metric : server.requests[0]["metrics"]) {
    EXPECT_EQ(metric["timestamp"], 2000);
    if (!absl::StrContains(metric["key"].get<std::string>(), "loss") &&
        metric["key"] != "train/tokens_per_second") {
      continue;
    }
    sent.push_back(absl::StrCat(metric["key"].get<std::string>(), " ", metric["step"].get<int>(),
                                " ", metric["value"].get<double>()));
  }
  EXPECT_THAT(sent, ElementsAre("train/loss 1 1.25", "train/tokens_per_second 1 200",
                                "train/tokens_per_second 2 200", "validation/loss 2 3"));
}

TEST(MlflowTracker, SaysHowAJobEnded) {
  FakeServer server;
  MlflowTracker tracker(&server);
  const absl::Time end = absl::FromUnixMillis(3000);
  for (const store::JobState state :
       {store::JobState::kSucceeded, store::JobState::kFailed, store::JobState::kCancelled}) {
    ASSERT_TRUE(tracker.Close("r1", state, end).ok());
  }
  EXPECT_EQ(server.requests[0]["status"], "FINISHED");
  EXPECT_EQ(server.requests[1]["status"], "FAILED");
  EXPECT_EQ(server.requests[2]["status"], "KILLED");
  EXPECT_EQ(server.requests[2]["end_time"], 3000);
  EXPECT_EQ(server.requests[2]["run_id"], "r1");
}

TEST(MlflowTracker, TellsErrorsThatMayPassFromOthers) {
  const struct {
    int status;
    absl::StatusCode code;
  } cases[] = {{503, absl::StatusCode::kUnavailable},
               {429, absl::StatusCode::kUnavailable},
               {403, absl::StatusCode::kPermissionDenied},
               {400, absl::StatusCode::kFailedPrecondition}};
  for (const auto& [http_status, code] : cases) {
    FakeServer server;
    server.Answer(R"({"message": "no such place"})", http_status);
    const absl::Status status = MlflowTracker(&server).Open(Job()).status();
    EXPECT_EQ(status.code(), code);
    EXPECT_THAT(std::string(status.message()), HasSubstr("no such place"));
  }
  FakeServer plain;
  plain.Answer("Invalid Host header", 403);
  EXPECT_THAT(std::string(MlflowTracker(&plain).Open(Job()).status().message()),
              HasSubstr("with 403: Invalid Host header"));
  FakeServer server;
  server.Answer("<html>");
  EXPECT_TRUE(absl::IsUnavailable(MlflowTracker(&server).Open(Job()).status()));
}

}  // namespace
}  // namespace takt::tracking
