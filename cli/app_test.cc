// SPDX-License-Identifier: Apache-2.0
// The command line itself: usage, help, completion, and the commands that need no coordinator.
#include "cli/app.h"

#include <cmath>

#include "cli/fake_coordinator.h"
#include "cli/test_directory.h"
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

TEST(Usage, WrongUsageExitsWith2AndNamesTheHelp) {
  const std::vector<std::vector<std::string>> lines = {
      {},
      {"bogus"},
      {"schedule"},
      {"schedule", "bogus"},
      {"jobs", "--bogus"},
      {"job"},
      {"-o", "xml", "jobs"},
      {"submit", "a.yaml", "--wait", "--validate-only"},
      {"local", "run", "a.yaml", "--workers", "0"},
      {"schedule", "show", "gpipe", "--ranks", "two"},
      {"watch", "j", "--after-step", "-1"}};
  for (const auto& line : lines) {
    const Outcome outcome = RunTakt(line);
    EXPECT_EQ(outcome.code, ExitCode::kInvalidInput) << testing::PrintToString(line);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr("error: "));
    EXPECT_THAT(outcome.err, HasSubstr(" --help\n"));
  }
}

TEST(Usage, ErrorIsAnObjectWhenJsonIsWanted) {
  const Outcome outcome = RunTakt({"jobs", "--bogus", "-o", "json"});
  EXPECT_EQ(outcome.code, ExitCode::kInvalidInput);
  EXPECT_EQ(json::parse(outcome.err)["error"]["code"], "INVALID_ARGUMENT");
}

// The help of every command of the tree.
void CheckHelp(const CLI::App& command, std::vector<std::string> path) {
  std::vector<std::string> line = path;
  line.push_back("--help");
  const Outcome outcome = RunTakt(line);
  const std::string name = testing::PrintToString(path);
  EXPECT_EQ(outcome.code, ExitCode::kDone) << name;
  EXPECT_THAT(outcome.out, HasSubstr("Example")) << name;
  EXPECT_THAT(outcome.out, HasSubstr("--coordinator ADDR")) << name;
  EXPECT_EQ(outcome.err, "") << name;
  for (const CLI::Option* option : command.get_options()) {
    EXPECT_FALSE(option->get_description().empty()) << name << " " << option->get_name();
  }
  for (const CLI::App* sub : command.get_subcommands([](const CLI::App*) { return true; })) {
    EXPECT_FALSE(sub->get_description().empty()) << sub->get_name();
    std::vector<std::string> sub_path = path;
    sub_path.push_back(sub->get_name());
    CheckHelp(*sub, sub_path);
  }
}

TEST(Help, OfEveryCommandIsCompleteAndHasExamples) {
  std::ostringstream out, err;
  Context context{.terminal = {.out = out, .err = err}};
  CheckHelp(*MakeApp(context), {});
}

TEST(Version, IsPrinted) {
  EXPECT_THAT(RunTakt({"--version"}).out, HasSubstr("takt "));
  EXPECT_THAT(RunTakt({"version"}).out, HasSubstr("protocol 1"));
}

TEST(Completion, ScriptsNameEveryCommandAndOption) {
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    const Outcome outcome = RunTakt({"completion", shell});
    EXPECT_EQ(outcome.code, ExitCode::kDone);
    for (const char* word :
         {"local", "undrain", "simulate", "validate-only", "microbatches", "svg"}) {
      EXPECT_THAT(outcome.out, HasSubstr(word)) << shell;
    }
  }
}

// What bash offers after `line`.
std::string BashOffers(const std::string& line, int num_words) {
  const std::string script = WriteFile("completion.bash", RunTakt({"completion", "bash"}).out);
  const std::string command = "bash -c 'source " + script + "; COMP_WORDS=(" + line +
                              "); COMP_CWORD=" + std::to_string(num_words - 1) +
                              "; _takt; echo ${COMPREPLY[@]}'";
  FILE* pipe = popen(command.c_str(), "r");
  std::string text;
  for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) text += static_cast<char>(c);
  EXPECT_EQ(pclose(pipe), 0);
  return text;
}

TEST(Completion, BashFollowsCommandsOptionsAndChoices) {
  EXPECT_EQ(BashOffers("takt sched", 2), "schedule\n");
  EXPECT_EQ(BashOffers("takt schedule s", 3), "show simulate\n");
  EXPECT_EQ(BashOffers("takt -o json schedule show --mic", 6), "--microbatches\n");
  EXPECT_EQ(BashOffers("takt schedule show -f s", 5), "svg\n");
  EXPECT_EQ(BashOffers("takt jobs -o j", 4), "json\n");
  EXPECT_EQ(BashOffers("takt completion z", 3), "zsh\n");
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

TEST(Schedule, WrongCostsExitWith2) {
  for (const char* cost : {"F", "F=x", "F=-1", "F=nan", "Q=1"}) {
    const Outcome outcome = RunTakt(
        {"schedule", "simulate", "gpipe", "--ranks", "1", "--microbatches", "1", "--cost", cost});
    EXPECT_EQ(outcome.code, ExitCode::kInvalidInput) << cost;
    EXPECT_THAT(outcome.err, HasSubstr(cost));
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
      {"empty", ""}};
  std::vector<std::string> reasons;
  for (const auto& [name, csv] : cases) {
    const Outcome outcome = RunTakt({"schedule", "verify", WriteFile("broken.csv", csv)});
    EXPECT_EQ(outcome.code, ExitCode::kFailed) << name;
    EXPECT_THAT(reasons, testing::Not(testing::Contains(outcome.err))) << name;
    reasons.push_back(outcome.err);
  }
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

}  // namespace
}  // namespace takt::cli
