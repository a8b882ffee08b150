// SPDX-License-Identifier: Apache-2.0
// Tests of the command line itself: usage, help, completion, and commands that need no coordinator.
#include "cli/app.h"

#include <filesystem>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "cli/testing/fake_coordinator.h"
#include "cli/testing/test_directory.h"
#include "common/base/version.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace takt::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

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
      {"job", "list", "extra"},
      {"worker"},
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

TEST(Usage, AnUnreadableValueIsNamedWithItsOption) {
  const Outcome outcome = RunTakt({"jobs", "--timeout", "x = y"});
  EXPECT_EQ(outcome.code, ExitCode::kInvalidInput);
  EXPECT_THAT(outcome.err, HasSubstr("--timeout"));
  EXPECT_THAT(outcome.err, HasSubstr("x = y"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("Could not convert")));
}

TEST(Usage, AnUnknownNameIsToldWithTheNamesThatThereAre) {
  EXPECT_THAT(RunTakt({"jobs", "-o", "xml"}).err, HasSubstr("--output: xml not in {text,json}"));
  EXPECT_THAT(RunTakt({"data", "info", "x", "--format", "bits"}).err,
              HasSubstr("--format: bits not in {bytes,uint16,"));
}

TEST(Usage, ErrorIsAnObjectWhenJsonIsWanted) {
  const Outcome outcome = RunTakt({"jobs", "--bogus", "-o", "json"});
  EXPECT_EQ(outcome.code, ExitCode::kInvalidInput);
  EXPECT_EQ(json::parse(outcome.err)["error"]["code"], "INVALID_ARGUMENT");
}

TEST(Usage, AValueThatAnOptionRefusesIsAViolation) {
  struct Case {
    std::vector<std::string> line;
    std::string field, value, rule;
  };
  const Case cases[] = {
      {{"ui", "--port", "0"}, "--port", "0", "must be from 1 to 65535"},
      {{"profile", "j.yaml", "--time", "x"}, "--time", "x", "must be from 0.1 to 600"},
      {{"generate", "m", "--prompt", "a", "--tokens", "0"}, "--tokens", "0", "must be above 0"},
      {{"generate", "m", "--prompt", "a", "--temperature", "-1"},
       "--temperature",
       "-1",
       "must be 0 or more"},
      {{"jobs", "--timeout", "0"}, "--timeout", "0", "must be above 0"},
      {{"checkpoint", "verify", "d", "--step", "9223372036854775808"},
       "--step",
       "9223372036854775808",
       "must be at most 9223372036854775807"},
      {{"trace", "j", "t", "-f", "pdf"}, "--format", "pdf", "must be one of html, perfetto, svg"},
      {{"checkpoint", "verify", "d", "--step", "1.5"},
       "--step",
       "1.5",
       "is no value of this option, or out of its range"}};
  for (const auto& [line, field, value, rule] : cases) {
    std::vector<std::string> with_json = line;
    with_json.insert(with_json.end(), {"-o", "json"});
    const Outcome outcome = RunTakt(with_json);
    EXPECT_EQ(outcome.code, ExitCode::kInvalidInput);
    const json violations = json::parse(outcome.err)["error"]["violations"];
    ASSERT_EQ(violations.size(), 1u) << outcome.err;
    EXPECT_EQ(violations[0]["field"], field);
    EXPECT_EQ(violations[0]["value"], value);
    EXPECT_EQ(violations[0]["rule"], rule);
  }
  EXPECT_THAT(RunTakt({"ui", "--port", "0"}).err,
              HasSubstr("error: --port is 0: must be from 1 to 65535\n"));
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

// The short forms are no commands of their own: they take what the command with its noun takes.
TEST(ShortForms, TakeTheOptionsOfTheCommandsThatTheyStandFor) {
  std::ostringstream out, err;
  Context context{.terminal = {.out = out, .err = err}};
  const std::unique_ptr<CLI::App> app = MakeApp(context);
  const CLI::App& job = *app->get_subcommand("job");
  const CLI::App& worker = *app->get_subcommand("worker");
  std::set<std::string> short_forms;
  for (const CLI::App* form : app->get_subcommands([](CLI::App*) { return true; })) {
    if (form->get_group() != "Short forms") continue;
    const std::string& name = form->get_name();
    short_forms.insert(name);
    const bool is_list = name == "jobs" || name == "workers";
    const CLI::App& noun = name == "workers" || name == "drain" || name == "undrain" ? worker : job;
    const CLI::App* command = noun.get_subcommand(is_list ? "list" : name);
    ASSERT_EQ(command->get_options().size(), form->get_options().size()) << name;
    for (const CLI::Option* option : form->get_options())
      EXPECT_NE(command->get_option_no_throw(option->get_name()), nullptr) << name;
  }
  EXPECT_EQ(short_forms.size(), 16u);
  EXPECT_TRUE(short_forms.contains("submit"));
}

TEST(ShortForms, ShowTheSame) {
  FakeCoordinator coordinator;
  coordinator.get = [](auto&, const v1::GetJobRequest& request, v1::GetJobResponse& response) {
    response.mutable_job()->set_name(request.name());
    return grpc::Status::OK;
  };
  const Outcome with_noun = RunTakt(coordinator, {"job", "show", "kjv", "-o", "json"});
  const Outcome without = RunTakt(coordinator, {"job", "kjv", "-o", "json"});
  EXPECT_EQ(with_noun.code, ExitCode::kDone);
  EXPECT_THAT(with_noun.out, HasSubstr("kjv"));
  EXPECT_EQ(without.code, ExitCode::kDone);
  EXPECT_EQ(without.out, with_noun.out);
}

TEST(Version, IsPrinted) {
  EXPECT_THAT(RunTakt({"--version"}).out, HasSubstr("takt "));
  EXPECT_THAT(RunTakt({"version"}).out,
              testing::AllOf(HasSubstr(absl::StrCat("protocol ", kProtocolVersion)),
                             HasSubstr("built in: "), HasSubstr("cuda")));
}

TEST(Version, IsAnObjectWhenJsonIsWanted) {
  const Outcome outcome = RunTakt({"--version", "-o", "json"});
  EXPECT_EQ(outcome.code, ExitCode::kDone);
  EXPECT_EQ(json::parse(outcome.out)["version"], kTaktVersion);
  EXPECT_EQ(outcome.out, RunTakt({"version", "-o", "json"}).out);
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

// Returns what bash offers after `line`, where `takt` is a program that prints its arguments.
std::string BashOffers(const std::string& line, int num_words) {
  const std::string script = WriteFile("completion.bash", RunTakt({"completion", "bash"}).out);
  const std::filesystem::path takt = WriteFile("takt", "#!/bin/sh\nprintf '%s\\n' \"$@\"\n");
  std::filesystem::permissions(takt, std::filesystem::perms::owner_all);
  // Where nothing is expected, files of the current folder are offered.
  const std::string command =
      "bash -c 'cd /; PATH=" + takt.parent_path().string() + ":$PATH; source " + script +
      "; COMP_LINE=\"" + line + "\"; COMP_WORDS=(" + line +
      "); COMP_CWORD=" + std::to_string(num_words - 1) + "; _takt; echo ${COMPREPLY[@]}'";
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
  EXPECT_EQ(BashOffers("takt compl", 2), "completion\n");  // `complete` is for the scripts
}

TEST(Completion, BashAsksForNames) {
  EXPECT_EQ(BashOffers("takt job show jo", 4), "jobs job jo\n");
  EXPECT_EQ(BashOffers("takt --coordinator h:1 watch h", 5), "h:1 h\n");
  EXPECT_EQ(BashOffers("takt job list jo", 4), "\n");  // takes no job
  EXPECT_EQ(BashOffers("takt drain wor", 3), "workers wor\n");
  EXPECT_EQ(BashOffers("takt checkpoint verify d --step st", 6), "steps st\n");
}

TEST(Completion, EveryShellAsksForNames) {
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    const std::string script = RunTakt({"completion", shell}).out;
    EXPECT_THAT(script, HasSubstr("command takt complete ")) << shell;
    for (const char* kind : {"jobs", "workers", "steps"}) {
      EXPECT_THAT(script, testing::AnyOf(HasSubstr(absl::StrCat("names=\"", kind, "\"")),
                                         HasSubstr(absl::StrCat("__takt_names ", kind))))
          << shell;
    }
  }
}

TEST(Complete, PrintsTheNamesOfTheClusterThatTheLineNames) {
  FakeCoordinator coordinator;
  coordinator.list = [](auto&, const v1::ListJobsRequest&, v1::ListJobsResponse& response) {
    response.add_jobs()->set_name("kjv-gpt");
    response.add_jobs()->set_name("tiny");
    return grpc::Status::OK;
  };
  coordinator.workers = [](auto&, const v1::ListWorkersRequest&,
                           v1::ListWorkersResponse& response) {
    response.add_workers()->set_name("worker-0");
    return grpc::Status::OK;
  };
  const std::string address = coordinator.address();
  EXPECT_EQ(RunTakt({"complete", "jobs", "--", "--coordinator", address, "watch", "k"}).out,
            "kjv-gpt\ntiny\n");
  EXPECT_EQ(RunTakt({"complete", "workers", "--", "drain", "--coordinator=" + address}).out,
            "worker-0\n");
}

TEST(Complete, PrintsNothingOnErrors) {
  const std::vector<std::vector<std::string>> lines = {
      {"complete", "jobs"},
      {"complete", "jobs", "--", "watch", "--coordinator", "unix:/nonexistent/s"},
      {"complete", "workers", "--", "drain", "--coordinator"},
      {"complete", "jobs", "--", "--help", "-o", "x", "--bogus", "--", ""},
      {"complete", "steps", "--", "checkpoint", "verify", "/nonexistent"}};
  for (const auto& line : lines) {
    const Outcome outcome = RunTakt(line);
    EXPECT_EQ(outcome.code, ExitCode::kDone) << testing::PrintToString(line);
    EXPECT_EQ(outcome.out + outcome.err, "") << testing::PrintToString(line);
  }
}

}  // namespace
}  // namespace takt::cli
