// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/plan_cache.h"

#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status.h"
#include "gmock/gmock.h"
#include "worker/backend/plan_cache_text.h"

namespace takt::backend {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string TextOf(const PlanCache& plans) { return PlanText(plans.target(), plans.plans()); }

constexpr char kKey[] = "matmul 2048x768x3072 bf16";

PlanTarget Hopper() {
  return {.compute_capability = "9.0", .sm_count = 132, .cublaslt = "13.0.2", .cudnn = "9.13.0"};
}

KernelPlan Plan(std::uint64_t seed) {
  KernelPlan plan{.fused_epilogue = seed % 2 == 0,
                  .workspace_bytes = static_cast<std::int64_t>(seed << 20)};
  for (std::size_t i = 0; i < plan.algorithm.size(); ++i)
    plan.algorithm[i] = seed * 0x9e3779b97f4a7c15 + i;
  return plan;
}

absl::StatusOr<KernelPlan> Never() {
  ADD_FAILURE() << "chose again";
  return KernelPlan();
}

TEST(PlanCacheText, KeepsWhatComputesAttention) {
  PlanCache plans(Hopper());
  const auto choose = [](const char* implementation) {
    return [implementation] { return KernelPlan{.implementation = implementation}; };
  };
  ASSERT_TRUE(plans.Get("attention F", choose(kByCudnn)).ok());
  ASSERT_TRUE(plans.Get("attention I", choose(kByOurKernels)).ok());
  const std::string text = TextOf(plans);
  EXPECT_EQ(ParsePlanText(text, "here", Hopper()).value(), plans.plans());
  const auto other =
      ParsePlanText(absl::StrReplaceAll(text, {{"\"own\"", "\"magic\""}}), "here", Hopper());
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("must be cudnn or own"));
}

TEST(PlanCache, ChoosesOnce) {
  PlanCache plans(Hopper());
  EXPECT_EQ(plans.Get(kKey, [] { return Plan(1); }).value(), Plan(1));
  EXPECT_EQ(plans.Get(kKey, Never).value(), Plan(1));
}

TEST(PlanCache, AFailedChoiceLeavesNothing) {
  PlanCache plans(Hopper());
  const auto fail = []() -> absl::StatusOr<KernelPlan> { return absl::InternalError("no"); };
  EXPECT_EQ(plans.Get(kKey, fail).status().message(), "no");
  EXPECT_EQ(plans.Get(kKey, [] { return Plan(2); }).value(), Plan(2));
}

TEST(PlanCache, AllWhoChooseAtTheSameTimeGetTheSame) {
  PlanCache plans(Hopper());
  std::vector<KernelPlan> got(8);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < got.size(); ++i) {
    threads.emplace_back([&, i] { got[i] = plans.Get(kKey, [&] { return Plan(i); }).value(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const KernelPlan& plan : got) EXPECT_EQ(plan, got[0]);
}

TEST(PlanCache, FrozenItOnlyLooksUpAndNamesTheShapeThatIsMissing) {
  PlanCache plans(Hopper());
  ASSERT_TRUE(plans.Get("matmul 1x1x1", [] { return Plan(1); }).ok());
  plans.Freeze();
  EXPECT_EQ(plans.Get("matmul 1x1x1", Never).value(), Plan(1));
  const auto missing = plans.Get(kKey, Never);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(missing.status().message(), AllOf(HasSubstr(kKey), HasSubstr("it has 1 other)")));
}

TEST(PlanCache, AWarningIsTakenOnce) {
  PlanCache plans(Hopper());
  plans.Warn("not timed");
  EXPECT_THAT(plans.TakeWarnings(), ::testing::ElementsAre("not timed"));
  EXPECT_THAT(plans.TakeWarnings(), IsEmpty());
}

TEST(PlanCache, MergeKeepsWhatWasChosenFirst) {
  PlanCache plans(Hopper());
  ASSERT_TRUE(plans.Get(kKey, [] { return Plan(1); }).ok());
  plans.Merge({{kKey, Plan(2)}, {"other", Plan(3)}});
  EXPECT_EQ(plans.Get(kKey, Never).value(), Plan(1));
  EXPECT_EQ(plans.Get("other", Never).value(), Plan(3));
}

TEST(PlanCache, TakesAnOfferBeforeItChooses) {
  PlanCache plans(Hopper());
  plans.Merge({{kKey, Plan(1)}});
  plans.Offer({{kKey, Plan(2)}, {"offered", Plan(3)}, {"not needed", Plan(4)}});
  EXPECT_EQ(plans.Get(kKey, Never).value(), Plan(1));
  EXPECT_EQ(plans.Get("offered", Never).value(), Plan(3));
  EXPECT_EQ(plans.plans().size(), 2u);
  plans.Freeze();
  EXPECT_EQ(plans.Get("not needed", Never).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(PlanCache, AfterTimingsTakesNoOffer) {
  PlanCache plans(Hopper());
  plans.Offer({{kKey, Plan(1)}});
  EXPECT_TRUE(plans.may_time());
  plans.EndTimings();
  EXPECT_FALSE(plans.may_time());
  EXPECT_EQ(plans.Get(kKey, [] { return Plan(2); }).value(), Plan(2));
}

TEST(PlanText, ReadsBackTheSame) {
  PlanCache plans(Hopper());
  plans.Merge({{kKey, Plan(1)}, {"matmul \"odd\" \\ name", Plan(2)}});
  PlanCache read(Hopper());
  ASSERT_EQ(MergePlanText(TextOf(plans), "plan", read).message(), "");
  EXPECT_EQ(read.plans(), plans.plans());
  EXPECT_EQ(TextOf(read), TextOf(plans));
}

TEST(PlanText, OfAnotherTargetIsRefusedByTheFieldThatDiffers) {
  PlanCache plans(Hopper());
  plans.Merge({{kKey, Plan(1)}});
  PlanTarget ours = Hopper();
  ours.sm_count = 114;
  ours.cublaslt = "13.1.0";
  PlanCache read(ours);
  const auto errors = FieldErrorsOf(MergePlanText(TextOf(plans), "/cache/plan.json", read));
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_EQ(
      errors[0].ToString(),
      "/cache/plan.json: target.sm_count is 132: must be 114, as on this worker; a new one is "
      "made in its place");
  EXPECT_EQ(errors[1].field, "target.cublaslt");
  EXPECT_THAT(read.plans(), IsEmpty());
}

TEST(PlanText, RefusesWhatIsNoPlan) {
  PlanCache plans(Hopper());
  plans.Merge({{kKey, Plan(1)}});
  const std::string text = TextOf(plans);
  const std::string deep(100'000, '[');
  const std::pair<std::string, std::string> cases[] = {
      {"", "format"},
      {"{", "format"},
      {"[]", "format"},
      {deep, "format"},
      {text.substr(0, text.size() / 2), "format"},
      {absl::StrReplaceAll(text, {{"plan 1", "plan 2"}}), "format"},
      {absl::StrReplaceAll(text, {{"\"target\"", "\"aim\""}}), "target"},
      {absl::StrReplaceAll(text, {{"\"plans\"", "\"plots\""}}), "plans"},
      {absl::StrReplaceAll(text, {{"\"algorithm\": \"", "\"algorithm\": \"0"}}),
       absl::StrCat("plans.", kKey, ".algorithm")},
      {absl::StrReplaceAll(text, {{"\"algorithm\": \"9", "\"algorithm\": \"+"}}),
       absl::StrCat("plans.", kKey, ".algorithm")},
      {absl::StrReplaceAll(text, {{"\"fused_epilogue\": false", "\"fused_epilogue\": 0"}}),
       absl::StrCat("plans.", kKey, ".fused_epilogue")},
      {absl::StrReplaceAll(text, {{": 1048576", ": -1"}}),
       absl::StrCat("plans.", kKey, ".workspace_bytes")},
      {absl::StrReplaceAll(text, {{": 1048576", ": 1073741825"}}),
       absl::StrCat("plans.", kKey, ".workspace_bytes")},
      {absl::StrReplaceAll(text, {{": 1048576", ": 18446744073709551615"}}),
       absl::StrCat("plans.", kKey, ".workspace_bytes")},
      {absl::StrReplaceAll(text, {{kKey, std::string(513, 'k')}}), "plans"},
      {absl::StrReplaceAll(text, {{kKey, ""}}), "plans"},
      {text + std::string(kMostPlanBytes, ' '), "format"},
  };
  for (const auto& [bad, field] : cases) {
    PlanCache read(Hopper());
    const absl::Status status = MergePlanText(bad, "file", read);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    const auto errors = FieldErrorsOf(status);
    ASSERT_EQ(errors.size(), 1u) << bad.substr(0, 200);
    EXPECT_EQ(errors[0].field, field) << bad.substr(0, 200);
    EXPECT_EQ(errors[0].where, "file");
    EXPECT_NE(errors[0].fix, "");
    EXPECT_THAT(read.plans(), IsEmpty());
  }
}

}  // namespace
}  // namespace takt::backend
