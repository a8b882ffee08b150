// SPDX-License-Identifier: Apache-2.0
// Tests takt schedule: figures, pictures, files, and what it refuses.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "cli/app.h"
#include "cli/testing/fake_coordinator.h"
#include "cli/testing/test_directory.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace takt::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string WriteFile(const std::string& name, const std::string& text) {
  static const TestDirectory directory;
  return directory.Write(name, text);
}

json Simulate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"-o", "json", "schedule", "simulate"});
  const Outcome outcome = RunTakt(arguments);
  EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  return json::parse(outcome.out);
}

TEST(Schedule, PublishedFiguresComeOut) {
  const std::vector<std::string> sizes = {"--ranks", "4", "--microbatches", "8"};
  const auto simulate = [&](const std::string& name) {
    std::vector<std::string> arguments = {name};
    arguments.insert(arguments.end(), sizes.begin(), sizes.end());
    return Simulate(arguments);
  };
  EXPECT_EQ(simulate("naive")["makespan"], 96);
  EXPECT_EQ(simulate("naive")["bubble_fraction"], 0.75);
  for (const auto& [name, peak] : {std::pair("gpipe", 8), std::pair("1f1b", 4)}) {
    const json report = simulate(name);
    EXPECT_EQ(report["makespan"], 33);
    EXPECT_NEAR(report["bubble_fraction"].get<double>(), 3.0 / 11, 1e-15);
    EXPECT_EQ(report["ranks"][0]["peak_in_flight"], peak);
    EXPECT_EQ(report["ranks"].size(), 4u);
    EXPECT_EQ(report["ranks"][3]["busy"], 24);
  }
}

TEST(Schedule, AnUnknownNameIsToldWithAllThatThereAre) {
  const Outcome outcome =
      RunTakt({"schedule", "simulate", "nope", "--ranks", "2", "--microbatches", "4"});
  EXPECT_EQ(outcome.code, ExitCode::kInvalidInput);
  EXPECT_THAT(outcome.err, HasSubstr("error: NAME is nope: must be one of auto, naive, gpipe, "));
}

TEST(Schedule, BubblesFollowTheirFormulas) {
  for (const int p : {1, 2, 3, 4}) {
    for (const int m : {p, 2 * p, 4 * p}) {
      const auto bubble = [&](const std::string& name, int v) {
        return Simulate({name, "--ranks", std::to_string(p), "--microbatches", std::to_string(m),
                         "--chunks", std::to_string(v)})["bubble_fraction"]
            .get<double>();
      };
      EXPECT_NEAR(bubble("gpipe", 1), (p - 1.0) / (m + p - 1), 1e-12);
      EXPECT_NEAR(bubble("1f1b", 1), (p - 1.0) / (m + p - 1), 1e-12);
      EXPECT_NEAR(bubble("interleaved-1f1b", 2), (p - 1.0) / (2 * m + p - 1), 1e-12);
    }
  }
}

TEST(Schedule, BackwardCostsInputAndWeightGradientUnlessGiven) {
  const auto makespan = [](const std::string& cost) {
    return Simulate({"gpipe", "--ranks", "1", "--microbatches", "1", "--cost", cost})["makespan"]
        .get<double>();
  };
  EXPECT_DOUBLE_EQ(makespan("F=1,I=2,W=4"), 7);
  EXPECT_DOUBLE_EQ(makespan("F=1,I=2,W=4,B=1.5"), 2.5);
}

TEST(Schedule, CostsOfEachStageComeFromAFile) {
  const std::string costs = WriteFile(
      "costs.json", R"({"stages": [{"F": 1, "B": 1}, {"F": 3, "B": 5}], "latency": 0.5})");
  // 0F0 1, message .5, 1F0 3, 1B0 5, message .5, 0B0 1
  EXPECT_DOUBLE_EQ(
      Simulate({"gpipe", "--ranks", "2", "--microbatches", "1", "--costs", costs})["makespan"]
          .get<double>(),
      11);
}

TEST(Schedule, MeasuredCostsMakeAPrediction) {
  const std::string costs =
      WriteFile("measured.json",
                R"({"measured": "tiny on cpu", "stages": [{"F": 1, "B": 2}, {"F": 3, "B": 4}]})");
  const std::vector<std::string> sizes = {"--ranks", "2", "--microbatches", "4", "--costs", costs};
  const auto arguments = [&](const std::string& schedule) {
    std::vector<std::string> all = {"schedule", "simulate", schedule};
    all.insert(all.end(), sizes.begin(), sizes.end());
    return all;
  };
  EXPECT_THAT(RunTakt(arguments("1f1b")).out,
              HasSubstr("a prediction, in seconds, for 2 ranks each on a device of its own; its "
                        "times are of: tiny on cpu\n"));
  EXPECT_EQ(Simulate({"1f1b", "--ranks", "2", "--microbatches", "4", "--costs",
                      costs})["prediction_from"],
            "tiny on cpu");
  EXPECT_FALSE(
      Simulate({"1f1b", "--ranks", "2", "--microbatches", "4"}).contains("prediction_from"));
  const Outcome split = RunTakt(arguments("zb-h1"));
  EXPECT_EQ(split.code, ExitCode::kInvalidInput);
  EXPECT_THAT(split.err, HasSubstr("stages[0] is measured BF: must have I, which zb-h1 runs"));
}

TEST(Schedule, WhatMeasuredCostsLeaveOutIsNotInvented) {
  const auto arguments = [](const std::string& command, const std::string& schedule,
                            const std::string& file) {
    std::vector<std::string> all = {"schedule", command};
    if (!schedule.empty()) all.push_back(schedule);
    all.insert(all.end(), {"--costs", WriteFile("partly.json", file)});
    if (!schedule.ends_with(".csv")) all.insert(all.end(), {"--ranks", "4", "--microbatches", "8"});
    return all;
  };
  const std::string whole = R"({"measured": "here", "stages": [{"F": 1.5, "B": 3}]})";
  const json report = Simulate(
      {"1f1b", "--ranks", "4", "--microbatches", "8", "--costs", WriteFile("whole.json", whole)});
  EXPECT_EQ(report["bound"]["work"], 8 * 4.5);
  EXPECT_EQ(report["gap"], 0);
  EXPECT_THAT(RunTakt(arguments("compare", "", whole)).out,
              HasSubstr("a prediction, in seconds, for 4 ranks"));
  EXPECT_THAT(RunTakt(arguments("show", "1f1b", whole)).err, HasSubstr("its times are of: here\n"));
  const std::string csv = RunTakt({"schedule", "show", "1f1b", "--ranks", "4", "--microbatches",
                                   "8", "--cost", "S=1,T=2", "-f", "csv"})
                              .out;
  const Outcome words = RunTakt(arguments("simulate", WriteFile("words.csv", csv), whole));
  EXPECT_EQ(words.code, ExitCode::kInvalidInput);
  EXPECT_THAT(words.err, HasSubstr("--cost is neither S nor T: must have both"));
  const std::string bytes = R"({"measured": "x", "stages": [{"B": 1, "output_bytes": 4}]})";
  EXPECT_THAT(RunTakt(arguments("simulate", "1f1b", bytes)).err,
              HasSubstr("stages[0] is measured B: must have F"));
  EXPECT_THAT(RunTakt(arguments("simulate", "1f1b", R"({"measured": ""})")).err,
              HasSubstr("must say what was measured"));
}

TEST(Schedule, APairWithoutATimeOfItsOwnIsItsForwardAndItsBackward) {
  const auto makespan = [](const std::string& pair) {
    const std::string stages = R"({"stages": [{"F": 3, "I": 3, "W": 3, "B": 6}, {)" + pair +
                               R"("F": 1, "B": 2}, {}, {}]})";
    return Simulate({"dualpipe-v", "--ranks", "2", "--microbatches", "8", "--costs",
                     WriteFile("one.json", stages)})["makespan"]
        .get<double>();
  };
  EXPECT_EQ(makespan(""), 96);
  EXPECT_EQ(makespan(R"("O": 3, )"), 96);
}

TEST(Schedule, MeasuredCostsPredictPairsWithTheirHalvesApart) {
  const auto arguments = [](const std::string& stage) {
    return std::vector<std::string>{
        "dualpipe-v",
        "--ranks",
        "4",
        "--microbatches",
        "8",
        "--costs",
        WriteFile("pairs.json", R"({"measured": "here", "stages": [)" + stage + "]}")};
  };
  const json report = Simulate(arguments(R"({"F": 1, "I": 1, "W": 1, "O": 2.5})"));
  EXPECT_EQ(report["makespan"], 51);  // 54 with whole pairs of F + B
  EXPECT_EQ(report["lower_bound"],
            Simulate({"zb-v", "--ranks", "4", "--microbatches", "8"})["lower_bound"]);
  std::vector<std::string> whole = arguments(R"({"F": 1, "O": 3})");
  whole.insert(whole.begin(), {"schedule", "simulate"});
  const Outcome outcome = RunTakt(whole);
  EXPECT_EQ(outcome.code, ExitCode::kInvalidInput);
  EXPECT_THAT(outcome.err, HasSubstr("stages[0] is measured FO: must have"));
  whole = arguments("{}");
  whole.insert(whole.begin(), {"schedule", "simulate"});
  EXPECT_THAT(RunTakt(whole).err, HasSubstr("stages[0] is measured nothing: must have F"));
}

TEST(Schedule, WrongCostsExitWith2) {
  for (const char* cost :
       {"F", "F=x", "F=-1", "F=nan", "W=inf", "comm=nan", "Q=1", "F=1e308", "comm=1e-320"}) {
    const Outcome outcome = RunTakt(
        {"schedule", "simulate", "gpipe", "--ranks", "1", "--microbatches", "1", "--cost", cost});
    EXPECT_EQ(outcome.code, ExitCode::kInvalidInput) << cost;
    EXPECT_THAT(outcome.err, HasSubstr(cost));
  }
}

TEST(Schedule, LowerBoundIsPrintedWithTheGap) {
  const json report = Simulate({"1f1b", "--ranks", "4", "--microbatches", "8"});
  EXPECT_EQ(report["lower_bound"], 27);  // 8 * 3, and 3 to fill: 1f1b idles for 9
  EXPECT_NEAR(report["gap"].get<double>(), 33.0 / 27 - 1, 1e-12);
  EXPECT_EQ(report["bound"]["work"], 24);
}

TEST(Schedule, CompareHasEveryFamilyOrTheRuleItBreaks) {
  const auto compare = [](const std::string& microbatches) {
    const Outcome outcome = RunTakt(
        {"-o", "json", "schedule", "compare", "--ranks", "4", "--microbatches", microbatches});
    EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
    std::map<std::string, json> by_name;
    const json table = json::parse(outcome.out);
    for (const json& family : table["families"]) {
      by_name[family["name"]] = family;
    }
    return by_name;
  };
  const auto eight = compare("8");
  EXPECT_EQ(eight.at("gpipe")["makespan"], 33);
  EXPECT_EQ(eight.at("gpipe")["peak_in_flight"], 8);
  EXPECT_EQ(eight.at("1f1b")["peak_in_flight"], 4);
  EXPECT_EQ(eight.at("interleaved-1f1b")["chunks"], 2);
  EXPECT_EQ(eight.at("1f1b")["messages"], 2 * 8 * 3);
  EXPECT_EQ(eight.count("auto"), 1u);
  const auto three = compare("3");
  EXPECT_THAT(three.at("dualpipe")["refused"]["rule"].get<std::string>(), testing::Not(""));
}

TEST(Schedule, AutoIsSearchedForTheCostsAndTheLimit) {
  const std::vector<std::string> sizes = {"--ranks",  "4", "--microbatches", "8",
                                          "--chunks", "1", "--memory",       "4"};
  std::vector<std::string> line = {"auto", "--cost", "F=1,I=1.1,W=0.7,comm=0.1"};
  line.insert(line.end(), sizes.begin(), sizes.end());
  const json report = Simulate(line);
  EXPECT_NEAR(report["makespan"].get<double>(), 27.8, 1e-9);  // the optimum, by exact search
  EXPECT_NEAR(report["lower_bound"].get<double>(), 27.2, 1e-9);
  for (const json& rank : report["ranks"]) EXPECT_LE(rank["peak_in_flight"], 4);
  EXPECT_FALSE(report["critical_path"].empty());
}

TEST(Schedule, CompareRefusesWhatNoFamilyTakes) {
  for (const std::vector<std::string>& sizes :
       {std::vector<std::string>{"--ranks", "0", "--microbatches", "4"},
        {"--ranks", "4"},
        {"--ranks", "10000000", "--microbatches", "10000000"},
        {"--ranks", "2", "--microbatches", "2", "--cost", "I=nan"}}) {
    std::vector<std::string> line = {"schedule", "compare"};
    line.insert(line.end(), sizes.begin(), sizes.end());
    const Outcome outcome = RunTakt(line);
    EXPECT_EQ(outcome.code, ExitCode::kInvalidInput) << outcome.out;
    EXPECT_EQ(outcome.out, "");
  }
}

TEST(Schedule, LinksHaveCostsOfTheirOwn) {
  const std::string costs = WriteFile("links.json", R"({"latency": 0.5, "seconds_per_byte": 0.25,
      "stages": [{"output_bytes": 2, "stash_bytes": 3}],
      "links": [{"from": 1, "to": 0, "latency": 4, "seconds_per_byte": 0}]})");
  const json report = Simulate({"gpipe", "--ranks", "2", "--microbatches", "1", "--costs", costs});
  // 0F0 1, message .5 + 2 * .25, 1F0 1, 1B0 2, message 4, 0B0 2
  EXPECT_DOUBLE_EQ(report["makespan"].get<double>(), 11);
  EXPECT_EQ(report["ranks"][0]["peak_stash_bytes"], 3);
}

TEST(Schedule, TheEndOfTheStepHasCostsOfItsOwn) {
  const std::string costs = WriteFile("end.json", R"({"stages": [{"reduction": 5}],
      "tied_reduction": 2, "optimizer": 1})");
  const auto makespan = [&](const std::string& family) {
    return Simulate({family, "--ranks", "2", "--microbatches", "2", "--costs", costs})["makespan"]
        .get<double>();
  };
  // 0B1 ends at 9; its stage's gradients are summed until 14, both uses of the embedding until 16.
  EXPECT_EQ(makespan("gpipe"), 17);
  const Outcome outcome = RunTakt({"schedule", "simulate", "1f1b", "--ranks", "1", "--microbatches",
                                   "1", "--costs", WriteFile("bad.json", R"({"optimizer": -1})")});
  EXPECT_THAT(outcome.err, HasSubstr("optimizer is -1"));
}

// Without a barrier at the end, zb-h2 fills its drain with the beginning of the next step.
TEST(Schedule, StepsRunIntoEachOtherWithoutABarrier) {
  const std::vector<std::string> line = {"zb-h2", "--ranks", "4", "--microbatches", "8"};
  const json stopping = Simulate(line);
  EXPECT_EQ(stopping["makespan"], 27);
  EXPECT_EQ(stopping["step_time"], 27);
  std::vector<std::string> without = line;
  without.push_back("--no-barrier");
  const json running = Simulate(without);
  EXPECT_EQ(running["makespan"], 27);
  EXPECT_EQ(running["step_time"], 24);
  EXPECT_EQ(running["step_bubble_fraction"], 0);
}

TEST(Schedule, AStepWithoutAFlushTakesAsLongAsItsWork) {
  for (const std::string family : {"pipedream", "pipedream-2bw"}) {
    const json report = Simulate({family, "--ranks", "4", "--microbatches", "8"});
    EXPECT_EQ(report["step_time"], 24);
    EXPECT_EQ(report["step_bubble_fraction"], 0);
    EXPECT_FALSE(report.contains("lower_bound"));
    const Outcome text =
        RunTakt({"schedule", "simulate", family, "--ranks", "4", "--microbatches", "8"});
    EXPECT_THAT(text.out, HasSubstr("a step in a row of them takes 24, bubble 0.0%"));
    for (const std::string format : {"grid", "svg"}) {
      const Outcome picture = RunTakt(
          {"schedule", "show", family, "--ranks", "4", "--microbatches", "8", "-f", format});
      EXPECT_THAT(picture.out, HasSubstr("8 microbatches, no flush, step time 24, bubble 0.00%"));
    }
  }
  // Each update takes its time between two microbatches.
  const std::string costs = WriteFile("update.json", R"({"optimizer": 1})");
  const auto step = [&](const std::string& family) {
    return Simulate({family, "--ranks", "4", "--microbatches", "8", "--costs", costs})["step_time"]
        .get<double>();
  };
  EXPECT_EQ(step("pipedream"), 32);
  EXPECT_EQ(step("pipedream-2bw"), 25);
  const Outcome summed =
      RunTakt({"schedule", "simulate", "pipedream", "--ranks", "2", "--microbatches", "2",
               "--costs", WriteFile("sum.json", R"({"stages": [{"reduction": 1}]})")});
  EXPECT_EQ(summed.code, ExitCode::kInvalidInput);
  EXPECT_THAT(summed.err, HasSubstr("stages[].reduction is not 0: pipedream applies"));
}

TEST(Schedule, CostsFileIsRefusedByTheNameOfTheField) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"[]", "must hold a JSON object"},
      {R"({"stages": []})", "stages is []"},
      {R"({"stages": [{"F": "1"}]})", "stages[0].F"},
      {R"({"stages": [{"F": -1}]})", "stages[0].F"},
      {R"({"stages": [{"Q": 1}]})", "stages[0].Q"},
      {R"({"stages": [{}, {}, {}]})", "for each of the 2 stages"},
      {R"({"latency": null})", "latency is null"},
      {R"({"links": [{"from": 0}]})", "links[0].to"},
      {R"({"links": [{"from": 0, "to": 2}]})", "links is 0 to 2"},
      {R"({"links": [{"from": 0, "to": 1, "speed": 2}]})", "links[0].speed"},
      {R"({"links": [{"from": 0, "to": 1}, {"from": 0, "to": 1}]})", "links[1]"},
      {R"({"measured": 1})", "measured is 1"},
      {R"({"speed": 1})", "speed is 1"}};
  for (const auto& [text, reason] : cases) {
    const Outcome outcome =
        RunTakt({"schedule", "simulate", "gpipe", "--ranks", "2", "--microbatches", "1", "--costs",
                 WriteFile("bad.json", text)});
    EXPECT_EQ(outcome.code, ExitCode::kInvalidInput) << text;
    EXPECT_THAT(outcome.err, HasSubstr(reason));
  }
}

TEST(Schedule, AbsurdSizesExitWith2AndNameTheOption) {
  const std::vector<std::vector<std::string>> cases = {
      {"--ranks=0", "--microbatches=1"},
      {"--ranks=-4", "--microbatches=1"},
      {"--ranks=1000000000", "--microbatches=1"},
      {"--microbatches=0", "--ranks=1"},
      {"--microbatches=1000000000", "--ranks=1"},
      {"--microbatches=100000000000000000000000", "--ranks=1"},
      {"--microbatches=1000000", "--ranks=1000000"},
      {"--chunks=0", "--ranks=1", "--microbatches=1"},
      {"--chunks=2", "--ranks=1", "--microbatches=1"},
      {"--group=-1", "--ranks=1", "--microbatches=1"},
      {"--memory=0", "--ranks=1", "--microbatches=1"},
      {"--placement=v", "--ranks=1", "--microbatches=1"}};
  for (const std::vector<std::string>& sizes : cases) {
    std::vector<std::string> line = {"schedule", "simulate", "gpipe"};
    line.insert(line.end(), sizes.begin(), sizes.end());
    const Outcome outcome = RunTakt(line);
    EXPECT_EQ(outcome.code, ExitCode::kInvalidInput) << sizes[0];
    EXPECT_THAT(outcome.err, HasSubstr(sizes[0].substr(0, sizes[0].find('=')) + " is "));
  }
}

TEST(Schedule, CsvThatIsShownSimulatesAndVerifies) {
  const std::string csv = RunTakt({"schedule", "show", "interleaved-1f1b", "--ranks", "2",
                                   "--microbatches", "4", "-f", "csv"})
                              .out;
  const std::string path = WriteFile("roundtrip.csv", csv);
  EXPECT_EQ(RunTakt({"schedule", "show", path, "-f", "csv"}).out, csv);
  EXPECT_EQ(Simulate({path})["makespan"],
            Simulate({"interleaved-1f1b", "--ranks", "2", "--microbatches", "4"})["makespan"]);
  const Outcome outcome = RunTakt({"schedule", "verify", path});
  EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  EXPECT_THAT(outcome.out,
              HasSubstr("OK: 2 ranks, 4 stages, 4 microbatches; peak in flight by rank: "));
}

TEST(Schedule, VerifyExitsWith1AndMarksTheGuiltyCell) {
  const std::string doubled = WriteFile("doubled.csv", "0F0,0F0,0B0\n1F0,1B0\n");
  const Outcome text = RunTakt({"schedule", "verify", doubled});
  EXPECT_EQ(text.code, ExitCode::kFailed);
  EXPECT_EQ(text.out, "");
  EXPECT_THAT(text.err, HasSubstr("occurs twice"));
  EXPECT_THAT(text.err, HasSubstr("[0F0]"));
  const Outcome in_json = RunTakt({"-o", "json", "schedule", "verify", doubled});
  EXPECT_EQ(in_json.code, ExitCode::kFailed);
  EXPECT_EQ(json::parse(in_json.out)["ok"], false);
}

TEST(Schedule, EachBrokenRuleHasItsOwnReason) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"missing", "0F0,0B0\n1F0\n"},
      {"backward before forward", "0B0,0F0\n1F0,1B0\n"},
      {"rows that wait for each other", "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n"},
      {"not an action", "0F0,hello\n"},
      {"empty", ""},
      {"twice", "0F0,0F0,0B0\n1F0,1B0\n"},
      {"on another rank", "0F0,0B0,2F0,2B0,1F0\n1B0,3F0,3B0\n"},
      {"split and whole", "0F0,0B0,0W0\n1F0,1B0\n"}};
  std::vector<std::string> reasons;
  for (const auto& [name, csv] : cases) {
    const Outcome outcome = RunTakt({"schedule", "verify", WriteFile("broken.csv", csv)});
    EXPECT_EQ(outcome.code, ExitCode::kFailed) << name;
    EXPECT_THAT(reasons, testing::Not(testing::Contains(outcome.err))) << name;
    reasons.push_back(outcome.err);
  }
}

TEST(Schedule, CycleIsSpelledOutBesideTheGrid) {
  const Outcome outcome =
      RunTakt({"schedule", "verify", WriteFile("cycle.csv", "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")});
  EXPECT_EQ(outcome.code, ExitCode::kFailed);
  EXPECT_THAT(outcome.err, HasSubstr("0B0 (rank 0, cell 2) waits for 1B0"));
  EXPECT_THAT(outcome.err, HasSubstr("1F1 (rank 1, cell 1) waits for 0F1"));
  EXPECT_THAT(outcome.err, testing::AnyOf(HasSubstr("[0B0]"), HasSubstr("[1F1]")));
}

TEST(Schedule, MemoryLimitsWhatIsInFlight) {
  const std::string path = WriteFile("two.csv", "0F0,0F1,0B0,0B1\n");
  EXPECT_EQ(RunTakt({"schedule", "verify", path, "--memory", "2"}).code, ExitCode::kDone);
  const Outcome verify = RunTakt({"schedule", "verify", path, "--memory", "1"});
  EXPECT_EQ(verify.code, ExitCode::kFailed);
  EXPECT_THAT(verify.err, HasSubstr("[0F1]"));
  const Outcome simulate = RunTakt(
      {"schedule", "simulate", "gpipe", "--ranks", "1", "--microbatches", "2", "--memory", "1"});
  EXPECT_EQ(simulate.code, ExitCode::kInvalidInput);
  EXPECT_THAT(simulate.err, HasSubstr("the limit is 1"));
}

TEST(Schedule, MissingFileAndUnknownFamilyExitWith2) {
  for (const std::string command : {"show", "simulate", "verify"}) {
    EXPECT_EQ(RunTakt({"schedule", command, "/nonexistent.csv"}).code, ExitCode::kInvalidInput);
  }
  const Outcome outcome =
      RunTakt({"schedule", "show", "2f2b", "--ranks", "2", "--microbatches", "2"});
  EXPECT_EQ(outcome.code, ExitCode::kInvalidInput);
  EXPECT_THAT(outcome.err, HasSubstr("interleaved-1f1b"));
}

TEST(Schedule, SizesThatContradictTheFileExitWith2) {
  const std::string path = WriteFile("one.csv", "0F0,0B0\n");
  const Outcome outcome = RunTakt({"schedule", "simulate", path, "--ranks", "2"});
  EXPECT_EQ(outcome.code, ExitCode::kInvalidInput);
  EXPECT_THAT(outcome.err, HasSubstr("--ranks is 2: must agree with the file, which has 1"));
}

TEST(Schedule, PictureIsSvgOfEveryAction) {
  const std::string svg =
      RunTakt({"schedule", "show", "1f1b", "--ranks", "2", "--microbatches", "2", "-f", "svg"}).out;
  EXPECT_EQ(svg.rfind("<svg", 0), 0u);
  EXPECT_THAT(svg, HasSubstr("1B1"));
}

TEST(Schedule, SpreadsTheVocabularyOverAllRanks) {
  const std::vector<std::string> sizes = {"--ranks", "4", "--microbatches", "8"};
  const auto with = [&](std::vector<std::string> arguments, const std::string& cost) {
    arguments.insert(arguments.end(), sizes.begin(), sizes.end());
    arguments.insert(arguments.end(), {"--cost", cost});
    return arguments;
  };
  const json report = Simulate(with({"1f1b"}, "F=1,I=1,W=1,S=0.5,T=1"));
  for (const json& rank : report["ranks"]) EXPECT_EQ(rank["busy"], 8 * 4.5);
  EXPECT_EQ(report.count("lower_bound"), 0u);
  const Outcome csv =
      RunTakt(with({"schedule", "show", "zb-v", "-f", "csv"}, "F=1,I=1,W=1,S=0.5,T=1"));
  ASSERT_EQ(csv.code, ExitCode::kDone) << csv.err;
  EXPECT_THAT(csv.out, HasSubstr("8S7"));
  const std::string path = WriteFile("spread.csv", csv.out);
  const Outcome verified = RunTakt({"schedule", "verify", path});
  EXPECT_EQ(verified.code, ExitCode::kDone) << verified.err;
  EXPECT_THAT(verified.out, HasSubstr("OK: 4 ranks, 8 stages, 8 microbatches"));
  EXPECT_THAT(RunTakt(with({"schedule", "show", "1f1b", "-f", "svg"}, "S=1")).out,
              HasSubstr("S logits"));
  EXPECT_THAT(RunTakt(with({"schedule", "simulate", "1f1b"}, "S=1")).out,
              testing::StartsWith("makespan "));
}

TEST(Schedule, RefusesToSpreadWhereItCannot) {
  const std::vector<std::string> sizes = {"--ranks", "4", "--microbatches", "8"};
  const auto error = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "schedule");
    arguments.insert(arguments.end(), sizes.begin(), sizes.end());
    arguments.insert(arguments.end(), {"--cost", "S=1,T=1"});
    const Outcome outcome = RunTakt(arguments);
    EXPECT_NE(outcome.code, ExitCode::kDone);
    return outcome.err;
  };
  EXPECT_THAT(error({"simulate", "chimera"}), HasSubstr("two copies of the weights"));
  EXPECT_THAT(error({"simulate", "pipedream"}), HasSubstr("has no flush"));
  EXPECT_THAT(error({"show", "1f1b", "-f", "html"}), HasSubstr("without S and T only"));
  EXPECT_THAT(error({"compare"}), HasSubstr("does not compare"));
}

}  // namespace
}  // namespace takt::cli
