// SPDX-License-Identifier: Apache-2.0
// Compares whole screens.
#include "cli/job/watch_view.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/terminal/styled_line.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::cli {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

// A job on four stages, at step 62 of 200.
WatchState Training() {
  WatchState state;
  v1::Job& job = state.job;
  job.set_name("kjv-gpt");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.set_steps(200);
  job.set_schedule("zb-h1");
  job.set_predicted_bubble_fraction(0.2);
  job.set_generation(2);
  job.mutable_checkpoint()->set_step(50);
  for (int i = 0; i < 4; ++i) {
    v1::StageAssignment* stage = job.add_stages();
    stage->set_stage(i);
    stage->set_pp_rank(i);
    v1::BoundRank* rank = job.add_ranks();
    rank->set_rank(i);
    rank->set_worker(absl::StrCat("w", i));
    v1::Worker& worker = state.workers.emplace_back();
    worker.set_name(absl::StrCat("w", i));
    worker.set_state(i == 2 ? v1::WORKER_STATE_LOST : v1::WORKER_STATE_BUSY);
  }
  for (int i = 1; i <= 62; ++i) {
    v1::StepReport step;
    step.set_step(i);
    step.set_loss(2 + 3.5 * std::exp(-i / 15.0));
    step.set_grad_norm(1.25);
    step.set_learning_rate(3e-4);
    step.set_step_seconds(0.8);
    step.set_tokens_per_second(12345);
    step.set_bubble_fraction(0.275);
    for (const double bubble : {0.3, 0.25, 0.25, 0.3}) step.add_bubble_by_pp_rank(bubble);
    if (i == 50) step.set_validation_loss(2.5);
    state.TakeStep(step);
  }
  v1::StepSplit& split = state.split.emplace();
  split.set_step(60);
  split.set_step_seconds(0.8);
  split.set_compute(0.58);
  split.set_imbalance(0.04);
  split.set_schedule(0.15);
  split.set_communication(0.02);
  split.set_sync(0.008);
  split.set_runtime(0.002);
  return state;
}

std::string Text(const WatchState& state, const Screen& screen) {
  return "\n" + absl::StrJoin(RenderWatch(state, screen), "\n") + "\n";
}

TEST(WatchView, AnOrdinaryTerminal) {
  EXPECT_EQ(Text(Training(), {.columns = 80, .rows = 30}), R"(
kjv-gpt  RUNNING  zb-h1 on 4 ranks  generation 2
[#################-------------------------------------] 62/200 31.0%  ETA 1m50s
loss 2.0561  validation 2.5000  grad_norm 1.25  lr 0.0003  12.3k tokens/s
800 ms a step  bubble 27.5% (predicted 20.0%)
    5.274 ****
             ***
               ***
                 *****
                     ****
                        ******
                             *******
                                   *************
    2.056                                      *********************************
          loss from step 1                                               step 62
where the time went in step 60 (800 ms)
compute        72.5% [#########################################----------------]
imbalance       5.0% [###------------------------------------------------------]
schedule       18.7% [###########----------------------------------------------]
communication   2.5% [#--------------------------------------------------------]
data            0.0% [---------------------------------------------------------]
sync            1.0% [#--------------------------------------------------------]
runtime         0.2% [---------------------------------------------------------]
busy by stage, its workers, and the bubble
stage 0 w0      [#############################------------]  70.0%  bubble 30.0%
stage 1 w1      [###############################----------]  75.0%  bubble 25.0%
stage 2 w2 LOST [###############################----------]  75.0%  bubble 25.0%
stage 3 w3      [#############################------------]  70.0%  bubble 30.0%
workers: 3 busy, 1 lost
checkpoint: step 50
Ctrl-C stops watching; the job goes on
)");
}

TEST(WatchView, AWideTerminalOfUtf8) {
  EXPECT_EQ(Text(Training(), {.columns = 100, .rows = 24, .unicode = true}), R"(
kjv-gpt  RUNNING  zb-h1 on 4 ranks  generation 2
[██████████████████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░] 62/200 31.0%  ETA 1m50s
loss 2.0561  validation 2.5000  grad_norm 1.25  lr 0.0003  12.3k tokens/s  800 ms a step
bubble 27.5% (predicted 20.0%)
    5.274 ⠉⠉⠉⠓⠲⠤⠤⢤⣀⡀
                   ⠉⠉⠉⠓⠒⠒⠒⠦⠤⠤⣄⣀⣀⣀⣀
    2.056                        ⠈⠉⠉⠉⠉⠉⠉⠙⠒⠒⠒⠒⠒⠒⠒⠦⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⣄⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀
          loss from step 1                                                                   step 62
where the time went in step 60 (800 ms)
compute        72.5% [██████████████████████████████████████████░░░░░░░░░░░░░░░░]
imbalance       5.0% [███░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░]
schedule       18.7% [███████████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░]
communication   2.5% [█░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░]
data            0.0% [░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░]
sync            1.0% [█░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░]
runtime         0.2% [░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░]
busy by stage, its workers, and the bubble
stage 0 w0      [█████████████████████████████████████████░░░░░░░░░░░░░░░░░]  70.0%  bubble 30.0%
stage 1 w1      [████████████████████████████████████████████░░░░░░░░░░░░░░]  75.0%  bubble 25.0%
stage 2 w2 LOST [████████████████████████████████████████████░░░░░░░░░░░░░░]  75.0%  bubble 25.0%
stage 3 w3      [█████████████████████████████████████████░░░░░░░░░░░░░░░░░]  70.0%  bubble 30.0%
workers: 3 busy, 1 lost
checkpoint: step 50
Ctrl-C stops watching; the job goes on
)");
}

TEST(WatchView, ASmallTerminalKeepsWhatMattersMost) {
  EXPECT_EQ(Text(Training(), {.columns = 40, .rows = 12}), R"(
kjv-gpt  RUNNING  zb-h1 on 4 ranks
generation 2
[####----------] 62/200 31.0%  ETA 1m50s
loss 2.0561  validation 2.5000
grad_norm 1.25  lr 0.0003
12.3k tokens/s  800 ms a step
bubble 27.5% (predicted 20.0%)
compute 72.5% schedule 18.7% imbalance 5
workers: 3 busy, 1 lost
checkpoint: step 50
Ctrl-C stops watching; the job goes on
)");
}

TEST(WatchView, TenColumns) {
  EXPECT_EQ(Text(Training(), {.columns = 10, .rows = 16}), R"(
kjv-gpt
RUNNING
zb-h1 on 4
generation
62/200 31.
loss 2.056
validation
grad_norm
lr 0.0003
12.3k toke
800 ms a s
bubble 27.
compute 72
workers: 3
checkpoint
Ctrl-C sto
)");
}

TEST(WatchView, NeverLeavesTheScreenWhateverItsSize) {
  const WatchState state = Training();
  for (int columns = 1; columns <= 130; columns += 3) {
    for (int rows = 1; rows <= 50; ++rows) {
      const Screen screen{.columns = columns, .rows = rows, .unicode = columns % 2 == 0};
      const std::vector<std::string> lines = RenderWatch(state, screen);
      ASSERT_LE(static_cast<int>(lines.size()), rows);
      for (const std::string& line : lines) ASSERT_LE(WidthOf(line), columns) << line;
    }
  }
}

TEST(WatchView, BeforeTheFirstStepItSaysWhatTheJobWaitsFor) {
  WatchState state;
  state.job.set_name("j");
  state.job.set_state(v1::JOB_STATE_QUEUED);
  state.job.set_steps(10);
  state.job.set_reason("waiting for 2 workers\x1b[2J");
  const auto lines = RenderWatch(state, {.columns = 50, .rows = 24});
  EXPECT_THAT(lines, ElementsAre("j  QUEUED", HasSubstr("0/10 0.0%"), "waiting for 2 workers?[2J",
                                 HasSubstr("Ctrl-C")));
}

TEST(WatchView, ARecoveringJobGoesOnFromWhereItResumed) {
  WatchState state;
  state.job.set_state(v1::JOB_STATE_RUNNING);
  state.job.set_steps(100);
  state.job.set_resumed_step(40);
  EXPECT_THAT(RenderWatch(state, {}), Contains(HasSubstr("40/100 40.0%")));
}

TEST(WatchView, TalkTakesThePlaceOfTheHint) {
  WatchState state = Training();
  state.notice = "the coordinator is away";
  EXPECT_EQ(RenderWatch(state, {}).back(), "the coordinator is away");
}

TEST(WatchView, ManyStagesAreCutAndCounted) {
  WatchState state;
  state.job.set_state(v1::JOB_STATE_RUNNING);
  for (int i = 0; i < 64; ++i) {
    state.job.add_stages()->set_stage(i);
    state.job.mutable_stages(i)->set_pp_rank(i);
    state.job.add_ranks()->set_rank(i);
  }
  const auto lines = RenderWatch(state, {.columns = 80, .rows = 20});
  EXPECT_THAT(lines, SizeIs(20));
  EXPECT_THAT(lines, Contains("... 49 more"));
}

TEST(WatchView, ReplicasAndChunksShareALine) {
  WatchState state = Training();
  state.job.clear_ranks();
  state.job.clear_stages();
  for (int i = 0; i < 4; ++i) {
    state.job.add_ranks()->set_rank(i);
    state.job.mutable_ranks(i)->set_worker(absl::StrCat("w", i));
    state.job.add_stages()->set_stage(i);
    state.job.mutable_stages(i)->set_pp_rank(i % 2);
  }
  const auto lines = RenderWatch(state, {.columns = 80, .rows = 40});
  EXPECT_THAT(lines, Contains(HasSubstr("stages 0,2 w0,w1")));
  EXPECT_THAT(lines, Contains(HasSubstr("stages 1,3 w2 LOST,w3")));
}

TEST(WatchView, ManyReplicasLeaveRoomForTheBar) {
  WatchState state = Training();
  state.job.clear_ranks();
  for (int i = 0; i < 64; ++i) {
    state.job.add_ranks()->set_rank(i);
    state.job.mutable_ranks(i)->set_worker(absl::StrCat("worker-", i));
  }
  state.workers.clear();
  state.workers.emplace_back().set_name("worker-31");
  state.workers.back().set_state(v1::WORKER_STATE_LOST);
  const auto lines = RenderWatch(state, {.columns = 80, .rows = 40});
  EXPECT_THAT(lines, Contains("stage 0 worker-0,worker-1,worker-2 +13   [###########-----]  70.0%"
                              "  bubble 30.0%"));
  EXPECT_THAT(lines, Contains(HasSubstr("stage 1 worker-31 LOST,worker-16 +14")));
}

TEST(WatchView, ALossThatIsNotFiniteIsShownAsSuch) {
  WatchState state = Training();
  v1::StepReport step = *state.step;
  step.set_step(63);
  for (const double sign : {1.0, -1.0}) {
    step.set_loss(std::copysign(std::numeric_limits<double>::quiet_NaN(), sign));
    step.set_grad_norm(step.loss());
    state.TakeStep(step);
    EXPECT_THAT(RenderWatch(state, {}), Contains(HasSubstr("loss nan")));
    EXPECT_THAT(RenderWatch(state, {}), Contains(HasSubstr("grad_norm nan")));
  }
}

}  // namespace
}  // namespace takt::cli
