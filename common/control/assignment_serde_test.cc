// SPDX-License-Identifier: Apache-2.0
#include "common/control/assignment_serde.h"

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/config/job_spec_serde.h"
#include "common/config/testing/jobs.h"
#include "common/control/attachment_serde.h"
#include "common/control/shared_assignment.h"
#include "common/plan/plan.h"
#include "common/program/forward_only.h"
#include "common/program/lowering.h"
#include "common/schedule/generate.h"
#include "common/schedule/spread_vocabulary.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"

namespace takt::control {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns the assignment of rank 1 in a pipeline of two, for a job with a validation set.
Assignment SomeAssignment() {
  config::JobSpec job = config::SmallGpt2Job();
  job.train = {{.path = "t"}};
  job.validation = config::Validation{.path = "v"};
  job.steps = 10;
  job.parallelism = {.pipeline = 2, .data = 1, .recompute = {model::Recompute::kFull}};
  const plan::Plan plan = *plan::MakePlan(job, {.max_workers = 2});
  return {.key = {"j", Generation(3)},
          .rank = Rank(1),
          .job = job,
          .mesh = plan.mesh,
          .partition = plan.partition,
          .program = plan.programs[1],
          .validation_program = plan.validation_programs[1],
          .ranks = {{.rank = Rank(0)},
                    {.rank = Rank(1),
                     .worker = "w1",
                     .incarnation = "life",
                     .data_address = "127.0.0.1"}},
          .threads = 2,
          .transport = config::TransportKind::kShm,
          .device = config::DeviceKind::kCpu,
          .secret = std::string(kSecretBytes, 's'),
          .predicted_step_seconds = 0.5,
          .predicted_bubble_fraction = 0.25,
          .resume = "auto",
          .resume_at_most = StepId(40),
          .job_id = "0123456789abcdef",
          .other_jobs = {"fedcba9876543210", "00ff00ff00ff00ff"},
          .saved = StepId(40),
          .owner = "user/ada",
          .epoch = 7,
          .copies = {.every_steps = 2, .shift = 1, .at_most = StepId(39), .required = true}};
}

// Returns an assignment of the same rank under 1F1B, with a part of the vocabulary.
Assignment SomeSpreadAssignment() {
  Assignment assignment = SomeAssignment();
  const int num_layers = assignment.partition.back().last_layer.value();
  assignment.partition.clear();
  for (const int stage : {0, 1}) {
    assignment.partition.push_back({.id = StageId(stage),
                                    .pp_rank = PpRank(stage),
                                    .first_layer = LayerId(stage * num_layers / 2),
                                    .last_layer = LayerId((stage + 1) * num_layers / 2),
                                    .recompute = model::Recompute::kFull});
  }
  const int microbatches = assignment.job.MicrobatchesPerStep(assignment.mesh.dp_size);
  const auto schedule = schedule::Generate(
      "1f1b", {.num_ranks = assignment.mesh.pp_size, .num_microbatches = microbatches});
  const auto spread = schedule::SpreadVocabulary(*schedule, {}, /*depth=*/2);
  const auto programs = program::Lower(*spread, {.vocabulary = program::VocabularyShape{}});
  assignment.program = (*programs)[1];
  assignment.validation_program = program::ForwardOnly(*programs)[1];
  assignment.vocabulary_ends = {0, 1};
  return assignment;
}

// Returns the first rank of the second pp rank, where each pp rank has four.
Assignment SomeAssignmentOfFourAxes() {
  Assignment assignment = SomeSpreadAssignment();
  assignment.mesh.cp_size = assignment.mesh.tp_size = 2;
  assignment.rank = Rank(4);
  assignment.bucket_bytes = 1 << 20;
  return assignment;
}

std::string ErrorOf(const v1::Assignment& proto) {
  return std::string(FromProto(proto).status().message());
}

using google::protobuf::FieldDescriptor;

// Collects the fields of an assignment: all of them, and those that are set. Specs and programs
// have tests of their own.
void CollectFields(const google::protobuf::Message& message, std::set<std::string>& all,
                   std::set<std::string>& set) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    all.insert(field.full_name());
    const int count = field.is_repeated() ? reflection.FieldSize(message, &field)
                                          : (reflection.HasField(message, &field) ? 1 : 0);
    if (count > 0) set.insert(field.full_name());
    const google::protobuf::Descriptor* const type = field.message_type();
    if (type == nullptr || type == v1::JobSpec::descriptor() || type == v1::Program::descriptor())
      continue;
    for (int k = 0; k < count; ++k) {
      CollectFields(field.is_repeated() ? reflection.GetRepeatedMessage(message, &field, k)
                                        : reflection.GetMessage(message, &field),
                    all, set);
    }
  }
}

TEST(AssignmentSerde, KeepsEveryField) {
  const v1::Assignment proto = ToProto(SomeAssignmentOfFourAxes());
  std::set<std::string> all, set;
  CollectFields(proto, all, set);
  Assignment sparse = SomeAssignment();
  sparse.sparse_meeting = sparse.plain_sockets = sparse.sharing_chains = true;
  sparse.ranks.clear();
  CollectFields(ToProto(sparse), all, set);
  std::vector<std::string> missing;
  std::ranges::set_difference(all, set, std::back_inserter(missing));
  EXPECT_THAT(missing, IsEmpty()) << "ToProto, or the assignment of this test, leaves them out";

  const absl::StatusOr<Assignment> read = FromProto(proto);
  ASSERT_TRUE(read.ok()) << read.status();
  std::string difference;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&difference);
  EXPECT_TRUE(differencer.Compare(proto, ToProto(*read))) << difference;
}

TEST(AssignmentSerde, RefusesBucketsOfOddSizes) {
  v1::Assignment proto = ToProto(SomeAssignment());
  for (const std::int64_t bytes : {-1, 1, 64 << 10, (1 << 20) + 4, 8 << 20}) {
    proto.set_bucket_bytes(bytes);
    EXPECT_THAT(ErrorOf(proto), HasSubstr("no power of two from 131072 to 4194304")) << bytes;
  }
  proto.set_bucket_bytes(0);
  EXPECT_TRUE(FromProto(proto).ok());
}

TEST(AssignmentSerde, WithoutAWordOnTheVocabularyItIsNotSpread) {
  const v1::Assignment proto = ToProto(SomeAssignment());
  EXPECT_EQ(proto.vocabulary_ends_size(), 0);
  EXPECT_THAT(FromProto(proto)->vocabulary_ends, IsEmpty());
}

TEST(AssignmentSerde, AMeshOfTwoAxesSaysNothingOfOthers) {
  const v1::Assignment proto = ToProto(SomeAssignment());
  EXPECT_EQ(proto.binding().cp_size(), 0);
  EXPECT_EQ(proto.binding().tp_size(), 0);
  EXPECT_TRUE(FromProto(proto)->mesh.HasTwoAxes());
}

TEST(AssignmentSerde, APrepareIsReadWhenItIsAskedFor) {
  const Command command =
      Prepare{.key = {"j", Generation(3)}, .rank = Rank(1), .assignment = SomeAssignment};
  const auto read = FromProto(ToProto(command));
  ASSERT_TRUE(read.has_value());
  const Prepare& prepare = std::get<Prepare>(*read);
  EXPECT_EQ(prepare.key, (JobKey{"j", Generation(3)}));
  EXPECT_EQ(prepare.rank, Rank(1));
  EXPECT_EQ(prepare.assignment()->resume_at_most, StepId(40));
}

TEST(AssignmentSerde, ARankMayGoOnFromCopiesAndKeepNone) {
  Assignment assignment = SomeAssignment();
  assignment.copies = {.at_most = StepId(36), .required = true};
  const control::MemoryCopies read = FromProto(ToProto(assignment))->copies;
  EXPECT_EQ(read.every_steps, 0);
  EXPECT_EQ(read.at_most, StepId(36));
  EXPECT_TRUE(read.required);
}

TEST(AssignmentSerde, WithoutAWordOnResumingTheRankBeginsAnew) {
  v1::Assignment proto = ToProto(SomeAssignment());
  proto.clear_resume();
  EXPECT_EQ(FromProto(proto)->resume, "none");
}

TEST(AssignmentSerde, RefusesPartsThatCannotBe) {
  const v1::Assignment good = ToProto(SomeAssignment());
  v1::Assignment proto = good;
  proto.set_rank(2);
  EXPECT_THAT(ErrorOf(proto), HasSubstr("rank 2 of the assignment is not in a mesh of 2 x 1"));
  proto = good;
  proto.mutable_binding()->set_dp_size(0);
  EXPECT_THAT(ErrorOf(proto), HasSubstr("a mesh of 2 x 0"));
  proto = good;
  proto.mutable_binding()->set_tp_size(1 << 30);
  EXPECT_THAT(ErrorOf(proto), HasSubstr("a mesh of 2 x 1 x tensor 1073741824"));
  proto = good;
  proto.mutable_binding()->set_secret("short");
  EXPECT_THAT(ErrorOf(proto), HasSubstr("secret has 5 bytes, not 32"));
  proto = good;
  proto.mutable_stages(1)->set_first_layer(9);
  EXPECT_THAT(ErrorOf(proto), HasSubstr("stage 1 of the assignment: layers 9.."));
  proto = good;
  proto.mutable_stages(0)->set_recompute(static_cast<v1::RecomputeMode>(77));
  EXPECT_THAT(ErrorOf(proto), HasSubstr("recomputes in mode 77"));
  proto = ToProto(SomeSpreadAssignment());
  proto.set_vocabulary_ends(1, 2);
  EXPECT_THAT(ErrorOf(proto), HasSubstr("vocabulary (0, 2) do not share out the blocks of 256"));
}

TEST(AssignmentSerde, RefusesPartsThatDisagree) {
  const Assignment good = SomeAssignment();
  Assignment assignment = good;
  assignment.rank = Rank(0);
  EXPECT_THAT(ErrorOf(ToProto(assignment)), HasSubstr("is not one for rank 0 of 2 x 1"));
  assignment = good;
  assignment.validation_program.reset();
  EXPECT_THAT(ErrorOf(ToProto(assignment)), HasSubstr("a validation set and its program"));
  assignment = good;
  assignment.job.global_batch = 8;
  EXPECT_THAT(ErrorOf(ToProto(assignment)), HasSubstr("4 microbatches"));
  assignment = SomeSpreadAssignment();
  assignment.vocabulary_ends.clear();
  EXPECT_THAT(ErrorOf(ToProto(assignment)), HasSubstr("the program spreads the vocabulary"));
  assignment = good;
  assignment.vocabulary_ends = {0, 1};
  EXPECT_THAT(ErrorOf(ToProto(assignment)), HasSubstr("the program does not spread"));
}

TEST(SharedAssignment, IsTheSameForAllRanksAndHasNeitherProgramNorSecret) {
  Assignment assignment = SomeAssignment();
  const std::string text = SharedText(assignment);
  assignment.rank = Rank(0);
  assignment.threads = 7;
  assignment.secret = std::string(kSecretBytes, 't');
  EXPECT_EQ(SharedText(assignment), text);
  EXPECT_THAT(text, ::testing::Not(HasSubstr("ssss")));
  const auto parsed = ParseShared(text);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->key, assignment.key);
  EXPECT_EQ(parsed->job.name, assignment.job.name);
  EXPECT_EQ(parsed->ranks.size(), 2u);
  EXPECT_EQ(parsed->ranks[1].worker, "w1");
  EXPECT_EQ(parsed->owner, "user/ada");
  EXPECT_EQ(parsed->copies, assignment.copies);
  EXPECT_EQ(SharedText(*parsed), text);
}

TEST(SharedAssignment, OfRanksThatMeetSparselyNamesNone) {
  Assignment assignment = SomeAssignment();
  assignment.ranks.clear();
  EXPECT_FALSE(ParseShared(SharedText(assignment)).ok());
  assignment.sparse_meeting = true;
  const auto parsed = ParseShared(SharedText(assignment));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(parsed->sparse_meeting);
  EXPECT_TRUE(parsed->ranks.empty());
}

TEST(SharedAssignment, RanksThatAreNotThoseOfTheMeshAreRefused) {
  Assignment assignment = SomeAssignment();
  assignment.ranks.pop_back();
  EXPECT_THAT(ParseShared(SharedText(assignment)).status().ToString(), HasSubstr("binds 1 ranks"));
  assignment = SomeAssignment();
  std::swap(assignment.ranks[0], assignment.ranks[1]);
  EXPECT_FALSE(ParseShared(SharedText(assignment)).ok());
  EXPECT_FALSE(ParseShared("no message").ok());
}

}  // namespace
}  // namespace takt::control
