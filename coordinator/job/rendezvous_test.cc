// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/rendezvous.h"

#include <atomic>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::job {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class RendezvousTest : public ::testing::Test {
 protected:
  RendezvousTest() { rendezvous_.Open("j", Generation(2)); }

  absl::Status Set(const std::string& key, const std::string& value, int generation = 2) {
    return rendezvous_.Set("j", Generation(generation), key, value);
  }
  void Wait(std::vector<std::string> keys, int generation = 2, const std::string& job = "j") {
    rendezvous_.Wait(job, Generation(generation), std::move(keys), absl::Seconds(30),
                     [this](absl::StatusOr<Rendezvous::Values> result) {
                       results_.push_back(std::move(result));
                     });
  }

  std::vector<absl::StatusOr<Rendezvous::Values>> results_;
  Rendezvous rendezvous_{{.key_bytes = 8,
                          .value_bytes = 16,
                          .keys = {.base = 2, .each = 1},
                          .waits = {.base = 1, .each = 1},
                          .bytes = {.base = 30, .each = 10}}};
};

TEST_F(RendezvousTest, AWaitEndsWhenItsLastKeyCame) {
  ASSERT_TRUE(Set("a", "1").ok());
  Wait({"b", "a"});
  EXPECT_THAT(results_, SizeIs(0));
  ASSERT_TRUE(Set("b", "2").ok());
  ASSERT_THAT(results_, SizeIs(1));
  EXPECT_THAT(*results_[0], ElementsAre("2", "1"));
}

TEST_F(RendezvousTest, AWaitForKeysThatAreThereEndsAtOnce) {
  ASSERT_TRUE(Set("a", "1").ok());
  Wait({"a"});
  EXPECT_THAT(results_, SizeIs(1));
}

TEST_F(RendezvousTest, OtherGenerationsAndJobsAreRefused) {
  EXPECT_EQ(Set("a", "1", 1).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Set("a", "1", 3).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(rendezvous_.Clear("j", Generation(1)).code(), absl::StatusCode::kAborted);
  Wait({"a"}, 1);
  Wait({"a"}, 2, "other");
  ASSERT_THAT(results_, SizeIs(2));
  EXPECT_EQ(results_[0].status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(results_[1].status().code(), absl::StatusCode::kNotFound);
}

TEST_F(RendezvousTest, ANewGenerationStartsEmptyAndAbortsTheWaitsOfTheOld) {
  ASSERT_TRUE(Set("a", "1").ok());
  Wait({"b"});
  rendezvous_.Open("j", Generation(3));
  ASSERT_THAT(results_, SizeIs(1));
  EXPECT_EQ(results_[0].status().code(), absl::StatusCode::kAborted);
  Wait({"a"}, 3);
  EXPECT_THAT(results_, SizeIs(1));
}

TEST_F(RendezvousTest, AWaitEndsAtItsDeadlineNamingTheMissingKey) {
  Wait({"b"});
  rendezvous_.Expire(absl::Seconds(29));
  EXPECT_THAT(results_, SizeIs(0));
  rendezvous_.Expire(absl::Seconds(30));
  ASSERT_THAT(results_, SizeIs(1));
  EXPECT_EQ(results_[0].status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(results_[0].status().ToString(), HasSubstr("key b"));
}

TEST_F(RendezvousTest, SizesAndNumbersAreLimited) {
  EXPECT_EQ(Set("", "1").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Set("123456789", "1").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Set("a", std::string(17, 'x')).code(), absl::StatusCode::kResourceExhausted);
  for (const char* key : {"a", "b", "c"}) ASSERT_TRUE(Set(key, "1").ok());
  EXPECT_EQ(Set("d", "1").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Set("a", "2").ok());
  for (int i = 0; i < 3; ++i) Wait({"x"});
  ASSERT_THAT(results_, SizeIs(1));
  EXPECT_EQ(results_[0].status().code(), absl::StatusCode::kResourceExhausted);
  // The same key counts each time, or the answer could be as long as the caller likes.
  Wait(std::vector<std::string>(65, "a"));
  EXPECT_EQ(results_.back().status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(RendezvousTest, LimitsGrowWithTheNumberOfRanks) {
  rendezvous_.Open("j", Generation(2), /*num_ranks=*/3);
  for (const char* key : {"a", "b", "c", "d", "e"}) ASSERT_TRUE(Set(key, "1").ok()) << key;
  const absl::Status refused = Set("f", "1");
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.ToString(), HasSubstr("job j of 3 ranks has 5 rendezvous keys already"));
  for (int i = 0; i < 4; ++i) Wait({"x"});
  EXPECT_THAT(results_, SizeIs(0));
  Wait({"x"});
  EXPECT_THAT(results_, SizeIs(1));
}

TEST_F(RendezvousTest, AllBytesOfAScopeAreLimited) {
  ASSERT_TRUE(Set("a", std::string(16, 'x')).ok());
  ASSERT_TRUE(Set("b", std::string(16, 'x')).ok());
  const absl::Status refused = Set("c", std::string(16, 'x'));
  EXPECT_THAT(refused.ToString(), HasSubstr("has 40 bytes of rendezvous keys already"));
  // A value that is replaced gives its place back.
  ASSERT_TRUE(Set("a", "").ok());
  EXPECT_TRUE(Set("c", "1234").ok());
}

TEST_F(RendezvousTest, WaitsThatNeedDifferentKeysEndInAnyOrderOfThem) {
  rendezvous_.Open("j", Generation(2), /*num_ranks=*/10);
  Wait({"a", "b"});
  Wait({"b", "c"});
  Wait({"c", "a"});
  ASSERT_TRUE(Set("c", "3").ok());
  ASSERT_TRUE(Set("a", "1").ok());
  ASSERT_THAT(results_, SizeIs(1));
  EXPECT_THAT(*results_[0], ElementsAre("3", "1"));
  ASSERT_TRUE(Set("b", "2").ok());
  ASSERT_THAT(results_, SizeIs(3));
  EXPECT_THAT(*results_[1], ElementsAre("2", "3"));
  EXPECT_THAT(*results_[2], ElementsAre("1", "2"));
}

TEST_F(RendezvousTest, AWaitDoesNotCountKeysThatWereCleared) {
  ASSERT_TRUE(Set("a", "1").ok());
  Wait({"a", "b"});
  ASSERT_TRUE(rendezvous_.Clear("j", Generation(2)).ok());
  ASSERT_TRUE(Set("b", "2").ok());
  EXPECT_THAT(results_, SizeIs(0));
  ASSERT_TRUE(Set("a", "3").ok());
  ASSERT_THAT(results_, SizeIs(1));
  EXPECT_THAT(*results_[0], ElementsAre("3", "2"));
}

TEST_F(RendezvousTest, ClearForgetsTheKeys) {
  ASSERT_TRUE(Set("a", "1").ok());
  ASSERT_TRUE(rendezvous_.Clear("j", Generation(2)).ok());
  Wait({"a"});
  EXPECT_THAT(results_, SizeIs(0));
}

TEST_F(RendezvousTest, StoppingEndsWaitsAndRefusesWhatComesLater) {
  Wait({"b"});
  rendezvous_.Stop();
  rendezvous_.Open("j", Generation(2));
  Wait({"b"});
  ASSERT_THAT(results_, SizeIs(2));
  for (const auto& result : results_)
    EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Set("b", "1").code(), absl::StatusCode::kUnavailable);
}

TEST_F(RendezvousTest, ManyThreadsMeet) {
  std::vector<std::thread> threads;
  std::atomic<int> met = 0;
  Rendezvous rendezvous;
  rendezvous.Open("j", Generation(1));
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      rendezvous.Wait("j", Generation(1), {"0", "1", "2", "3"}, absl::Seconds(30),
                      [&](absl::StatusOr<Rendezvous::Values> values) { met += values.ok(); });
      ASSERT_TRUE(rendezvous.Set("j", Generation(1), std::to_string(i), "v").ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(met, 4);
}

}  // namespace
}  // namespace takt::job
