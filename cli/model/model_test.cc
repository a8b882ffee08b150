// SPDX-License-Identifier: Apache-2.0
// Runs the commands with a script in place of takt-worker. tests/integration runs them with the
// real one.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "cli/model/evaluate_here.h"
#include "cli/model/evaluate_on_cluster.h"
#include "cli/model/model_child.h"
#include "cli/model/model_options.h"
#include "cli/model/score.h"
#include "cli/testing/fake_coordinator.h"
#include "cli/testing/test_checkpoint.h"
#include "cli/testing/test_directory.h"
#include "common/base/status.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/delimited_message_util.h"
#include "nlohmann/json.hpp"

namespace takt::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A directory with a takt-worker that does `script`.
class FakeWorker {
 public:
  explicit FakeWorker(const std::string& script) {
    const std::string program = directory_.Write("takt-worker", "#!/bin/sh\n" + script + "\n");
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  }
  const std::string& directory() const { return directory_.path(); }
  std::string Path(const std::string& name) const { return directory_.Path(name); }

  // Writes a file of answers, which the script can print.
  void WriteAnswers(const std::vector<v1::LocalModelAnswer>& answers) const {
    std::ofstream out(Path("answers"), std::ios::binary);
    for (const v1::LocalModelAnswer& answer : answers)
      google::protobuf::util::SerializeDelimitedToOstream(answer, &out);
  }

 private:
  const TestDirectory directory_;
};

Outcome RunWith(const FakeWorker& worker, const std::vector<std::string>& arguments) {
  std::ostringstream out, err;
  Context context{.terminal = {.out = out, .err = err},
                  .environment = [](const char*) { return std::optional<std::string>(); },
                  .program_directory = worker.directory()};
  const ExitCode code = RunApp(arguments, context);
  return {code, out.str(), err.str()};
}

v1::LocalModelAnswer TokenAnswer(char byte) {
  v1::LocalModelAnswer answer;
  answer.set_token(static_cast<unsigned char>(byte));
  return answer;
}

std::vector<v1::LocalModelAnswer> AnswersOf(const std::string& text) {
  std::vector<v1::LocalModelAnswer> answers(1);
  answers[0].mutable_start()->set_prompt_seconds(0.5);
  for (const char byte : text) answers.push_back(TokenAnswer(byte));
  answers.emplace_back().mutable_generated()->set_seconds(2);
  return answers;
}

const std::string kModel = GoldenModel("gpt2-tiny");

TEST(Generate, PrintsTheTextOfTheTokens) {
  const FakeWorker worker("cat > \"${0%/*}/request\"; cat \"${0%/*}/answers\"");
  worker.WriteAnswers(AnswersOf("héllo"));
  const Outcome outcome = RunWith(worker, {"generate", kModel, "--prompt", "ab", "--tokenizer",
                                           "bytes", "--tokens", "6", "--seed", "3"});
  EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  EXPECT_EQ(outcome.out, "héllo\n");
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("prompt of 2 tokens"), HasSubstr("2.5 tokens/s")));
  v1::LocalModelRequest request;
  ASSERT_TRUE(request.ParseFromString(ReadFile(worker.Path("request"))));
  EXPECT_EQ(request.folder(), kModel);
  EXPECT_THAT(request.generate().prompt(), testing::ElementsAre('a', 'b'));
  EXPECT_EQ(request.generate().tokens(), 6);
  EXPECT_EQ(request.generate().seed(), 3U);
  EXPECT_EQ(request.generate().top_p(), 1);
  EXPECT_EQ(request.generate().tokenizer_vocab(), 256);
}

// Returns the ids of the prompt that the worker gets, with a tokenizer of SentencePiece.
std::vector<int> PromptOf(const std::string& prompt, const std::vector<std::string>& more) {
  const FakeWorker worker("cat > \"${0%/*}/request\"; cat \"${0%/*}/answers\"");
  worker.WriteAnswers(AnswersOf("x"));
  std::vector<std::string> arguments = {
      "generate", kModel,        "--prompt",
      prompt,     "--tokenizer", TAKT_SOURCE_DIR "/tests/golden/tokenizer/llama2"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Outcome outcome = RunWith(worker, arguments);
  EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  v1::LocalModelRequest request;
  EXPECT_TRUE(request.ParseFromString(ReadFile(worker.Path("request"))));
  return {request.generate().prompt().begin(), request.generate().prompt().end()};
}

TEST(Generate, ThePromptBeginsAsDocumentsDo) {
  const std::vector<int> text = PromptOf("the sea", {"--bos", "none"});
  std::vector<int> with_begin = {1};
  with_begin.insert(with_begin.end(), text.begin(), text.end());
  EXPECT_EQ(PromptOf("the sea", {}), with_begin);
  EXPECT_EQ(PromptOf("the sea", {"--bos", "<s>"}), with_begin);
  with_begin.front() = 2;
  EXPECT_EQ(PromptOf("the sea", {"--bos", "</s>"}), with_begin);
  EXPECT_THAT(
      RunTakt({"generate", kModel, "--prompt", "a", "--tokenizer", "bytes", "--bos", "256"}).err,
      HasSubstr("--bos"));
}

TEST(Generate, TheTokenThatThePromptBeginsWithIsNotDoubled) {
  EXPECT_EQ(
      PromptOf("the sea", {"--bos", std::to_string(PromptOf("the sea", {"--bos", "none"})[0])}),
      PromptOf("the sea", {"--bos", "none"}));
}

TEST(Generate, PrintsOneObjectWithIds) {
  const FakeWorker worker("cat > /dev/null; cat \"${0%/*}/answers\"");
  worker.WriteAnswers(AnswersOf("hi"));
  const Outcome outcome =
      RunWith(worker, {"-o", "json", "generate", kModel, "--prompt", "ab", "--tokenizer", "bytes"});
  ASSERT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["text"], "hi");
  EXPECT_EQ(json["tokens"], (std::vector<int>{'h', 'i'}));
  EXPECT_EQ(json["prompt_tokens"], 2);
  EXPECT_EQ(json["tokens_per_second"], 0.5);
}

TEST(Generate, SaysHowADeadChildEnded) {
  for (const auto& [script, text] : {std::pair("cat > /dev/null; exit 3", "exit status 3"),
                                     std::pair("cat > /dev/null; kill -9 $$", "too little memory"),
                                     std::pair("cat > /dev/null", "exit status 0")}) {
    const Outcome outcome =
        RunWith(FakeWorker(script), {"generate", kModel, "--prompt", "ab", "--tokenizer", "bytes"});
    EXPECT_EQ(outcome.code, ExitCode::kFailed);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("takt-worker"), HasSubstr(text)));
  }
}

TEST(Generate, ReportsTheFailureThatTheChildAnswers) {
  v1::LocalModelAnswer answer;
  const absl::Status failure =
      InvalidField({.field = "--tokens", .value = "9", .rule = "must be at most 8", .fix = "less"});
  answer.mutable_failure()->set_code(static_cast<int>(failure.code()));
  answer.mutable_failure()->set_message(std::string(failure.message()));
  answer.mutable_failure()->set_detail(std::string(*failure.GetPayload(kErrorDetailUrl)));
  const FakeWorker worker("cat > /dev/null; cat \"${0%/*}/answers\"");
  worker.WriteAnswers({answer});
  const Outcome outcome =
      RunWith(worker, {"generate", kModel, "--prompt", "ab", "--tokenizer", "bytes"});
  EXPECT_EQ(outcome.code, ExitCode::kInvalidInput);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("--tokens"), HasSubstr("must be at most 8")));
}

TEST(Generate, WantsATokenizer) {
  const Outcome outcome = RunTakt({"generate", kModel, "--prompt", "ab"});
  EXPECT_EQ(outcome.code, ExitCode::kInvalidInput);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("--tokenizer"), HasSubstr("bytes")));
}

TEST(Generate, NeedsTheWorkersProgram) {
  const Outcome outcome = RunTakt({"generate", kModel, "--prompt", "ab", "--tokenizer", "bytes"});
  EXPECT_EQ(outcome.code, ExitCode::kFailed);
  EXPECT_THAT(outcome.err, HasSubstr("cannot start takt-worker (/nonexistent/takt-worker)"));
}

TEST(Generate, RefusesWrongNumbers) {
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"--tokens", "0"},
                                             {"--tokens", "99999999999999"},
                                             {"--temperature", "-1"},
                                             {"--top-p", "1.5"},
                                             {"--seed", "-1"},
                                             {"--threads", "0"}}) {
    std::vector<std::string> arguments = {"generate", kModel, "--prompt", "ab"};
    arguments.insert(arguments.end(), wrong.begin(), wrong.end());
    const Outcome outcome = RunTakt(arguments);
    EXPECT_EQ(outcome.code, ExitCode::kInvalidInput) << wrong[0] << " " << wrong[1];
    EXPECT_THAT(outcome.err, HasSubstr(wrong[0]));
  }
}

// Finds the folder of a model, and keeps what is said about that.
struct FoundFolder {
  explicit FoundFolder(const ModelOptions& options) {
    std::ostringstream out, err;
    const Context context{.terminal = {.out = out, .err = err},
                          .environment = [](const char*) { return std::optional<std::string>(); }};
    folder = ModelFolder(context, options);
    said = err.str();
  }
  absl::StatusOr<std::string> folder;
  std::string said;
};

TEST(ModelFolder, IsTheNewestStepOfADirectoryOfCheckpoints) {
  const TestDirectory directory;
  WriteCheckpoint(directory.path(), 5, kModel);
  const std::string newest = WriteCheckpoint(directory.path(), 20, kModel);
  const auto find = [](const ModelOptions& options) { return FoundFolder(options).folder; };
  EXPECT_EQ(find({.checkpoint = directory.path()}).value(), newest);
  EXPECT_THAT(find({.checkpoint = directory.path(), .step = 5}).value(),
              testing::EndsWith(checkpoint::StepDirectoryName(StepId(5))));
  EXPECT_EQ(find({.checkpoint = newest}).value(), newest);
  EXPECT_EQ(find({.checkpoint = directory.path(), .step = 6}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(find({.checkpoint = newest, .step = 20}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(find({.checkpoint = directory.Path("nothing")}).status().code(),
            absl::StatusCode::kNotFound);
}

// Changes one byte of a file, whose size stays.
void Damage(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const int last = file.get();
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(last ^ 1));
}

TEST(ModelFolder, PassesOverADamagedStepAndSaysSo) {
  const TestDirectory directory;
  const std::string older = WriteCheckpoint(directory.path(), 5, kModel);
  const std::string newest = WriteCheckpoint(directory.path(), 20, kModel);
  for (const char* const file : {"config.json", "model-00002-of-00006.safetensors",
                                 "model.safetensors.index.json", "manifest.json"}) {
    const std::string path = newest + "/" + file, whole = ReadFile(path);
    Damage(path);
    const FoundFolder found({.checkpoint = directory.path()});
    ASSERT_TRUE(found.folder.ok()) << found.folder.status();
    EXPECT_EQ(*found.folder, older) << file;
    EXPECT_THAT(found.said, AllOf(HasSubstr(path), HasSubstr("step-00000005 is used instead")))
        << file;
    std::ofstream(path, std::ios::binary) << whole;
  }
  EXPECT_EQ(FoundFolder({.checkpoint = directory.path()}).said, "");
}

TEST(ModelFolder, NeverReplacesAStepThatWasNamed) {
  const TestDirectory directory;
  const std::string older = WriteCheckpoint(directory.path(), 5, kModel);
  const std::string newest = WriteCheckpoint(directory.path(), 20, kModel);
  Damage(newest + "/config.json");
  for (const ModelOptions& named : {ModelOptions{.checkpoint = newest},
                                    ModelOptions{.checkpoint = directory.path(), .step = 20}}) {
    const FoundFolder found(named);
    EXPECT_EQ(found.folder.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(found.folder.status().message()),
                AllOf(HasSubstr(newest + "/config.json is damaged: its XXH3-128 is "),
                      HasSubstr("its manifest says "), HasSubstr("restore the file")));
    EXPECT_EQ(found.said, "");
  }
  Damage(older + "/config.json");
  const absl::Status none = FoundFolder({.checkpoint = directory.path()}).folder.status();
  EXPECT_EQ(none.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(none.message()),
              AllOf(HasSubstr("step-00000020/config.json"), HasSubstr("step-00000005/config.json"),
                    HasSubstr("no other checkpoint is there or whole")));
  const Outcome outcome = RunTakt(
      {"generate", directory.path(), "--prompt", "ab", "--tokenizer", "bytes", "--step", "5"});
  EXPECT_EQ(outcome.code, ExitCode::kFailed);
  EXPECT_THAT(outcome.err, HasSubstr("config.json is damaged"));
}

TEST(Eval, PrintsLossPerplexityAndBitsPerByte) {
  v1::LocalModelAnswer answer;
  v1::EvaluatedModel& evaluated = *answer.mutable_evaluated();
  evaluated.set_loss(std::log(4.0));
  evaluated.set_tokens(60);
  evaluated.set_windows(2);
  evaluated.set_context(30);
  const FakeWorker worker("cat > \"${0%/*}/request\"; cat \"${0%/*}/answers\"");
  worker.WriteAnswers({answer});
  const std::string data = kModel + "/tokens.bin";
  const Outcome outcome = RunWith(worker, {"-o", "json", "eval", kModel, "--data", data, "--format",
                                           "bytes", "--context", "30"});
  ASSERT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["loss"], std::log(4.0));
  EXPECT_NEAR(json["perplexity"].get<double>(), 4, 1e-12);
  EXPECT_NEAR(json["bits_per_byte"].get<double>(), 2, 1e-12);
  EXPECT_EQ(json["tokens"], 60);
  v1::LocalModelRequest request;
  ASSERT_TRUE(request.ParseFromString(ReadFile(worker.Path("request"))));
  EXPECT_EQ(request.evaluate().data(), data);
  EXPECT_EQ(request.evaluate().format(), v1::DATA_FORMAT_BYTES);
  // Of other tokens nobody knows how many bytes they are.
  const Outcome unknown =
      RunWith(worker, {"-o", "json", "eval", kModel, "--data", data, "--format", "uint16"});
  ASSERT_EQ(unknown.code, ExitCode::kDone) << unknown.err;
  EXPECT_TRUE(nlohmann::json::parse(unknown.out)["bits_per_byte"].is_null());
}

// Returns what `takt eval` of the checkpoint asks the worker for.
v1::EvaluateModel AskedOf(const std::string& checkpoint, const std::vector<std::string>& more) {
  v1::LocalModelAnswer answer;
  answer.mutable_evaluated()->set_tokens(1);
  const FakeWorker worker("cat > \"${0%/*}/request\"; cat \"${0%/*}/answers\"");
  worker.WriteAnswers({answer});
  std::vector<std::string> arguments = {"eval",     checkpoint, "--data", kModel + "/tokens.bin",
                                        "--format", "uint16"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Outcome outcome = RunWith(worker, arguments);
  EXPECT_EQ(outcome.code, ExitCode::kDone) << outcome.err;
  v1::LocalModelRequest request;
  EXPECT_TRUE(request.ParseFromString(ReadFile(worker.Path("request"))));
  return request.evaluate();
}

TEST(Eval, TreatsDocumentsAsTheJobDidThatTrainedTheCheckpoint) {
  const TestDirectory directory;
  WriteCheckpoint(directory.path(), 5, kModel,
                  R"({"name": "j", "data": {"documents": "separate", "document_end": 9}})");
  v1::EvaluateModel asked = AskedOf(directory.path(), {});
  EXPECT_EQ(asked.documents(), v1::DOCUMENTS_MODE_SEPARATE);
  EXPECT_EQ(asked.document_end(), 9);
  EXPECT_EQ(AskedOf(directory.path(), {"--documents", "separate"}).document_end(), 9);
  EXPECT_EQ(AskedOf(directory.path(), {"--document-end", "8"}).document_end(), 8);
  asked = AskedOf(directory.path(), {"--documents", "join"});
  EXPECT_EQ(asked.documents(), v1::DOCUMENTS_MODE_JOIN);
  EXPECT_FALSE(asked.has_document_end());

  WriteCheckpoint(directory.path(), 6, kModel, R"({"data": {"document_end": 9}})");
  EXPECT_EQ(AskedOf(directory.path(), {}).document_end(), 9);
  WriteCheckpoint(directory.path(), 7, kModel, R"({"data": {"documents": "join"}})");
  EXPECT_EQ(AskedOf(directory.path(), {}).documents(), v1::DOCUMENTS_MODE_JOIN);
}

TEST(Eval, OfAFolderDocumentsAreAsTheOptionsSay) {
  EXPECT_EQ(AskedOf(kModel, {}).documents(), v1::DOCUMENTS_MODE_UNSPECIFIED);
  const v1::EvaluateModel asked = AskedOf(kModel, {"--document-end", "0"});
  EXPECT_EQ(asked.documents(), v1::DOCUMENTS_MODE_SEPARATE);
  EXPECT_TRUE(asked.has_document_end());
  const std::string data = kModel + "/tokens.bin";
  const Outcome both = RunTakt({"eval", kModel, "--data", data, "--format", "uint16", "--documents",
                                "join", "--document-end", "0"});
  EXPECT_EQ(both.code, ExitCode::kInvalidInput);
  EXPECT_THAT(both.err, HasSubstr("--document-end"));
}

TEST(Eval, AnEvaluationIsTheJobWithoutWhatOnlyTrainingNeeds) {
  v1::JobSpec job;
  job.set_name(std::string(63, 'n'));
  job.set_steps(500);
  job.set_priority(80);
  job.mutable_checkpoint()->set_directory("c");
  job.mutable_logging()->set_tensorboard("t");
  job.mutable_optimizer()->mutable_adamw()->set_learning_rate(1);
  job.mutable_parallelism()->set_schedule("zb-h1");
  job.mutable_parallelism()->set_pipeline(4);
  job.mutable_parallelism()->set_data_leaves(8);
  const v1::JobSpec spec = EvaluationOf(job, "c/step-00000007", "18c");
  EXPECT_EQ(spec.name(), std::string(40, 'n') + "-eval-18c");
  EXPECT_EQ(spec.evaluate().weights(), "c/step-00000007");
  EXPECT_EQ(spec.steps(), 1);
  EXPECT_EQ(spec.priority(), 0);
  EXPECT_FALSE(spec.has_checkpoint());
  EXPECT_FALSE(spec.parallelism().has_data_leaves());
  EXPECT_FALSE(spec.has_logging());
  EXPECT_FALSE(spec.optimizer().has_adamw());
  EXPECT_EQ(spec.optimizer().sgd().momentum(), 0);
  EXPECT_EQ(spec.parallelism().schedule(), "zb-h1");
  EXPECT_EQ(spec.parallelism().pipeline(), 4);
}

TEST(Eval, RefusesOptionsOfTheOtherKind) {
  const TestDirectory directory;
  const std::string job = directory.Write("job.yaml", "name: j\n");
  for (const char* option : {"--context", "--windows", "--threads", "--document-end"}) {
    const Outcome outcome = RunTakt({"eval", job, option, "2"});
    EXPECT_EQ(outcome.code, ExitCode::kInvalidInput);
    EXPECT_THAT(outcome.err, HasSubstr(option));
  }
  EXPECT_THAT(RunTakt({"eval", kModel, "--batches", "2"}).err, HasSubstr("--batches"));
  EXPECT_THAT(RunTakt({"eval", job, "--data", "x"}).err, HasSubstr("--format"));
}

TEST(Eval, WantsTokensAndTheirFormat) {
  const std::string data = kModel + "/tokens.bin";
  EXPECT_THAT(RunTakt({"eval", kModel}).err, HasSubstr("--data"));
  EXPECT_THAT(RunTakt({"eval", kModel, "--data", data}).err, HasSubstr("--format"));
  const Outcome missing = RunTakt({"eval", "/nonexistent", "--data", data, "--format", "uint16"});
  EXPECT_EQ(missing.code, ExitCode::kNotFound);
  EXPECT_THAT(missing.err, HasSubstr("/nonexistent"));
}

TEST(Eval, WhatIsNotThereMayBeAJob) {
  const Outcome job = RunTakt({"eval", "/nonexistent/job.yaml"});
  EXPECT_EQ(job.code, ExitCode::kInvalidInput);
  EXPECT_THAT(job.err, HasSubstr("JOB.yaml is /nonexistent/job.yaml: must name a readable file"));
}

// Runs `takt eval` of a job with checkpoints. The job that evaluates ends with this error.
Outcome EvaluateOnFake(const FieldError& error, const std::vector<std::string>& more) {
  const TestDirectory directory;
  const std::string job = directory.Write(
      "job.yaml",
      "name: j\n"
      "model: {family: gpt2, layers: 2, hidden: 32, heads: 2, context: 16, vocab: 256}\n"
      "data: {train: {path: t, format: bytes}, validation: {path: v, format: bytes}}\n"
      "batch: {global: 4, microbatch: 2}\n"
      "steps: 4\n"
      "checkpoint: {directory: ck}\n"
      "parallelism: {pipeline: 2, schedule: gpipe}\n");
  FakeCoordinator coordinator;
  coordinator.get = [](auto&, auto&, auto&) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "no job called j");
  };
  coordinator.submit = [](auto&, const v1::SubmitJobRequest& request,
                          v1::SubmitJobResponse& response) {
    response.mutable_job()->set_name(request.spec().name());
    return grpc::Status::OK;
  };
  coordinator.watch = [&](auto&, auto&, grpc::ServerWriter<v1::WatchJobResponse>& writer) {
    v1::WatchJobResponse event;
    event.mutable_job()->set_state(v1::JOB_STATE_FAILED);
    event.mutable_job()->set_invalid_input(true);
    event.mutable_job()->set_reason(error.ToString());
    v1::FieldViolation& violation = *event.mutable_job()->add_violations();
    violation.set_field(error.field);
    violation.set_value(error.value);
    violation.set_rule(error.rule);
    violation.set_fix(error.fix);
    writer.Write(event);
    return grpc::Status::OK;
  };
  std::vector<std::string> arguments = {"eval", job};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return RunTakt(coordinator, arguments);
}

TEST(Eval, NamesWhereTheWeightsOfAJobComeFrom) {
  FieldError error{.field = "model.init_from",
                   .value = "ck/step-00000099",
                   .rule = "must exist",
                   .fix = "check the path"};
  const Outcome missing = EvaluateOnFake(error, {"--step", "99"});
  EXPECT_EQ(missing.code, ExitCode::kNotFound);
  EXPECT_THAT(missing.err,
              HasSubstr("error: --step is 99: ck has no checkpoint of this step; name one"));
  const Outcome none = EvaluateOnFake(error, {});
  EXPECT_EQ(none.code, ExitCode::kNotFound);
  EXPECT_THAT(none.err, HasSubstr("job.yaml:6:25: checkpoint.directory is ck: has no checkpoint;"));
  error.rule = "must hold wte";
  const Outcome wrong = EvaluateOnFake(error, {"--step", "99"});
  EXPECT_EQ(wrong.code, ExitCode::kInvalidInput);
  EXPECT_THAT(wrong.err, HasSubstr("error: --step is 99: ck/step-00000099 must hold wte; check"));
}

TEST(Score, BitsPerByteAreOfTheTextBehindTheTokens) {
  const Score score{.loss = std::log(16.0), .bytes_per_token = 4};
  EXPECT_DOUBLE_EQ(*score.BitsPerByte(), 1);
  EXPECT_DOUBLE_EQ(score.Perplexity(), 16);
  EXPECT_TRUE(std::isinf(Score{.loss = 1e4}.Perplexity()));
}

}  // namespace
}  // namespace takt::cli
