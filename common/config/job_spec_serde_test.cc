// SPDX-License-Identifier: Apache-2.0
#include "common/config/job_spec_serde.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/job_file.h"
#include "common/config/testing/job_text.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(JobSpecSerde, AppliesDefaults) {
  const JobSpec job = *ToJobSpec(Parse({}));
  EXPECT_EQ(job.model.inner, 256);
  EXPECT_EQ(job.model.positions, 32);
  EXPECT_EQ(job.adamw.learning_rate, 3e-4);
  EXPECT_EQ(job.adamw.clip_norm, 1.0);
  EXPECT_EQ(job.lr_schedule.decay, LrDecay::kConstant);
  EXPECT_EQ(job.lr_schedule.decay_steps, 10);
  EXPECT_EQ(job.parallelism.schedule, "auto");
  EXPECT_FALSE(job.parallelism.pipeline.has_value());
  EXPECT_EQ(job.train[0].weight, 1);
  EXPECT_EQ(job.MicrobatchesPerStep(2), 2);
}

TEST(JobSpecSerde, APriorityIsBetween0And100) {
  EXPECT_EQ(ToJobSpec(Parse({}))->priority, 50);
  EXPECT_FALSE(ToProto(*ToJobSpec(Parse({}))).has_priority());  // for readers that do not know it
  for (const int priority : {0, 49, 100}) {
    const JobSpec job = *ToJobSpec(Parse({absl::StrCat("priority=", priority)}));
    EXPECT_EQ(job.priority, priority);
    EXPECT_EQ(ToJobSpec(ToProto(job))->priority, priority);
  }
  for (const int priority : {-1, 101}) {
    EXPECT_THAT(ErrorOf(Parse({absl::StrCat("priority=", priority)})),
                HasSubstr(absl::StrCat("priority is ", priority,
                                       ": must be between 0 and 100; correct it, or leave it out: "
                                       "50")));
  }
}

TEST(JobSpecSerde, ReplanningNeedsCheckpointsToGoOnFrom) {
  EXPECT_EQ(ToJobSpec(Parse({}))->replan, Replan::kNever);
  EXPECT_EQ(ToJobSpec(Parse({"replan=never"}))->replan, Replan::kNever);
  // A reader that does not know the field never sees the default.
  EXPECT_EQ(ToProto(*ToJobSpec(Parse({"replan=never"}))).replan(), v1::REPLAN_MODE_UNSPECIFIED);
  const JobSpec job =
      *ToJobSpec(Parse({"replan=at_checkpoint", "checkpoint={directory: c, every_steps: 5}"}));
  EXPECT_EQ(job.replan, Replan::kAtCheckpoint);
  EXPECT_THAT(job.warnings, testing::IsEmpty());
  EXPECT_EQ(ToJobSpec(ToProto(job))->replan, Replan::kAtCheckpoint);
  EXPECT_THAT(FormatJobFile(ToProto(job)), HasSubstr("\"at_checkpoint\""));
  EXPECT_EQ(ErrorOf(Parse({"replan=at_checkpoint"})),
            "replan is at_checkpoint: needs checkpoint.directory, because the job goes on from a "
            "checkpoint; add checkpoint: {directory: DIR, every_steps: N}, or set replan: never");
  EXPECT_THAT(ErrorOf(Parse({"replan=at_checkpoint", "checkpoint={in_memory: auto}"})),
              HasSubstr("needs checkpoint.directory"));
}

TEST(JobSpecSerde, TheVocabularyIsWhereTheJobSays) {
  EXPECT_EQ(ToJobSpec(Parse({}))->parallelism.vocabulary, Vocabulary::kAuto);
  const JobSpec any = *ToJobSpec(Parse({"parallelism.vocabulary=auto"}));
  EXPECT_EQ(any.parallelism.vocabulary, Vocabulary::kAuto);
  EXPECT_FALSE(ToProto(any).parallelism().has_vocabulary());
  for (const auto& [name, mode] :
       {std::pair("last", Vocabulary::kLast), std::pair("spread", Vocabulary::kSpread)}) {
    const JobSpec job = *ToJobSpec(Parse({absl::StrCat("parallelism.vocabulary=", name)}));
    EXPECT_EQ(job.parallelism.vocabulary, mode);
    EXPECT_EQ(ToJobSpec(ToProto(job))->parallelism.vocabulary, mode);
  }
  EXPECT_THAT(ErrorOf(Parse({"model={family: emulated, layers: 3, activation_bytes: 9}",
                             "parallelism.vocabulary=spread"})),
              HasSubstr("parallelism.vocabulary is spread: an emulated model has no words; remove "
                        "it"));
}

TEST(JobSpecSerde, WarnsOfReplanningThatCannotHappen) {
  EXPECT_THAT(ToJobSpec(Parse({"replan=at_checkpoint", "checkpoint.directory=c"}))->warnings,
              testing::ElementsAre("replan: has no effect without checkpoint.every_steps"));
  EXPECT_THAT(ToJobSpec(Parse({"replan=at_checkpoint", "exact=false",
                               "checkpoint={directory: c, every_steps: 5}"}))
                  ->warnings,
              testing::ElementsAre("replan: has no effect with exact: false, as another plan "
                                   "rounds differently"));
}

TEST(JobSpecSerde, APlanChoosesOnlyWhatSaysAuto) {
  const JobSpec closed = *ToJobSpec(Parse({}));
  EXPECT_FALSE(closed.LeavesBitsOpen());
  EXPECT_FALSE(closed.parallelism.data.has_value());
  JobSpec job = *ToJobSpec(Parse({"batch.microbatch=auto", "parallelism.data=auto"}));
  EXPECT_TRUE(job.microbatch_auto);
  EXPECT_TRUE(job.parallelism.data_auto);
  EXPECT_EQ(job.microbatch, 1);
  EXPECT_FALSE(job.parallelism.data.has_value());
  const JobSpec again = *ToJobSpec(ToProto(job));
  EXPECT_TRUE(again.microbatch_auto && again.parallelism.data_auto);
  job.FixBits(/*chosen_data=*/2, /*chosen_microbatch=*/4);
  EXPECT_FALSE(job.LeavesBitsOpen());
  EXPECT_EQ(ToProto(job).batch().microbatch(), 4);
  EXPECT_EQ(ToProto(job).parallelism().data(), 2);
  job.FixBits(1, 1);  // it is chosen once
  EXPECT_EQ(job.microbatch, 4);
  JobSpec named = closed;
  named.FixBits(3, 1);
  EXPECT_FALSE(named.parallelism.data.has_value());
  EXPECT_EQ(named.microbatch, 2);
}

TEST(JobSpecSerde, APlanChoosesHowManyRanksShareALayer) {
  constexpr char kModel[] = "model={family: emulated, layers: 3, activation_bytes: 9}";
  JobSpec job = *ToJobSpec(Parse({kModel, "parallelism.tensor=auto"}));
  EXPECT_TRUE(job.parallelism.tensor_auto && job.LeavesBitsOpen() && job.LeavesSizeOpen());
  EXPECT_FALSE(job.MostWorkers().has_value());
  EXPECT_TRUE(ToJobSpec(ToProto(job))->parallelism.tensor_auto);
  job.FixBits(1, 1, /*chosen_tensor=*/4);
  EXPECT_FALSE(job.LeavesBitsOpen());
  EXPECT_EQ(ToProto(job).parallelism().tensor(), 4);
  JobSpec named = *ToJobSpec(Parse({kModel, "parallelism.tensor=2"}));
  named.FixBits(1, 1, 4);
  EXPECT_EQ(named.parallelism.tensor, 2);
  EXPECT_TRUE(ToJobSpec(Parse({"parallelism.tensor=auto"}))->parallelism.tensor_auto);
}

TEST(JobSpecSerde, WhatIsAutoDividesTheBatchSomehow) {
  EXPECT_TRUE(ToJobSpec(Parse({"batch={global: 7, microbatch: auto}"})).ok());
  EXPECT_TRUE(ToJobSpec(Parse({"batch.global=6", "parallelism.data=auto"})).ok());
  EXPECT_THAT(ErrorOf(Parse({"batch.microbatch=auto", "parallelism.data=3"})),
              HasSubstr("batch.global is 8: must be divisible by parallelism.data (3); use 6 or "
                        "9"));
  EXPECT_THAT(ErrorOf(Parse({"batch.global=9", "parallelism.data=auto"})),
              HasSubstr("batch.global is 9: must be divisible by batch.microbatch (2); use 8 or "
                        "10"));
  // There may be fewer microbatches than with one replica.
  EXPECT_TRUE(
      ToJobSpec(Parse({"batch={global: 131072, microbatch: 1}", "parallelism.data=auto"})).ok());
}

TEST(JobSpecSerde, AutoMustLeaveAChoice) {
  EXPECT_THAT(ErrorOf(Parse({"model={family: emulated, layers: 3, activation_bytes: 9}",
                             "batch.microbatch=auto"})),
              HasSubstr("batch.microbatch is auto: must be a number with an emulated model, whose "
                        "layers take as long for microbatches of any size; name it"));
  v1::JobSpec spec = Parse({"batch.microbatch=auto", "parallelism.data=auto"});
  spec.mutable_parallelism()->set_schedule("file:a.csv");
  spec.mutable_parallelism()->set_schedule_csv("0F0,0B0\n");
  EXPECT_THAT(FieldErrorsOf(ToJobSpec(spec).status()), SizeIs(2));
  EXPECT_THAT(ErrorOf(spec), HasSubstr("parallelism.data is auto: must be a number with a "
                                       "schedule's file, which says how many microbatches there "
                                       "are; name it"));
}

// Programs from before `auto` refuse these numbers as they refuse any others below 1.
TEST(JobSpecSerde, NoOtherNumberBelowOneIsTaken) {
  EXPECT_EQ(ToProto(*ToJobSpec(Parse({"parallelism.data=auto"}))).parallelism().data(), -1);
  for (const int number : {0, -2}) {
    v1::JobSpec spec = Parse({});
    spec.mutable_batch()->set_microbatch(number);
    spec.mutable_parallelism()->set_data(number);
    EXPECT_FALSE(ToJobSpec(spec).ok()) << number;
  }
}

TEST(JobSpecSerde, ACheckpointNeedsADirectoryAlone) {
  EXPECT_FALSE(ToJobSpec(Parse({}))->checkpoint.has_value());
  EXPECT_EQ(ToJobSpec(Parse({}))->copy_every_steps, 0);
  const JobSpec job = *ToJobSpec(Parse({"checkpoint.directory=c"}));
  EXPECT_EQ(job.checkpoint->directory, "c");
  EXPECT_EQ(job.checkpoint->every_steps, 0);
  EXPECT_EQ(job.checkpoint->keep, 3);
  EXPECT_EQ(job.checkpoint->resume, "auto");
}

TEST(JobSpecSerde, KeepsWhatIsGivenAsZero) {
  const JobSpec job =
      *ToJobSpec(Parse({"optimizer.adamw.clip_norm=0", "optimizer.adamw.learning_rate=0"}));
  EXPECT_EQ(job.adamw.clip_norm, 0);
  EXPECT_EQ(job.adamw.learning_rate, 0);
}

TEST(JobSpecSerde, ProtoAndBackIsTheSameJob) {
  const std::vector<std::string> changes[] = {
      {"parallelism={pipeline: 2, chunks: 2, data: 2, schedule: interleaved-1f1b, threads: 3, "
       "group: 2, transport: gloo, device: cuda}",
       "parallelism.stage_layers=[1, 1, 1, 1]",
       "data.validation={path: v, format: uint16, batches: 3}", "seed=99",
       "optimizer.lr_schedule={warmup_steps: 2, decay: cosine, min_learning_rate: 1e-5}",
       "model.positions=64", "checkpoint={directory: c, every_steps: 7, keep: 1, resume: 40}",
       "logging={tensorboard: t, mlflow: lab/gpt 2}"},
      {"model={family: emulated, layers: 3, forward_ms: 0.7, activation_bytes: 9, "
       "collective_bytes: 8}"},
      {"model={family: llama, layers: 2, hidden: 64, heads: 4, kv_heads: 2, head_size: 8, "
       "context: 8, vocab: 9, rope_theta: 5e5, rope_scaling: {factor: 8, low_freq_factor: 1, "
       "high_freq_factor: 4, original_positions: 8192}}"},
      {"model={family: qwen2, layers: 2, hidden: 48, heads: 4, context: 8, vocab: 9, tied_head: "
       "true}"},
      {"model={family: qwen3, layers: 2, hidden: 48, heads: 4, head_size: 20, context: 8, vocab: "
       "9}"},
      {"model={family: mistral, layers: 2, hidden: 48, heads: 4, context: 8, vocab: 9, "
       "attention_window: 3}"},
      {"model={family: mixtral, layers: 2, hidden: 48, heads: 4, context: 8, vocab: 9, experts: "
       "{count: 4, per_token: 2, auxiliary_loss: 0.01}}"},
      {"model={family: qwen3_moe, layers: 3, hidden: 48, heads: 4, context: 8, vocab: 9, experts: "
       "{count: 4, per_token: 2, inner: 24, normalize: false, dense_blocks: [0, 2]}}"},
      {"model={family: mixtral, layers: 2, hidden: 48, heads: 4, context: 8, vocab: 9, experts: "
       "{count: 4, per_token: 2, scores: sigmoid, bias_rate: 0.01}}"},
  };
  for (const auto& change : changes) {
    const v1::JobSpec proto = ToProto(*ToJobSpec(Parse(change)));
    EXPECT_TRUE(
        google::protobuf::util::MessageDifferencer::Equals(ToProto(*ToJobSpec(proto)), proto));
  }
  const JobSpec job = *ToJobSpec(ToProto(*ToJobSpec(Parse(changes[0]))));
  EXPECT_EQ(job.parallelism.chunks, 2);
  EXPECT_EQ(job.parallelism.transport, TransportKind::kTcp);
  EXPECT_EQ(Parse({"parallelism={transport: tcp}"}).parallelism().transport(),
            v1::TRANSPORT_KIND_GLOO);
  EXPECT_EQ(ToJobSpec(Parse({"parallelism={transport: cuda_ipc}"}))->parallelism.transport,
            TransportKind::kCudaIpc);
  EXPECT_EQ(job.parallelism.device, DeviceKind::kCuda);
  EXPECT_EQ(job.validation->batches, 3);
  EXPECT_EQ(job.model.positions, 64);
  EXPECT_EQ(job.lr_schedule.min_learning_rate, 1e-5);
  EXPECT_EQ(job.seed, 99u);
  EXPECT_EQ(job.checkpoint->every_steps, 7);
  EXPECT_EQ(job.checkpoint->keep, 1);
  EXPECT_EQ(job.checkpoint->resume, "40");
  EXPECT_EQ(job.tensorboard, "t");
  EXPECT_EQ(job.mlflow, "lab/gpt 2");
}

TEST(JobSpecSerde, AJobMayOnlyEvaluate) {
  const std::string validation = "data.validation={path: v, format: uint16}";
  const JobSpec job = *ToJobSpec(
      ToProto(*ToJobSpec(Parse({validation, "steps=1", "evaluate={weights: c/step-00000004}"}))));
  ASSERT_TRUE(job.evaluation.has_value());
  EXPECT_EQ(job.evaluation->weights, "c/step-00000004");
  EXPECT_FALSE(ToJobSpec(Parse({}))->evaluation.has_value());
  const auto error = [&](std::vector<std::string> more) {
    more.push_back("evaluate={weights: w}");
    return ErrorOf(Parse(std::move(more)));
  };
  EXPECT_THAT(error({"steps=1"}), HasSubstr("evaluate: needs data.validation"));
  EXPECT_THAT(error({validation}), HasSubstr("steps is 10: must be 1"));
  EXPECT_THAT(error({validation, "steps=1", "checkpoint={directory: c}"}),
              HasSubstr("checkpoint: must be left out"));
  EXPECT_THAT(ErrorOf(Parse({validation, "steps=1", "evaluate={weights: ''}"})),
              HasSubstr("evaluate.weights: is missing"));
}

TEST(JobSpecSerde, AJobWithoutStepsIsToldOfEvaluations) {
  EXPECT_EQ(ErrorOf(Parse({"steps=0"})), "steps is 0 or missing: must be 1 or more; set it");
  EXPECT_THAT(ErrorOf(Parse({"steps=0", "data.validation={path: v, format: uint16}"})),
              HasSubstr("takt eval JOB.yaml"));
}

TEST(JobSpecSerde, TheLossIsPlainUnlessTheJobSaysOtherwise) {
  const JobSpec plain = *ToJobSpec(Parse({"model.dropout=0"}));
  EXPECT_EQ(plain.loss.label_smoothing, 0);
  EXPECT_EQ(plain.loss.z_loss, 0);
  EXPECT_FALSE(ToProto(plain).has_loss());  // for readers that do not know it
  const JobSpec job =
      *ToJobSpec(ToProto(*ToJobSpec(Parse({"loss.label_smoothing=0.1", "loss.z_loss=1e-4"}))));
  EXPECT_EQ(job.loss.label_smoothing, 0.1);
  EXPECT_EQ(job.loss.z_loss, 1e-4);
  const JobSpec emulated = *ToJobSpec(
      Parse({"loss.z_loss=1e-4", "model={family: emulated, layers: 3, activation_bytes: 9}"}));
  EXPECT_EQ(emulated.loss.z_loss, 0);
  EXPECT_THAT(emulated.warnings,
              testing::Contains("loss: has no effect on an emulated model, which computes none"));
}

// A window that is as long as the model can read is none, and a longer one is a mistake.
TEST(JobSpecSerde, EachRuleHasItsOwnMessage) {
  const struct {
    const char* override;
    const char* message;
  } cases[] = {
      {"name=-x",
       "name is -x: must be 1 to 63 letters, digits, '-', '_' and '.', the first a letter or a "
       "digit; e.g. my-gpt"},
      {"model.rope_theta=1e6",
       "model.rope_theta: gpt2 and emulated models have no rotary positions; remove it"},
      {"model.attention_window=8",
       "model.attention_window is 8: only mistral has a window; remove it"},
      {"model.kv_heads=2", "model.kv_heads is 2: gpt2 has as many key heads as heads; remove it"},
      {"model.heads=5",
       "model.heads is 5: must divide model.hidden (64); use one of 1, 2, 4, 8, 16, 32, 64"},
      {"model.hidden=0", "model.hidden is 0 or missing: must be between 1 and 1048576; set it"},
      {"model.positions=16",
       "model.context is 32: must be at most the model's positions (16); train on shorter "
       "sequences"},
      {"data=null", "data.train: is missing; give a path and a format"},
      {"data.train={path: a}",
       "data.train.format: is missing; use bytes, uint16, uint32, llmc, megatron or safetensors"},
      {"data.train=[{path: a, format: bytes, weight: 1}, {path: b, format: bytes, weight: 0}]",
       "data.train[1].weight is 0: must be a finite number above 0; correct it"},
      {"data.train=[{path: a, format: bytes, weight: 1}, {path: b, format: bytes, weight: 1e-5}]",
       "data.train[1].weight is 1e-05: must be at least 1/10000 of the sum of all weights, "
       "1.00001; raise it, or leave the corpus out"},
      {"data.train.path=''", "data.train.path: is missing; name a token file"},
      {"data.validation={path: v, format: bytes, batches: 0}",
       "data.validation.batches is 0 or missing: must be 1 or more; set it"},
      {"batch.global=9",
       "batch.global is 9: must be divisible by batch.microbatch (2) x parallelism.data (1) = 2; "
       "use 8 or 10"},
      {"batch.global=1",
       "batch.global is 1: must be divisible by batch.microbatch (2) x parallelism.data (1) = 2; "
       "use 2"},
      {"parallelism.data=3",
       "batch.global is 8: must be divisible by batch.microbatch (2) x parallelism.data (3) = 6; "
       "use 6 or 12"},
      {"batch.microbatch=-2", "batch.microbatch is -2: must be between 1 and 16777216; raise it"},
      {"batch={global: 131074, microbatch: 1}",
       "batch.microbatch is 1: makes 131074 microbatches a step; at most 65536 are possible; use "
       "larger microbatches"},
      {"data.document_end=256",
       "data.document_end is 256: must be a token id, 0 to 255 (model.vocab - 1); give the id of "
       "the token that ends documents in the files"},
      {"data={documents: join, document_end: 3, train: {path: a, format: bytes}}",
       "data.document_end is 3: has no effect beside documents: join, which tells no document "
       "apart; remove it, or use documents: separate"},
      {"data.documents=separate",
       "data.document_end: is missing: a.txt does not say where documents end, and no "
       "config.json of the model names an eos_token_id; give the id of the token that ends "
       "documents, or use documents: join"},
      {"model.dropout=0.1",
       "model.dropout is 0.1: is not supported: its random numbers would have to be the same with "
       "every schedule, partition and number of ranks, so that losses keep their bits; remove it; "
       "weight_decay and loss.label_smoothing regularize, too"},
      {"loss={label_smoothing: 1}",
       "loss.label_smoothing is 1: must be at least 0 and below 1; correct it, e.g. 0.1"},
      {"loss={z_loss: 1e300}",
       "loss.z_loss is 1e+300: must be a finite number, 0 or more, at most 3.40282e+38, the "
       "largest "
       "number of f32; correct it, e.g. 1e-4"},
      {"loss={z_loss: -1}",
       "loss.z_loss is -1: must be a finite number, 0 or more; correct it, e.g. 1e-4"},
      {"steps=0", "steps is 0 or missing: must be 1 or more; set it"},
      {"parallelism.pipeline=7",
       "parallelism.pipeline is 7: x chunks (1) makes 7 stages; must be at most model.layers + 2 "
       "(6); use fewer ranks or chunks, or more layers"},
      {"parallelism={pipeline: 4, chunks: 2}",
       "parallelism.pipeline is 4: x chunks (2) makes 8 stages; must be at most model.layers + 2 "
       "(6); use fewer ranks or chunks, or more layers"},
      {"parallelism={pipeline: 2, stage_layers: [1, 2]}",
       "parallelism.stage_layers is [1, 2]: must sum to model.layers (4), not 3; correct the "
       "counts"},
      {"parallelism={pipeline: 3, stage_layers: [2, 0, 2]}",
       "parallelism.stage_layers is [2, 0, 2]: every stage must have at least 1 layer; only the "
       "first and the last may have 0, where the embedding or the head is alone; correct the "
       "counts"},
      {"parallelism={pipeline: 2, stage_layers: [1, 1, 2]}",
       "parallelism.stage_layers is [1, 1, 2]: must have a multiple of pipeline (2) entries; give "
       "one count for each stage"},
      {"parallelism={pipeline: 2, chunks: 1, stage_layers: [1, 1, 1, 1]}",
       "parallelism.stage_layers is [1, 1, 1, 1]: must have pipeline x chunks = 2 entries; give "
       "one count for each stage"},
      {"parallelism.pipeline=0",
       "parallelism.pipeline is 0 or missing: must be between 1 and 4096; set it"},
      {"parallelism.schedule=file:x.csv",
       "parallelism.schedule is file:x.csv: names a file whose text did not come with the job; "
       "submit with takt, and check "
       "that the file is not empty"},
      {"parallelism={device: cpu, transport: nccl}",
       "parallelism.transport is nccl: moves memory of GPUs, and this job computes on CPUs; use "
       "auto, shm or tcp, or device: cuda"},
      {"parallelism={device: cpu, transport: cuda_ipc}",
       "parallelism.transport is cuda_ipc: moves memory of GPUs, and this job computes on CPUs; "
       "use auto, shm or tcp, or device: cuda"},
      {"checkpoint.every_steps=5", "checkpoint.directory: is missing; name a folder"},
      {"checkpoint={directory: c, every_steps: -1}",
       "checkpoint.every_steps is -1: must be 0 or more; raise it"},
      {"checkpoint={directory: c, keep: 0}",
       "checkpoint.keep is 0 or missing: must be 1 or more; set it"},
      {"checkpoint={directory: c, in_memory: 0}",
       "checkpoint.in_memory is 0: must be auto, off or a number of steps above 0; use one of "
       "them"},
      {"checkpoint={in_memory: off}", "checkpoint.directory: is missing; name a folder"},
      {"checkpoint={in_memory: 1, keep: 2}", "checkpoint.directory: is missing; name a folder"},
      {"checkpoint={directory: c, resume: latest}",
       "checkpoint.resume is latest: must be auto, none or the number of a step; use one of them"},
      {"checkpoint={directory: c, resume: 0}",
       "checkpoint.resume is 0: must be auto, none or the number of a step; use one of them"},
      {"logging={tensorboard: ''}",
       "logging.tensorboard: is missing; name a folder, or null for none"},
      {"logging={mlflow: \"it's\"}",
       "logging.mlflow is it\\'s: must be 1 to 200 letters, digits, blanks, '-', '_', '.' and '/'; "
       "name an experiment, or null for none"},
  };
  for (const auto& [override, message] : cases)
    EXPECT_EQ(ErrorOf(Parse({override})), message) << override;
}

TEST(JobSpecSerde, ReadsPrecisionsAndWarnsWhereNothingIsMultiplied) {
  EXPECT_EQ(ToJobSpec(Parse({}))->precision, Precision::kF32);
  const JobSpec bf16 = *ToJobSpec(Parse({"precision=bf16"}));
  EXPECT_EQ(bf16.precision, Precision::kBf16);
  EXPECT_THAT(bf16.warnings, testing::IsEmpty());
  const JobSpec emulated = *ToJobSpec(
      Parse({"precision=bf16", "model={family: emulated, layers: 3, activation_bytes: 9}"}));
  EXPECT_EQ(emulated.precision, Precision::kF32);
  EXPECT_THAT(
      emulated.warnings,
      testing::Contains("precision: has no effect on an emulated model, which multiplies nothing"));
}

TEST(JobSpecSerde, IsExactUnlessItSaysOtherwise) {
  EXPECT_TRUE(ToJobSpec(Parse({}))->exact);
  EXPECT_TRUE(ToJobSpec(Parse({"exact=true"}))->exact);
  const JobSpec job = *ToJobSpec(Parse({"exact=false"}));
  EXPECT_FALSE(job.exact);
  EXPECT_FALSE(ToJobSpec(ToProto(job))->exact);
  EXPECT_FALSE(ToProto(*ToJobSpec(Parse({}))).has_exact());  // for readers that do not know it
}

// A message over the wire may have values that the file reader refuses.
TEST(JobSpecSerde, RefusesHostileMessages) {
  v1::JobSpec spec = Parse({});
  spec.mutable_optimizer()->mutable_adamw()->set_learning_rate(std::nan(""));
  EXPECT_THAT(ErrorOf(spec), HasSubstr("learning_rate is nan"));
  spec = Parse({});
  spec.mutable_data()->mutable_train(0)->set_format(static_cast<v1::DataFormat>(77));
  EXPECT_THAT(ErrorOf(spec), HasSubstr("data.train.format is 77"));
  EXPECT_THAT(FormatJobFile(spec), HasSubstr("77"));
  spec = Parse({});
  spec.mutable_data()->set_documents(static_cast<v1::DocumentsMode>(77));
  EXPECT_EQ(ErrorOf(spec),
            "data.documents is 77: is not supported by this version; use join or separate");
  spec = Parse({});
  spec.set_replan(static_cast<v1::ReplanMode>(77));
  EXPECT_EQ(ErrorOf(spec), "replan is 77: must be never or at_checkpoint; use one of them");
  spec = Parse({});
  spec.mutable_parallelism()->set_vocabulary(static_cast<v1::VocabularyMode>(77));
  EXPECT_EQ(ErrorOf(spec),
            "parallelism.vocabulary is 77: is not supported by this version; use auto, last or "
            "spread");
  spec = Parse({});
  spec.mutable_model()->set_layers(2000000000);
  spec.mutable_model()->set_hidden(2000000000);
  EXPECT_THAT(FieldErrorsOf(ToJobSpec(spec).status()), SizeIs(2));
  EXPECT_THAT(FieldErrorsOf(ToJobSpec(v1::JobSpec()).status()), SizeIs(6));
}

}  // namespace
}  // namespace takt::config
