// SPDX-License-Identifier: Apache-2.0
#include "common/program/part_lists.h"

#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/program/forward_only.h"
#include "common/program/program_serde.h"
#include "common/schedule/generate.h"
#include "common/schedule/text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::program {
namespace {

using ::testing::HasSubstr;

constexpr Part kCompute{};
constexpr Part kGather = {PartKind::kGather, PartGroup::kTensor, 30};
constexpr Part kScatter = {PartKind::kScatter, PartGroup::kTensor, 60};

// A stage whose layers gather before F and I and scatter after.
StageShape Meets(int first_layer, int num_layers) {
  const model::LayerParts layer{.forward = {kGather, kCompute, kScatter},
                                .input_grad = {kGather, kCompute, kScatter}};
  return {.first_layer = LayerId(first_layer),
          .last_layer = LayerId(first_layer + num_layers),
          .layers = std::vector<model::LayerParts>(num_layers, layer)};
}

std::vector<Program> LowerCsv(std::string_view csv, std::vector<StageShape> stages,
                              bool merge_weight_grads = false) {
  auto schedule = schedule::ParseCsv(csv, "t").value();
  schedule.placement = schedule::InferPlacement(schedule).value();
  return Lower(schedule, {.stages = std::move(stages), .merge_weight_grads = merge_weight_grads})
      .value();
}

// "F0: gather compute scatter"
std::string Text(const Program& program) {
  std::string text;
  for (const PartList& list : program.part_lists) {
    absl::StrAppend(&text, std::string(Name(list.op)), list.stage.value());
    if (list.op == Op::kOverlap) absl::StrAppend(&text, ",", list.backward_stage.value());
    absl::StrAppend(&text, ":");
    for (const Part& part : list.parts) {
      absl::StrAppend(&text, " ", std::string(model::Name(part.kind)));
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

TEST(PartLists, FollowTheLayersOfEachPass) {
  EXPECT_EQ(Text(LowerCsv("0F0,0I0,0W0\n", {Meets(0, 2)})[0]),
            "F0: gather compute scatter gather compute scatter\n"
            "I0: gather compute scatter gather compute scatter\n");
  // W of the upper layer comes before I of the lower one.
  EXPECT_EQ(Text(LowerCsv("0F0,0B0\n", {Meets(0, 2)})[0]),
            "F0: gather compute scatter gather compute scatter\n"
            "B0: gather compute scatter compute gather compute scatter compute\n");
}

TEST(PartLists, ThoseOfAPairAreThoseOfItsFAndThenOfItsB) {
  const Program program = LowerCsv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n", {Meets(0, 2)})[0];
  ASSERT_EQ(program.part_lists.size(), 3u);
  EXPECT_EQ(Text({.part_lists = {program.part_lists[2]}}),
            "O0,0: gather compute scatter gather compute scatter "
            "gather compute scatter compute gather compute scatter compute\n");
}

TEST(PartLists, TheHalvesOfAPairHaveListsOfTheirOwn) {
  const Program program = LowerCsv("0F0,(0F1;0B0)OVERLAP_F_B,0I1,0W1\n", {Meets(0, 1)})[0];
  EXPECT_EQ(Text(program),
            "F0: gather compute scatter\n"
            "I0: gather compute scatter\n"
            "B0: gather compute scatter compute\n"
            "O0,0: gather compute scatter gather compute scatter compute\n");
}

TEST(PartLists, TheNormHasOneMeetingOfAllLayersThatItCounts) {
  StageShape shape = Meets(0, 2);
  for (model::LayerParts& layer : shape.layers) layer = {.norm_bytes = 5};
  // Each rank holds both stages, and counts its own one.
  const Program program = LowerCsv("0F0,1F1,1B1,0B0\n1F0,0F1,1B0,0B1\n", {shape, Meets(2, 2)})[0];
  EXPECT_EQ(program.part_lists.back().op, Op::kNormPartial);
  EXPECT_EQ(program.part_lists.back().parts,
            (std::vector<Part>{{PartKind::kExchange, PartGroup::kTensor, 10}, {}}));
  EXPECT_TRUE(CheckProgram(program).ok());
}

TEST(PartLists, AStageWhoseLayersOnlyComputeHasNone) {
  const std::vector<Program> programs = LowerCsv(
      "0F0,0B0\n1F0,1B0\n", {Meets(0, 1), {.first_layer = LayerId(1), .last_layer = LayerId(2)}});
  EXPECT_EQ(programs[0].part_lists.size(), 2u);
  EXPECT_TRUE(programs[1].part_lists.empty());
  EXPECT_EQ(ToProto(programs[0]).version(), 9);
  EXPECT_EQ(ToProto(programs[1]).version(), 1);
  for (const Instruction& instruction : programs[0].body) {
    EXPECT_EQ(PartListOf(instruction, programs[0]).empty(),
              instruction.op != Op::kForward && instruction.op != Op::kBackward);
  }
}

TEST(PartLists, OfAValidationAreThoseOfItsForwards) {
  const std::vector<Program> programs = LowerCsv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n", {Meets(0, 1)});
  const Program forward = ForwardOnly(programs)[0];
  EXPECT_EQ(Text(forward), "F0: gather compute scatter\n");
  EXPECT_TRUE(CheckProgram(forward).ok());
}

TEST(PartLists, AWInWhichRanksMeetIsOfOneMicrobatch) {
  StageShape shape = Meets(0, 1);
  constexpr std::string_view kCsv = "0F0,0F1,0I0,0I1,0W0,0W1\n";
  EXPECT_TRUE(MergesWeightGrads(LowerCsv(kCsv, {shape}, true)[0]));
  shape.layers[0].weight_grad = {kGather};
  Program program = LowerCsv(kCsv, {shape}, true)[0];
  EXPECT_FALSE(MergesWeightGrads(program));
  EXPECT_TRUE(CheckProgram(program).ok());
}

TEST(PartLists, CountMeetingsThroughTheBody) {
  const Program program = LowerCsv("0F0,0F1,0B0,0B1\n", {Meets(0, 2)})[0];
  const std::vector<std::size_t> offsets = MeetingOffsets(program);
  ASSERT_EQ(offsets.size(), program.body.size() + 1);
  EXPECT_EQ(offsets.front(), 0u);
  EXPECT_EQ(offsets.back(), 16u);
  EXPECT_EQ(PartName(program.part_lists[0].parts, 3), "gather(3)");
}

TEST(PartLists, AreStoredAndReadBack) {
  const Program program = LowerCsv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n", {Meets(0, 2)})[0];
  const absl::StatusOr<Program> back = FromProto(ToProto(program));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(Text(*back), Text(program));
  EXPECT_EQ(back->part_lists[0].parts[0], kGather);
}

TEST(PartLists, ThatAreDamagedAreRefused) {
  const Program sound = LowerCsv("0F0,0B0\n", {Meets(0, 1)})[0];
  using Lists = std::vector<PartList>;
  const std::pair<const char*, std::function<void(Lists&)>> damages[] = {
      {"list of parts 0 is of no op in which ranks meet",
       [](Lists& l) { l[0].op = Op::kReduceGrad; }},
      {"list of parts 0 is of no op in which ranks meet",
       [](Lists& l) { l[0].op = Op::kVocabularyForward; }},
      {"has a stage out of range", [](Lists& l) { l[0].stage = StageId(1); }},
      {"exactly if it is of an O", [](Lists& l) { l[0].backward_stage = StageId(0); }},
      {"has no meeting", [](Lists& l) { l[0].parts = {kCompute}; }},
      {"computes nothing", [](Lists& l) { l[0].parts = {kGather}; }},
      {"of no known kind", [](Lists& l) { l[0].parts[0].kind = static_cast<PartKind>(9); }},
      {"a group exactly if", [](Lists& l) { l[0].parts[0].group = PartGroup::kNone; }},
      {"a group exactly if", [](Lists& l) { l[0].parts[1].group = PartGroup::kContext; }},
      {"a part of no size", [](Lists& l) { l[0].parts[0].bytes = -1; }},
      {"computes in two parts",
       [](Lists& l) { l[0].parts.insert(l[0].parts.begin() + 1, kCompute); }},
      {"is not in ascending order", [](Lists& l) { std::swap(l[0], l[1]); }},
      {"is not in ascending order", [](Lists& l) { l[1] = l[0]; }}};
  for (const auto& [message, damage] : damages) {
    Program program = sound;
    damage(program.part_lists);
    EXPECT_THAT(std::string(CheckProgram(program).message()), HasSubstr(message));
  }
}

TEST(PartLists, AreOfEachLayerOfAStage) {
  StageShape shape = Meets(0, 2);
  shape.layers.pop_back();
  const auto schedule = schedule::Generate("1f1b", {.num_ranks = 1, .num_microbatches = 1});
  EXPECT_THAT(std::string(Lower(*schedule, {.stages = {shape}}).status().message()),
              HasSubstr("has the parts of each of its layers"));
}

}  // namespace
}  // namespace takt::program
