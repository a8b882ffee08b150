// SPDX-License-Identifier: Apache-2.0
#include "worker/train/replays.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::train {
namespace {

using ::testing::ElementsAre;

// Writes down what it does to a log of words, in place of ops.
class LoggingRecorder final : public backend::Recorder {
 public:
  absl::StatusOr<std::unique_ptr<backend::Recording>> Record(
      absl::FunctionRef<absl::Status()> ops) override {
    const std::size_t before = log.size();
    absl::Status status = ops();
    if (status.ok()) status = failure;
    const std::vector<std::string> given(log.begin() + static_cast<std::ptrdiff_t>(before),
                                         log.end());
    log.resize(before);
    if (!status.ok()) return status;
    ++recorded;
    return std::make_unique<Logged>(*this, given);
  }

  std::vector<std::string> log;
  int recorded = 0, moves = 0;  // recordings; times that its memory moved
  absl::Status failure;

 private:
  class Logged final : public backend::Recording {
   public:
    Logged(LoggingRecorder& recorder, std::vector<std::string> words)
        : recorder_(recorder), words_(std::move(words)), moves_(recorder.moves) {}
    absl::Status Replay() override {
      if (moves_ != recorder_.moves) return absl::FailedPreconditionError("memory has moved");
      for (const std::string& word : words_) recorder_.log.push_back("again " + word);
      return absl::OkStatus();
    }

   private:
    LoggingRecorder& recorder_;
    const std::vector<std::string> words_;
    const int moves_;
  };
};

class ReplaysTest : public ::testing::Test {
 protected:
  // Calls it with `word` for its ops; returns what was done.
  std::vector<std::string> Run(const PartArguments& arguments, const std::string& word) {
    recorder_.log.clear();
    EXPECT_TRUE(replays_
                    .Run(arguments,
                         [&] {
                           recorder_.log.push_back(word);
                           return absl::OkStatus();
                         })
                    .ok());
    return recorder_.log;
  }

  PartArguments Forward(float loss_scale = 1) {
    return {.op = program::Op::kForward,
            .forward_stage = StageId(3),
            .forward = {.stash = &memory_, .loss_scale = loss_scale}};
  }

  std::byte memory_{};
  LoggingRecorder recorder_;
  Replays replays_{&recorder_};
};

TEST_F(ReplaysTest, RecordsWhatComesAgain) {
  replays_.Start();
  EXPECT_THAT(Run(Forward(), "a"), ElementsAre("a"));
  EXPECT_THAT(Run(Forward(), "b"), ElementsAre("again b"));
  EXPECT_THAT(Run(Forward(), "c"), ElementsAre("again b"));
  EXPECT_EQ(recorder_.recorded, 1);
}

TEST_F(ReplaysTest, RecordsNothingBeforeItStarts) {
  for (int i = 0; i < 3; ++i) EXPECT_THAT(Run(Forward(), "a"), ElementsAre("a"));
  EXPECT_EQ(recorder_.recorded, 0);
}

TEST_F(ReplaysTest, EveryArgumentTellsPartsApart) {
  replays_.Start();
  float tensor = 0;
  double sum = 0;
  const std::int32_t token = 0;
  std::byte bytes{};
  std::vector<PartArguments> all;
  const auto with = [&](const auto& change) {
    PartArguments& arguments = all.emplace_back(Forward());
    change(arguments);
  };
  with([](PartArguments&) {});
  with([](PartArguments& a) { a.op = program::Op::kBackward; });
  with([](PartArguments& a) { a.forward_stage = StageId(4); });
  with([](PartArguments& a) { a.backward_stage = StageId(4); });
  with([](PartArguments& a) { a.accumulate = true; });
  with([](PartArguments& a) { a.weights = 1; });
  with([&](PartArguments& a) { a.loss.sum = &sum; });
  with([](PartArguments& a) { a.loss.gradient = false; });
  for (StageBuffers PartArguments::*half : {&PartArguments::forward, &PartArguments::backward}) {
    with([&](PartArguments& a) { (a.*half).view.tokens = &token; });
    with([&](PartArguments& a) { (a.*half).view.targets = &token; });
    with([&](PartArguments& a) { (a.*half).input = &tensor; });
    with([&](PartArguments& a) { (a.*half).output = &tensor; });
    with([&](PartArguments& a) { (a.*half).d_output = &tensor; });
    with([&](PartArguments& a) { (a.*half).d_input = &tensor; });
    with([&](PartArguments& a) { (a.*half).stash = &bytes; });
    with([&](PartArguments& a) { (a.*half).recomputed = &bytes; });
    with([&](PartArguments& a) { (a.*half).loss_scale = 0.5F; });
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (int call = 0; call < 2; ++call) Run(all[i], std::to_string(i));
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_THAT(Run(all[i], "other"), ElementsAre("again " + std::to_string(i)));
  }
}

TEST_F(ReplaysTest, RecordsAgainWhatMemoryHasLeft) {
  replays_.Start();
  for (int i = 0; i < 2; ++i) Run(Forward(), "a");
  ++recorder_.moves;
  EXPECT_THAT(Run(Forward(), "b"), ElementsAre("b"));
  EXPECT_THAT(Run(Forward(), "c"), ElementsAre("again c"));
}

TEST_F(ReplaysTest, WhatCannotBeRecordedRunsAsItIs) {
  replays_.Start();
  for (int i = 0; i < 2; ++i) Run(Forward(1), "a");
  recorder_.failure = absl::ResourceExhaustedError("no memory for a graph");
  for (int i = 0; i < 3; ++i) EXPECT_THAT(Run(Forward(2), "b"), ElementsAre("b"));
  EXPECT_THAT(Run(Forward(1), "c"), ElementsAre("again a")) << "what there was is kept";
}

TEST_F(ReplaysTest, AnErrorOfThePartIsItsCallers) {
  replays_.Start();
  Run(Forward(), "a");
  const absl::Status failure = absl::InternalError("device fault");
  EXPECT_EQ(replays_.Run(Forward(), [&] { return failure; }), failure);
}

TEST_F(ReplaysTest, KeepsABoundedNumber) {
  replays_.Start();
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < 2 * Replays::kMost; ++i) Run(Forward(static_cast<float>(i)), "a");
  }
  EXPECT_EQ(recorder_.recorded, Replays::kMost);
}

TEST_F(ReplaysTest, ForgetsWhatCameOnce) {
  replays_.Start();
  for (int i = 0; i < 2; ++i) Run(Forward(0), "kept");
  Run(Forward(1), "once");
  for (std::size_t i = 2; i < 100 * Replays::kMost; ++i) Run(Forward(static_cast<float>(i)), "a");
  EXPECT_THAT(Run(Forward(0), "b"), ElementsAre("again kept"));
  EXPECT_THAT(Run(Forward(1), "b"), ElementsAre("b"));
}

TEST(IsShort, HangsOnTheWorkOfAMicrobatch) {
  const model::ModelConfig gpt2{.layers = 12,
                                .hidden = 768,
                                .heads = 12,
                                .kv_heads = 12,
                                .inner = 3072,
                                .context = 1024,
                                .positions = 1024,
                                .vocab = 50257};
  const auto is_short = [&](int microbatch) {
    const mesh::Stage middle{StageId(1), PpRank(0), LayerId(3), LayerId(7)};
    return IsShort(model::BuildModel(gpt2, microbatch).value(), middle);
  };
  EXPECT_TRUE(is_short(1));
  EXPECT_FALSE(is_short(8));
}

}  // namespace
}  // namespace takt::train
