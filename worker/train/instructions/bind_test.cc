// SPDX-License-Identifier: Apache-2.0
// Tests that a program and its model must agree, and that a disagreement shows when an instruction
// is bound.
#include "worker/train/instructions/bind.h"

#include <string>

#include "common/plan/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/train/trainer.h"

namespace takt::train {
namespace {

using ::testing::HasSubstr;

class BindTest : public ::testing::Test {
 protected:
  static config::JobSpec Job(const std::string& schedule) {
    config::JobSpec job;
    // No parameter is tied, so no instruction needs another rank.
    job.model = {.family = model::Family::kLlama,
                 .layers = 4,
                 .hidden = 8,
                 .heads = 2,
                 .kv_heads = 2,
                 .head_size = 4,
                 .inner = 16,
                 .context = 6,
                 .positions = 6,
                 .vocab = 11,
                 .tied_head = false};
    job.train = {{.path = "nowhere"}};
    job.validation = config::Validation{.path = "nowhere", .every_steps = 1};
    job.global_batch = 8;
    job.adamw.clip_norm = 0;
    job.parallelism = {.pipeline = 2, .data = 1, .schedule = schedule};
    return job;
  }

  // Plans a job. A test may then change the plan.
  void Plan(const std::string& schedule,
            config::Vocabulary vocabulary = config::Vocabulary::kLast) {
    job_ = Job(schedule);
    job_.parallelism.vocabulary = vocabulary;
    plan_ = plan::MakePlan(job_, {.max_workers = 8}).value();
  }

  // Makes the trainer of rank 0, which reads no files.
  absl::StatusOr<std::unique_ptr<Trainer>> Create() {
    return CreateTrainer({.job = &job_,
                          .model = &plan_.model,
                          .partition = &plan_.partition,
                          .program = &plan_.programs.front(),
                          .validation_program = &plan_.validation_programs.front(),
                          .mesh = plan_.mesh,
                          .vocabulary_ends = plan_.vocabulary_ends,
                          .backends = backends_.get(),
                          .shapes_only = true});
  }

  const program::Instruction& Find(const std::string& text) const {
    const program::Program& program = plan_.programs.front();
    for (const program::Instruction& instruction : program.body) {
      if (program::ToString(instruction, program) == text) return instruction;
    }
    ADD_FAILURE() << "no " << text;
    return program.body.front();
  }

  // Returns the error of binding one instruction of the training program.
  absl::Status ErrorOf(const std::string& text) {
    const auto trainer = Create();
    return trainer.ok() ? (*trainer)->Bind(Find(text)).status() : trainer.status();
  }

  const std::unique_ptr<backend::BackendFactory> backends_ = backend::CreateCpuBackends({});
  config::JobSpec job_;
  plan::Plan plan_;
};

void ExpectBinds(engine::Compute& compute, const program::Program& program) {
  for (const auto* list : {&program.prologue, &program.body, &program.epilogue}) {
    for (const program::Instruction& instruction : *list) {
      if (instruction.op == program::Op::kSend || instruction.op == program::Op::kRecv) continue;
      EXPECT_EQ(compute.Bind(instruction).status(), absl::OkStatus());
    }
  }
}

TEST_F(BindTest, BindsEveryInstructionOfAPlan) {
  for (const char* schedule : {"naive", "1f1b", "zb-h1", "zb-v", "dualpipe-v", "pipedream-2bw"}) {
    SCOPED_TRACE(schedule);
    Plan(schedule);
    const auto trainer = Create();
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    ExpectBinds(**trainer, plan_.programs.front());
    ExpectBinds(*(*trainer)->validator(), plan_.validation_programs.front());
  }
}

TEST_F(BindTest, BindsEveryInstructionOfASpreadVocabulary) {
  for (const char* schedule : {"1f1b", "zb-h1", "zb-v"}) {
    SCOPED_TRACE(schedule);
    Plan(schedule, config::Vocabulary::kSpread);
    ASSERT_EQ(plan_.vocabulary_ends.size(), 2U);
    const auto trainer = Create();
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    ExpectBinds(**trainer, plan_.programs.front());
    ExpectBinds(*(*trainer)->validator(), plan_.validation_programs.front());
  }
}

TEST_F(BindTest, RefusesAMeetingOverAVocabularyThatIsNotSpread) {
  Plan("1f1b");
  program::Instruction share = Find("OPT");
  share.op = program::Op::kShare;
  share.stage = StageId(2);
  share.microbatch = MicrobatchId(0);
  const auto trainer = Create();
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  const absl::Status status = (*trainer)->Bind(share).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not spread"));
}

TEST_F(BindTest, RefusesAMeetingWithoutTheSlotsOfItsRank) {
  Plan("1f1b", config::Vocabulary::kSpread);
  const auto trainer = Create();
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  for (program::Instruction instruction : plan_.programs.front().body) {
    if (!program::IsMeeting(instruction.op)) continue;
    instruction.reads.clear();
    instruction.writes.clear();
    const absl::Status status = (*trainer)->Bind(instruction).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("slots that it needs on this rank"));
  }
}

TEST_F(BindTest, RefusesAStageOfOtherLayers) {
  Plan("1f1b");
  plan_.partition.front().last_layer = LayerId(plan_.partition.front().last_layer.value() - 1);
  const absl::Status status = ErrorOf("0F0");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("0F0: it reads the weights of 3 layers"));
}

TEST_F(BindTest, RefusesAnInputGradThatHasNoSlotForWhatItRecomputes) {
  Plan("zb-h1");
  for (mesh::Stage& stage : plan_.partition) stage.recompute = model::Recompute::kFull;
  for (const char* text : {"0I0", "0W0"}) {
    const absl::Status status = ErrorOf(text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(std::string(text) + ": what its stage recomputes"));
  }
  EXPECT_EQ(ErrorOf("0F0"), absl::OkStatus());
}

TEST_F(BindTest, RefusesToClipWithoutAFlush) {
  Plan("pipedream-2bw");
  EXPECT_EQ(ErrorOf("OPT"), absl::OkStatus());
  job_.adamw.clip_norm = 1;
  const absl::Status status = ErrorOf("OPT");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("OPT: "));
}

TEST_F(BindTest, RefusesAReductionThatNoOtherRankTakesPartIn) {
  Plan("1f1b");
  program::Instruction reduce = Find("OPT");
  reduce.op = program::Op::kReduceGrad;
  reduce.stage = StageId(0);
  reduce.layer = LayerId(1);
  const auto trainer = Create();
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  const absl::Status status = (*trainer)->Bind(reduce).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("REDUCE_GRAD(1): no other rank"));
}

TEST_F(BindTest, RefusesAnOpOfTheOtherKindOfProgram) {
  Plan("1f1b");
  const auto trainer = Create();
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  const absl::Status trains = (*trainer)->validator()->Bind(Find("0B0")).status();
  EXPECT_EQ(trains.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(trains.message()), HasSubstr("0B0: a validation program"));
  for (const program::Instruction& instruction : plan_.validation_programs.front().body) {
    if (instruction.op != program::Op::kEval) continue;
    const absl::Status validates = (*trainer)->Bind(instruction).status();
    EXPECT_THAT(std::string(validates.message()), HasSubstr("EVAL: a training program"));
  }
}

}  // namespace
}  // namespace takt::train
