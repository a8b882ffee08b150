// SPDX-License-Identifier: Apache-2.0
#include "common/config/job_file.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {
namespace {

using google::protobuf::util::MessageDifferencer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kJob[] = R"(name: kjv-gpt
model:
  family: gpt2
  layers: 8
  hidden: 256
  heads: 8
  context: 128
  vocab: 256
  init_from: null
data:
  train: {path: kjv.txt, format: bytes}
  validation: {path: val.txt, format: bytes, every_steps: 50, batches: 8}
  shuffle: true
batch: {global: 32, microbatch: 2}
optimizer:
  adamw: {learning_rate: 3.0e-4, beta1: 0.9, beta2: 0.95, epsilon: 1.0e-8, weight_decay: 0.1, clip_norm: 1.0}
  lr_schedule: {warmup_steps: 20, decay: cosine, decay_steps: 200, min_learning_rate: 3.0e-5}
steps: 200
parallelism: {pipeline: 4, data: 1, schedule: auto, chunks: 1, recompute: none, stage_layers: [2, 2, 2, 2]}
precision: f32
logging: {tensorboard: null}
seed: 1234
)";

v1::JobSpec Parse(std::string_view text, std::vector<std::string> overrides = {}) {
  absl::StatusOr<v1::JobSpec> spec =
      ParseJobFile(text, {.name = "job.yaml", .overrides = std::move(overrides)});
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? *spec : v1::JobSpec();
}

std::string ErrorOf(std::string_view text, std::vector<std::string> overrides = {}) {
  return std::string(ParseJobFile(text, {.name = "job.yaml", .overrides = std::move(overrides)})
                         .status()
                         .message());
}

TEST(JobFile, ReadsEverySection) {
  const v1::JobSpec spec = Parse(kJob);
  EXPECT_EQ(spec.name(), "kjv-gpt");
  EXPECT_EQ(spec.model().family(), v1::MODEL_FAMILY_GPT2);
  EXPECT_FALSE(spec.model().has_init_from());
  ASSERT_EQ(spec.data().train_size(), 1);
  EXPECT_EQ(spec.data().train(0).format(), v1::DATA_FORMAT_BYTES);
  EXPECT_TRUE(spec.data().shuffle());
  EXPECT_EQ(spec.optimizer().adamw().learning_rate(), 3e-4);
  EXPECT_EQ(spec.optimizer().lr_schedule().decay(), v1::LR_DECAY_COSINE);
  EXPECT_FALSE(spec.parallelism().has_schedule());
  EXPECT_THAT(spec.parallelism().recompute(), ElementsAre(v1::RECOMPUTE_MODE_NONE));
  EXPECT_THAT(spec.parallelism().stage_layers(), ElementsAre(2, 2, 2, 2));
  EXPECT_FALSE(spec.logging().has_tensorboard());
  EXPECT_EQ(spec.seed(), 1234u);
}

TEST(JobFile, WhatItPrintsReadsBackTheSame) {
  const v1::JobSpec spec = Parse(kJob, {"parallelism.schedule=gpipe",
                                        "optimizer.adamw.learning_rate=0.1", "name=a\"b\\/\u00e9"});
  for (const int indent : {2, -1}) {
    const std::string text = FormatJobFile(spec, indent);
    EXPECT_TRUE(MessageDifferencer::Equals(Parse(text), spec)) << text;
  }
}

TEST(JobFile, OtherMessagesReadBackTheSameFromJsonAndFromYaml) {
  const v1::JobSpec spec =
      Parse(kJob, {"data.train=[{path: a}, {path: \"b: \\x7f #\", format: bytes}]"});
  const std::string yaml = FormatMessageYaml(spec);
  EXPECT_THAT(yaml, HasSubstr("\nbatch: {global: 32, microbatch: 2}\n"));
  EXPECT_THAT(yaml, HasSubstr("\n  train:\n    - {path: \"a\"}\n    - {path: \"b: "));
  for (const std::string& text : {yaml, FormatMessageJson(spec)}) {
    v1::JobSpec read;
    EXPECT_TRUE(ParseMessageFile(text, {}, read).ok()) << text;
    EXPECT_TRUE(MessageDifferencer::Equals(read, spec)) << text;
  }
}

TEST(JobFile, ErrorsCallOtherFilesByTheirName) {
  const JobFileOptions options{.name = "c.yaml", .rules = {.what = "cluster file"}};
  v1::JobSpec spec;
  EXPECT_THAT(std::string(ParseMessageFile("- a", options, spec).message()),
              HasSubstr("c.yaml:1:1: cluster file is a list: must be a mapping of fields"));
}

// The time rises with the number of keys, not with its square.
TEST(JobFile, ReadsManyKeysInTime) {
  std::string text;
  for (int i = 0; i < 100000; ++i) absl::StrAppend(&text, "key", i, ": 1\n");
  const JobFileOptions options{.rules = {.max_bytes = std::size_t{16} << 20, .max_nodes = 1000000}};
  v1::JobSpec spec;
  const absl::Status status = ParseMessageFile(text, options, spec);
  EXPECT_THAT(std::string(status.message()), HasSubstr("job file: has 99980 more errors"));
}

TEST(JobFile, TakesAutoOnlyWhereTheProtoSaysSo) {
  const v1::JobSpec spec =
      Parse("parallelism: {pipeline: auto, recompute: auto, stage_layers: null, transport: auto}");
  EXPECT_FALSE(spec.parallelism().has_pipeline());
  EXPECT_EQ(spec.parallelism().recompute_size(), 0);
  EXPECT_EQ(ErrorOf("steps: auto"),
            "job.yaml:1:8: steps is auto: must be a whole number; write digits alone, e.g. 8");
  EXPECT_EQ(ErrorOf("steps: null"),
            "job.yaml:1:8: steps is null: must be a whole number; write digits alone, e.g. 8");
}

// A field whose choice changes bits is left out, `auto`, or a number: three different things.
TEST(JobFile, AutoIsNotTheSameAsLeftOutWhereAPlanMayChangeBits) {
  const v1::JobSpec left_out = Parse("parallelism: {data: null}");
  EXPECT_FALSE(left_out.parallelism().has_data());
  const v1::JobSpec open = Parse("batch: {microbatch: auto}\nparallelism: {data: auto}");
  EXPECT_EQ(open.parallelism().data(), -1);
  EXPECT_EQ(open.batch().microbatch(), -1);
  const v1::JobSpec named =
      Parse("batch: {microbatch: auto}", {"batch.microbatch=4", "parallelism.data=2"});
  EXPECT_EQ(named.parallelism().data(), 2);
  EXPECT_EQ(named.batch().microbatch(), 4);
  EXPECT_EQ(Parse("", {"parallelism.data=auto"}).parallelism().data(), -1);
  const std::string text = FormatJobFile(open, -1);
  EXPECT_EQ(text, R"({"batch":{"microbatch":"auto"},"parallelism":{"data":"auto"}})");
  EXPECT_TRUE(MessageDifferencer::Equals(Parse(text), open));
}

TEST(JobFile, OffersNoValueThatNoJobMayHave) {
  EXPECT_EQ(ErrorOf("parallelism: {shard: bogus}"),
            "job.yaml:1:22: parallelism.shard is bogus: must be one of none, optimizer, "
            "parameters, or auto; use one of them");
  // It is read, so that the rules of jobs say why not.
  EXPECT_EQ(Parse("parallelism: {shard: gradients}").parallelism().shard(),
            v1::SHARD_MODE_GRADIENTS);
}

TEST(JobFile, NamesTheTextsThatAFieldTakes) {
  EXPECT_EQ(
      ErrorOf("optimizer: {barrier: null}"),
      "job.yaml:1:22: optimizer.barrier is null: must be auto, true or false; use one of them");
  EXPECT_EQ(ErrorOf("checkpoint: {in_memory: null}"),
            "job.yaml:1:25: checkpoint.in_memory is null: must be auto, off or a number of steps "
            "above 0; use one of them");
  EXPECT_EQ(ErrorOf("checkpoint: {resume: [1]}"),
            "job.yaml:1:22: checkpoint.resume is a list: must be auto, none or the number of a "
            "step; use one of them");
}

TEST(JobFile, NoNumberStandsForAuto) {
  EXPECT_EQ(ErrorOf("parallelism: {data: -1}"),
            "job.yaml:1:21: parallelism.data is -1: must be a whole number, 1 or more, or auto; "
            "write auto in words, or raise it");
  EXPECT_EQ(ErrorOf("batch: {microbatch: -01}"),
            "job.yaml:1:21: batch.microbatch is -01: must be a whole number, 1 or more, or auto; "
            "write auto in words, or raise it");
  EXPECT_EQ(ErrorOf("batch: {microbatch: null}"),
            "job.yaml:1:21: batch.microbatch is null: must be a whole number, 1 or more, or auto; "
            "write digits alone, e.g. 8");
  EXPECT_EQ(
      ErrorOf("batch: {global: auto}"),
      "job.yaml:1:17: batch.global is auto: must be a whole number; write digits alone, e.g. 8");
}

TEST(JobFile, TakesNullForASection) {
  EXPECT_FALSE(Parse("checkpoint: null\nlogging:\n").has_checkpoint());
}

TEST(JobFile, TakesOneValueOrAList) {
  EXPECT_EQ(Parse("data: {train: [{path: a}, {path: b}]}").data().train(1).path(), "b");
  EXPECT_THAT(Parse("parallelism: {stage_layers: 3}").parallelism().stage_layers(), ElementsAre(3));
}

TEST(JobFile, NamesPlaceFieldValueRuleAndFix) {
  const struct {
    const char* text;
    const char* message;
  } cases[] = {
      {"model:\n  hiden: 3",
       "job.yaml:2:3: model.hiden is 3: is not a known field; did you mean hidden? fields here: "
       "family, "
       "layers, hidden, heads, "
       "context, vocab, init_from, hf_config, positions, norm_epsilon, inner, initializer_range, "
       "kv_heads, head_size, tied_head, rope_theta, rope_scaling, attention_window, experts, "
       "dropout, hf_config_dropout, forward_ms, "
       "input_grad_ms, weight_grad_ms, activation_bytes, parameter_bytes, collective_bytes"},
      {"batch: {global: 1, global: 2}",
       "job.yaml:1:20: batch.global: is given twice, first at job.yaml:1:9; remove one"},
      {"batch: {global: many}",
       "job.yaml:1:17: batch.global is many: must be a whole number; write digits alone, e.g. 8"},
      {"batch: {global: 1.5}",
       "job.yaml:1:17: batch.global is 1.5: must be a whole number; write digits alone, e.g. 8"},
      {"batch: {global: 99999999999}",
       "job.yaml:1:17: batch.global is 99999999999: must be a whole number, at most 2147483647; "
       "lower it"},
      {"batch: {global: -99999999999}",
       "job.yaml:1:17: batch.global is -99999999999: must be a whole number, at least -2147483648; "
       "raise it"},
      {"batch: {global: [1]}",
       "job.yaml:1:17: batch.global is a list: must be a whole number; write digits alone, e.g. 8"},
      {"batch: 3",
       "job.yaml:1:8: batch is 3: must be a mapping of fields; fields: global, microbatch"},
      {"seed: -1", "job.yaml:1:7: seed is -1: must be a whole number, 0 or more; raise it"},
      {"seed: 18446744073709551616",
       "job.yaml:1:7: seed is 18446744073709551616: must be a whole number, 0 or more, at most "
       "18446744073709551615; lower it"},
      {"parallelism: {data: 2147483648}",
       "job.yaml:1:21: parallelism.data is 2147483648: must be a whole number, 1 or more, at most "
       "2147483647, or auto; lower it"},
      {"optimizer: {adamw: {learning_rate: nan}}",
       "job.yaml:1:36: optimizer.adamw.learning_rate is nan: must be a finite number; "
       "write digits, e.g. 0.001"},
      {"optimizer: {adamw: {learning_rate: .inf}}",
       "job.yaml:1:36: optimizer.adamw.learning_rate is .inf: must be a finite number; "
       "write digits, e.g. 0.001"},
      {"exact: no", "job.yaml:1:8: exact is no: must be true or false; use one of them"},
      {"exact: auto", "job.yaml:1:8: exact is auto: must be true or false; use one of them"},
      {"data: {shuffle: yes}",
       "job.yaml:1:17: data.shuffle is yes: must be true or false; use one of them"},
      {"data:\n  train:\n  - {path: a, format: byte}",
       "job.yaml:3:23: data.train[0].format is byte: must be one of bytes, uint16, uint32, llmc, "
       "megatron, safetensors; did "
       "you mean bytes?"},
      {"parallelism: {transport: udp}",
       "job.yaml:1:26: parallelism.transport is udp: must be one of shm, tcp, gloo, nccl, "
       "cuda_ipc, or auto; did you mean tcp?"},
      {"model: {family: unspecified}",
       "job.yaml:1:17: model.family is unspecified: must be one of gpt2, llama, qwen2, emulated, "
       "qwen3, mistral, mixtral, qwen3_moe; use one of them"},
      {"name: [a]",
       "job.yaml:1:7: name is a list: must be text; write it as one text, in quotes if need be"},
  };
  for (const auto& [text, message] : cases) EXPECT_EQ(ErrorOf(text), message);
}

TEST(JobFile, ReportsAllErrorsAtOnce) {
  const absl::Status status = ParseJobFile("stepps: 1\nbatch: 2\nseed: x", {}).status();
  EXPECT_EQ(FieldErrorsOf(status).size(), 3u);
}

TEST(JobFile, StopsListingErrorsAtSomePoint) {
  std::string text;
  for (int i = 0; i < 50; ++i) absl::StrAppend(&text, "key", i, ": 1\n");
  const absl::Status status = ParseJobFile(text, {}).status();
  EXPECT_EQ(FieldErrorsOf(status).size(), 21u);
  EXPECT_THAT(std::string(status.message()), HasSubstr("job file: has 30 more errors"));
}

TEST(JobFile, ShortensLongValues) {
  const std::string message = ErrorOf(absl::StrCat("steps: ", std::string(500000, 'x')));
  EXPECT_LT(message.size(), 200u);
  EXPECT_LT(ErrorOf(absl::StrCat("? ", std::string(900, 'k'), "\n: 1")).size(), 500u);
}

TEST(JobFile, OverridesReplaceAndAdd) {
  const v1::JobSpec spec = Parse(
      kJob, {"batch.global=64", "parallelism.stage_layers=[3, 5]", "data.train.path=x.bin",
             "parallelism.pipeline=auto", "optimizer.lr_schedule=null", "model.hf_config=a=b"});
  EXPECT_EQ(spec.batch().global(), 64);
  EXPECT_EQ(spec.batch().microbatch(), 2);
  EXPECT_THAT(spec.parallelism().stage_layers(), ElementsAre(3, 5));
  EXPECT_EQ(spec.data().train(0).path(), "x.bin");
  EXPECT_FALSE(spec.parallelism().has_pipeline());
  EXPECT_FALSE(spec.optimizer().has_lr_schedule());
  EXPECT_EQ(spec.model().hf_config(), "a=b");
  EXPECT_EQ(Parse("data: {train: [{path: a}, {path: b}]}", {"data.train.1.path=c"})
                .data()
                .train(1)
                .path(),
            "c");
  EXPECT_EQ(Parse("", {"batch.global=4"}).batch().global(), 4);
}

TEST(JobFile, AnOverrideTellsAnEmptyMappingFromNothing) {
  const v1::JobSpec muon = Parse(kJob, {"optimizer.adamw=null", "optimizer.muon={}"});
  EXPECT_FALSE(muon.optimizer().has_adamw());
  EXPECT_TRUE(muon.optimizer().has_muon());
  EXPECT_TRUE(Parse(kJob, {"checkpoint={}"}).has_checkpoint());
  EXPECT_TRUE(Parse(kJob, {"checkpoint= { } "}).has_checkpoint());
  for (const char* const nothing : {"optimizer.adamw=", "optimizer.adamw=  ", "optimizer.adamw=~"})
    EXPECT_FALSE(Parse(kJob, {nothing}).optimizer().has_adamw()) << nothing;
}

TEST(JobFile, ErrorsOfOverridesNameThem) {
  EXPECT_EQ(
      ErrorOf(kJob, {"batch.globl=64"}),
      "--set batch.globl=64: batch.globl is 64: is not a known field; did you mean global? fields "
      "here: global, microbatch");
  EXPECT_EQ(ErrorOf(kJob, {"steps=many"}),
            "--set steps=many: steps is many: must be a whole number; write digits alone, e.g. 8");
  EXPECT_EQ(ErrorOf(kJob, {"steps"}), "--set is steps: must be field=value; e.g. steps=100");
  EXPECT_EQ(ErrorOf(kJob, {"steps.x=1"}),
            "--set steps.x=1: steps.x: has nothing called x in the job file; name a field, or an "
            "element of a list by its "
            "number from 0");
}

TEST(JobFile, ErrorsShowThatALongOverrideIsCut) {
  const std::string long_text(200, 'x');
  const std::string cut = absl::StrCat("steps=", std::string(94, 'x'), "...");
  EXPECT_EQ(ErrorOf(kJob, {"steps=" + long_text}),
            absl::StrCat("--set ", cut, ": steps is ", std::string(60, 'x'),
                         "...: must be a whole number; write digits alone, e.g. 8"));
  EXPECT_THAT(ErrorOf(kJob, {long_text}),
              HasSubstr(absl::StrCat("--set is ", std::string(100, 'x'), "...: must be")));
  EXPECT_THAT(ErrorOf(kJob, {"steps." + long_text + "=1"}), HasSubstr("xxx... in the job file"));
}

TEST(JobFile, RefusesWhatIsNoMapping) {
  EXPECT_THAT(ErrorOf("just text"),
              HasSubstr("job.yaml:1:1: job file is just text: must be a mapping of fields"));
  EXPECT_THAT(ErrorOf("- a\n- b"), HasSubstr("job file is a list: must be a mapping"));
}

}  // namespace
}  // namespace takt::config
