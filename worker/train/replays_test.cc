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

// Writes words to a log instead of running ops.
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
  int recorded = 0, moves = 0;  // how many recordings there are; how often its memory moved
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
  // Runs the part with `word` as its ops, and returns what was done.
  std::vector<std::string> Run(Replays::Part& part, const PartArguments& arguments,
                               const std::string& word) {
    recorder_.log.clear();
    const auto ops = [&] {
      recorder_.log.push_back(word);
      return absl::OkStatus();
    };
    EXPECT_TRUE(part.Run(arguments, ops).ok());
    return recorder_.log;
  }
  std::vector<std::string> Run(const PartArguments& arguments, const std::string& word) {
    return Run(forward_, arguments, word);
  }

  PartBuffers Forward() {
    return {
        .op = program::Op::kForward, .forward_stage = StageId(3), .forward = {.stash = &memory_}};
  }
  static PartArguments Scaled(float scale = 1) { return {.loss = {.scale = scale}}; }

  std::byte memory_{};
  LoggingRecorder recorder_;
  Replays replays_{&recorder_};
  Replays::Part& forward_ = replays_.PartOf(Forward());
};

TEST_F(ReplaysTest, RecordsWhatComesAgain) {
  replays_.Start();
  EXPECT_THAT(Run(Scaled(), "a"), ElementsAre("a"));
  EXPECT_THAT(Run(Scaled(), "b"), ElementsAre("again b"));
  EXPECT_THAT(Run(Scaled(), "c"), ElementsAre("again b"));
  EXPECT_EQ(recorder_.recorded, 1);
}

TEST_F(ReplaysTest, RecordsNothingBeforeItStarts) {
  for (int i = 0; i < 3; ++i) EXPECT_THAT(Run(Scaled(), "a"), ElementsAre("a"));
  EXPECT_EQ(recorder_.recorded, 0);
}

TEST_F(ReplaysTest, EveryArgumentTellsCallsApart) {
  replays_.Start();
  double sum = 0;
  const std::vector<PartArguments> all = {
      {}, {.loss = {.sum = &sum}}, {.loss = {.scale = 0.5F}}, {.accumulate = true}, {.weights = 1},
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (int call = 0; call < 2; ++call) Run(all[i], std::to_string(i));
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_THAT(Run(all[i], "other"), ElementsAre("again " + std::to_string(i)));
  }
}

TEST_F(ReplaysTest, EveryBufferTellsPartsApart) {
  replays_.Start();
  float tensor = 0;
  const std::int32_t token = 0;
  std::byte bytes{};
  std::vector<Replays::Part*> all;
  const auto with = [&](const auto& change) {
    PartBuffers buffers = Forward();
    change(buffers);
    all.push_back(&replays_.PartOf(buffers));
  };
  with([](PartBuffers&) {});
  with([](PartBuffers& a) { a.op = program::Op::kBackward; });
  with([](PartBuffers& a) { a.forward_stage = StageId(4); });
  with([](PartBuffers& a) { a.backward_stage = StageId(4); });
  for (StageBuffers PartBuffers::*half : {&PartBuffers::forward, &PartBuffers::backward}) {
    with([&](PartBuffers& a) { (a.*half).view.tokens = &token; });
    with([&](PartBuffers& a) { (a.*half).view.targets = &token; });
    with([&](PartBuffers& a) { (a.*half).input = &tensor; });
    with([&](PartBuffers& a) { (a.*half).output = &tensor; });
    with([&](PartBuffers& a) { (a.*half).d_output = &tensor; });
    with([&](PartBuffers& a) { (a.*half).d_input = &tensor; });
    with([&](PartBuffers& a) { (a.*half).stash = &bytes; });
    with([&](PartBuffers& a) { (a.*half).recomputed = &bytes; });
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (int call = 0; call < 2; ++call) Run(*all[i], Scaled(), std::to_string(i));
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_THAT(Run(*all[i], Scaled(), "other"), ElementsAre("again " + std::to_string(i)));
  }
}

TEST_F(ReplaysTest, PartsOfEqualBuffersAreOneWhateverTheirMicrobatch) {
  PartBuffers again = Forward();
  again.forward.microbatch = MicrobatchId(5);
  EXPECT_EQ(&replays_.PartOf(again), &forward_);
}

TEST_F(ReplaysTest, RecordsAgainWhatMemoryHasLeft) {
  replays_.Start();
  for (int i = 0; i < 2; ++i) Run(Scaled(), "a");
  ++recorder_.moves;
  EXPECT_THAT(Run(Scaled(), "b"), ElementsAre("b"));
  EXPECT_THAT(Run(Scaled(), "c"), ElementsAre("again c"));
}

TEST_F(ReplaysTest, WhatCannotBeRecordedRunsAsItIs) {
  replays_.Start();
  for (int i = 0; i < 2; ++i) Run(Scaled(1), "a");
  recorder_.failure = absl::ResourceExhaustedError("no memory for a graph");
  for (int i = 0; i < 3; ++i) EXPECT_THAT(Run(Scaled(2), "b"), ElementsAre("b"));
  EXPECT_THAT(Run(Scaled(1), "c"), ElementsAre("again a")) << "what there was is kept";
}

TEST_F(ReplaysTest, AnErrorOfThePartIsItsCallers) {
  replays_.Start();
  Run(Scaled(), "a");
  const absl::Status failure = absl::InternalError("device fault");
  EXPECT_EQ(forward_.Run(Scaled(), [&] { return failure; }), failure);
}

TEST_F(ReplaysTest, KeepsABoundedNumber) {
  replays_.Start();
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < 2 * Replays::kMost; ++i) Run(Scaled(static_cast<float>(i)), "a");
  }
  EXPECT_EQ(recorder_.recorded, Replays::kMost);
}

TEST_F(ReplaysTest, ForgetsWhatCameOnce) {
  replays_.Start();
  for (int i = 0; i < 2; ++i) Run(Scaled(0), "kept");
  Run(Scaled(1), "once");
  for (std::size_t i = 2; i < 100 * Replays::kMost; ++i) Run(Scaled(static_cast<float>(i)), "a");
  EXPECT_THAT(Run(Scaled(0), "b"), ElementsAre("again kept"));
  EXPECT_THAT(Run(Scaled(1), "b"), ElementsAre("b"));
}

TEST(IsShort, DependsOnTheWorkOfAMicrobatch) {
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
