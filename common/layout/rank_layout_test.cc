// SPDX-License-Identifier: Apache-2.0
#include "common/layout/rank_layout.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/layout/gpu_scratch.h"
#include "common/layout/packed_matrix.h"
#include "common/layout/parameter_layout.h"
#include "common/layout/regions.h"
#include "common/layout/testing/jobs.h"
#include "common/program/forward_only.h"
#include "common/program/remove_barrier.h"
#include "common/program/slot_bytes.h"
#include "gtest/gtest.h"

namespace takt::layout {
namespace {

using model::Family;
using model::Precision;
using model::Recompute;

std::string ReadFile(const std::string& name) {
  std::ifstream file(absl::StrCat(TAKT_SOURCE_DIR, "/", name));
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(RankLayout, KeepsTensorsApartAlignedAndInsideTheirAllocation) {
  for (const model::ModelConfig& config :
       {Gpt2(6), Llama(Family::kLlama, 6), Llama(Family::kQwen2, 6), Llama(Family::kQwen3, 6)}) {
    for (const std::string schedule :
         {"1f1b", "zb-h1", "interleaved-1f1b", "zb-v", "dualpipe", "pipedream", "pipedream-2bw"}) {
      const bool ties = config.tied_head;
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

// Messages halve, and so does what a stage keeps between its layers.
TEST(RankLayout, IsSoundWhereLayersPassOnBf16) {
  for (const std::string_view schedule : {"1f1b", "zb-v", "dualpipe"}) {
    for (const Precision activations : {Precision::kF32, Precision::kBf16}) {
      Case c{.config = Gpt2(6), .schedule = std::string(schedule)};
      c.precisions = {Precision::kBf16, activations};
      const Job whole(c);
      c.precisions.residual = Precision::kBf16;
      const Job job(c);
      for (int rank = 0; rank < std::ssize(job.programs); ++rank) {
        const RankLayout layout = job.LayoutOf(rank), of_f32 = whole.LayoutOf(rank);
        ExpectSound(layout);
        const auto message_bytes = [](const RankLayout& l) {
          std::int64_t bytes = 0;
          for (const Tensor& tensor : l.slots.tensors) {
            if (program::MemoryKindOf(tensor.slot_kind) == MemoryKind::kMessages)
              bytes += tensor.bytes;
          }
          return bytes;
        };
        EXPECT_EQ(2 * message_bytes(layout), message_bytes(of_f32));
        EXPECT_LT(layout.stages.begin()->second.stash_bytes,
                  of_f32.stages.begin()->second.stash_bytes);
      }
    }
  }
}

TEST(GpuScratch, HoldsTheGradientsOfQueriesThatAreNormalised) {
  const auto rounded_bytes = [](Family family) -> std::int64_t {
    model::ModelConfig config = Llama(family, 2);
    config.head_size = 10;
    if (model::HasExperts(family))
      config.mixture = model::Mixture{.experts = 4, .chosen = 2, .inner = 8};
    const model::Model model = *model::BuildModel(config, 2, {Precision::kBf16, Precision::kBf16});
    for (const Tensor& tensor : LayOutGpuScratch(model).tensors) {
      if (tensor.role == Role::kRoundedForInputGrad) return tensor.bytes;
    }
    return 0;
  };
  constexpr std::int64_t kRows = 2 * 8, kBytes = 2;
  EXPECT_EQ(rounded_bytes(Family::kLlama), kRows * 24 * kBytes);
  for (const Family family : {Family::kQwen3, Family::kQwen3Moe})
    EXPECT_EQ(rounded_bytes(family), kRows * 40 * kBytes);
}

TEST(GpuScratch, HoldsTheOperandsOfProductsInFp8) {
  model::ModelConfig config = Llama(Family::kLlama, 2);
  config.inner = 1000;
  const model::Model model = *model::BuildModel(
      config, 2, {Precision::kBf16, Precision::kBf16, model::Fp8Recipe::kTensor});
  int operands = 0;
  for (const Tensor& tensor : LayOutGpuScratch(model).tensors) {
    if (tensor.role != Role::kRoundedForInputGrad && tensor.role != Role::kRoundedForWeightGrad)
      continue;
    EXPECT_EQ(tensor.bytes, 4096 + 16 * 1008 + 4);
    ++operands;
  }
  EXPECT_EQ(operands, 2);
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

// A moment that no optimizer has takes no memory, and the others stay where they are.
TEST(RankLayout, HasTheMomentsOfEachParametersOptimizer) {
  model::Model model = *model::BuildModel(Gpt2(2), 1);
  const auto bytes_of = [&](Role role) {
    std::int64_t bytes = 0;
    const Section parameters = LayOutParameters(model, {LayerId(0), LayerId(1)});
    for (const Tensor& tensor : parameters.tensors) bytes += tensor.role == role ? tensor.bytes : 0;
    return bytes;
  };
  const std::int64_t all = bytes_of(Role::kWeight);
  EXPECT_EQ(bytes_of(Role::kFirstMoment), all);
  EXPECT_EQ(bytes_of(Role::kSecondMoment), all);
  model::Parameter& table = model.layers[0].parameters[0];
  table.moments = 1;
  EXPECT_EQ(bytes_of(Role::kFirstMoment), all);
  EXPECT_EQ(bytes_of(Role::kSecondMoment), all - 4 * table.elements());
  for (model::Layer& layer : model.layers) {
    for (model::Parameter& parameter : layer.parameters) parameter.moments = 0;
  }
  EXPECT_EQ(bytes_of(Role::kFirstMoment), 0);
  const Section section = LayOutParameters(model, {LayerId(0), LayerId(1)});
  for (const Allocation& allocation : section.allocations)
    EXPECT_NE(allocation.kind, MemoryKind::kOptimizer);
}

model::ModelConfig LargeGpt2() {
  model::ModelConfig config = Gpt2(4);
  config.hidden = 64;
  config.inner = 200;
  return config;
}

// Adds the moments of one rank, and returns their bytes.
using Moments = std::map<std::pair<LayerId, const model::Parameter*>, std::vector<FloatRun>>;
std::int64_t AddMoments(const RankLayout& layout, Moments& all) {
  ExpectSound(layout);
  for (const Section* const section : {&layout.parameters, &layout.rows}) {
    for (const Tensor& tensor : section->tensors) {
      if (tensor.role != Role::kSecondMoment) continue;
      EXPECT_EQ(tensor.bytes, 4 * tensor.shard.count);
      all[{tensor.layer, tensor.parameter}].push_back(
          {.first = tensor.first_row * tensor.parameter->shape.back() + tensor.shard.first,
           .count = tensor.shard.count});
    }
  }
  return layout.bytes()[MemoryKind::kOptimizer];
}

// Two copies share as replicas do.
TEST(RankLayout, GivesEveryMomentToOneOfTheRanksThatShare) {
  Case spread{.config = WideVocabulary(Family::kGpt2), .replicas = 3, .shards = true};
  spread.ends = {2, 6};
  for (const Case& c :
       {Case{.config = LargeGpt2(), .replicas = 4, .shards = true},
        Case{.config = LargeGpt2(), .schedule = "dualpipe", .shards = true},
        Case{.config = LargeGpt2(), .schedule = "dualpipe", .replicas = 2, .shards = true},
        spread}) {
    SCOPED_TRACE(absl::StrCat(c.schedule, " x ", c.replicas));
    const Job job(c);
    Moments moments;
    for (int rank = 0; rank < std::ssize(job.programs); ++rank) {
      const std::int64_t most = job.LayoutOf(rank).bytes()[MemoryKind::kOptimizer];
      std::int64_t largest = 0;
      for (int replica = 0; replica < job.replicas; ++replica)
        largest = std::max(largest, AddMoments(job.LayoutOf(rank, replica), moments));
      EXPECT_GE(most, largest);
      EXPECT_LT(most, 2 * largest);  // of small units a block is much
    }
    for (auto& [key, runs] : moments) {
      std::ranges::sort(runs, {}, &FloatRun::first);
      std::int64_t next = 0;
      for (const FloatRun& run : runs) {
        EXPECT_EQ(run.first, next) << key.second->name;
        next = run.end();
      }
      EXPECT_EQ(next, key.second->elements()) << key.second->name;
    }
  }
}

TEST(RankLayout, GivesAQuarterOfTheMomentsToEachOfFourReplicas) {
  model::ModelConfig config = Gpt2(4);
  config.hidden = 512;
  config.inner = 2048;
  // Allocations are rounded to huge pages, so their tensors count.
  const auto optimizer_bytes = [&](bool shards) {
    const Job job({.config = config, .replicas = 4, .shards = shards});
    const RankLayout layout = job.LayoutOf(0);
    double bytes = 0;
    for (const Tensor& tensor : layout.parameters.tensors) {
      const bool moment = tensor.role == Role::kFirstMoment || tensor.role == Role::kSecondMoment;
      if (moment) bytes += static_cast<double>(tensor.bytes);
    }
    return bytes;
  };
  EXPECT_NEAR(optimizer_bytes(true) / optimizer_bytes(false), 0.25, 0.03 * 0.25);
}

// A matrix that only products in bf16 read is in f32 where its shard is, and packed everywhere. The
// table of a tied model is read in f32 where its embedding is.
TEST(RankLayout, KeepsShardsInF32OfWhatIsReadPacked) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(absl::StrCat(ranks, " pp ranks"));
    const Job job({.config = LargeGpt2(),
                   .ranks = ranks,
                   .precisions = {.products = Precision::kBf16},
                   .replicas = 4,
                   .shards = true});
    std::map<std::string, std::int64_t> whole, shards;  // elements in f32
    for (int replica = 0; replica < job.replicas; ++replica) {
      const RankLayout layout = job.LayoutOf(ranks - 1, replica);
      ExpectSound(layout);
      for (const Tensor& tensor : layout.parameters.tensors) {
        if (tensor.role == Role::kWeight) whole[tensor.parameter->name] = tensor.bytes / 4;
        if (tensor.role == Role::kWeightShard) shards[tensor.parameter->name] += tensor.bytes / 4;
      }
    }
    for (const model::Layer& layer : job.model.layers) {
      const bool here = layer.block >= (ranks == 1 ? 0 : 2);
      for (const model::Parameter& parameter : layer.parameters) {
        if (!here) continue;
        EXPECT_EQ((layer.MultipliesBy(parameter) ? shards : whole)[parameter.name],
                  parameter.elements())
            << parameter.name;
      }
    }
    EXPECT_EQ(whole.contains("transformer.wte.weight"), ranks == 1);
    EXPECT_EQ(shards.contains("transformer.wte.weight"), ranks == 2);
  }
}

// Scales of FP8 are made of the whole matrix.
TEST(RankLayout, KeepsAllInF32WhereMatricesArePackedInFp8) {
  const Job job({.config = LargeGpt2(),
                 .ranks = 1,
                 .precisions = {.products = Precision::kBf16, .fp8 = model::Fp8Recipe::kTensor},
                 .replicas = 2,
                 .shards = true});
  for (const Tensor& tensor : job.LayoutOf(0).parameters.tensors) {
    EXPECT_NE(tensor.role, Role::kWeightShard);
    EXPECT_NE(tensor.role, Role::kGatheredWeights);
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

// Weights that products read in either order have one copy, and joined ones follow one another.
TEST(RankLayout, KeepsMatricesOnceWhereProductsReadThemAsStored) {
  model::ModelConfig config = Llama(Family::kLlama, 2);
  config.heads = 3, config.kv_heads = 1, config.head_size = 8, config.inner = 40;
  const model::Precisions precisions = {Precision::kBf16, Precision::kBf16};
  const Job job({.config = config, .schedule = "pipedream-2bw", .precisions = precisions});
  const RankLayout layout = job.LayoutOf(0);
  int joined = 0;
  const Tensor* before = nullptr;
  for (const Tensor& tensor : layout.parameters.tensors) {
    EXPECT_NE(tensor.role, Role::kPackedTransposedWeight);
    if (tensor.role != Role::kPackedWeight) continue;
    const std::vector<std::int64_t>& shape = tensor.parameter->shape;
    EXPECT_EQ(tensor.bytes, 2 * RoundedElements(shape[0], shape[1])) << tensor.parameter->name;
    if (before != nullptr && before->parameter->adjoins_next) {
      ++joined;
      EXPECT_EQ(tensor.allocation, before->allocation);
      EXPECT_EQ(tensor.version, before->version);
      EXPECT_EQ(tensor.offset, before->offset + before->bytes);
    }
    before = &tensor;
  }
  // k behind q, v behind k and up behind gate, in two versions of each block.
  const int blocks = static_cast<int>(std::ranges::count_if(
      layout.stages.at(StageId(0)).layers,
      [&](const auto& each) { return job.model.layers[each.layer.value()].block >= 0; }));
  EXPECT_EQ(joined, 3 * 2 * blocks);
  EXPECT_GT(blocks, 0);
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

TEST(RankLayout, KeepsForeseenWeightsBesideTheTrueOnes) {
  const Job job({.config = Llama(Family::kLlama, 2), .schedule = "1f1b"});
  const program::Program overlapped = program::RemoveBarrier(job.programs).value()[0];
  const RankLayout layout =
      LayOutRank({.model = job.model, .partition = job.partition, .program = overlapped});
  std::map<const model::Parameter*, std::set<int>> versions;
  for (const Tensor& tensor : layout.parameters.tensors) {
    if (tensor.role == Role::kWeight) versions[tensor.parameter].insert(tensor.version);
  }
  ASSERT_FALSE(versions.empty());
  for (const auto& [parameter, held] : versions) EXPECT_EQ(held, (std::set{0, program::kForeseen}));
  EXPECT_EQ(layout.bytes()[MemoryKind::kWeights],
            2 * job.LayoutOf(0).bytes()[MemoryKind::kWeights]);
}

TEST(RankLayout, CountsTheSnapshotOfTheReplicaThatWritesMost) {
  const Job job({.config = Gpt2(2), .ranks = 1});
  const auto snapshot = [&](int num_replicas) {
    return LayOutRank({.model = job.model,
                       .partition = job.partition,
                       .program = job.programs[0],
                       .saves = true,
                       .num_replicas = num_replicas})
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
