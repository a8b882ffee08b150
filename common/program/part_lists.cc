// SPDX-License-Identifier: Apache-2.0
#include "common/program/part_lists.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::program {
namespace {

using Key = std::tuple<Op, StageId, StageId>;  // the last one: of the B of an O

Key KeyOf(const PartList& list) { return {list.op, list.stage, list.backward_stage}; }
Key KeyOf(const Instruction& instruction) {
  return {instruction.op, instruction.stage, instruction.backward_stage};
}

// Adds a pass over a layer. Without a list it only computes. What is computed without a meeting in
// between is one part.
void Add(const std::vector<Part>& pass, std::vector<Part>& parts) {
  const std::vector<Part> compute = {Part{}};
  for (const Part& part : pass.empty() ? compute : pass) {
    const bool goes_on = !part.meets() && !parts.empty() && !parts.back().meets();
    if (!goes_on) parts.push_back(part);
  }
}

class ListMaker {
 public:
  ListMaker(const Program& program, const std::vector<StageShape>& stages)
      : program_(program), stages_(stages) {}

  std::vector<Part> Make(const Key& key) const {
    const auto [op, stage, backward_stage] = key;
    if (op == Op::kNormPartial) return OfNorm();
    std::vector<Part> parts;
    if (op == Op::kOverlap) {
      AddPasses(Op::kForward, stage, parts);
      AddPasses(Op::kBackward, backward_stage, parts);
    } else {
      AddPasses(op, stage, parts);
    }
    return parts;
  }

 private:
  // Adds the passes over the layers of a stage. op: F, I, W or B.
  void AddPasses(Op op, StageId stage, std::vector<Part>& parts) const {
    const int num_layers = NumLayers(stage);
    for (int i = 0; i < num_layers; ++i) {
      const model::LayerParts& up = Layer(stage, i);
      const model::LayerParts& down = Layer(stage, num_layers - 1 - i);
      if (op == Op::kForward) Add(up.forward, parts);
      if (op == Op::kInputGrad || op == Op::kBackward) Add(down.input_grad, parts);
      if (op == Op::kWeightGrad || op == Op::kBackward) Add(down.weight_grad, parts);
    }
  }

  // Returns one meeting for all layers that the rank counts in the norm.
  std::vector<Part> OfNorm() const {
    Part meeting = {PartKind::kExchange, PartGroup::kTensor};
    for (const StageId stage : HeldStages(program_)) {
      if (!IsPrimary(program_, stage)) continue;
      for (const model::LayerParts& layer : stages_[stage.value()].layers)
        meeting.bytes += layer.norm_bytes;
    }
    if (meeting.bytes == 0) return {};
    return {meeting, Part{}};
  }

  int NumLayers(StageId stage) const {
    const StageShape& shape = stages_[stage.value()];
    return shape.last_layer.value() - shape.first_layer.value();
  }

  const model::LayerParts& Layer(StageId stage, int layer) const {
    const std::vector<model::LayerParts>& layers = stages_[stage.value()].layers;
    return layers.empty() ? computes_ : layers[layer];
  }

  const Program& program_;
  const std::vector<StageShape>& stages_;
  const model::LayerParts computes_{};  // of a layer without lists
};

// F, I, W, B or O.
bool HasPasses(Op op) { return IsCompute(op) && !IsOfVocabulary(op); }

std::string_view ProblemOf(const Program& program, const PartList& list) {
  const auto has_stage = [&](StageId stage) {
    return stage.value() >= 0 && stage.value() < program.num_stages;
  };
  const bool norm = list.op == Op::kNormPartial;
  if (!norm && !HasPasses(list.op)) return "is of no op in which ranks meet";
  if (norm ? list.stage.value() != -1 : !has_stage(list.stage)) return "has a stage out of range";
  const bool pair = list.op == Op::kOverlap;
  if (pair != has_stage(list.backward_stage) || (!pair && list.backward_stage.value() != -1)) {
    return "has a stage of a backward exactly if it is of an O";
  }
  if (std::ranges::none_of(list.parts, &Part::meets)) return "has no meeting";
  if (std::ranges::all_of(list.parts, &Part::meets)) return "computes nothing";
  for (std::size_t i = 0; i < list.parts.size(); ++i) {
    const Part& part = list.parts[i];
    if (part.kind < PartKind::kCompute || part.kind > PartKind::kExchange) {
      return "has a part of no known kind";
    }
    const bool has_group = part.group >= PartGroup::kTensor && part.group <= PartGroup::kExpert;
    if (part.meets() != has_group || (!has_group && part.group != PartGroup::kNone)) {
      return "has a part with a group exactly if it is a meeting";
    }
    if (part.bytes < 0 || (part.bytes > 0 && !part.meets())) return "has a part of no size";
    if (i > 0 && !part.meets() && !list.parts[i - 1].meets()) return "computes in two parts";
  }
  return "";
}

}  // namespace

std::vector<PartList> MakePartLists(const Program& program, const std::vector<StageShape>& stages) {
  std::set<Key> keys;
  for (const auto* part : {&program.prologue, &program.body, &program.epilogue}) {
    for (const Instruction& instruction : *part) {
      if (instruction.op != Op::kNormPartial && !HasPasses(instruction.op)) continue;
      keys.insert(KeyOf(instruction));
      if (instruction.op == Op::kOverlap) {
        keys.insert({Op::kForward, instruction.stage, StageId(-1)});
        keys.insert({Op::kBackward, instruction.backward_stage, StageId(-1)});
      }
    }
  }
  const ListMaker maker(program, stages);
  std::vector<PartList> lists;
  for (const Key& key : keys) {
    std::vector<Part> parts = maker.Make(key);
    if (std::ranges::none_of(parts, &Part::meets)) continue;
    if (std::ranges::all_of(parts, &Part::meets)) parts.emplace_back();
    const auto& [op, stage, backward_stage] = key;
    lists.push_back({op, stage, backward_stage, std::move(parts)});
  }
  return lists;
}

std::span<const Part> PartListOf(const Instruction& instruction, const Program& program) {
  if (program.part_lists.empty()) return {};
  const auto found = std::ranges::find_if(
      program.part_lists, [&](const PartList& list) { return KeyOf(list) == KeyOf(instruction); });
  if (found == program.part_lists.end()) return {};
  return found->parts;
}

std::vector<std::size_t> MeetingOffsets(const Program& program) {
  std::vector<std::size_t> offsets = {0};
  offsets.reserve(program.body.size() + 1);
  for (const Instruction& instruction : program.body) {
    const std::span<const Part> parts = PartListOf(instruction, program);
    offsets.push_back(offsets.back() +
                      static_cast<std::size_t>(std::ranges::count_if(parts, &Part::meets)));
  }
  return offsets;
}

std::size_t NumMeetings(const Program& program) {
  return program.part_lists.empty() ? 0 : MeetingOffsets(program).back();
}

std::string PartName(std::span<const Part> parts, std::size_t number) {
  return absl::StrCat(std::string(model::Name(parts[number].kind)), "(", number, ")");
}

absl::Status CheckPartLists(const Program& program) {
  for (std::size_t i = 0; i < program.part_lists.size(); ++i) {
    const PartList& list = program.part_lists[i];
    std::string_view problem = ProblemOf(program, list);
    const bool ascends = i == 0 || KeyOf(program.part_lists[i - 1]) < KeyOf(list);
    if (problem.empty() && !ascends) problem = "is not in ascending order";
    if (problem.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat("program of pp rank ", program.pp_rank.value(),
                                                   ": list of parts ", i, " ",
                                                   std::string(problem)));
  }
  return absl::OkStatus();
}

}  // namespace takt::program
