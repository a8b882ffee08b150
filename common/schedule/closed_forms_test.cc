// SPDX-License-Identifier: Apache-2.0
// Checks every formula that a family states, for all P up to 12 and M up to 32 for which it holds.
#include <algorithm>
#include <fstream>
#include <sstream>

#include "common/schedule/generate.h"
#include "common/schedule/testing/dry_run.h"
#include "common/schedule/validator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::schedule {
namespace {

// The costs of one stage. All stages are equal.
struct Times {
  double F = 1, I = 1, W = 1, latency = 0;
  double B() const { return I + W; }
};

const Times kUnit;
const Times kSkewed{.I = 1.125, .W = 0.75};  // sums of halves and eighths are exact
const Times kShortGradients{.I = 0.625, .W = 0.5};
const Times kLongGradients{.I = 1.5, .W = 1.25};
const Times kAll[] = {kUnit, kSkewed, kShortGradients, kLongGradients};

cost::Costs CostsOf(const Times& t) {
  return {.forward = {t.F},
          .input_grad = {t.I},
          .weight_grad = {t.W},
          .backward = {t.B()},
          .link = {.latency = t.latency}};
}

Schedule Make(std::string_view family, const GenerateOptions& options) {
  absl::StatusOr<Schedule> schedule = Generate(family, options);
  EXPECT_TRUE(schedule.ok()) << family << ": " << schedule.status();
  EXPECT_TRUE(Validate(*schedule).ok()) << Validate(*schedule);
  return *std::move(schedule);
}

std::string Sizes(const GenerateOptions& o) {
  return "P " + std::to_string(o.num_ranks) + " M " + std::to_string(o.num_microbatches) + " V " +
         std::to_string(o.num_chunks.value_or(0)) + " N " + std::to_string(o.group.value_or(0));
}

void ExpectIdle(std::string_view family, const GenerateOptions& options, const Times& times,
                double expected) {
  EXPECT_DOUBLE_EQ(DryRun(Make(family, options), CostsOf(times)).idle, expected)
      << family << ", " << Sizes(options) << ", I " << times.I << ", W " << times.W;
}

// Expects the peak expected(r) on each rank r.
template <typename Expected>
void ExpectPeaks(std::string_view family, const GenerateOptions& options, Expected expected) {
  std::vector<int> peaks;
  for (int rank = 0; rank < options.num_ranks; ++rank) peaks.push_back(expected(rank));
  EXPECT_EQ(PeakInFlight(Make(family, options)), peaks) << family << ", " << Sizes(options);
}

// Calls visit(P, M) for all P up to 12 and M from `least(P)` up to 32.
template <typename Least, typename Visit>
void ForSizes(Least least, Visit visit) {
  for (int p = 1; p <= 12; ++p) {
    for (int m = least(p); m <= 32; ++m) visit(p, m);
  }
}

int Any(int) { return 1; }
int Ranks(int p) { return p; }
int TwiceRanks(int p) { return 2 * p; }

TEST(ClosedForms, OfNaive) {
  const Times t{.I = 1.125, .W = 0.75, .latency = 0.25};
  ForSizes(Any, [&](int p, int m) {
    const GenerateOptions sizes{.num_ranks = p, .num_microbatches = m};
    EXPECT_DOUBLE_EQ(DryRun(Make("naive", sizes), CostsOf(t)).makespan,
                     m * (p * (t.F + t.B()) + 2 * (p - 1) * t.latency));
    ExpectPeaks("naive", sizes, [](int) { return 1; });
  });
}

TEST(ClosedForms, OfGpipe) {
  const Times t{.I = 1.125, .W = 0.75, .latency = 0.25};
  ForSizes(Any, [&](int p, int m) {
    const GenerateOptions sizes{.num_ranks = p, .num_microbatches = m};
    ExpectIdle("gpipe", sizes, t, (p - 1) * (t.F + t.B() + 2 * t.latency));
    ExpectPeaks("gpipe", sizes, [=](int) { return m; });
  });
}

TEST(ClosedForms, OfOneForwardOneBackward) {
  ForSizes(Any, [&](int p, int m) {
    const GenerateOptions sizes{.num_ranks = p, .num_microbatches = m};
    for (const Times& t : kAll) ExpectIdle("1f1b", sizes, t, (p - 1) * (t.F + t.B()));
    ExpectPeaks("1f1b", sizes, [=](int r) { return std::min(p - r, m); });
    if (p == 1 || m % p != 0) return;
    const Times slow{.I = 1.125, .W = 0.75, .latency = 0.25};
    ExpectIdle("1f1b", sizes, slow,
               (p - 1) * (slow.F + slow.B() + 2 * slow.latency) +
                   slow.latency * (2.0 * m * (p - 1) / p - 2));
  });
}

TEST(ClosedForms, OfInterleaved) {
  ForSizes(Ranks, [&](int p, int m) {
    for (const int v : {2, 3, 4}) {
      GenerateOptions sizes{.num_ranks = p, .num_microbatches = m, .num_chunks = v};
      for (const Times& t : kAll) ExpectIdle("interleaved-1f1b", sizes, t, (p - 1) * (t.F + t.B()));
      if (m % p != 0) continue;
      ExpectPeaks("interleaved-1f1b", sizes,
                  [=](int r) { return std::min((v - 1) * p + 2 * (p - 1 - r) + 1, v * m); });
    }
  });
}

TEST(ClosedForms, OfLoopedBfs) {
  ForSizes(Ranks, [&](int p, int m) {
    for (const int v : {1, 2, 4}) {
      const GenerateOptions sizes{.num_ranks = p, .num_microbatches = m, .num_chunks = v};
      for (const Times& t : kAll) ExpectIdle("looped-bfs", sizes, t, (p - 1) * (t.F + t.B()));
      ExpectPeaks("looped-bfs", sizes, [=](int) { return v * m; });
    }
  });
}

TEST(ClosedForms, OfZbH1) {
  ForSizes(Ranks, [&](int p, int m) {
    const GenerateOptions sizes{.num_ranks = p, .num_microbatches = m};
    ExpectPeaks("zb-h1", sizes, [=](int) { return p; });
    for (const Times& t : kAll)
      ExpectIdle("zb-h1", sizes, t, (p - 1) * std::max({t.F, t.I, t.F + t.I - t.W}));
  });
}

TEST(ClosedForms, OfZbH2) {
  ForSizes(TwiceRanks, [&](int p, int m) {
    const GenerateOptions sizes{.num_ranks = p, .num_microbatches = m};
    ExpectPeaks("zb-h2", sizes, [=](int) { return 2 * p - 1; });
    for (const Times& t : kAll)
      ExpectIdle("zb-h2", sizes, t, (p - 1) * std::max(t.F, t.F + t.I - 2 * t.W));
  });
}

TEST(ClosedForms, OfInterleavedZb) {
  ForSizes(TwiceRanks, [&](int p, int m) {
    for (const int v : {1, 2, 4}) {
      const GenerateOptions sizes{.num_ranks = p, .num_microbatches = m, .num_chunks = v};
      for (const Times& t : kAll)
        ExpectIdle("interleaved-zb", sizes, t, (p - 1) * std::max({t.F, t.I, t.F + t.I - t.W}));
      if (m % p == 0) ExpectPeaks("interleaved-zb", sizes, [=](int) { return (v - 1) * p + p; });
    }
  });
}

TEST(ClosedForms, OfGis) {
  ForSizes(TwiceRanks, [&](int p, int m) {
    if (m % p != 0) return;
    for (const int v : {2, 4}) {
      GenerateOptions sizes{.num_ranks = p, .num_microbatches = m, .num_chunks = v};
      for (const Times& t : kAll) ExpectIdle("gis", sizes, t, (p - 1) * (t.F + t.I));
      ExpectPeaks("gis", sizes, [=](int r) { return (v - 1) * p + p - r; });
      for (int g = (p + 1) / 2; g < p; ++g) {
        if (m % g != 0) continue;
        sizes.group = g;
        ExpectIdle("gis", sizes, kUnit, 2 * (p - 1) + (v - 1) * (p - g));
        ExpectPeaks("gis", sizes, [=](int r) { return (v - 1) * g + p - r; });
      }
    }
  });
}

TEST(ClosedForms, OfTheAutomaticScheduler) {
  ForSizes(TwiceRanks, [&](int p, int m) {
    const GenerateOptions sizes{.num_ranks = p, .num_microbatches = m};
    for (const std::string_view family : {"zb-1p", "zb-2p"})
      ExpectIdle(family, sizes, kUnit, p - 1);
    ExpectPeaks("zb-1p", sizes,
                [=](int r) { return r + 1 < p ? p : PeakInFlight(Make("zb-1p", sizes))[r]; });
  });
}

TEST(ClosedForms, OfZbV) {
  ForSizes(TwiceRanks, [&](int p, int m) {
    const GenerateOptions sizes{.num_ranks = p, .num_microbatches = m};
    for (const Times& t : {kUnit, kSkewed, Times{.I = 1.5, .W = 0.5}})
      ExpectIdle("zb-v", sizes, t, (p - 1) * std::max(t.I, 2 * (t.I - t.W)));
    ExpectPeaks("zb-v", sizes, [=](int) { return 2 * p; });
  });
  for (int p = 1; p <= 12; ++p) {
    ExpectIdle("zb-v", {.num_ranks = p, .num_microbatches = p}, kUnit, 2 * (p - 1));
  }
}

int LargestPeak(std::string_view family, const GenerateOptions& sizes) {
  const std::vector<int> peaks = PeakInFlight(Make(family, sizes));
  return *std::max_element(peaks.begin(), peaks.end());
}

TEST(ClosedForms, OfVHalf) {
  ForSizes(TwiceRanks, [&](int p, int m) {
    const GenerateOptions sizes{.num_ranks = p, .num_microbatches = m};
    EXPECT_EQ(LargestPeak("v-half", sizes), 2 * ((p + 2) / 2));
    ExpectIdle("v-half", sizes, kUnit, std::max(p - 1, p % 2 == 0 ? 3 * p - 7 : 3 * p - 4));
  });
}

TEST(ClosedForms, OfVMin) {
  ForSizes(TwiceRanks, [&](int p, int m) {
    const GenerateOptions sizes{.num_ranks = p, .num_microbatches = m};
    EXPECT_EQ(LargestPeak("v-min", sizes), 2 * ((p + 4) / 3)) << p;
    ExpectIdle("v-min", sizes, kUnit, p == 3 ? 5 : std::max(4 * p - 5, 0));
  });
}

// These hold at F = I = W, where O = F + B and the halves of a pair begin together.
TEST(ClosedForms, OfDualPipe) {
  ForSizes(TwiceRanks, [&](int p, int m) {
    const GenerateOptions sizes{.num_ranks = p, .num_microbatches = m};
    ExpectIdle("dualpipe-v", sizes, kUnit, 2 * (p - 1));
    ExpectPeaks("dualpipe-v", sizes, [=](int) { return 2 * p + 1; });
    if (p % 2 != 0 || m % 2 != 0) return;
    ExpectIdle("dualpipe", sizes, kUnit, 2 * (p / 2 - 1));
    ExpectPeaks("dualpipe", sizes, [=](int) { return p + 1; });
  });
}

TEST(ClosedForms, OfChimera) {
  ForSizes(Ranks, [&](int p, int m) {
    if (p % 2 != 0 || m % p != 0) return;
    const GenerateOptions sizes{.num_ranks = p, .num_microbatches = m};
    ExpectIdle("chimera", sizes, kUnit, (p - 2) * (m / p + 1));
    if (m == p) return;
    ExpectPeaks("chimera", sizes, [=](int r) { return p / 2 + 1 + std::min(r, p - 1 - r); });
  });
}

// Groups of any legal length, down to one chunk and one microbatch, complete.
TEST(Groups, OfEveryLegalLengthGiveAValidOrder) {
  for (int p = 1; p <= 12; ++p) {
    for (int m = 1; m <= 24; ++m) {
      for (const int v : {2, 3}) {
        for (int group = 1; group <= m; ++group) {
          for (const std::string_view family : {"interleaved-1f1b", "interleaved-zb", "gis"}) {
            const GenerateOptions sizes{
                .num_ranks = p, .num_microbatches = m, .num_chunks = v, .group = group};
            const absl::StatusOr<Schedule> schedule = Generate(family, sizes);
            if (!schedule.ok()) continue;
            EXPECT_TRUE(Validate(*schedule).ok()) << family << ", " << Sizes(sizes);
          }
        }
      }
    }
  }
}

TEST(ClosedForms, OfEveryFamily) {
  std::stringstream source;
  source << std::ifstream(TAKT_SOURCE_DIR "/common/schedule/closed_forms_test.cc").rdbuf();
  for (const Family& family : Families()) {
    if (family.updates != Updates::kFlush) continue;  // it has no bubble
    EXPECT_NE(source.str().find("\"" + std::string(family.name) + "\""), std::string::npos)
        << family.name << " states formulas: test them in this file";
  }
}

}  // namespace
}  // namespace takt::schedule
