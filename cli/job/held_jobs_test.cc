// SPDX-License-Identifier: Apache-2.0
// Tests what the command line shows of jobs that workers hold and the coordinator does not know.
#include "cli/testing/fake_coordinator.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace takt::cli {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

grpc::Status TwoHeldJobs(grpc::ServerContext&, const v1::ListHeldJobsRequest&,
                         v1::ListHeldJobsResponse& response) {
  v1::HeldJob& ready = *response.add_jobs();
  ready.set_name("ready");
  ready.set_owner("user/ada");
  ready.set_cluster_id("5f1d");
  ready.set_num_ranks(2);
  ready.add_ranks()->set_last_step(60);
  ready.add_ranks()->set_last_step(61);
  v1::HeldJob& partial = *response.add_jobs();
  partial.set_name("partial");
  partial.add_ranks();
  partial.set_reason("rank 1 (w1) is not here");
  return grpc::Status::OK;
}

TEST(HeldJobs, AreListedWithWhatToDo) {
  FakeCoordinator coordinator;
  coordinator.list = [](auto&, auto&, auto&) { return grpc::Status::OK; };
  coordinator.list_held = TwoHeldJobs;
  const Outcome jobs = RunTakt(coordinator, {"jobs"});
  EXPECT_EQ(jobs.code, ExitCode::kDone) << jobs.err;
  EXPECT_THAT(jobs.out, AllOf(HasSubstr("HELD"), HasSubstr(" 61 "), HasSubstr(" 2/2 "),
                              HasSubstr("user/ada")));
  EXPECT_THAT(jobs.out, HasSubstr("(cluster 5f1d); takt adopt ready, or takt abandon ready"));
  EXPECT_THAT(jobs.out, HasSubstr("cannot be adopted now: rank 1 (w1) is not here"));
  const json held = json::parse(RunTakt(coordinator, {"jobs", "-o", "json"}).out)["held_jobs"];
  ASSERT_EQ(held.size(), 2u);
  EXPECT_EQ(held[1]["reason"], "rank 1 (w1) is not here");
}

TEST(HeldJobs, AnOlderCoordinatorHasNone) {
  FakeCoordinator coordinator;
  coordinator.list = [](auto&, auto&, auto&) { return grpc::Status::OK; };
  const Outcome jobs = RunTakt(coordinator, {"jobs", "-o", "json"});
  EXPECT_EQ(jobs.code, ExitCode::kDone) << jobs.err;
  EXPECT_FALSE(json::parse(jobs.out).contains("held_jobs"));
}

TEST(HeldJobs, AreAdoptedAndAbandonedByName) {
  FakeCoordinator coordinator;
  coordinator.adopt = [](auto&, const v1::AdoptJobRequest& request,
                         v1::AdoptJobResponse& response) {
    response.mutable_job()->set_name(request.name());
    response.mutable_job()->set_state(v1::JOB_STATE_RUNNING);
    return request.request_id().empty() ? grpc::Status::CANCELLED : grpc::Status::OK;
  };
  coordinator.abandon = [](auto&, const v1::AbandonJobRequest& request, auto&) {
    return request.name() == "j" ? grpc::Status::OK
                                 : grpc::Status(grpc::StatusCode::NOT_FOUND, "no worker holds it");
  };
  EXPECT_THAT(RunTakt(coordinator, {"adopt", "j"}).out, HasSubstr("name: j\nstate: RUNNING\n"));
  EXPECT_EQ(RunTakt(coordinator, {"abandon", "j"}).code, ExitCode::kDone);
  const Outcome wrong = RunTakt(coordinator, {"abandon", "k"});
  EXPECT_NE(wrong.code, ExitCode::kDone);
  EXPECT_THAT(wrong.err, HasSubstr("no worker holds it"));
}

TEST(HeldJobs, TheirWorkersSayWhyTheyRefuse) {
  FakeCoordinator coordinator;
  coordinator.workers = [](auto&, auto&, v1::ListWorkersResponse& response) {
    v1::Worker& worker = *response.add_workers();
    worker.set_name("w1");
    worker.set_state(v1::WORKER_STATE_BUSY);
    worker.set_held(true);
    worker.set_refuses("it holds a rank of cluster 5f1d");
    return grpc::Status::OK;
  };
  const std::string workers = RunTakt(coordinator, {"workers"}).out;
  EXPECT_THAT(workers, HasSubstr("BUSY,HELD"));
  EXPECT_THAT(workers, HasSubstr("w1 refuses this coordinator: it holds a rank of cluster 5f1d\n"));
}

}  // namespace
}  // namespace takt::cli
