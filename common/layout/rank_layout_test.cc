// SPDX-License-Identifier: Apache-2.0
#include "common/layout/rank_layout.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/layout/packed_matrix.h"
#include "common/layout/parameter_layout.h"
#include "common/layout/regions.h"
#include "common/layout/vocabulary_layout.h"
#include "common/mesh/vocabulary_split.h"
#include "common/model/vocabulary.h"
#include "common/program/forward_only.h"
#include "common/program/lowering.h"
#include "common/schedule/generate.h"
#include "common/schedule/spread_vocabulary.h"
#include "gtest/gtest.h"

namespace takt::layout {
namespace {

using model::Family;
using model::Precision;
using model::Recompute;

model::ModelConfig Gpt2(int blocks) {
  return {.layers = blocks,
          .hidden = 20,
          .heads = 2,
          .kv_heads = 2,
          .inner = 40,
          .context = 9,
          .positions = 12,
          .vocab = 70};
}

model::ModelConfig Llama(Family family, int blocks) {
  return {.family = family,
          .layers = blocks,
          .hidden = 24,
          .heads = 4,
          .kv_heads = 2,
          .head_size = 6,
          .inner = 36,
          .context = 8,
          .positions = 8,
          .vocab = 70,
          .tied_head = family == Family::kQwen2};
}

constexpr std::int64_t kWords = 5 * model::kVocabularyBlock + 100;  // six blocks

model::ModelConfig WideVocabulary(Family family) {
  return {.family = family,
          .layers = 4,
          .hidden = 16,
          .heads = 2,
          .kv_heads = 2,
          .inner = 32,
          .context = 16,
          .positions = 16,
          .vocab = static_cast<int>(kWords),
          .tied_head = family != Family::kLlama};
}

struct Case {
  model::ModelConfig config;
  std::string schedule = "1f1b";
  int ranks = 2;
  int microbatches = 4;
  Recompute recompute = Recompute::kNone;
  model::Precisions precisions;
  bool merges = false;        // merges several W into one
  mesh::VocabularyEnds ends;  // spreads the vocabulary
};

// A job as the planner would make it, with layers shared out evenly.
struct Job {
  model::Model model;
  mesh::Partition partition;
  std::vector<program::Program> programs;
  mesh::VocabularyEnds ends;

  explicit Job(const Case& c) : model(*model::BuildModel(c.config, 2, c.precisions)), ends(c.ends) {
    auto schedule =
        *schedule::Generate(c.schedule, {.num_ranks = c.ranks, .num_microbatches = c.microbatches});
    const bool spread = !ends.empty();
    if (spread) schedule = *schedule::SpreadVocabulary(schedule, {}, /*depth=*/2);
    const auto num_layers = static_cast<int>(model.layers.size());
    program::LowerOptions options{.merge_weight_grads = c.merges};
    for (StageId id(0); id.value() < schedule.num_stages; ++id) {
      partition.push_back(
          {.id = id,
           .pp_rank = schedule::RankOfStage(schedule.placement, c.ranks, id),
           .first_layer = LayerId(id.value() * num_layers / schedule.num_stages),
           .last_layer = LayerId((id.value() + 1) * num_layers / schedule.num_stages),
           .recompute = c.recompute});
      options.stages.push_back(ShapeOf(model, partition.back(), spread));
    }
    if (spread) options.vocabulary = ShapeOfVocabulary(model, ends);
    options.tied_embeddings = !model.layers.back().tied_parameters.empty();
    programs = *program::Lower(schedule, options);
  }

  RankLayout LayoutOf(int rank) const {
    return LayOutRank({.model = model,
                       .partition = partition,
                       .program = programs[rank],
                       .vocabulary_ends = ends});
  }
};

std::string ReadFile(const std::string& name) {
  std::ifstream file(absl::StrCat(TAKT_SOURCE_DIR, "/", name));
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns the tensors of a section, each in one piece: a slot with a stash as the tensors of its
// layers.
std::vector<Tensor> TensorsOf(const RankLayout& layout, const Section& section) {
  std::vector<Tensor> tensors;
  for (const Tensor& tensor : section.tensors) {
    const bool stash = tensor.slot_kind == program::SlotKind::kStash ||
                       tensor.slot_kind == program::SlotKind::kRecomputed;
    if (tensor.role == Role::kSlot && stash) {
      const StageLayout& stage = layout.stages.at(tensor.stage);
      for (const Tensor& part : TensorsInSlot(*layout.model, stage, tensor))
        tensors.push_back(part);
    } else if (tensor.slot_kind == program::SlotKind::kVocabularyStash) {
      for (const Tensor& part : TensorsInSlot(*layout.vocabulary, tensor)) tensors.push_back(part);
    } else {
      tensors.push_back(tensor);
      tensors.back().offset += tensor.interleave.At(0, tensor.bytes);
    }
  }
  return tensors;
}

void ExpectApartAndAligned(const RankLayout& layout, const Section& section) {
  std::map<int, std::vector<Tensor>> by_allocation;
  for (const Tensor& tensor : TensorsOf(layout, section)) {
    ASSERT_GE(tensor.allocation, 0);
    ASSERT_LT(tensor.allocation, std::ssize(section.allocations));
    by_allocation[tensor.allocation].push_back(tensor);
  }
  for (auto& [allocation, tensors] : by_allocation) {
    std::ranges::sort(tensors, {}, &Tensor::offset);
    std::int64_t end = 0;
    for (const Tensor& tensor : tensors) {
      EXPECT_EQ(tensor.offset % kLineBytes, 0) << section.name << " " << Name(tensor.role);
      EXPECT_GE(tensor.offset, end)
          << section.name << " " << Name(tensor.role) << " " << tensor.part;
      end = tensor.offset + tensor.bytes;
    }
    EXPECT_LE(end, section.allocations[static_cast<std::size_t>(allocation)].bytes)
        << section.name << " allocation " << allocation;
  }
}

void ExpectSound(const RankLayout& layout) {
  MemoryBytes sum;
  for (const Section* const section : layout.sections()) {
    ExpectApartAndAligned(layout, *section);
    for (const Allocation& each : section->allocations)
      sum[each.kind] += AllocatedBytes(each.bytes);
  }
  EXPECT_EQ(layout.bytes(), sum);
}

TEST(RankLayout, KeepsTensorsApartAlignedAndInsideTheirAllocation) {
  for (const model::ModelConfig& config :
       {Gpt2(6), Llama(Family::kLlama, 6), Llama(Family::kQwen2, 6)}) {
    for (const std::string schedule :
         {"1f1b", "zb-h1", "interleaved-1f1b", "zb-v", "dualpipe", "pipedream", "pipedream-2bw"}) {
      const bool ties = config.family != Family::kLlama;
      if (ties && schedule == "pipedream") continue;  // it does not run tied models
      for (const Recompute recompute :
           {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        for (const Precision products : {Precision::kF32, Precision::kBf16}) {
          SCOPED_TRACE(absl::StrCat(schedule, " family ", static_cast<int>(config.family),
                                    " recompute ", std::string(model::Name(recompute))));
          const Job job({.config = config,
                         .schedule = schedule,
                         .recompute = recompute,
                         .precisions = {products, products}});
          for (int rank = 0; rank < std::ssize(job.programs); ++rank)
            ExpectSound(job.LayoutOf(rank));
        }
      }
    }
  }
}

// Sizes are whole cache lines, where slots share allocations, and then are not.
TEST(RankLayout, PutsNeighbouringSlotsSideBySideWhereWeightGradsAreMerged) {
  model::ModelConfig whole_lines = Gpt2(6);
  whole_lines.context = whole_lines.positions = 16;
  whole_lines.hidden = 32;
  for (const model::ModelConfig& config : {whole_lines, Gpt2(6)}) {
    const Job job(
        {.config = config, .schedule = "zb-h2", .ranks = 4, .microbatches = 8, .merges = true});
    ASSERT_TRUE(program::MergesWeightGrads(job.programs[1]));
    const RankLayout layout = job.LayoutOf(1);
    ExpectSound(layout);
    std::set<int> stash_allocations;
    std::vector<std::int64_t> offsets;
    std::int64_t room = 0;
    for (const Tensor& tensor : TensorsOf(layout, layout.slots)) {
      if (tensor.slot_kind != program::SlotKind::kStash) continue;
      stash_allocations.insert(tensor.allocation);
      if (tensor.part != "qkv" || tensor.layer != LayerId(2)) continue;
      offsets.push_back(tensor.offset);
      room = RoundUp(tensor.bytes, kLineBytes);
    }
    EXPECT_EQ(stash_allocations.size(), 1u);
    ASSERT_GT(offsets.size(), 1u);
    for (std::size_t i = 1; i < offsets.size(); ++i) EXPECT_EQ(offsets[i] - offsets[i - 1], room);
  }
}

TEST(RankLayout, SharesTheWeightsOfATiedParameterOnOneRankOnly) {
  const auto count = [](const RankLayout& layout, Role role) {
    return std::ranges::count_if(layout.parameters.tensors, [&](const Tensor& tensor) {
      return tensor.role == role && tensor.parameter->name == "transformer.wte.weight";
    });
  };
  const Job one({.config = Gpt2(2), .ranks = 1});
  const RankLayout alone = one.LayoutOf(0);
  EXPECT_EQ(count(alone, Role::kGradient), 2);
  EXPECT_EQ(count(alone, Role::kWeight), 1);
  EXPECT_EQ(count(alone, Role::kSecondMoment), 1);
  const Job job({.config = Gpt2(2)});
  for (const int rank : {0, 1}) {
    const RankLayout layout = job.LayoutOf(rank);
    EXPECT_EQ(count(layout, Role::kGradient), 1);
    EXPECT_EQ(count(layout, Role::kWeight), 1);
  }
}

TEST(RankLayout, HasPackedMatricesWhereALayerMultipliesInBf16) {
  const Job job({.config = Gpt2(2), .ranks = 1, .precisions = {.products = Precision::kBf16}});
  std::int64_t bytes = 0, expected = 0;
  const RankLayout layout = job.LayoutOf(0);
  for (const Tensor& tensor : layout.parameters.tensors) {
    const bool packed =
        tensor.role == Role::kPackedWeight || tensor.role == Role::kPackedTransposedWeight;
    if (packed) bytes += tensor.bytes;
  }
  for (const auto& [rows, columns] : {std::pair(20, 60), {20, 20}, {20, 40}, {40, 20}})
    expected += 2 * 2 * (PackedElements(rows, columns) + PackedElements(columns, rows));
  expected += 2 * (PackedElements(70, 20) + PackedElements(20, 70));  // the head
  EXPECT_EQ(bytes, expected);
}

TEST(RankLayout, KeepsEveryVersionOfTheWeights) {
  const Job job({.config = Llama(Family::kLlama, 2), .schedule = "pipedream-2bw"});
  const RankLayout layout = job.LayoutOf(0);
  std::map<const model::Parameter*, std::set<int>> versions;
  for (const Tensor& tensor : layout.parameters.tensors) {
    if (tensor.role == Role::kWeight) versions[tensor.parameter].insert(tensor.version);
  }
  ASSERT_FALSE(versions.empty());
  for (const auto& [parameter, held] : versions) EXPECT_EQ(held, (std::set{0, 1}));
}

TEST(RankLayout, CountsTheSnapshotOfTheReplicaThatWritesMost) {
  const Job job({.config = Gpt2(2), .ranks = 1});
  const auto snapshot = [&](int dp_size) {
    return LayOutRank({.model = job.model,
                       .partition = job.partition,
                       .program = job.programs[0],
                       .saves = true,
                       .dp_size = dp_size})
        .bytes()[MemoryKind::kSnapshot];
  };
  EXPECT_EQ(snapshot(1), 3 * 4 * job.model.num_parameters());
  // There are embedding, two blocks and head; the second replica writes layers 1 and 3.
  std::int64_t first = 0, second = 0;
  for (std::size_t layer = 0; layer < job.model.layers.size(); ++layer) {
    for (const model::Parameter& parameter : job.model.layers[layer].parameters)
      (layer % 2 == 0 ? first : second) += 3 * 4 * parameter.elements();
  }
  EXPECT_EQ(snapshot(2), std::max(first, second));
}

TEST(RankLayout, GivesAnEmulatedModelItsMessagesAlone) {
  const Job job({.config = {.family = Family::kEmulated, .layers = 4, .activation_bytes = 100}});
  const RankLayout layout = job.LayoutOf(0);
  MemoryBytes expected;
  expected[MemoryKind::kMessages] = 100 * std::ssize(layout.slots.tensors);
  expected[MemoryKind::kProcess] = layout.bytes()[MemoryKind::kProcess];
  EXPECT_GT(std::ssize(layout.slots.tensors), 0);
  EXPECT_EQ(layout.bytes(), expected);
}

TEST(RankLayout, HasTheSlotsOfValidationBeside) {
  const Job job({.config = Gpt2(2)});
  const std::vector<program::Program> validation = program::ForwardOnly(job.programs);
  const RankLayout layout = LayOutRank({.model = job.model,
                                        .partition = job.partition,
                                        .program = job.programs[1],
                                        .validation = &validation[1]});
  ExpectSound(layout);
  EXPECT_FALSE(layout.validation_slots.tensors.empty());
}

// Slots must have the sizes with which programs were lowered, for the proof has checked those.
TEST(RankLayout, SizesSlotsAsTheProgramDoes) {
  const Case last{.config = Gpt2(4), .schedule = "zb-h1", .recompute = Recompute::kSelective};
  Case spread = last;
  spread.config = WideVocabulary(Family::kGpt2);
  spread.ends = {2, 6};
  for (const Case& c : {last, spread}) {
    const Job job(c);
    for (int rank = 0; rank < std::ssize(job.programs); ++rank) {
      const RankLayout layout = job.LayoutOf(rank);
      for (const Tensor& tensor : layout.slots.tensors) {
        const program::Slot& slot = job.programs[rank].slots[tensor.slot.value()];
        if (slot.kind == program::SlotKind::kTokens) continue;
        EXPECT_EQ(tensor.bytes, slot.bytes);
      }
    }
  }
}

// The sums that T leaves on each rank, and the most that its stack holds.
struct Spread {
  mesh::VocabularyEnds ends;
  std::vector<int> left, most;
};

std::vector<Spread> Spreads() {
  return {{.ends = {2, 6}, .left = {1, 2}, .most = {2, 3}},
          {.ends = {1, 1, 6}, .left = {1, 0, 3}, .most = {1, 0, 4}},
          {.ends = {0, 4, 4, 6}, .left = {0, 1, 0, 1}, .most = {0, 3, 0, 2}}};
}

// Returns the bytes of all tensors of this role.
std::int64_t BytesOf(const Section& section, Role role) {
  std::int64_t bytes = 0;
  for (const Tensor& tensor : section.tensors) {
    if (tensor.role == role) bytes += tensor.bytes;
  }
  return bytes;
}

TEST(SpreadVocabularyLayout, TakesTheMemoryOfTheFormulas) {
  constexpr std::int64_t kN = 32, kC = 16, kD = 6;  // all tensors are whole cache lines
  for (const Spread& spread : Spreads()) {
    const int ranks = static_cast<int>(spread.ends.size());
    const Job job({.config = WideVocabulary(Family::kGpt2), .ranks = ranks, .ends = spread.ends});
    for (int rank = 0; rank < ranks; ++rank) {
      SCOPED_TRACE(absl::StrCat("rank ", rank, " of ", ranks));
      const RankLayout layout = job.LayoutOf(rank);
      const std::int64_t words = mesh::WordsOf(spread.ends, PpRank(rank), kWords).words;
      const std::int64_t sum = 4 * kN * kC;
      const std::map<program::SlotKind, std::int64_t> expected = {
          {program::SlotKind::kHeadInput, sum},
          {program::SlotKind::kVocabularyStash, 4 * kN * words + 16 * kN * (kD + 1)},
          {program::SlotKind::kPartialGrad, spread.left[rank] * sum},
          {program::SlotKind::kHeadGrad, sum}};
      for (const Tensor& slot : layout.slots.tensors) {
        if (expected.contains(slot.slot_kind)) {
          EXPECT_EQ(slot.bytes, expected.at(slot.slot_kind)) << slot.slot.value();
        }
      }
      EXPECT_EQ(layout.vocabulary->scratch_sums, spread.most[rank] - spread.left[rank]);
      EXPECT_GE(BytesOf(layout.shared, Role::kLayerScratch), layout.vocabulary->scratch_sums * sum);
      EXPECT_EQ(BytesOf(layout.shared, Role::kMeetingScratch), sum);
    }
  }
}

TEST(SpreadVocabularyLayout, GivesOneRankAllWords) {
  const model::Model model = *model::BuildModel(WideVocabulary(Family::kGpt2), 2);
  const VocabularyLayout layout = LayOutVocabulary(model, {6}, PpRank(0), /*root=*/true);
  EXPECT_EQ(layout.stash_bytes(), 4 * 32 * kWords + 16 * 32 * 7);
  EXPECT_EQ(layout.partial_grad_bytes(), 2 * 2048);
  EXPECT_EQ(layout.scratch_sums, 1);
  EXPECT_EQ(layout.meeting_sums, 1);
  EXPECT_EQ(BytesOf(LayOutRows(model, layout.words), Role::kWeight), 4 * 16 * kWords);
}

TEST(SpreadVocabularyLayout, GivesTheRootRoomForTheSumsOfAllRanks) {
  model::ModelConfig config = WideVocabulary(Family::kGpt2);
  config.vocab = 7 * static_cast<int>(model::kVocabularyBlock);
  const model::Model model = *model::BuildModel(config, 2);
  EXPECT_EQ(LayOutVocabulary(model, {4, 6, 7}, PpRank(2), /*root=*/true).meeting_sums, 2);
  EXPECT_EQ(LayOutVocabulary(model, {4, 6, 7}, PpRank(2), /*root=*/false).meeting_sums, 1);
}

TEST(SpreadVocabularyLayout, ReturnsTheSizesOfProgramsAndMeetings) {
  const model::Model model = *model::BuildModel(WideVocabulary(Family::kLlama), 2);
  const program::VocabularyShape shape = ShapeOfVocabulary(model, {0, 2, 6});
  EXPECT_EQ(shape.head_input_bytes, 2048);
  EXPECT_EQ(shape.stash_bytes,
            (std::vector<std::int64_t>{3584, 3584 + 128 * 8192, 3584 + 128 * (kWords - 8192)}));
  EXPECT_EQ(shape.partial_grad_bytes, (std::vector<std::int64_t>{0, 2048, 2 * 2048}));
  EXPECT_EQ(shape.rows_bytes,
            (std::vector<std::int64_t>{0, 2048 * 8192 / kWords, 2048 * (kWords - 8192) / kWords}));
  EXPECT_EQ(shape.parts_bytes, (std::vector<std::int64_t>{0, 2 * 512, 4 * 512}));
}

TEST(SpreadVocabularyLayout, FillsUpLogitsInBf16) {
  const model::Model model =
      *model::BuildModel(WideVocabulary(Family::kGpt2), 2, {Precision::kBf16, Precision::kBf16});
  const VocabularyLayout layout = LayOutVocabulary(model, {4, 6}, PpRank(1), /*root=*/true);
  EXPECT_EQ(layout.stash_bytes(), 2 * 32 * (4096 + 128) + 16 * 32 * 7);
  EXPECT_TRUE(layout.stash[VocabularyStash::kLogits].bf16);
  EXPECT_FALSE(layout.stash[VocabularyStash::kSoftmax].bf16);
}

TEST(SpreadVocabularyLayout, SharesOutTheRowsOfEveryTable) {
  for (const Family family : {Family::kGpt2, Family::kLlama, Family::kQwen2}) {
    const std::int64_t tables = family == Family::kLlama ? 2 : 1;
    for (const Spread& spread : Spreads()) {
      const int ranks = static_cast<int>(spread.ends.size());
      const Job job({.config = WideVocabulary(family),
                     .ranks = ranks,
                     .precisions = {.products = Precision::kBf16},
                     .ends = spread.ends});
      std::map<const model::Parameter*, std::int64_t> next_row;
      for (int rank = 0; rank < ranks; ++rank) {
        SCOPED_TRACE(absl::StrCat("rank ", rank, " of ", ranks));
        const RankLayout layout = job.LayoutOf(rank);
        const std::int64_t words = mesh::WordsOf(spread.ends, PpRank(rank), kWords).words;
        const std::int64_t use = 4 * 16 * words;  // 16 columns
        EXPECT_EQ(BytesOf(layout.rows, Role::kGradient), 2 * use);
        EXPECT_EQ(BytesOf(layout.rows, Role::kWeight), tables * use);
        EXPECT_EQ(BytesOf(layout.rows, Role::kFirstMoment), tables * use);
        EXPECT_EQ(BytesOf(layout.rows, Role::kSecondMoment), tables * use);
        EXPECT_EQ(BytesOf(layout.rows, Role::kPackedWeight), 2 * PackedElements(words, 16));
        EXPECT_EQ(BytesOf(layout.rows, Role::kPackedTransposedWeight),
                  2 * PackedElements(16, words));
        EXPECT_EQ(layout.rows.allocations.empty(), words == 0);
        for (const Tensor& tensor : layout.rows.tensors) {
          EXPECT_TRUE(tensor.parameter->by_word);
          EXPECT_EQ(tensor.rows, words);
          if (tensor.role != Role::kWeight) continue;
          EXPECT_EQ(tensor.first_row, next_row[tensor.parameter]);
          next_row[tensor.parameter] += tensor.rows;
        }
        for (const Tensor& tensor : layout.parameters.tensors) {
          EXPECT_FALSE(tensor.parameter->by_word);
          EXPECT_EQ(tensor.rows, 0);
        }
      }
      EXPECT_EQ(std::ssize(next_row), tables);
      for (const auto& [table, rows] : next_row) EXPECT_EQ(rows, kWords);
    }
  }
}

TEST(SpreadVocabularyLayout, LeavesPositionsAndTheNormWithTheirStages) {
  const Job job({.config = WideVocabulary(Family::kGpt2), .ends = {3, 6}});
  const auto has = [&](int rank, std::string_view name) {
    return std::ranges::any_of(job.LayoutOf(rank).parameters.tensors, [&](const Tensor& tensor) {
      return tensor.parameter->name == name;
    });
  };
  EXPECT_TRUE(has(0, "transformer.wpe.weight"));
  EXPECT_TRUE(has(1, "transformer.ln_f.weight"));
  EXPECT_FALSE(has(0, "transformer.wte.weight"));
  EXPECT_FALSE(has(1, "transformer.wte.weight"));
}

TEST(SpreadVocabularyLayout, KeepsOfTheHeadWhatTheNormNeedsInEveryMode) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    const Job job(
        {.config = WideVocabulary(Family::kGpt2), .recompute = recompute, .ends = {3, 6}});
    const RankLayout layout = job.LayoutOf(1);
    const StageLayout& stage = layout.stages.at(StageId(1));
    const Tensor slot{.slot_kind = program::SlotKind::kStash, .bytes = stage.stash_bytes};
    std::vector<std::string_view> parts;
    for (const Tensor& tensor : TensorsInSlot(job.model, stage, slot)) {
      if (tensor.layer == LayerId(5)) parts.push_back(tensor.part);
    }
    EXPECT_EQ(parts, (std::vector<std::string_view>{"norm_stats", "norm_part"}));
    EXPECT_TRUE(stage.layers.back().scratch.empty());
  }
}

// The rows of 20 channels and the numbers of 9 tokens are no whole cache lines.
TEST(SpreadVocabularyLayout, KeepsTensorsApartAlignedAndInsideTheirAllocation) {
  for (const std::string schedule : {"1f1b", "zb-h1", "interleaved-1f1b", "zb-v"}) {
    for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
      model::ModelConfig config = Gpt2(6);
      config.vocab = static_cast<int>(kWords);
      const Job job({.config = config,
                     .schedule = schedule,
                     .precisions = {precision, precision},
                     .ends = {1, 6}});
      for (const int rank : {0, 1}) ExpectSound(job.LayoutOf(rank));
    }
  }
}

TEST(SpreadVocabularyLayout, SavesEveryParameterOnce) {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    for (const Spread& spread : Spreads()) {
      const int ranks = static_cast<int>(spread.ends.size());
      const Job job({.config = WideVocabulary(family), .ranks = ranks, .ends = spread.ends});
      std::int64_t bytes = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const RankLayout layout = LayOutRank({.model = job.model,
                                              .partition = job.partition,
                                              .program = job.programs[rank],
                                              .saves = true,
                                              .vocabulary_ends = job.ends});
        bytes += BytesOf(layout.snapshot, Role::kSnapshot);
      }
      EXPECT_EQ(bytes, 3 * 4 * job.model.num_parameters());
    }
  }
}

TEST(SpreadVocabularyLayout, PrintsRowsAndTheStashOfTheVocabulary) {
  const Job job({.config = WideVocabulary(Family::kLlama), .ends = {2, 6}});
  const std::string text = ToString(job.LayoutOf(0));
  for (const char* const line :
       {"rows, allocation 0: gradients, 524288 bytes",
        "weight of lm_head.weight, rows 0 to 8191, layer 5", ": output of the final norm\n",
        ": stash of the vocabulary\n", "scratch of a meeting",
        "each slot of the vocabulary's stash: 1052160 bytes"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
}

TEST(RankLayout, PrintsTheTableOfTheDocs) {
  const Job job({.config = Gpt2(1), .ranks = 3, .microbatches = 2});
  const std::string table = absl::StrCat("```\n", ToString(job.LayoutOf(2)), "```\n");
  EXPECT_NE(ReadFile("docs/memory.md").find(table), std::string::npos) << table;
}

TEST(RankLayout, PrintsTheGoldenTable) {
  model::ModelConfig config = Gpt2(2);
  config.context = config.positions = 16;
  config.hidden = 32;
  const Job job({.config = config,
                 .schedule = "zb-h2",
                 .ranks = 4,
                 .microbatches = 4,
                 .recompute = Recompute::kSelective,
                 .precisions = {.products = Precision::kBf16},
                 .merges = true});
  const std::string table = ToString(job.LayoutOf(1));
  EXPECT_EQ(table, ReadFile("tests/golden/layout/gpt2-zb-h2.txt")) << table;
}

}  // namespace
}  // namespace takt::layout
