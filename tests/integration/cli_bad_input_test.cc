// SPDX-License-Identifier: Apache-2.0
// Every kind of wrong input through the real programs: exit status 2 and a message of its own.

#include <cstdint>
#include <utility>

#include "gmock/gmock.h"
#include "tests/integration/command.h"

namespace takt::integration {
namespace {

using testing::HasSubstr;

constexpr char kJob[] =
    "name: bad\n"
    "model:\n"
    "  family: gpt2\n"
    "  layers: 4\n"
    "  hidden: 32\n"
    "  heads: 2\n"
    "  context: 16\n"
    "  vocab: 256\n"
    "data:\n"
    "  train: {path: text.txt, format: bytes}\n"
    "batch: {global: 8, microbatch: 2}\n"
    "optimizer: {adamw: {learning_rate: 1.0e-3}}\n"
    "steps: 2\n"
    "parallelism: {pipeline: 2, data: 1, schedule: 1f1b}\n";

struct Case {
  std::string name;
  std::vector<std::string> set;        // --set
  std::vector<std::string> mentioned;  // in what it says
  std::string more = "";               // at the end of the job's file
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

class BadInputTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    directory_.Write("text.txt", std::string(4096, 'a'));
    directory_.Write("empty.txt", "");
    directory_.Write("short.txt", std::string(16, 'a'));
    directory_.Write("missing.csv",
                     "0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n1F0,1F1,1F2,1F3,1B0,1B1,1B2\n");
    directory_.Write("doubled.csv",
                     "0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n1F0,1F1,1F1,1F2,1F3,1B0,1B1,1B2,1B3\n");
    directory_.Write("impossible.csv",
                     "0F0,0B0,0F1,0F2,0F3,0B1,0B2,0B3\n1F1,1F0,1F2,1F3,1B0,1B1,1B2,1B3\n");
    directory_.Write("nonsense.csv", "0F0,what\n");
  }
  const TestDirectory directory_;
};

TEST_P(BadInputTest, ExitsWith2AndSaysWhatIsWrong) {
  std::vector<std::string> arguments = {"local", "run",
                                        directory_.Write("job.yaml", kJob + GetParam().more),
                                        "--state", directory_.Path("state")};
  for (const std::string& set : GetParam().set) arguments.insert(arguments.end(), {"--set", set});
  Command run("takt", arguments);
  EXPECT_EQ(run.Wait(), "exit status 2") << run.err();
  EXPECT_EQ(run.out(), "");
  for (const std::string& text : GetParam().mentioned) EXPECT_THAT(run.err(), HasSubstr(text));
}

const Case kCases[] = {
    {"UnknownKey", {}, {"job.yaml:15:1", "bogus"}, "bogus: 1\n"},
    {"RepeatedKey", {}, {"job.yaml:15:1", "steps", "twice"}, "steps: 3\n"},
    {"HeadsNotDividingHidden", {"model.heads=3"}, {"model.heads", "3", "hidden"}},
    {"PipelineLargerThanLayers", {"parallelism.pipeline=9"}, {"parallelism.pipeline", "9"}},
    {"GlobalBatchNotDivisible", {"batch.global=7"}, {"batch.global", "7"}},
    {"GlobalBatchNotDivisibleByReplicas", {"parallelism.data=3"}, {"batch.global", "8"}},
    {"MinusOneReplica", {"parallelism.data=-1"}, {"parallelism.data", "-1", "or auto"}},
    {"AutoWhereItMayNotBe", {"batch.global=auto"}, {"batch.global", "auto", "whole number"}},
    {"TooFewMicrobatchesForInterleaved",
     {"parallelism.schedule=interleaved-1f1b", "parallelism.chunks=2", "batch.global=2"},
     {"microbatch"}},
    {"EmptyDataFile", {"data.train.path=empty.txt"}, {"data.train.path", "empty.txt"}},
    {"TooShortDataFile", {"data.train.path=short.txt"}, {"data.train.path", "short.txt"}},
    {"MissingDataFile", {"data.train.path=nowhere.txt"}, {"data.train.path", "nowhere.txt"}},
    {"TokenNotBelowVocab", {"model.vocab=50"}, {"text.txt", "97", "vocab"}},
    {"NegativeLearningRate",
     {"optimizer.adamw.learning_rate=-1"},
     {"optimizer.adamw.learning_rate", "-1"}},
    {"TwoOptimizers", {"optimizer.sgd={momentum: 0.9}"}, {"optimizer is adamw and sgd", "one of"}},
    {"GroupWithoutParameters",
     {"optimizer.groups={parameters: '*.biass', weight_decay: 0}"},
     {"optimizer.groups[0].parameters", "*.biass", "must match a parameter"}},
    {"WsdThatDoesNotFit",
     {"optimizer.lr_schedule={decay: wsd, decay_steps: 1000000}"},
     {"optimizer.lr_schedule.decay_steps", "1000000", "stable_steps"}},
    {"Dropout", {"model.dropout=0.1"}, {"model.dropout", "0.1", "bits"}},
    {"LabelSmoothingOfOne", {"loss.label_smoothing=1"}, {"loss.label_smoothing", "below 1"}},
    {"UnknownSchedule", {"parallelism.schedule=2f2b"}, {"parallelism.schedule", "2f2b"}},
    {"MissingScheduleFile",
     {"parallelism.schedule=file:nowhere.csv"},
     {"parallelism.schedule", "nowhere.csv"}},
    {"ScheduleThatMissesAnAction",
     {"parallelism.schedule=file:missing.csv"},
     {"missing.csv", "1B3"}},
    {"ScheduleThatDoublesAnAction",
     {"parallelism.schedule=file:doubled.csv"},
     {"doubled.csv", "1F1", "twice"}},
    {"ScheduleThatCannotComplete",
     {"parallelism.schedule=file:impossible.csv"},
     {"impossible.csv"}},
    {"ScheduleThatIsNonsense",
     {"parallelism.schedule=file:nonsense.csv"},
     {"nonsense.csv", "what"}},
    {"MoreExpertsForATokenThanThereAre",
     {"model={family: mixtral, layers: 4, hidden: 32, heads: 2, context: 16, vocab: 256, "
      "experts: {count: 4, per_token: 5}}"},
     {"model.experts.per_token", "5", "model.experts.count (4)"}},
    {"WindowBeyondThePositions",
     {"model={family: mistral, layers: 4, hidden: 32, heads: 2, context: 16, vocab: 256}",
      "model.attention_window=17"},
     {"model.attention_window", "17"}},
    {"DocumentEndOutsideTheVocabulary", {"data.document_end=256"}, {"data.document_end", "256"}},
    {"ResidualBelowThePrecision", {"residual=bf16"}, {"residual", "bf16", "precision"}},
    {"HeadsNotDivisibleByTensor", {"parallelism.tensor=3"}, {"parallelism.tensor", "3", "heads"}},
    {"ExpertsOfAModelWithout", {"parallelism.expert=2"}, {"parallelism.expert", "2"}},
    {"ShardsOfGradients", {"parallelism.shard=gradients"}, {"parallelism.shard", "gradients"}},
    {"NoBarrierWithoutAFlush",
     {"optimizer.barrier=false", "parallelism.schedule=pipedream-2bw",
      "optimizer.adamw.clip_norm=0"},
     {"optimizer.barrier", "has no flush"}},
    {"ErrorFeedbackWithAFlush",
     {"optimizer.error_feedback=1", "parallelism.schedule=1f1b"},
     {"optimizer.error_feedback", "pipedream-2bw"}},
    {"OverrideOfNothing", {"model.bogus=1"}, {"--set model.bogus=1", "model.bogus"}},
};

INSTANTIATE_TEST_SUITE_P(All, BadInputTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

class BadFileTest : public testing::Test {
 protected:
  std::string ErrorOf(const std::vector<std::string>& arguments) {
    Command run("takt", arguments);
    EXPECT_EQ(run.Wait(), "exit status 2") << run.err();
    EXPECT_EQ(run.out(), "");
    EXPECT_LT(run.err().size(), 4096u);
    return run.err();
  }
  const TestDirectory directory_;
};

TEST_F(BadFileTest, MissingJobFile) {
  EXPECT_THAT(ErrorOf({"local", "run", directory_.Path("no.yaml")}), HasSubstr("no.yaml"));
}

TEST_F(BadFileTest, DirectoryAsJobFile) {
  EXPECT_THAT(ErrorOf({"local", "run", directory_.Path("")}), HasSubstr("directory"));
}

TEST_F(BadFileTest, FewerWorkersThanRanks) {
  const std::string job = directory_.Write("job.yaml", kJob);
  const std::vector<std::string> run = {"local", "run", job, "--workers", "1"};
  EXPECT_THAT(ErrorOf(run), HasSubstr("error: --workers is 1: must be at least 2, as many ranks"));
  std::vector<std::string> elastic = run;
  for (const char* const set : {"checkpoint.in_memory=auto", "elastic.evict_stragglers=true"})
    elastic.insert(elastic.end(), {"--set", set});
  EXPECT_THAT(ErrorOf(elastic), HasSubstr("must be at least 2"));
  EXPECT_THAT(ErrorOf({"local", "run", job, "--workers", "3", "--set", "parallelism.tensor=2"}),
              HasSubstr("must be at least 4"));
}

// The cluster does not grow, so the job would wait for ever.
TEST_F(BadFileTest, GpusWhereNoWorkerHasOne) {
  directory_.Write("text.txt", std::string(4096, 'a'));
  const std::string job = directory_.Write("job.yaml", kJob);
  for (const auto& [field, value] :
       {std::pair("parallelism.device", "cuda"), std::pair("parallelism.transport", "nccl"),
        std::pair("parallelism.transport", "cuda_ipc")}) {
    EXPECT_THAT(
        ErrorOf({"local", "run", job, "--device", "cpu", "--set", absl::StrCat(field, "=", value)}),
        HasSubstr(absl::StrCat(field, " is ", value, ": needs workers with a GPU")));
  }
}

TEST_F(BadFileTest, DeviceThatNoWorkerCanUse) {
  directory_.Write("text.txt", std::string(4096, 'a'));
  const std::string job = directory_.Write("job.yaml", kJob);
  for (const bool once : {true, false}) {
    std::vector<std::string> arguments = {"local", once ? "run" : "up"};
    if (once) arguments.push_back(job);
    arguments.insert(arguments.end(), {"--device", "cuda", "--state", directory_.Path("state")});
    Command command("takt", arguments, {"CUDA_VISIBLE_DEVICES="});
    EXPECT_EQ(command.Wait(), "exit status 2") << command.err();
    EXPECT_THAT(command.err(), HasSubstr("error: --device is cuda: no worker starts with it: "));
  }
}

TEST_F(BadFileTest, TenMegabytesOfGarbage) {
  std::string garbage(10 << 20, '\0');
  std::uint64_t state = 88172645463325252u;
  for (char& c : garbage) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    c = static_cast<char>(state);
  }
  EXPECT_THAT(ErrorOf({"local", "run", directory_.Write("garbage.yaml", garbage)}),
              HasSubstr("garbage.yaml"));
}

TEST_F(BadFileTest, DeepNesting) {
  EXPECT_THAT(ErrorOf({"local", "run", directory_.Write("deep.yaml", std::string(100000, '['))}),
              HasSubstr("deep.yaml"));
}

TEST_F(BadFileTest, EmptyJobFileNamesAllThatIsMissing) {
  const std::string error = ErrorOf({"local", "run", directory_.Write("empty.yaml", "")});
  for (const char* field : {"name", "model.family", "batch.global", "steps"}) {
    EXPECT_THAT(error, HasSubstr(field));
  }
}

// With daemons of our own, because the roots of `local run` are `/`.
TEST(DataRoot, PathOutsideExitsWith2) {
  const TestDirectory directory;
  std::filesystem::create_directory(directory.Path("data"));
  const std::string address = "unix:" + directory.Path("s");
  Command coordinator("takt-coordinator",
                      {"--state", directory.Path("state"), "--listen", address});
  Command worker("takt-worker",
                 {"--coordinator", address, "--name", "w", "--data-root", directory.Path("data"),
                  "--checkpoint-root", directory.Path("data")});
  directory.Write("secret.txt", std::string(4096, 'a'));
  const std::string job = directory.Write("job.yaml", kJob);
  for (const char* path : {"../secret.txt", "/etc/passwd"}) {
    Command submit("takt",
                   {"--coordinator", address, "submit", job, "--wait", "--set",
                    "parallelism.pipeline=1", "--set", absl::StrCat("data.train.path=", path)});
    EXPECT_EQ(submit.Wait(), "exit status 2") << submit.err();
    EXPECT_THAT(submit.out() + submit.err(), HasSubstr("data-root"));
    Command forget("takt", {"--coordinator", address, "delete", "bad"});
    EXPECT_EQ(forget.Wait(), "exit status 0") << forget.err();
  }
}

}  // namespace
}  // namespace takt::integration
