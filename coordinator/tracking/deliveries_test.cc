// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tracking/deliveries.h"

#include "absl/strings/str_cat.h"
#include "common/config/job_file.h"
#include "coordinator/store/memory_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::tracking {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Keeps what it is told, as "open j", "1 2 3" and "close j".
class FakeTracker final : public Tracker {
 public:
  absl::StatusOr<TrackedRun> Open(const TrackedJob& job) override {
    ++opens;
    if (!error.ok()) return error;
    calls.push_back(absl::StrCat("open ", job.name, " in ", job.experiment));
    parameters = job.parameters;
    return TrackedRun{.id = "run of " + job.id, .last = StepId(has)};
  }
  absl::Status Append(const std::string& run_id,
                      const std::vector<store::StepRecord>& steps) override {
    if (!error.ok()) return error;
    EXPECT_EQ(run_id, "run of " + steps.front().job_id);
    calls.push_back(absl::StrCat(steps.front().step.value(), "-", steps.back().step.value()));
    return absl::OkStatus();
  }
  absl::Status Close(const std::string& run_id, store::JobState state, absl::Time) override {
    calls.push_back(absl::StrCat("close ", run_id, " ", store::Name(state)));
    return error;
  }

  std::vector<std::string> calls;
  std::map<std::string, std::string> parameters;
  std::int64_t has = 0;
  int opens = 0;  // calls of Open, those that failed included
  absl::Status error;
};

class DeliveriesTest : public ::testing::Test {
 protected:
  // Returns a job with steps up to `last` in the step log.
  std::shared_ptr<store::JobRecord> Job(std::int64_t last, const std::string& logging) {
    const absl::StatusOr<v1::JobSpec> spec = config::ParseJobFile(
        absl::StrCat("{name: j, steps: 500, seed: 7, logging: {", logging, "}}"), {});
    EXPECT_TRUE(spec.ok()) << spec.status();
    auto job = std::make_shared<store::JobRecord>();
    job->id = "id";
    job->name = "j";
    job->spec = spec->SerializeAsString();
    job->state = store::JobState::kRunning;
    Train(*job, last);
    return job;
  }
  void Train(store::JobRecord& job, std::int64_t last) {
    store::Changes changes;
    for (std::int64_t step = job.last_step ? job.last_step->step.value() + 1 : 1; step <= last;
         ++step) {
      job.last_step = store::StepRecord{.job_id = job.id, .step = StepId(step)};
      changes.steps.push_back(*job.last_step);
    }
    changes.jobs.push_back(job);
    ASSERT_TRUE(store_->Commit(changes).ok());
  }

  const absl::Time now_ = absl::UnixEpoch() + absl::Hours(48);
  FakeTracker tracker_;
  const std::unique_ptr<store::Store> store_ = store::NewMemoryStore();
  Deliveries deliveries_{&tracker_, store_.get(), now_ - absl::Hours(24)};
};

TEST_F(DeliveriesTest, BringsEachStepOnceAndThenTheEnd) {
  const auto job = Job(250, "mlflow: gpt");
  ASSERT_TRUE(deliveries_.Round({job}).ok());
  EXPECT_THAT(tracker_.calls, ElementsAre("open j in gpt", "1-100", "101-200", "201-250"));
  EXPECT_EQ(tracker_.parameters.at("seed"), "7");
  EXPECT_FALSE(tracker_.parameters.contains("logging.mlflow"));
  tracker_.calls.clear();
  ASSERT_TRUE(deliveries_.Round({job}).ok());
  EXPECT_THAT(tracker_.calls, IsEmpty());
  Train(*job, 251);
  job->state = store::JobState::kSucceeded;
  job->end_time = now_;
  ASSERT_TRUE(deliveries_.Round({job}).ok());
  ASSERT_TRUE(deliveries_.Round({job}).ok());
  EXPECT_THAT(tracker_.calls, ElementsAre("251-251", "close run of id SUCCEEDED"));
}

TEST_F(DeliveriesTest, GoesOnWhereTheServerStands) {
  tracker_.has = 40;
  ASSERT_TRUE(deliveries_.Round({Job(50, "mlflow: gpt")}).ok());
  EXPECT_THAT(tracker_.calls, ElementsAre("open j in gpt", "41-50"));
}

TEST_F(DeliveriesTest, LeavesOtherJobsAlone) {
  const auto old = Job(5, "mlflow: gpt");
  old->state = store::JobState::kFailed;
  old->end_time = now_ - absl::Hours(25);
  ASSERT_TRUE(deliveries_.Round({old}).ok());
  const auto other = Job(5, "tensorboard: t");
  other->id = "other";
  ASSERT_TRUE(deliveries_.Round({other}).ok());
  const auto waiting = Job(0, "mlflow: gpt");
  waiting->id = "waiting";
  ASSERT_TRUE(deliveries_.Round({waiting}).ok());
  EXPECT_THAT(tracker_.calls, IsEmpty());
}

TEST_F(DeliveriesTest, TriesAgainWhatFailed) {
  const auto job = Job(5, "mlflow: gpt");
  tracker_.error = absl::UnavailableError("away");
  EXPECT_EQ(deliveries_.Round({job}), tracker_.error);
  tracker_.error = absl::OkStatus();
  ASSERT_TRUE(deliveries_.Round({job}).ok());
  EXPECT_THAT(tracker_.calls, ElementsAre("open j in gpt", "1-5"));
}

TEST_F(DeliveriesTest, TriesAJobThatIsRefusedLessAndLessOften) {
  const auto job = Job(5, "mlflow: gpt");
  tracker_.error = absl::FailedPreconditionError("no such experiment");
  std::vector<int> rounds;  // with a try
  for (int round = 1; round <= 12; ++round) {
    const int before = tracker_.opens;
    EXPECT_EQ(deliveries_.Round({job}), tracker_.error);
    if (tracker_.opens > before) rounds.push_back(round);
  }
  EXPECT_THAT(rounds, ElementsAre(1, 3, 6, 11));
  tracker_.error = absl::OkStatus();
  for (int round = 0; round < 8; ++round) (void)deliveries_.Round({job});
  EXPECT_TRUE(deliveries_.Round({job}).ok());
  EXPECT_THAT(tracker_.calls, ElementsAre("open j in gpt", "1-5"));
}

}  // namespace
}  // namespace takt::tracking
