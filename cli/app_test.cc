// SPDX-License-Identifier: Apache-2.0
// Tests of the command line itself: usage, help, completion, and commands that need no coordinator.
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

// Checks the help of every command of the tree.
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
  EXPECT_THAT(RunTakt({"version"}).out,
              testing::AllOf(HasSubstr("protocol 4"), HasSubstr("built in: "), HasSubstr("cuda")));
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

// Returns what bash offers after `line`.
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

}  // namespace
}  // namespace takt::cli
