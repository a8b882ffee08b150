// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <iterator>

#include "cli/testing/fake_coordinator.h"
#include "cli/testing/test_directory.h"
#include "common/cluster/cluster_serde.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace takt::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

class DescribeTest : public testing::Test {
 protected:
  DescribeTest() {
    coordinator_.workers = [](auto&, auto&, v1::ListWorkersResponse& response) {
      for (int i = 0; i < 5; ++i) {
        v1::Worker& worker = *response.add_workers();
        worker.set_state(i == 3 ? v1::WORKER_STATE_LOST : v1::WORKER_STATE_BUSY);
        worker.set_drained(i == 4);
        worker.set_host("secret-name");
        worker.set_processor("AMD EPYC 9B14");
        worker.set_cores(8);
        worker.set_memory_bytes(std::int64_t{1} << 34);
        worker.set_matmul_flops_per_second(1e11);
        worker.set_bf16_matmul_flops_per_second(4e11);
      }
      return grpc::Status::OK;
    };
  }

  static cluster::Cluster Parse(const std::string& text) {
    absl::StatusOr<cluster::Cluster> cluster = cluster::ParseCluster(text, "out");
    EXPECT_TRUE(cluster.ok()) << cluster.status() << "\n" << text;
    return cluster.ok() ? *std::move(cluster) : cluster::Cluster();
  }

  FakeCoordinator coordinator_;
  TestDirectory directory_;
};

TEST_F(DescribeTest, WritesWorkersThatTakeWork) {
  const Outcome outcome = RunTakt(coordinator_, {"cluster", "describe"});
  EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("  - count: 3\n    per_host: 3\n    device: \"cpu\"\n"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("secret-name")));
  const cluster::Cluster cluster = Parse(outcome.out);
  ASSERT_EQ(cluster.offers.size(), 3u);
  for (const plan::WorkerOffer& offer : cluster.offers) {
    EXPECT_EQ(offer.host, cluster.offers[0].host);
    EXPECT_EQ(offer.processor, "AMD EPYC 9B14");
    EXPECT_EQ(offer.cores, 8);
    EXPECT_EQ(offer.memory_bytes, std::int64_t{1} << 34);
    EXPECT_EQ(offer.matmul_rates, (MatmulRates{.f32 = 1e11, .bf16 = 4e11}));
  }
  EXPECT_EQ(cluster.profile, nullptr);
}

TEST_F(DescribeTest, AddsWhatWasMeasured) {
  coordinator_.get_profile = [](auto&, auto&, v1::GetProfileResponse& response) {
    v1::Profile::Message& message = *response.mutable_profile()->add_messages();
    message.set_bytes(4096);
    message.set_seconds(2e-5);
    return grpc::Status::OK;
  };
  const cluster::Cluster cluster = Parse(RunTakt(coordinator_, {"cluster", "describe"}).out);
  ASSERT_NE(cluster.profile, nullptr);
  EXPECT_EQ(cluster.profile->FindMessage(false, 4096), 2e-5);
}

TEST_F(DescribeTest, WritesJsonAndNewFiles) {
  const Outcome json = RunTakt(coordinator_, {"cluster", "describe", "-o", "json"});
  EXPECT_EQ(nlohmann::json::parse(json.out)["workers"][0]["count"], 3);
  EXPECT_EQ(Parse(json.out).offers.size(), 3u);

  const std::string path = directory_.Path("cluster.yaml");
  const Outcome file = RunTakt(coordinator_, {"cluster", "describe", "--out", path});
  EXPECT_EQ(file.code, ExitCode::kDone) << file.err;
  EXPECT_EQ(file.out, "");
  std::ifstream in(path);
  EXPECT_EQ(Parse({std::istreambuf_iterator<char>(in), {}}).offers.size(), 3u);
  EXPECT_EQ(RunTakt(coordinator_, {"cluster", "describe", "--out", path}).code,
            ExitCode::kInvalidInput);
}

TEST_F(DescribeTest, NeedsAWorker) {
  coordinator_.workers = [](auto&, auto&, auto&) { return grpc::Status::OK; };
  EXPECT_EQ(RunTakt(coordinator_, {"cluster", "describe"}).code, ExitCode::kFailed);
}

}  // namespace
}  // namespace takt::cli
