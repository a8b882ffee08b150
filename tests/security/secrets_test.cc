// SPDX-License-Identifier: Apache-2.0
// What must never be seen, looked for wherever something can be seen while a job trains.
#include <stdlib.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/certificates/test_authority.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/command.h"
#include "tests/security/processes.h"
#include "tests/security/recorder.h"
#include "tests/testing/cluster.h"
#include "tests/testing/scrape.h"

namespace takt::security {
namespace {

using access::Role;
using certificates::TestAuthority;
using certificates::TlsFiles;
using certificates::WithTls;
using integration::Command;
using testing::Cluster;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::Scrape;

constexpr char kJob[] = "keeps-its-secret";

// Binding: transport (field 5), then the secret (field 6) of 32 bytes.
std::set<std::string> SecretsIn(const std::string& wire) {
  std::set<std::string> secrets;
  for (std::size_t at = 0; (at = wire.find("\x32\x20", at)) != std::string::npos; ++at) {
    if (at >= 2 && wire[at - 2] == '\x28' && at + 34 <= wire.size())
      secrets.insert(wire.substr(at + 2, 32));
  }
  return secrets;
}

// As bytes and as whoever prints bytes would print them.
std::vector<std::string> Spellings(const std::string& secret) {
  const std::string hex = absl::BytesToHexString(secret);
  return {secret,
          hex,
          absl::AsciiStrToUpper(hex),
          absl::Base64Escape(secret),
          absl::WebSafeBase64Escape(secret),
          absl::CHexEscape(secret),
          absl::CEscape(secret)};
}

// Text of every file below, by path. A job that saves makes and removes directories meanwhile.
void ReadFiles(const std::filesystem::path& directory, std::map<std::string, std::string>& files) {
  std::error_code gone;
  std::filesystem::directory_iterator entry(directory, gone);
  for (; !gone && entry != std::filesystem::directory_iterator(); entry.increment(gone)) {
    std::error_code ignored;
    if (entry->is_directory(ignored)) {
      ReadFiles(entry->path(), files);
    } else if (entry->is_regular_file(ignored)) {
      files[entry->path()] = integration::ReadFile(entry->path());
    }
  }
}

class Secrets : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("TAKT_COORDINATOR_LOG_LEVEL", "debug", 1);
    setenv("TAKT_WORKER_LOG_LEVEL", "debug", 1);
  }
  static void TearDownTestSuite() {
    unsetenv("TAKT_COORDINATOR_LOG_LEVEL");
    unsetenv("TAKT_WORKER_LOG_LEVEL");
  }

  // Everything that can be seen from outside, by where.
  std::map<std::string, std::string> Visible() {
    std::map<std::string, std::string> visible;
    ReadFiles(cluster_.directory(), visible);
    for (const pid_t pid :
         {cluster_.coordinator().pid(), cluster_.worker("w0").pid(), cluster_.worker("w1").pid()}) {
      for (const char* file : {"cmdline", "environ", "comm", "maps"})
        visible[absl::StrCat("/proc/", pid, "/", file)] = ProcFile(pid, file);
      for (const std::string& address : ListeningAddresses(pid))
        if (address.starts_with("127.0.0.3:")) visible["http://" + address] = Scrape(address);
    }
    for (const std::vector<std::string>& arguments :
         std::vector<std::vector<std::string>>{{"job", kJob},
                                               {"job", kJob, "-o", "json"},
                                               {"jobs", "-o", "json"},
                                               {"workers", "-o", "json"},
                                               {"logs", kJob}}) {
      std::vector<std::string> argv = {"--coordinator", cluster_.address()};
      argv.insert(argv.end(), arguments.begin(), arguments.end());
      Command takt("takt", argv, {"TAKT_INSECURE=1"});
      EXPECT_EQ(takt.Wait(), "exit status 0") << takt.err();
      visible["takt " + absl::StrJoin(arguments, " ")] = takt.out() + takt.err();
    }
    return visible;
  }

  Cluster cluster_{1, Cluster::Network::kTcp};
};

TEST_F(Secrets, OfAGenerationAreSeenNowhere) {
  Recorder recorder(cluster_.address());
  cluster_.StartWorker("w1", recorder.address());
  cluster_.AwaitIdle({"w0", "w1"});
  cluster_.Submit(absl::StrCat(
      "name: ", kJob,
      "\nmodel: {family: gpt2, layers: 4, hidden: 16, heads: 2, context: 16, vocab: 256}"
      "\ndata: {train: {path: data.txt, format: bytes}}"
      "\nbatch: {global: 4, microbatch: 2}"
      "\noptimizer: {adamw: {learning_rate: 1.0e-3}}"
      "\nsteps: 1000000"
      "\ncheckpoint: {directory: checkpoints, every_steps: 5}"
      "\nparallelism: {threads: 1, pipeline: 2, schedule: 1f1b, transport: gloo}\n"));
  cluster_.AwaitStep(kJob, 20);

  const std::set<std::string> secrets = SecretsIn(recorder.heard());
  ASSERT_THAT(secrets, Not(IsEmpty()));
  const std::map<std::string, std::string> visible = Visible();
  int with_name = 0;
  for (const auto& [where, text] : visible) {
    if (text.find(kJob) != std::string::npos) ++with_name;
    for (const std::string& secret : secrets) {
      for (const std::string& spelling : Spellings(secret))
        EXPECT_EQ(text.find(spelling), std::string::npos) << where;
    }
  }
  // What is looked through is really there: logs, state, pages and answers that know the job.
  EXPECT_GE(with_name, 10) << visible.size() << " places";
  cluster_.Cancel(kJob);
  cluster_.AwaitIdle({"w0", "w1"});
}

// The lines between a PEM file's first and last.
std::set<std::string> BodyOf(const std::string& pem_path) {
  std::set<std::string> body;
  for (const auto line : absl::StrSplit(integration::ReadFile(pem_path), '\n', absl::SkipEmpty()))
    if (!absl::StartsWith(line, "-----")) body.emplace(line);
  return body;
}

using Arguments = std::vector<std::string>;

std::string Takt(const Arguments& arguments) {
  Command takt("takt", arguments);
  EXPECT_EQ(takt.Wait(), "exit status 0") << takt.err();
  return takt.out();
}

TEST(TlsSecrets, KeysAndJoinTokensAreSeenNowhere) {
  const integration::TestDirectory directory;
  const TestAuthority authority;
  const TlsFiles server = authority.Issue(Role::kCoordinator, "c1");
  const TlsFiles admin = authority.Issue(Role::kAdmin, "root");
  const std::string state = directory.Path("state");
  Command coordinator(
      "takt-coordinator",
      WithTls({"--settings", "", "--state", state, "--listen", "127.0.0.1:0", "--metrics-listen",
               "127.0.0.3:0", "--join-authority", authority.ca(), "--log-level", "debug"},
              server));
  ASSERT_TRUE(coordinator.WaitForText("coordinator ready")) << coordinator.err();
  const std::string address =
      nlohmann::json::parse(integration::ReadFile(state + "/coordinator.json"))["listen"];

  const Arguments as_admin = WithTls({"--coordinator", address}, admin);
  const auto ask = [&](Arguments arguments) {
    arguments.insert(arguments.end(), as_admin.begin(), as_admin.end());
    return Takt(arguments);
  };
  const std::string token(absl::StripAsciiWhitespace(ask({"certs", "token", "w0"})));
  ASSERT_EQ(token.size(), 64u);
  Takt({"certs", "join", "--coordinator", address, "--tls-authority", authority.authority(),
        "--token-file", directory.Write("w0.token", token), "--out", directory.Path("w0")});
  const TlsFiles w0{.certificate = directory.Path("w0/w0.pem"),
                    .key = directory.Path("w0/w0.key"),
                    .authority = authority.authority()};
  Command worker("takt-worker",
                 WithTls({"--settings", "", "--coordinator", address, "--data-root", "/",
                          "--checkpoint-root", "/", "--threads", "1", "--device", "cpu",
                          "--metrics-listen", "127.0.0.3:0", "--log-level", "debug"},
                         w0));
  ASSERT_TRUE(worker.WaitForText("attached")) << worker.err();
  const std::string job = directory.Write(
      "job.yaml", absl::StrCat("name: ", kJob,
                               "\nmodel: {family: emulated, layers: 2, forward_ms: 1, "
                               "input_grad_ms: 1, weight_grad_ms: 1, activation_bytes: 4096}"
                               "\nbatch: {global: 4, microbatch: 1}\nsteps: 3"
                               "\nparallelism: {pipeline: 1, data: 1, schedule: 1f1b}\n"));
  ask({"submit", job});
  ask({"wait", kJob});

  std::map<std::string, std::string> visible = {{"job", ask({"job", kJob, "-o", "json"})},
                                                {"workers", ask({"workers", "-o", "json"})},
                                                {"logs", ask({"logs", kJob, "-o", "json"})},
                                                {"coordinator's log", coordinator.err()},
                                                {"worker's log", worker.err()},
                                                {"coordinator's out", coordinator.out()}};
  for (const pid_t pid : {coordinator.pid(), worker.pid()}) {
    for (const char* file : {"cmdline", "environ"})
      visible[absl::StrCat("/proc/", pid, "/", file)] = ProcFile(pid, file);
    for (const std::string& page : ListeningAddresses(pid))
      if (page.starts_with("127.0.0.3:")) visible["http://" + page] = Scrape(page);
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(state))
    if (entry.is_regular_file())
      visible[entry.path().string()] = integration::ReadFile(entry.path().string());
  ASSERT_THAT(visible["coordinator's log"], ::testing::HasSubstr("JoinService/CreateToken"));
  EXPECT_GE(visible.size(), 13u);

  std::set<std::string> secrets = BodyOf(authority.ca() + "/ca.key");
  for (const TlsFiles& files : {server, admin, w0}) secrets.merge(BodyOf(files.key));
  ASSERT_GE(secrets.size(), 8u);
  const std::vector<std::string> spellings = Spellings(absl::HexStringToBytes(token));
  secrets.insert(spellings.begin(), spellings.end());
  for (const auto& [where, text] : visible) {
    for (const std::string& secret : secrets)
      EXPECT_EQ(text.find(secret), std::string::npos) << where;
  }
}

}  // namespace
}  // namespace takt::security
