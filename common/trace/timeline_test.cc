// SPDX-License-Identifier: Apache-2.0
#include "common/trace/timeline.h"

#include <map>

#include "common/trace/clocks.h"
#include "common/trace/testing/synthetic_trace.h"
#include "gmock/gmock.h"

namespace takt::trace {
namespace {

using program::Op;
using ::testing::HasSubstr;

constexpr std::int64_t kMillisecond = 1'000'000;

struct Case {
  const char* family;
  int ranks, microbatches, dp_size;
};
constexpr Case kCases[] = {{"1f1b", 4, 8, 1},    {"interleaved-1f1b", 4, 8, 1},
                           {"zb-v", 4, 8, 1},    {"dualpipe-v", 4, 8, 1},
                           {"chimera", 4, 8, 1}, {"1f1b", 2, 4, 3},
                           {"gpipe", 1, 2, 1},   {"pipedream-2bw", 4, 8, 1}};

SyntheticTrace Make(const Case& c) {
  return SyntheticTrace(c.family, c.ranks, c.microbatches, {.dp_size = c.dp_size});
}

bool OnComputeLane(const JobTrace& trace, int rank, std::int32_t i) {
  const program::Program& program = trace.ProgramOf(rank);
  return program.lanes[program.body[i].lane.value()].kind == program::LaneKind::kCompute;
}

// The nanoseconds of idle time by cause.
std::map<Cause, std::int64_t> ByCause(const Timeline& timeline, int rank, StepId step) {
  std::map<Cause, std::int64_t> sums;
  for (const Idle& idle : timeline.idle) {
    if (idle.rank == rank && idle.step == step) {
      sums[idle.cause] += idle.end_nanos - idle.start_nanos;
    }
  }
  return sums;
}

TEST(Timeline, WorkAndIdleTimeFillEveryComputeLane) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.family);
    SyntheticTrace synthetic = Make(c);
    const JobTrace& trace = synthetic.Get();
    const Timeline timeline = MakeTimeline(trace).value();
    for (int rank = 0; rank < trace.num_ranks(); ++rank) {
      std::vector<std::pair<std::int64_t, std::int64_t>> row;
      for (const Slice& slice : timeline.slices) {
        if (slice.rank != rank || !OnComputeLane(trace, rank, slice.instruction)) continue;
        row.emplace_back(slice.start_nanos, slice.end_nanos);
      }
      for (const Idle& idle : timeline.idle) {
        if (idle.rank == rank) row.emplace_back(idle.start_nanos, idle.end_nanos);
      }
      std::sort(row.begin(), row.end());
      for (std::size_t i = 1; i < row.size(); ++i) {
        EXPECT_EQ(row[i].first, row[i - 1].second) << "rank " << rank << ", piece " << i;
      }
    }
  }
}

TEST(Timeline, ARunningEngineHasNoOtherIdleTimeThanItsWaits) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.family);
    SyntheticTrace synthetic = Make(c);
    const Timeline timeline = MakeTimeline(synthetic.Get()).value();
    for (const Idle& idle : timeline.idle) {
      // Nanoseconds are rounded.
      if (idle.cause == Cause::kRuntime) {
        EXPECT_LE(idle.end_nanos - idle.start_nanos, 2);
      }
      if (idle.cause == Cause::kLink) {
        EXPECT_GE(idle.peer, 0);
      }
    }
  }
}

TEST(Timeline, EveryMessageArrivesAfterItWasSent) {
  for (const Case& c : kCases) {
    SyntheticTrace synthetic = Make(c);
    const JobTrace& trace = synthetic.Get();
    const Timeline timeline = MakeTimeline(trace).value();
    std::size_t sends = 0;
    for (const Slice& slice : timeline.slices) {
      sends += trace.ProgramOf(slice.rank).body[slice.instruction].op == Op::kSend;
    }
    EXPECT_EQ(timeline.flows.size(), sends) << c.family;
    for (const Flow& flow : timeline.flows) {
      const Slice& send = timeline.slices[flow.send];
      const Slice& recv = timeline.slices[flow.recv];
      EXPECT_GE(recv.end_nanos, send.start_nanos);
      EXPECT_EQ(trace.ProgramOf(recv.rank).body[recv.instruction].microbatch,
                trace.ProgramOf(send.rank).body[send.instruction].microbatch);
    }
  }
}

TEST(Timeline, NamesThePeerThatHasNotComputedYetAndTheLink) {
  SyntheticTrace synthetic("naive", 2, 1, {.message = 0.003});
  const Timeline timeline = MakeTimeline(synthetic.Get()).value();
  // Rank 1 waits while rank 0 runs F, then for its message.
  const auto of_rank1 = ByCause(timeline, 1, StepId(2));
  EXPECT_NEAR(of_rank1.at(Cause::kLink), 3 * kMillisecond, 5);
  EXPECT_NEAR(of_rank1.at(Cause::kPeer), 10 * kMillisecond + 23 * kMillisecond, kMillisecond);
  // Its only peers are each other.
  for (const Idle& idle : timeline.idle) {
    if (idle.cause == Cause::kPeer) {
      EXPECT_EQ(idle.peer, 1 - idle.rank);
    }
  }
}

TEST(Timeline, TellsDataReductionAndSynchronisationApart) {
  SyntheticTrace slow_data("1f1b", 2, 2, {.load = 0.1});
  EXPECT_GT(ByCause(MakeTimeline(slow_data.Get()).value(), 0, StepId(2)).at(Cause::kData),
            50 * kMillisecond);
  SyntheticTrace slow_sum("1f1b", 2, 2, {.dp_size = 2, .reduction = 0.07});
  EXPECT_GT(ByCause(MakeTimeline(slow_sum.Get()).value(), 0, StepId(2)).at(Cause::kReduction),
            60 * kMillisecond);
  SyntheticTrace slow_exchange("1f1b", 2, 2, {.exchange = 0.05});
  EXPECT_NEAR(ByCause(MakeTimeline(slow_exchange.Get()).value(), 0, StepId(2)).at(Cause::kSync),
              50 * kMillisecond, 5);
}

TEST(Timeline, ADelayOfTheEngineIsNobodysFault) {
  SyntheticTrace synthetic("naive", 1, 2);
  JobTrace& trace = synthetic.Get();
  // From the second F on everything is 5 ms later.
  const std::size_t second = sim::IndexOf(trace.programs[0], "0F1");
  std::vector<Span>& body = trace.ranks[0].steps[1].body;
  const std::int64_t from = body[second].start_nanos;
  for (Span& span : body) {
    if (span.start_nanos < from) continue;
    span.start_nanos += 5 * kMillisecond;
    span.end_nanos += 5 * kMillisecond;
  }
  const auto causes = ByCause(MakeTimeline(trace).value(), 0, StepId(2));
  EXPECT_NEAR(causes.at(Cause::kRuntime), 5 * kMillisecond, 5);
}

TEST(Timeline, APauseBetweenStepsIsOfNoStep) {
  constexpr std::int64_t kPause = 50 * kMillisecond;
  for (const char* family : {"1f1b", "pipedream-2bw"}) {
    SCOPED_TRACE(family);
    SyntheticTrace synthetic(family, 4, 8, {.num_steps = 4});
    synthetic.AddStep();
    synthetic.AddStep();
    synthetic.AddStep(1e-9 * kPause);
    const JobTrace& trace = synthetic.Get();
    const Timeline timeline = MakeTimeline(trace).value();
    // If the pipeline has to be filled, that happens in the pause.
    EXPECT_EQ(timeline.prologue.empty(), trace.programs[0].prologue.empty());
    EXPECT_NEAR(timeline.steps[2].start_nanos - timeline.steps[1].end_nanos, kPause, 10);
    EXPECT_EQ(timeline.steps[3].start_nanos, timeline.steps[2].end_nanos);
    for (int rank = 0; rank < trace.num_ranks(); ++rank) {
      std::int64_t work = 0;
      for (const Slice& slice : timeline.prologue) {
        const LaneId lane = InstructionOf(trace, slice).lane;
        const bool computes =
            trace.ProgramOf(rank).lanes[lane.value()].kind == program::LaneKind::kCompute;
        if (slice.rank == rank && computes) work += slice.end_nanos - slice.start_nanos;
      }
      for (int step = 1; step <= 4; ++step) {
        const auto causes = ByCause(timeline, rank, StepId(step));
        const auto pause = causes.find(Cause::kPause);
        const std::int64_t idle = pause == causes.end() ? 0 : pause->second;
        // It counts from where its own compute lane ended, which may be sooner than the step.
        if (step == 3) {
          EXPECT_GE(idle + work, kPause - 10) << rank;
        } else {
          EXPECT_EQ(idle, 0) << rank;
        }
      }
    }
  }
}

TEST(Timeline, StepsFollowEachOther) {
  SyntheticTrace synthetic("1f1b", 4, 8, {.num_steps = 3});
  const Timeline timeline = MakeTimeline(synthetic.Get()).value();
  ASSERT_EQ(timeline.steps.size(), 3u);
  EXPECT_EQ(timeline.steps[1].start_nanos, timeline.steps[0].end_nanos);
  EXPECT_EQ(timeline.steps[2].step, StepId(3));
  ASSERT_TRUE(timeline.predicted.has_value());
  EXPECT_NEAR(
      timeline.predicted->makespan,
      static_cast<double>(timeline.steps[2].end_nanos - timeline.steps[2].start_nanos) / 1e9, 0.02);
}

TEST(Timeline, RefusesTracesThatDoNotFit) {
  const auto refusal = [](auto damage) {
    SyntheticTrace synthetic("1f1b", 2, 2);
    JobTrace& trace = synthetic.Get();
    damage(trace);
    const auto timeline = MakeTimeline(trace);
    return timeline.ok() ? std::string("taken") : std::string(timeline.status().message());
  };
  EXPECT_THAT(refusal([](JobTrace& t) { t.ranks.pop_back(); }), HasSubstr("1 ranks"));
  EXPECT_THAT(refusal([](JobTrace& t) { t.ranks[1].steps.pop_back(); }), HasSubstr("rank 1 has 1"));
  EXPECT_THAT(refusal([](JobTrace& t) { t.ranks[1].steps[1].step = StepId(7); }),
              HasSubstr("rank 1, step 7: rank 0 has another step here"));
  EXPECT_THAT(refusal([](JobTrace& t) { t.ranks[0].steps[0].body.pop_back(); }),
              HasSubstr("instructions, its program"));
  EXPECT_THAT(refusal([](JobTrace& t) { t.ranks[0].steps[0].body[0].end_nanos = 0; }),
              HasSubstr("ends before it starts"));
  EXPECT_THAT(refusal([](JobTrace& t) {
                for (RankTrace& rank : t.ranks) rank.steps.clear();
              }),
              HasSubstr("no step was measured"));
}

// ---- clocks

// Moves the clock of `rank`, and makes its exchanges report as much of that as they would notice.
void Skew(JobTrace& trace, int rank, std::int64_t nanos, std::int64_t error) {
  for (StepTrace& step : trace.ranks[rank].steps) {
    step.start_nanos += nanos;
    for (Span& span : step.body) {
      span.start_nanos += nanos;
      span.end_nanos += nanos;
    }
  }
  trace.ranks[rank].clock = {.offset_nanos = -nanos + error, .error_nanos = std::abs(error)};
}

TEST(AlignClocks, LeavesWhatNoMessageContradicts) {
  SyntheticTrace synthetic("1f1b", 4, 8);
  JobTrace& trace = synthetic.Get();
  Skew(trace, 2, 500 * kMillisecond, 0);
  const Alignment alignment = AlignClocks(trace);
  EXPECT_EQ(alignment.offset_nanos[2], -500 * kMillisecond);
  EXPECT_EQ(alignment.correction_nanos, 0);
}

TEST(AlignClocks, LetsNoMessageArriveBeforeItWasSent) {
  for (const std::int64_t error : {-40 * kMillisecond, 40 * kMillisecond}) {
    SyntheticTrace synthetic("1f1b", 4, 8, {.dp_size = 2});
    JobTrace& trace = synthetic.Get();
    Skew(trace, 3, 500 * kMillisecond, error);
    const Alignment alignment = AlignClocks(trace);
    EXPECT_EQ(alignment.error_nanos, 40 * kMillisecond);
    EXPECT_GT(alignment.correction_nanos, 0);
    const Timeline timeline = MakeTimeline(trace).value();
    for (const Flow& flow : timeline.flows) {
      EXPECT_GE(timeline.slices[flow.recv].end_nanos, timeline.slices[flow.send].start_nanos);
    }
  }
}

TEST(Timeline, WhileItsProcessStoodStillARankWaitedForNothing) {
  SyntheticTrace synthetic("1f1b", 2, 2);
  JobTrace& trace = synthetic.Get();
  const std::size_t first = sim::IndexOf(trace.programs[1], "1F0");
  const std::int64_t start = trace.ranks[1].steps[1].body[first].start_nanos;
  const Timeline before = MakeTimeline(trace).value();
  // Rank 1 waits for 10 ms for the first message. It reported the stall in both steps.
  trace.ranks[1].steps[1].stalls = {{start - 6 * kMillisecond, start - 2 * kMillisecond},
                                    {start - 4 * kMillisecond, start - kMillisecond}};
  trace.ranks[1].steps[0].stalls = trace.ranks[1].steps[1].stalls;
  const Timeline timeline = MakeTimeline(trace).value();
  ASSERT_EQ(timeline.stalls[1].size(), 1u);
  const std::int64_t stalled = 5 * kMillisecond;
  auto expected = ByCause(before, 1, StepId(2));
  expected[Cause::kPeer] -= stalled;
  expected[Cause::kRuntime] += stalled;
  EXPECT_EQ(ByCause(timeline, 1, StepId(2)), expected);
}

TEST(Timeline, ARankThatWaitsInsideAnInstructionIsIdle) {
  // The ranks that share the stage gather for 1 ms before each F. The second computes more slowly.
  SyntheticTrace synthetic("gpipe", 1, 2, {.tp_size = 2, .meeting = 1e-3});
  synthetic.Slow(1, Op::kForward, 2);
  const JobTrace& trace = synthetic.Get();
  const Timeline timeline = MakeTimeline(trace).value();
  ASSERT_EQ(timeline.meetings.size(), 2u * 2 * 2);
  EXPECT_EQ(timeline.meetings[0].part, 0);
  const auto inside = [&](int rank, Cause cause) {
    const std::size_t forward = sim::IndexOf(trace.ProgramOf(rank), "0F1");
    std::int64_t nanos = 0;
    for (const Idle& idle : timeline.idle) {
      const bool is_its = idle.rank == rank && idle.step == StepId(2) && idle.cause == cause &&
                          idle.before == static_cast<std::int32_t>(forward);
      if (!is_its) continue;
      nanos += idle.end_nanos - idle.start_nanos;
      EXPECT_EQ(idle.peer, cause == Cause::kPeer ? 1 : -1);
    }
    return nanos;
  };
  EXPECT_EQ(inside(0, Cause::kPeer), 10 * kMillisecond);
  EXPECT_EQ(inside(0, Cause::kLink), kMillisecond);
  EXPECT_EQ(inside(1, Cause::kPeer), 0);
  EXPECT_EQ(inside(1, Cause::kLink), kMillisecond);
}

TEST(Timeline, RefusesATraceWithoutItsMeetings) {
  SyntheticTrace synthetic("gpipe", 1, 2, {.tp_size = 2});
  synthetic.Get().ranks[0].steps[0].meetings.pop_back();
  EXPECT_THAT(std::string(MakeTimeline(synthetic.Get()).status().message()),
              HasSubstr("instructions with 1 meetings"));
}

}  // namespace
}  // namespace takt::trace
