// SPDX-License-Identifier: Apache-2.0
// Runs the commands with a script in place of takt-coordinator.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/admin/maintenance.h"
#include "cli/app.h"
#include "cli/testing/fake_coordinator.h"
#include "cli/testing/test_directory.h"
#include "common/checkpoint/hash.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace takt::cli {
namespace {

using testing::HasSubstr;

// Runs MaintainState with a takt-coordinator that does `script`, and returns what it printed.
struct Ran {
  absl::StatusOr<ExitCode> code;
  std::string out;
};
Ran RunScript(const std::string& script) {
  const TestDirectory directory;
  const std::string program = directory.Write("takt-coordinator", "#!/bin/sh\n" + script + "\n");
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  std::ostringstream out, err;
  const Context context{.terminal = {.out = out, .err = err},
                        .environment = [](const char*) { return std::optional<std::string>(); },
                        .program_directory = std::filesystem::path(program).parent_path().string()};
  absl::StatusOr<ExitCode> code = MaintainState(context, {"fsck", "/state", "text"});
  return {std::move(code), out.str()};
}

TEST(Admin, PassesItsArgumentsAndPrintsTheAnswer) {
  const Ran ran = RunScript("echo \"$@\"");
  EXPECT_EQ(ran.code.value(), ExitCode::kDone);
  EXPECT_EQ(ran.out, "--maintain-state fsck /state text\n");
}

TEST(Admin, ACheckThatFindsDamageFails) {
  const Ran ran = RunScript("echo 'table jobs row x: its checksum is wrong'; exit 1");
  EXPECT_EQ(ran.code.value(), ExitCode::kFailed);
  EXPECT_THAT(ran.out, HasSubstr("row x"));
}

TEST(Admin, AnErrorIsOneOfTakt) {
  const absl::Status missing =
      RunScript("echo 'takt-coordinator: no file' >&2; exit 4").code.status();
  EXPECT_EQ(missing, absl::NotFoundError("no file"));
  const absl::Status locked =
      RunScript("echo 'takt-coordinator: it runs' >&2; exit 1").code.status();
  EXPECT_EQ(locked, absl::FailedPreconditionError("it runs"));
}

// Runs a command with -o json and a takt-coordinator that does `script`. Returns what it printed.
nlohmann::json RunForJson(const std::string& script, std::vector<std::string> command) {
  const TestDirectory directory;
  const std::string program = directory.Write("takt-coordinator", "#!/bin/sh\n" + script + "\n");
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  std::ostringstream out, err;
  Context context{.terminal = {.out = out, .err = err},
                  .environment = [](const char*) { return std::optional<std::string>(); },
                  .program_directory = std::filesystem::path(program).parent_path().string()};
  command.insert(command.begin(), {"-o", "json", "admin"});
  EXPECT_EQ(RunApp(command, context), ExitCode::kDone) << err.str();
  return nlohmann::json::parse(out.str(), nullptr, /*allow_exceptions=*/false);
}

TEST(Admin, EachCommandOnADirectoryPrintsOneObject) {
  using nlohmann::json;
  const TestDirectory directory;
  const std::string copy = directory.Path("copy");
  EXPECT_EQ(RunForJson("printf state > \"$4\"", {"backup", copy, "--state", "/state"}),
            json({{"file", copy}, {"size_bytes", 5}}));
  EXPECT_EQ(RunForJson("true", {"restore", copy, "--state", "/state"}),
            json({{"file", copy}, {"size_bytes", 5}, {"state", "/state"}}));
  EXPECT_EQ(RunForJson("true", {"forget-profile", "--state", "/state"}),
            json({{"state", "/state"}}));
}

// Streams "state", with the hash of `hashed`.
void SendBackup(FakeCoordinator& coordinator, const std::string& hashed) {
  coordinator.back_up = [hashed](grpc::ServerContext&, const v1::BackUpStateRequest&,
                                 grpc::ServerWriter<v1::BackUpStateResponse>& writer) {
    v1::BackUpStateResponse part;
    for (const char* const bytes : {"sta", "te"}) {
      part.set_data(bytes);
      writer.Write(part);
    }
    part.mutable_end()->set_size_bytes(5);
    part.mutable_end()->set_xxh3_128(checkpoint::HashOf(std::as_bytes(std::span(hashed))));
    writer.Write(part);
    return grpc::Status::OK;
  };
}

TEST(Admin, ABackupOfARunningCoordinatorIsANewFileOfItsUserAlone) {
  const TestDirectory directory;
  const std::string file = directory.Path("copy");
  FakeCoordinator coordinator;
  SendBackup(coordinator, "state");
  const Outcome outcome = RunTakt(coordinator, {"admin", "backup", file});
  EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  std::ifstream in(file);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "state");
  EXPECT_EQ(std::filesystem::status(file).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  EXPECT_EQ(RunTakt(coordinator, {"admin", "backup", file}).code, ExitCode::kInvalidInput)
      << "it does not overwrite";
}

TEST(Admin, ABackupThatIsNotWholeLeavesNoFile) {
  const TestDirectory directory;
  const std::string file = directory.Path("copy");
  FakeCoordinator coordinator;
  SendBackup(coordinator, "other");
  const Outcome wrong = RunTakt(coordinator, {"admin", "backup", file});
  EXPECT_EQ(wrong.code, ExitCode::kFailed);
  EXPECT_THAT(wrong.err, HasSubstr("wrong hash"));
  EXPECT_FALSE(std::filesystem::exists(file));
  coordinator.back_up = nullptr;
  EXPECT_NE(RunTakt(coordinator, {"admin", "backup", file}).code, ExitCode::kDone);
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(Admin, AMissingProgramIsNamed) {
  const Outcome outcome = RunTakt({"admin", "fsck", "--state", "/state"});
  EXPECT_EQ(outcome.code, ExitCode::kNotFound);
  EXPECT_THAT(outcome.err, HasSubstr("/nonexistent/takt-coordinator"));
}

}  // namespace
}  // namespace takt::cli
