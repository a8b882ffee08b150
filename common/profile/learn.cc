// SPDX-License-Identifier: Apache-2.0
#include "common/profile/learn.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "common/base/direct_ranks.h"
#include "common/base/median.h"
#include "common/base/status.h"
#include "common/profile/head_share.h"
#include "common/profile/pair_ratio.h"
#include "common/profile/parameter_counts.h"
#include "common/program/part_lists.h"
#include "common/program/program.h"
#include "common/program/remove_barrier.h"
#include "common/trace/messages.h"
#include "common/trace/timeline.h"

namespace takt::profile {
namespace {

using program::Instruction;
using program::Op;
using trace::Place;
using trace::Slice;

// Rates that divide the time of a stage between layers of which nothing is known yet.
constexpr double kUsualFlopsPerSecond = 1e11, kUsualBytesPerSecond = 1e10;

// The layers of one shape in a stage.
struct Part {
  Profile::LayerKey key;
  Passes work;  // of each of them
  int count = 0;
};

// The values of one step, whose mean counts.
struct Mean {
  double sum = 0;
  int count = 0;

  void Add(double value, int times = 1) {
    sum += value;
    count += times;
  }
};

Passes UsualSeconds(const Part& part) {
  const double rate = part.key.first.kind == model::LayerKind::kEmbedding ? kUsualBytesPerSecond
                                                                          : kUsualFlopsPerSecond;
  return {.forward = part.work.forward / rate,
          .input_grad = part.work.input_grad / rate,
          .weight_grad = part.work.weight_grad / rate};
}

class Learner {
 public:
  Learner(const trace::Timeline& timeline, const TracedJob& job, double weight, Profile& profile)
      : timeline_(timeline),
        trace_(*timeline.trace),
        job_(job),
        weight_(weight),
        profile_(profile) {}

  void Run() {
    if (job_.model.config.family != model::Family::kEmulated) {
      // Where ranks share experts, a layer's time depends on how even their loads were.
      if (!job_.model.experts.shares()) LearnLayers();
      if (spread()) LearnWords();
      LearnPairs();
      LearnUpdates();
      LearnSums();
    }
    LearnMessages();
    LearnMeetings();
  }

 private:
  // Names a stage under the conditions of the rank that ran it.
  using StageKey = std::pair<StageId, Conditions>;
  using PassSamples = std::map<Op, std::vector<double>>;

  bool spread() const { return !job_.vocabulary_ends.empty(); }

  // Returns whether the instruction works on the rows of words that ranks have under `vocabulary:
  // spread`. Its stage does not exist.
  bool IsOfRows(const Instruction& instruction) const {
    return instruction.stage.value() >= std::ssize(job_.partition);
  }

  const Conditions& ConditionsOf(int rank) const { return job_.places[rank].conditions; }
  const std::string& HostOf(int rank) const { return job_.places[rank].host; }

  static double Seconds(std::int64_t nanos) { return static_cast<double>(nanos) * 1e-9; }

  double ComputeSeconds(int step, const Slice& slice) const {
    return Seconds(
        trace::ComputeNanos(slice, meeting_index_.At(step, {slice.rank, slice.instruction})));
  }

  // Calls visit(slice, instruction) for each instruction of one rank and step.
  template <class Visit>
  void ForEach(int rank, int step, Visit visit) const {
    const program::Program& program = trace_.ProgramOf(rank);
    for (std::size_t i = 0; i < program.body.size(); ++i) {
      const std::size_t slice = index_(step, {rank, static_cast<std::int32_t>(i)});
      visit(timeline_.slices[slice], program.body[i]);
    }
  }

  std::map<StageKey, PassSamples> PassesOfStages() const {
    std::map<StageKey, PassSamples> samples;
    for (int rank = 0; rank < trace_.num_ranks(); ++rank) {
      const HeadShare head(job_.model, job_.partition, trace_.ProgramOf(rank));
      for (int step = 0; step < trace_.num_steps(); ++step) {
        std::map<std::pair<StageId, Op>, Mean> means;
        ForEach(rank, step, [&](const Slice& slice, const Instruction& instruction) {
          const Op op = instruction.op;
          if (!program::IsCompute(op) || op == Op::kOverlap || IsOfRows(instruction)) return;
          const double seconds = ComputeSeconds(step, slice),
                       moved = seconds * head.In(instruction);
          means[{instruction.stage, op}].Add(seconds - moved, instruction.num_microbatches);
          if (moved > 0) means[{instruction.stage, Op::kForward}].sum += moved;
        });
        for (const auto& [stage_and_op, mean] : means) {
          samples[{stage_and_op.first, ConditionsOf(rank)}][stage_and_op.second].push_back(
              mean.sum / mean.count);
        }
      }
    }
    return samples;
  }

  std::vector<Part> PartsOf(StageId id, const Conditions& conditions) const {
    const mesh::Stage& stage = job_.partition[id.value()];
    std::vector<Part> parts;
    for (int i = stage.first_layer.value(); i < stage.last_layer.value(); ++i) {
      const model::Layer& layer = job_.model.layers[i];
      if (spread() && HasWords(layer)) continue;
      const Profile::LayerKey key = {ShapeOf(job_.model, layer, stage.recompute), conditions};
      auto part = std::ranges::find(parts, key, &Part::key);
      if (part == parts.end())
        part = parts.insert(part, Part{.key = key, .work = WorkOf(layer, stage.recompute)});
      ++part->count;
    }
    return parts;
  }

  // Returns how long the stage took. A B is divided into I and W by their work. Nullopt: it has no
  // F or no backward.
  static std::optional<Passes> StageSeconds(const PassSamples& samples, const Passes& work) {
    const auto median = [&](Op op) -> std::optional<double> {
      const auto found = samples.find(op);
      if (found == samples.end()) return std::nullopt;
      return Median(found->second);
    };
    const auto forward = median(Op::kForward), input_grad = median(Op::kInputGrad),
               weight_grad = median(Op::kWeightGrad), backward = median(Op::kBackward);
    if (!forward) return std::nullopt;
    if (input_grad && weight_grad)
      return Passes{.forward = *forward, .input_grad = *input_grad, .weight_grad = *weight_grad};
    const double both = work.input_grad + work.weight_grad;
    if (!backward || both <= 0) return std::nullopt;
    return Passes{.forward = *forward,
                  .input_grad = *backward * work.input_grad / both,
                  .weight_grad = *backward * work.weight_grad / both};
  }

  void LearnLayers() {
    std::vector<std::pair<std::vector<Part>, Passes>> mixed;
    std::map<Profile::LayerKey, std::vector<LayerSample>> learned;
    for (const auto& [key, samples] : PassesOfStages()) {
      const std::vector<Part> parts = PartsOf(key.first, key.second);
      Passes work;
      for (const Part& part : parts) {
        work.input_grad += part.count * part.work.input_grad;
        work.weight_grad += part.count * part.work.weight_grad;
      }
      const std::optional<Passes> seconds = StageSeconds(samples, work);
      if (!seconds || parts.empty()) continue;
      if (parts.size() > 1) {
        mixed.emplace_back(parts, *seconds);
        continue;
      }
      const Part& part = parts.front();
      learned[part.key].push_back({.work = part.work,
                                   .seconds = {.forward = seconds->forward / part.count,
                                               .input_grad = seconds->input_grad / part.count,
                                               .weight_grad = seconds->weight_grad / part.count}});
    }
    std::map<Profile::LayerKey, LayerSample> pure;
    for (const auto& [key, samples] : learned) pure.emplace(key, MeanOf(samples));
    for (const auto& [parts, seconds] : mixed) Divide(parts, seconds, pure, learned);
    for (const auto& [key, samples] : learned) profile_.AddLayer(key, MeanOf(samples), weight_);
  }

  void LearnPairs() {
    std::map<Conditions, std::vector<double>> ratios;
    for (int rank = 0; rank < trace_.num_ranks(); ++rank) {
      for (int step = 0; step < trace_.num_steps(); ++step) {
        PairRatio ratio(trace_.ProgramOf(rank), trace_.predicted.halves_run_beside);
        ForEach(rank, step, [&](const Slice& slice, const Instruction& instruction) {
          ratio.Add(instruction, ComputeSeconds(step, slice));
        });
        if (ratio.Get() > 0) ratios[ConditionsOf(rank)].push_back(ratio.Get());
      }
    }
    for (auto& [conditions, values] : ratios)
      profile_.AddPair(conditions, Median(std::move(values)), weight_);
  }

  // Learns S and T of the words of each rank.
  void LearnWords() {
    std::map<Profile::LayerKey, PassSamples> samples;
    std::map<Profile::LayerKey, Passes> work;
    for (int rank = 0; rank < trace_.num_ranks(); ++rank) {
      const PpRank pp_rank = trace_.mesh.PpRankOf(Rank(rank));
      const std::int64_t words =
          mesh::WordsOf(job_.vocabulary_ends, pp_rank, job_.model.config.vocab).words;
      if (words == 0) continue;
      const Profile::LayerKey key = {ShapeOfWords(job_.model, words), ConditionsOf(rank)};
      work[key] = WorkOfWords(job_.model, words);
      for (int step = 0; step < trace_.num_steps(); ++step) {
        std::map<Op, Mean> means;
        ForEach(rank, step, [&](const Slice& slice, const Instruction& instruction) {
          if (instruction.op == Op::kVocabularyForward || instruction.op == Op::kVocabularyBackward)
            means[instruction.op].Add(Seconds(slice.end_nanos - slice.start_nanos));
        });
        for (const auto& [op, mean] : means) samples[key][op].push_back(mean.sum / mean.count);
      }
    }
    for (auto& [key, passes] : samples) {
      if (passes.size() < 2) continue;
      profile_.AddLayer(key,
                        {.work = work[key],
                         .seconds = {.forward = Median(passes[Op::kVocabularyForward]),
                                     .input_grad = Median(passes[Op::kVocabularyBackward]),
                                     .weight_grad = 0}},
                        weight_);
    }
  }

  // Divides the time of a stage between its parts. Those that have stages of their own elsewhere
  // take what they take there.
  void Divide(const std::vector<Part>& parts, const Passes& seconds,
              const std::map<Profile::LayerKey, LayerSample>& pure,
              std::map<Profile::LayerKey, std::vector<LayerSample>>& learned) const {
    std::vector<const Part*> rest;
    std::vector<LayerSample> shares;  // of `rest`; first what is expected
    Passes left = seconds, expected;
    for (const Part& part : parts) {
      if (const auto known = pure.find(part.key); known != pure.end()) {
        Add(known->second.seconds, -part.count, left);
        continue;
      }
      const auto found = profile_.FindLayer(part.key, part.work);
      rest.push_back(&part);
      shares.push_back({.work = part.work, .seconds = found ? found->seconds : UsualSeconds(part)});
      Add(shares.back().seconds, part.count, expected);
    }
    for (std::size_t i = 0; i < rest.size(); ++i) {
      Passes& share = shares[i].seconds;
      share = {.forward = Share(share.forward, left.forward, expected.forward),
               .input_grad = Share(share.input_grad, left.input_grad, expected.input_grad),
               .weight_grad = Share(share.weight_grad, left.weight_grad, expected.weight_grad)};
      learned[rest[i]->key].push_back(shares[i]);
    }
  }

  static void Add(const Passes& more, double times, Passes& sum) {
    sum.forward += times * more.forward;
    sum.input_grad += times * more.input_grad;
    sum.weight_grad += times * more.weight_grad;
  }

  // What is left may be less than nothing, because stages differ a little.
  static double Share(double one, double left, double expected) {
    return expected > 0 ? std::max(left, 0.0) * one / expected : 0;
  }

  static LayerSample MeanOf(const std::vector<LayerSample>& samples) {
    LayerSample mean{.work = samples.front().work};
    for (const LayerSample& sample : samples)
      Add(sample.seconds, 1.0 / static_cast<double>(samples.size()), mean.seconds);
    return mean;
  }

  // Without a flush there are several updates a step, and with mirrors a stage is updated twice.
  void LearnUpdates() {
    const bool plain = std::ranges::none_of(trace_.programs, [](const program::Program& program) {
      return program::IsAsynchronous(program) || program.mirror.value() >= 0;
    });
    if (!plain) return;
    std::map<Conditions, std::pair<std::vector<double>, std::vector<double>>> samples;
    const std::map<std::pair<int, StepId>, double> gaps = RuntimeGaps();
    const std::vector<double> updated =
        UpdatedParameters(job_.model, job_.partition, trace_.mesh.pp_size, job_.vocabulary_ends);
    // Replicas that share the optimizer's state update their shards alone.
    const int sharers = SharesOptimizer() ? trace_.mesh.num_replicas() : 1;
    for (int rank = 0; rank < trace_.num_ranks(); ++rank) {
      const double parameters = updated[trace_.mesh.PpRankOf(Rank(rank)).value()] / sharers;
      auto& [updates, dispatches] = samples[ConditionsOf(rank)];
      for (int step = 0; step < trace_.num_steps(); ++step) {
        double update = 0;
        int instructions = 0;
        StepId id;
        ForEach(rank, step, [&](const Slice& slice, const Instruction& instruction) {
          id = slice.step;
          if (instruction.op == Op::kNormPartial || instruction.op == Op::kOptimizer)
            update += ComputeSeconds(step, slice);
          instructions += program::IsCompute(instruction.op) ? 1 : 0;
        });
        if (parameters > 0) updates.push_back(update / parameters);
        const auto gap = gaps.find({rank, id});
        dispatches.push_back((gap == gaps.end() ? 0 : gap->second) / std::max(instructions, 1));
      }
    }
    for (auto& [conditions, values] : samples) {
      if (values.first.empty()) continue;
      profile_.AddRank(conditions,
                       {.update_seconds = Median(std::move(values.first)),
                        .dispatch_seconds = Median(std::move(values.second))},
                       weight_);
    }
  }

  // The time that compute lanes ran nothing although nothing was missing, by rank and step.
  std::map<std::pair<int, StepId>, double> RuntimeGaps() const {
    std::map<std::pair<int, StepId>, double> gaps;
    for (const trace::Idle& idle : timeline_.idle) {
      if (idle.cause == trace::Cause::kRuntime)
        gaps[{idle.rank, idle.step}] += Seconds(idle.end_nanos - idle.start_nanos);
    }
    return gaps;
  }

  const Slice& At(int step, Place place) const { return timeline_.slices[index_(step, place)]; }

  // The time from when all of them were ready until the last one ended.
  double Together(int step, const std::vector<Place>& places) const {
    std::int64_t start = 0, end = 0;
    for (const Place& place : places) {
      const Slice& slice = At(step, place);
      start = place == places.front() ? slice.start_nanos : std::max(start, slice.start_nanos);
      end = std::max(end, slice.end_nanos);
    }
    return Seconds(std::max<std::int64_t>(end - start, 0));
  }

  void LearnMessages() {
    std::map<std::pair<bool, std::int64_t>, std::vector<double>> samples;
    std::map<std::tuple<std::string, std::string, std::int64_t>, std::vector<double>> of_links;
    for (const trace::Message& message : trace::FindMessages(trace_)) {
      const program::Program& program = trace_.ProgramOf(message.send.rank);
      const Instruction& send = program.body[message.send.instruction];
      if (send.reads.empty()) continue;
      const std::int64_t bytes = program.slots[send.reads.front().value()].bytes;
      const std::string& from = HostOf(message.send.rank);
      const std::string& to = HostOf(message.recv.rank);
      for (int step = 0; step < trace_.num_steps(); ++step) {
        const double seconds = Together(step, {message.send, message.recv});
        samples[{from == to, bytes}].push_back(seconds);
        if (from != to) of_links[{from, to, bytes}].push_back(seconds);
      }
    }
    for (auto& [key, seconds] : samples) {
      profile_.AddMessage(KeyOfMessage(key.first, key.second),
                          {.bytes = key.second, .seconds = Median(std::move(seconds))}, weight_);
    }
    for (auto& [key, seconds] : of_links) {
      const auto& [from, to, bytes] = key;
      profile_.AddLink(KeyOfLink(from, to, bytes),
                       {.bytes = bytes, .seconds = Median(std::move(seconds))}, weight_);
    }
  }

  // Names meetings of as many ranks, on one host or not, with as many bytes.
  using MeetingsKey = std::tuple<bool, int, std::int64_t>;

  // Adds the time of a meeting from when all were there until the last one left it.
  void AddMeeting(int step, const Slice& meeting, std::int64_t bytes,
                  std::map<MeetingsKey, Mean>& means) const {
    const std::vector<const Slice*> together = meeting_index_.Together(step, meeting);
    if (together.front()->rank != meeting.rank) return;  // it counts once
    bool same_host = true;
    std::int64_t start = meeting.start_nanos, end = meeting.end_nanos;
    for (const Slice* each : together) {
      same_host &= HostOf(each->rank) == HostOf(meeting.rank);
      start = std::max(start, each->start_nanos);
      end = std::max(end, each->end_nanos);
    }
    means[{same_host, static_cast<int>(together.size()), bytes}].Add(Seconds(end - start));
  }

  void LearnMeetings() {
    std::map<MeetingsKey, std::vector<double>> samples;
    for (int step = 0; step < trace_.num_steps(); ++step) {
      std::map<MeetingsKey, Mean> means;
      for (int rank = 0; rank < trace_.num_ranks(); ++rank) {
        const program::Program& program = trace_.ProgramOf(rank);
        if (program.part_lists.empty()) continue;
        for (std::size_t i = 0; i < program.body.size(); ++i) {
          // A meeting of a pair counts only the time in which nothing else ran.
          if (program.body[i].op == Op::kOverlap) continue;
          const std::span<const program::Part> parts = PartListOf(program.body[i], program);
          const Place place{rank, static_cast<std::int32_t>(i)};
          for (const Slice& meeting : meeting_index_.At(step, place))
            AddMeeting(step, meeting, parts[meeting.part].bytes, means);
        }
      }
      for (const auto& [key, mean] : means) samples[key].push_back(mean.sum / mean.count);
    }
    for (auto& [key, seconds] : samples) {
      const auto& [same_host, num_ranks, bytes] = key;
      profile_.AddMeeting(KeyOfMeeting(same_host, num_ranks, bytes),
                          {.bytes = bytes, .seconds = Median(std::move(seconds))}, weight_);
    }
  }

  void LearnSums() {
    if (job_.leaves > 1) return;
    const std::vector<std::vector<Place>> meetings = trace::FindMeetings(trace_);
    std::map<SumKey, std::vector<double>> samples;
    for (int step = 0; step < trace_.num_steps(); ++step) {
      std::map<SumKey, std::pair<double, double>> totals;  // seconds, bytes
      for (const std::vector<Place>& meeting : meetings) {
        const Place first = meeting.front();
        const Instruction& instruction = trace_.ProgramOf(first.rank).body[first.instruction];
        // Under shards a gather is the second half of a sum. Where weights are freed there may be
        // several, and in bf16 a gather packs them, too. There the scatter tells as much.
        const bool gathers = instruction.op == Op::kGatherWeights;
        if (instruction.op != Op::kReduceGrad && !gathers) continue;
        if (gathers && ScattersTell()) continue;
        if (program::GathersForeseen(instruction, trace_.ProgramOf(first.rank))) continue;
        const bool same_host = std::ranges::all_of(
            meeting, [&](const Place& place) { return HostOf(place.rank) == HostOf(first.rank); });
        auto& [seconds, bytes] =
            totals[{.same_host = same_host, .num_ranks = static_cast<int>(meeting.size())}];
        seconds += Together(step, meeting) / SumsIn(static_cast<int>(meeting.size()));
        if (!gathers) bytes += sizeof(float) * ElementsOf(instruction, first.rank);
      }
      for (const auto& [key, total] : totals) {
        if (total.second > 0) samples[key].push_back(total.first / total.second);
      }
    }
    for (auto& [key, values] : samples) profile_.AddSum(key, Median(std::move(values)), weight_);
  }

  bool SharesOptimizer() const {
    return std::ranges::any_of(trace_.programs, program::ShardsOptimizer);
  }

  // Returns how long the meetings of so many ranks that tell of a sum take, as a share of the whole
  // sum (cost::Costs::chained_sums).
  double SumsIn(int num_ranks) const {
    const bool on_gpus = job_.places.front().conditions.threads == 0;  // which NCCL connects
    const bool chain = !on_gpus && num_ranks > kMostDirectRanks;
    if (ScattersTell()) return chain ? 1 : 0.5;
    return chain && SharesOptimizer() ? 1.5 : 1;
  }

  bool ScattersTell() const {
    return std::ranges::any_of(trace_.programs, program::FreesWeights) ||
           (SharesOptimizer() && job_.model.precisions.products == model::Precision::kBf16);
  }

  // Returns how many values a sum of gradients has.
  double ElementsOf(const Instruction& instruction, int rank) const {
    if (IsOfRows(instruction)) {  // of the embedding's use or of the head's
      return RowElements(job_.model, job_.vocabulary_ends, trace_.mesh.PpRankOf(Rank(rank))) / 2;
    }
    return GradientElements(job_.model, job_.model.layers[instruction.layer.value()], spread());
  }

  const trace::Timeline& timeline_;
  const trace::JobTrace& trace_;
  const trace::SliceIndex index_{trace_};
  const trace::MeetingIndex meeting_index_{timeline_};
  const TracedJob& job_;
  const double weight_;
  Profile& profile_;
};

}  // namespace

absl::Status Learn(const trace::JobTrace& trace, const TracedJob& job, double weight,
                   Profile& profile) {
  TAKT_CHECK(static_cast<int>(job.places.size()) == trace.num_ranks());
  if (trace.num_steps() == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const trace::Timeline timeline, trace::MakeTimeline(trace));
  Learner(timeline, job, weight, profile).Run();
  return absl::OkStatus();
}

}  // namespace takt::profile
