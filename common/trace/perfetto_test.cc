// SPDX-License-Identifier: Apache-2.0
#include "common/trace/perfetto.h"

#include <cstdio>
#include <map>
#include <set>
#include <tuple>

#include "common/trace/testing/synthetic_trace.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace takt::trace {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// Checks what the format requires of a file, and what makes ours useful.
class Checked {
 public:
  explicit Checked(const std::string& text) : file_(json::parse(text)) {
    EXPECT_TRUE(file_["traceEvents"].is_array());
    for (const json& event : file_["traceEvents"]) Take(event);
    for (const auto& [track, slices] : slices_) CheckTrack(track, slices);
    for (const auto& [id, ends] : flows_) CheckFlow(id, ends);
  }

  // The names of slices in order of time, by (process name, thread name).
  std::vector<std::string> Names(const std::string& process, const std::string& thread) const {
    std::vector<std::string> names;
    for (const auto& [track, slices] : slices_) {
      if (process_names_.at(track.first) != process || thread_names_.at(track) != thread) continue;
      for (const auto& [start, slice] : slices) names.push_back(slice.name);
    }
    return names;
  }
  std::size_t num_flows() const { return flows_.size(); }

 private:
  using Track = std::pair<int, int>;
  struct Named {
    std::string name;
    double end = 0;
  };
  struct End {
    Track track;
    double at = 0;
  };

  void Take(const json& event) {
    const std::string phase = event.at("ph");
    const Track track(event.at("pid"), event.at("tid"));
    if (phase == "M") {
      const json& arguments = event.at("args");
      if (event.at("name") == "process_name") process_names_[track.first] = arguments.at("name");
      if (event.at("name") == "thread_name") thread_names_[track] = arguments.at("name");
      return;
    }
    EXPECT_GE(event.at("ts").get<double>(), 0);
    if (phase == "X") {
      const double start = event.at("ts"), length = event.at("dur");
      EXPECT_GE(length, 0);
      slices_[track].emplace(start, Named{event.at("name"), start + length});
      return;
    }
    ASSERT_TRUE(phase == "s" || phase == "f") << phase;
    if (phase == "f") {
      EXPECT_EQ(event.at("bp"), "e");
    }
    EXPECT_TRUE(flows_[event.at("id")].emplace(phase, End{track, event.at("ts")}).second);
  }

  void CheckTrack(Track track, const std::multimap<double, Named>& slices) const {
    EXPECT_TRUE(process_names_.contains(track.first));
    EXPECT_TRUE(thread_names_.contains(track));
    double end = 0;
    for (const auto& [start, slice] : slices) {
      // A thread does one thing at a time, which is the strictest form of nesting. Doubles hold
      // these microseconds without an error that matters.
      EXPECT_GE(start, end - 1e-4) << slice.name << " on " << track.first << "." << track.second;
      end = std::max(end, slice.end);
    }
  }

  void CheckFlow(int id, const std::map<std::string, End>& ends) const {
    ASSERT_EQ(ends.size(), 2u) << "flow " << id;
    EXPECT_GE(ends.at("f").at, ends.at("s").at - 1e-3) << "flow " << id;
    for (const auto& [phase, end] : ends) {
      const auto& slices = slices_.at(end.track);
      auto slice = slices.upper_bound(end.at + 1e-4);
      ASSERT_NE(slice, slices.begin());
      --slice;
      EXPECT_LE(end.at, slice->second.end + 1e-4) << "flow " << id;
      EXPECT_THAT(slice->second.name, HasSubstr(phase == "s" ? "SEND" : "RECV"));
    }
  }

  json file_;
  std::map<int, std::string> process_names_;
  std::map<Track, std::string> thread_names_;
  std::map<Track, std::multimap<double, Named>> slices_;
  std::map<int, std::map<std::string, End>> flows_;
};

std::string Written(const JobTrace& trace, const PerfettoOptions& options = {}) {
  return WritePerfetto(MakeTimeline(trace).value(), options).value().json;
}

TEST(Perfetto, SlicesNestAndFlowsConnectForEveryKindOfProgram) {
  for (const char* family : {"1f1b", "interleaved-1f1b", "zb-v", "dualpipe-v", "chimera"}) {
    SCOPED_TRACE(family);
    SyntheticTrace synthetic(family, 4, 8);
    const JobTrace& trace = synthetic.Get();
    const Checked file(Written(trace));
    EXPECT_EQ(file.num_flows(), MakeTimeline(trace)->flows.size());
    EXPECT_EQ(file.Names("steps", "steps"), (std::vector<std::string>{"step 1", "step 2"}));
  }
  SyntheticTrace filled("pipedream-2bw", 4, 8);
  filled.AddStep(0.1);
  const Checked with_prologue(Written(filled.Get()));
  const std::vector<std::string> first = with_prologue.Names("rank 0", "compute");
  EXPECT_EQ(std::count(first.begin(), first.end(), "SNAPSHOT"), 1);
  SyntheticTrace copies("1f1b", 2, 4, {.dp_size = 2});
  EXPECT_EQ(Checked(Written(copies.Get())).Names("rank 3 (pp 1, dp 1)", "predicted").size(), 16u);
}

TEST(Perfetto, ShowsWorkAndWaitsOnOneTrackAndThePredictionBelow) {
  SyntheticTrace synthetic("naive", 2, 1);
  const Checked file(Written(synthetic.Get()));
  const std::vector<std::string> step = {"peer 0",       "link 0", "1F0",  "1B0",
                                         "NORM_PARTIAL", "peer 0", "sync", "OPT"};
  std::vector<std::string> both = step;
  both.insert(both.end(), step.begin(), step.end());
  EXPECT_EQ(file.Names("rank 1", "compute"), both);
  EXPECT_EQ(file.Names("rank 1", "predicted"),
            (std::vector<std::string>{"1F0", "1B0", "1F0", "1B0"}));
  EXPECT_EQ(file.Names("rank 1", "recv F from 0"),
            (std::vector<std::string>{"0RECV_F0", "0RECV_F0"}));
}

TEST(Perfetto, LeavesOutDetailsBeforeItGrowsTooLarge) {
  SyntheticTrace synthetic("1f1b", 4, 8, {.num_steps = 4});
  const Timeline timeline = MakeTimeline(synthetic.Get()).value();
  const std::size_t whole = WritePerfetto(timeline)->json.size();
  std::vector<std::string> left_out;
  for (std::size_t limit = whole; limit > 1000; limit -= limit / 20) {
    const auto file = WritePerfetto(timeline, {.max_bytes = limit});
    if (!file.ok()) {
      EXPECT_EQ(file.status().code(), absl::StatusCode::kResourceExhausted);
      EXPECT_THAT(std::string(file.status().message()), HasSubstr("4 steps of 4 ranks"));
      left_out.push_back("all");
      break;
    }
    EXPECT_LE(file->json.size(), limit);
    const Checked check(file->json);
    if (left_out.empty() || left_out.back() != file->left_out) left_out.push_back(file->left_out);
  }
  EXPECT_EQ(left_out,
            (std::vector<std::string>{"", "messages", "messages and predictions", "all"}));
}

TEST(Perfetto, AHundredStepsOfSixteenRanksFitWithTheirMessages) {
  SyntheticTrace synthetic("1f1b", 16, 32, {.num_steps = 100});
  const auto file = WritePerfetto(MakeTimeline(synthetic.Get()).value());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->left_out, "");
  EXPECT_LT(file->json.size(), 50'000'000u);
  std::printf("100 steps, 16 ranks, 32 microbatches: %.1f MB\n",
              1e-6 * static_cast<double>(file->json.size()));
}

}  // namespace
}  // namespace takt::trace
