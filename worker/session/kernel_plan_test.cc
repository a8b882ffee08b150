// SPDX-License-Identifier: Apache-2.0
#include "worker/session/kernel_plan.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_job.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/map_rendezvous.h"
#include "tests/testing/planned_backends.h"
#include "worker/backend/plan_cache_text.h"

namespace takt::session {
namespace {

using backend::KernelPlan;
using backend::PlanCache;
using backend::PlanTarget;
using takt::testing::PlannedBackends;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t kMostValueBytes = std::size_t{64} << 10;  // the rendezvous's limit

PlanTarget Hopper() {
  return {.compute_capability = "9.0", .sm_count = 132, .cublaslt = "13.0.2", .cudnn = ""};
}

PlanTarget Ampere() {
  PlanTarget target = Hopper();
  target.compute_capability = "8.0";
  target.sm_count = 108;
  return target;
}

backend::Op Product(std::int64_t m) { return backend::Matmul{.m = m, .n = 2, .k = 3}; }

class LimitedRendezvous final : public transport::Rendezvous {
 public:
  absl::Status Set(const std::string& key, const std::string& value) override {
    EXPECT_FALSE(value.empty());
    EXPECT_LE(value.size(), kMostValueBytes);
    return map_.Set(key, value);
  }
  absl::StatusOr<std::string> Wait(const std::string& key, absl::Duration timeout) override {
    return map_.Wait(key, timeout);
  }

 private:
  testing::MapRendezvous map_;
};

class KernelPlanTest : public ::testing::Test {
 protected:
  // Runs the agreement of a generation that has these ranks, in order.
  std::vector<absl::StatusOr<AgreedKernelPlan>> Agree(
      const std::vector<PlannedBackends*>& ranks, int num_shapes = 3,
      std::optional<KeptPlan> checkpoint = std::nullopt) {
    LimitedRendezvous rendezvous;
    std::vector<absl::StatusOr<AgreedKernelPlan>> results(ranks.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] {
        results[i] = AgreeOnKernelPlan({.rendezvous = &rendezvous,
                                        .rank = Rank(static_cast<int>(i)),
                                        .num_ranks = static_cast<int>(ranks.size())},
                                       {.kernels = ranks[i],
                                        .show_ops =
                                            [&](const auto& tell) {
                                              absl::Status status;
                                              for (int m = 1; m <= num_shapes; ++m)
                                                status.Update(tell(Product(m)));
                                              status.Update(tell(backend::SumOfSquares{}));
                                              return status;
                                            },
                                        .checkpoint = checkpoint,
                                        .kept = {.directory = directory_, .files = files_}});
      });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }

  AgreedKernelPlan AgreeAlone(PlannedBackends& rank, int num_shapes = 3,
                              std::optional<KeptPlan> checkpoint = std::nullopt) {
    auto results = Agree({&rank}, num_shapes, std::move(checkpoint));
    EXPECT_TRUE(results[0].ok()) << results[0].status();
    return *std::move(results[0]);
  }

  // Returns the plan of a job that was alone with a device of that seed.
  std::string TextOf(const PlanTarget& target, std::uint64_t seed, int num_shapes = 3) {
    const std::string directory = std::exchange(directory_, "");
    PlannedBackends rank(target, seed);
    std::string text = AgreeAlone(rank, num_shapes).text;
    directory_ = directory;
    return text;
  }

  void KeepFiles() { directory_ = temporary_.path() + "/plans"; }
  std::string PlanPath() const { return directory_ + "/sm-9.0-x-132-cublasLt-13.0.2.json"; }

  const std::unique_ptr<worker_checkpoint::FileSystem> posix_ =
      worker_checkpoint::CreatePosixFileSystem();
  const testing::TemporaryDirectory temporary_;
  worker_checkpoint::FileSystem* files_ = posix_.get();
  std::string directory_;
};

std::uint64_t SeedOf(PlannedBackends& rank, std::int64_t m) {
  return rank.plans().plans().at(PlannedBackends::KeyOf(Product(m))).algorithm[0];
}

TEST_F(KernelPlanTest, AllRanksTakeTheChoicesOfTheFirst) {
  PlannedBackends first(Hopper(), 1), second(Hopper(), 2), third(Hopper(), 3);
  const auto results = Agree({&first, &second, &third});
  for (const auto& result : results) ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(first.num_chosen(), 3);
  EXPECT_EQ(second.num_chosen() + third.num_chosen(), 0);
  EXPECT_EQ(second.plans().plans(), first.plans().plans());
  EXPECT_EQ(third.plans().plans(), first.plans().plans());
  EXPECT_EQ(SeedOf(third, 2), 1u);
  EXPECT_EQ(results[0]->summary, "3 shapes for sm 9.0 x 132, cublasLt 13.0.2: 3 chosen now");
  EXPECT_THAT(results[0]->notes, IsEmpty());
  EXPECT_EQ(results[1]->text, "");
}

TEST_F(KernelPlanTest, AShapeThatThePlanLacksStopsTheRankAndIsNamed) {
  PlannedBackends first(Hopper(), 1), second(Hopper(), 2);
  for (const auto& result : Agree({&first, &second})) ASSERT_TRUE(result.ok());
  for (PlannedBackends* rank : {&first, &second}) {
    EXPECT_TRUE(rank->Choose(Product(3)).ok());
    const absl::Status lacks = rank->Choose(Product(77));
    EXPECT_EQ(lacks.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(lacks.message(), HasSubstr(PlannedBackends::KeyOf(Product(77))));
  }
}

TEST_F(KernelPlanTest, WhatADeviceWarnsOfIsANoteOfTheJob) {
  PlannedBackends rank(Hopper(), 1);
  rank.plans().Warn("no kernel was timed");
  std::vector<std::string> notes = {"an earlier one"};
  FreezeKernelPlan(rank, notes);
  EXPECT_THAT(notes, ElementsAre("an earlier one", "no kernel was timed"));
  EXPECT_FALSE(rank.Choose(Product(1)).ok());
}

TEST_F(KernelPlanTest, OfTheCheckpointFirstThenOfEarlierJobsThenChosen) {
  KeepFiles();
  const std::string checkpoint = TextOf(Hopper(), 10, /*num_shapes=*/2);
  PlannedBackends earlier(Hopper(), 20);
  AgreeAlone(earlier, /*num_shapes=*/4);
  PlannedBackends rank(Hopper(), 30);
  const AgreedKernelPlan agreed =
      AgreeAlone(rank, /*num_shapes=*/5, KeptPlan{checkpoint, "the checkpoint"});
  EXPECT_EQ(SeedOf(rank, 1), 10u);
  EXPECT_EQ(SeedOf(rank, 2), 10u);
  EXPECT_EQ(SeedOf(rank, 4), 20u);
  EXPECT_EQ(SeedOf(rank, 5), 30u);
  EXPECT_EQ(agreed.summary,
            "5 shapes for sm 9.0 x 132, cublasLt 13.0.2: 2 of the checkpoint, 2 of earlier jobs, 1 "
            "chosen now");
  // What it chose is kept beside the earlier choices. It did not take those that it does not need.
  PlannedBackends next(Hopper(), 40);
  EXPECT_EQ(AgreeAlone(next, 5).summary,
            "5 shapes for sm 9.0 x 132, cublasLt 13.0.2: 5 of earlier jobs");
  EXPECT_EQ(SeedOf(next, 1), 20u);
  PlannedBackends small(Hopper(), 50);
  AgreeAlone(small, 1);
  EXPECT_EQ(small.plans().plans().size(), 1u);
}

TEST_F(KernelPlanTest, ACheckpointsPlanThatCannotBeUsedIsReplacedWithANote) {
  const std::string text = TextOf(Ampere(), 10);
  const std::pair<std::string, std::string> cases[] = {
      {text, "target.compute_capability is \"8.0\": must be \"9.0\", as on this worker"},
      {text.substr(0, text.size() / 2), "format"},
      {"", "format"},
      {std::string(backend::kMostPlanBytes + 1, ' '), "must have at most 1048576 bytes"},
      {absl::StrReplaceAll(text, {{"kernel-plan 1", "kernel-plan 9"}}), "takt-kernel-plan 9"},
  };
  for (const auto& [kept, reason] : cases) {
    PlannedBackends rank(Hopper(), 30), other(Hopper(), 31);
    const auto results =
        Agree({&rank, &other}, 3, KeptPlan{kept, "step-00000040/kernel_plan.json"});
    ASSERT_TRUE(results[0].ok() && results[1].ok()) << results[0].status();
    EXPECT_THAT(results[0]->notes,
                ElementsAre(AllOf(HasSubstr("losses may differ"), HasSubstr(reason),
                                  HasSubstr("step-00000040/kernel_plan.json"))));
    EXPECT_EQ(rank.num_chosen(), 3);
    EXPECT_EQ(SeedOf(other, 3), 30u);
    EXPECT_EQ(results[0]->text, TextOf(Hopper(), 30));
  }
}

TEST_F(KernelPlanTest, ARankOfAnotherKindIsRefused) {
  PlannedBackends first(Hopper(), 1), second(Ampere(), 2);
  const auto results = Agree({&first, &second});
  ASSERT_TRUE(results[0].ok());
  EXPECT_EQ(results[1].status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(results[1].status().message(),
              AllOf(HasSubstr("one kind of GPU"), HasSubstr("this one has sm 8.0 x 108"),
                    HasSubstr("target.sm_count is 132")));
}

TEST_F(KernelPlanTest, APlanThatCannotBeReadIsRankZeros) {
  for (const char* const pieces : {"", "-1", "many", "99999999"}) {
    testing::MapRendezvous rendezvous;
    ASSERT_TRUE(rendezvous.Set("kernel-plan", pieces).ok());
    PlannedBackends rank(Hopper(), 1);
    const auto agreed = AgreeOnKernelPlan(
        {.rendezvous = &rendezvous, .rank = Rank(1), .num_ranks = 2}, {.kernels = &rank});
    EXPECT_EQ(agreed.status().code(), absl::StatusCode::kUnavailable) << agreed.status();
    EXPECT_THAT(agreed.status().message(), HasSubstr("rank 0"));
  }
}

TEST_F(KernelPlanTest, ALongPlanTravelsInPieces) {
  constexpr int kShapes = 600;
  PlannedBackends first(Hopper(), 1), second(Hopper(), 2);
  const auto results = Agree({&first, &second}, kShapes);
  ASSERT_TRUE(results[0].ok() && results[1].ok());
  EXPECT_GT(results[0]->text.size(), 2 * kMostValueBytes);
  EXPECT_EQ(second.plans().plans(), first.plans().plans());
}

TEST_F(KernelPlanTest, ADamagedFileOfEarlierJobsIsReplaced) {
  KeepFiles();
  const std::string text = TextOf(Hopper(), 1);
  const std::string cases[] = {
      "",
      "{",
      text.substr(0, text.size() - 10),
      std::string(2 << 20, '['),
      TextOf(Ampere(), 1),
      absl::StrReplaceAll(text, {{"\"workspace_bytes\": 0", "\"workspace_bytes\": 1e18"}}),
      absl::StrReplaceAll(
          text, {{"\"workspace_bytes\": 0", "\"workspace_bytes\": 9000000000000000000"}})};
  std::filesystem::create_directory(directory_);
  for (const std::string& damaged : cases) {
    std::ofstream(PlanPath()) << damaged;
    PlannedBackends rank(Hopper(), 5), next(Hopper(), 6);
    AgreeAlone(rank);
    EXPECT_EQ(rank.num_chosen(), 3) << damaged.substr(0, 100);
    AgreeAlone(next);
    EXPECT_EQ(next.num_chosen(), 0) << damaged.substr(0, 100);
    EXPECT_EQ(SeedOf(next, 1), 5u);
  }
}

// Whatever the disk refuses, the job goes on, and the file of earlier plans stays whole.
TEST_F(KernelPlanTest, AFullDiskCostsTheFileAlone) {
  KeepFiles();
  PlannedBackends earlier(Hopper(), 1);
  AgreeAlone(earlier, /*num_shapes=*/1);
  takt::testing::FaultyFileSystem faulty(*posix_);
  files_ = &faulty;
  constexpr int kCalls = 5;  // create, append, sync, close, rename
  for (int call = 1; call <= kCalls + 1; ++call) {
    faulty.Fail(call, 1000, absl::ResourceExhaustedError("No space left on device"));
    PlannedBackends rank(Hopper(), 5);
    EXPECT_THAT(AgreeAlone(rank).notes, IsEmpty());
    EXPECT_EQ(SeedOf(rank, 1), 1u);
    EXPECT_EQ(rank.num_chosen(), 2);
  }
  PlannedBackends next(Hopper(), 6);
  AgreeAlone(next);
  EXPECT_EQ(next.num_chosen(), 0);
}

// A shape that rank 0 adds later gets the choice of the other ranks, which were offered nothing.
TEST_F(KernelPlanTest, WhoMayAddIsNotFrozenButHasNoTimings) {
  PlannedBackends rank(Hopper(), 1);
  rank.plans().Offer({{PlannedBackends::KeyOf(Product(9)), {.algorithm = {2}}}});
  takt::testing::MapRendezvous rendezvous;
  const auto agreed = AgreeOnKernelPlan({.rendezvous = &rendezvous, .rank = Rank(0)},
                                        {.kernels = &rank,
                                         .show_ops = [](const auto&) { return absl::OkStatus(); },
                                         .may_add = true});
  ASSERT_TRUE(agreed.ok()) << agreed.status();
  EXPECT_FALSE(rank.plans().may_time());
  EXPECT_TRUE(rank.Choose(Product(9)).ok());
  EXPECT_EQ(SeedOf(rank, 9), 1u);
}

TEST_F(KernelPlanTest, AChoiceThatTheLibraryRefusesNamesWhereItMayBeFrom) {
  KeepFiles();
  PlannedBackends earlier(Hopper(), 1);
  AgreeAlone(earlier);
  PlannedBackends rank(Hopper(), 2);
  takt::testing::MapRendezvous rendezvous;
  const auto agreed = AgreeOnKernelPlan(
      {.rendezvous = &rendezvous, .rank = Rank(0)},
      {.kernels = &rank,
       .show_ops = [](const auto&) { return absl::FailedPreconditionError("no such algorithm"); },
       .kept = {.directory = directory_, .files = files_}});
  EXPECT_EQ(agreed.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(agreed.status().message(),
              AllOf(HasSubstr("no such algorithm"), HasSubstr(PlanPath())));
}

}  // namespace
}  // namespace takt::session
