// SPDX-License-Identifier: Apache-2.0
// A cluster over TCP with certificates, and what is refused without.
#include <signal.h>
#include <sys/stat.h>

#include "common/certificates/test_authority.h"
#include "gmock/gmock.h"
#include "tests/integration/command.h"
#include "tests/integration/ui_page.h"

namespace takt::integration {
namespace {

using access::Role;
using certificates::TestAuthority;
using certificates::TlsFiles;
using certificates::WithTls;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr absl::Duration kPatience = absl::Seconds(120);

// As long as nobody cancels it.
constexpr char kEndlessJob[] =
    "name: a\n"
    "model: {family: emulated, layers: 2, forward_ms: 1, input_grad_ms: 1, weight_grad_ms: 1, "
    "activation_bytes: 4096}\n"
    "batch: {global: 4, microbatch: 1}\n"
    "steps: 1000000\n"
    "parallelism: {pipeline: 2, data: 1, schedule: 1f1b}\n";

class TlsTest : public testing::Test {
 protected:
  using Arguments = std::vector<std::string>;

  Arguments CoordinatorArguments() const {
    return {"--settings", "", "--state", directory_.Path("state"), "--listen", "127.0.0.1:0"};
  }
  Arguments WorkerArguments(const std::string& address) const {
    return {"--settings",        "",   "--coordinator", address, "--data-root",      "/",
            "--checkpoint-root", "/",  "--threads",     "1",     "--metrics-listen", "",
            "--device",          "cpu"};
  }

  void StartCluster() {
    StartCluster(coordinator_files_,
                 {authority_.Issue(Role::kWorker, "w0"), authority_.Issue(Role::kWorker, "w1")});
  }
  void StartCluster(const TlsFiles& coordinator, const std::vector<TlsFiles>& workers) {
    coordinator_ =
        std::make_unique<Command>("takt-coordinator", WithTls(CoordinatorArguments(), coordinator));
    ASSERT_TRUE(coordinator_->WaitForText("coordinator ready")) << coordinator_->err();
    address_ = json::parse(ReadFile(directory_.Path("state/coordinator.json")))["listen"];
    for (const TlsFiles& files : workers) {
      workers_.push_back(
          std::make_unique<Command>("takt-worker", WithTls(WorkerArguments(address_), files)));
    }
    for (const auto& worker : workers_)
      ASSERT_TRUE(worker->WaitForText("attached")) << worker->err();
  }

  struct Result {
    std::string end, out, err;
  };
  static Result Run(const std::string& program, const Arguments& arguments) {
    Command command(program, arguments);
    std::string end = command.Wait();
    return {std::move(end), command.out(), command.err()};
  }
  Result Takt(Arguments arguments, const TlsFiles& files) const {
    arguments.insert(arguments.end(), {"--coordinator", address_});
    return Run("takt", WithTls(std::move(arguments), files));
  }
  // Of job a, once it has trained beyond `step`.
  json AwaitStep(std::int64_t step) const {
    const absl::Time end = absl::Now() + kPatience;
    while (absl::Now() < end) {
      const Result shown = Takt({"job", "a", "-o", "json"}, alice_);
      if (shown.end != "exit status 0") continue;  // the files are about to be read again
      json job = json::parse(shown.out);
      if (job.contains("last_step") && job["last_step"]["step"] > step) return job;
    }
    ADD_FAILURE() << "no step after " << step;
    return {};
  }

  const TestDirectory directory_;
  const TestAuthority authority_;
  const TlsFiles coordinator_files_ = authority_.Issue(Role::kCoordinator, "c1");
  const TlsFiles alice_ = authority_.Issue(Role::kUser, "alice");
  std::unique_ptr<Command> coordinator_;
  std::vector<std::unique_ptr<Command>> workers_;
  std::string address_;
};

TEST_F(TlsTest, AJobTrainsOnWhileItsCertificatesExpireAndAreRenewed) {
  StartCluster();
  const Result submitted = Takt({"submit", directory_.Write("a.yaml", kEndlessJob)}, alice_);
  ASSERT_EQ(submitted.end, "exit status 0") << submitted.err;
  json job = AwaitStep(0);
  EXPECT_EQ(job["owner"], "user/alice");

  authority_.Issue(Role::kCoordinator, "c1", {.from = absl::Now() - absl::Hours(3), .renew = true});
  for (const char* name : {"w0", "w1"})
    authority_.Issue(Role::kWorker, name, {.from = absl::Now() - absl::Hours(3), .renew = true});
  ASSERT_TRUE(coordinator_->WaitForText("certificate cannot be used")) << coordinator_->err();
  ASSERT_TRUE(workers_[0]->WaitForText("certificate cannot be used")) << workers_[0]->err();
  Result refused;
  const absl::Time end = absl::Now() + kPatience;
  do {
    refused = Takt({"jobs"}, alice_);
  } while (refused.end == "exit status 0" && absl::Now() < end);
  EXPECT_EQ(refused.end, "exit status 3");
  EXPECT_THAT(refused.err, HasSubstr("the coordinator's certificate is not believed"));
  EXPECT_THAT(refused.err, HasSubstr("this machine's clock"));

  for (const char* name : {"w0", "w1"}) authority_.Issue(Role::kWorker, name, {.renew = true});
  authority_.Issue(Role::kCoordinator, "c1", {.renew = true});
  ASSERT_TRUE(coordinator_->WaitForText("certificate renewed")) << coordinator_->err();
  const json after = AwaitStep(job["last_step"]["step"]);
  EXPECT_EQ(after["state"], "RUNNING");
  EXPECT_EQ(after["generation"], job["generation"]);

  const TlsFiles bob = authority_.Issue(Role::kUser, "bob");
  const Result cancelled = Takt({"cancel", "a"}, bob);
  EXPECT_EQ(cancelled.end, "exit status 5");
  EXPECT_THAT(cancelled.err, HasSubstr("user/bob"));
  EXPECT_THAT(cancelled.err, HasSubstr("does not own job a"));
  EXPECT_EQ(Takt({"drain", "w0"}, alice_).end, "exit status 5");
  EXPECT_EQ(Takt({"cancel", "a"}, authority_.Issue(Role::kAdmin, "root")).end, "exit status 0");
  EXPECT_THAT(coordinator_->err(), HasSubstr("audit who=user/bob"));
  EXPECT_THAT(coordinator_->err(), HasSubstr("audit who=admin/root"));
}

TEST_F(TlsTest, APageShowsWhatItsUserMaySee) {
  StartCluster();
  ASSERT_EQ(Takt({"submit", directory_.Write("a.yaml", kEndlessJob)}, alice_).end, "exit status 0");
  AwaitStep(0);
  const auto page_of = [&](const TlsFiles& files) {
    return std::make_unique<Command>(
        "takt", WithTls({"ui", "-o", "json", "--coordinator", address_}, files));
  };
  const auto hers = page_of(alice_), his = page_of(authority_.Issue(Role::kUser, "bob"));
  const UiPage owner = PageOf(*hers), other = PageOf(*his);
  EXPECT_THAT(owner.Read("/api/stream?view=job:a", "\"kind\":\"steps\""), HasSubstr("user/alice"));
  EXPECT_THAT(owner.Read("/api/stream?view=cluster", "RUNNING"), HasSubstr("\"w0\""));

  const std::string refused = other.Read("/api/stream?view=job:a", "does not own job a");
  EXPECT_THAT(refused, AllOf(HasSubstr("\"kind\":\"problem\""), HasSubstr("does not own job a")));
  EXPECT_THAT(refused, Not(HasSubstr("\"kind\":\"steps\"")));
  const std::string refused_logs = other.Read("/api/stream?view=logs:a", "does not own job a");
  EXPECT_THAT(refused_logs, HasSubstr("does not own job a"));
  // The workers are everybody's to see, the jobs are not.
  const std::string cluster = other.Read("/api/stream?view=cluster", "\"kind\":\"jobs\"");
  EXPECT_THAT(cluster, AllOf(HasSubstr("\"w0\""), Not(HasSubstr("alice"))));
  for (Command* const ui : {hers.get(), his.get()}) {
    ui->Signal(SIGINT);
    EXPECT_EQ(ui->Wait(), "exit status 0");
  }
}

TEST_F(TlsTest, AnInventoryGivesAClusterItsCertificatesAndSettings) {
  const std::string inventory =
      directory_.Write("inventory.yaml",
                       "coordinator: {name: c1, hosts: [127.0.0.1]}\nworkers: [{name: "
                       "\"w[0-1]\"}]\nusers: [alice]\n");
  const std::string out = directory_.Path("cluster");
  const Result issued = Run("takt", {"certs", "cluster", inventory, out});
  ASSERT_EQ(issued.end, "exit status 0") << issued.err;
  const auto files = [&](const std::string& name) {
    const std::string tls = absl::StrCat(out, "/", name, "/tls/");
    return TlsFiles{.certificate = absl::StrCat(tls, name, ".pem"),
                    .key = absl::StrCat(tls, name, ".key"),
                    .authority = tls + "ca.pem"};
  };
  // Exit status 2 would say that a setting is wrong, and 1 says that no daemon runs with these.
  EXPECT_EQ(Run("takt-coordinator", {"--settings", out + "/c1/coordinator.yaml", "--health"}).end,
            "exit status 1");
  EXPECT_EQ(Run("takt-worker", {"--settings", out + "/w1/worker.yaml", "--health"}).end,
            "exit status 1");

  StartCluster(files("c1"), {files("w0"), files("w1")});
  const std::string job = directory_.Write("a.yaml", kEndlessJob);
  const Result trained = Takt({"submit", job, "--set", "steps=3", "--wait"}, files("alice"));
  EXPECT_EQ(trained.end, "exit status 0") << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("user/alice"));
}

TEST_F(TlsTest, NothingRunsOpenByAccident) {
  const Result open = Run("takt-coordinator", CoordinatorArguments());
  EXPECT_EQ(open.end, "exit status 2");
  EXPECT_THAT(open.err, HasSubstr("TCP without certificates"));
  EXPECT_THAT(open.err, HasSubstr("--insecure"));
  const Result worker = Run("takt-worker", WorkerArguments("127.0.0.1:1"));
  EXPECT_EQ(worker.end, "exit status 2");
  EXPECT_THAT(worker.err, HasSubstr("TCP without certificates"));
  const Result takt = Run("takt", {"jobs", "--coordinator", "127.0.0.1:1"});
  EXPECT_EQ(takt.end, "exit status 2");
  EXPECT_THAT(takt.err, HasSubstr("--tls-certificate"));
}

TEST_F(TlsTest, FilesThatCannotWorkAreRefusedAtTheStart) {
  const TlsFiles expired =
      authority_.Issue(Role::kUser, "late", {.from = absl::Now() - absl::Hours(3)});
  const Result late = Run("takt", WithTls({"jobs", "--coordinator", "127.0.0.1:1"}, expired));
  EXPECT_EQ(late.end, "exit status 2");
  EXPECT_THAT(late.err, HasSubstr("this machine's clock says"));

  const TlsFiles w0 = authority_.Issue(Role::kWorker, "w0");
  Arguments other_name = WithTls(WorkerArguments("127.0.0.1:1"), w0);
  other_name.insert(other_name.end(), {"--name", "w1"});
  const Result named = Run("takt-worker", other_name);
  EXPECT_EQ(named.end, "exit status 2");
  EXPECT_THAT(named.err, HasSubstr("a worker speaks only for itself"));

  chmod(coordinator_files_.key.c_str(), 0644);
  const Result readable =
      Run("takt-coordinator", WithTls(CoordinatorArguments(), coordinator_files_));
  EXPECT_EQ(readable.end, "exit status 2");
  EXPECT_THAT(readable.err, HasSubstr("has mode 0644"));
  EXPECT_THAT(readable.err, HasSubstr("chmod 600"));
}

TEST_F(TlsTest, AClockThatIsAYearOffIsNamedByEveryProgram) {
  const TlsFiles worker = authority_.Issue(Role::kWorker, "w0");
  const std::vector<std::pair<std::string, Arguments>> starts = {
      {"takt-coordinator", WithTls(CoordinatorArguments(), coordinator_files_)},
      {"takt-worker", WithTls(WorkerArguments("127.0.0.1:1"), worker)},
      {"takt", WithTls({"jobs", "--coordinator", "127.0.0.1:1"}, alice_)}};
  for (const auto& [program, arguments] : starts) {
    for (const absl::Duration ahead : {absl::Hours(24 * 366), absl::Hours(-24 * 366)}) {
      Command command(program, arguments,
                      {"LD_PRELOAD=" TAKT_JUMPING_CLOCK,
                       absl::StrCat("TAKT_CLOCK_AHEAD=", absl::ToInt64Seconds(ahead))});
      EXPECT_EQ(command.Wait(), "exit status 2") << program;
      EXPECT_THAT(command.err(),
                  AllOf(HasSubstr(ahead > absl::ZeroDuration() ? "expired at" : "not valid before"),
                        HasSubstr("this machine's clock says"), HasSubstr("set the clock")))
          << program;
    }
  }
}

}  // namespace
}  // namespace takt::integration
