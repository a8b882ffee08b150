// SPDX-License-Identifier: Apache-2.0
#include "common/plan/ranking.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/plan/fit.h"
#include "common/plan/refine.h"
#include "common/plan/spread.h"
#include "common/schedule/generate.h"

namespace takt::plan {
namespace {

// Returns what counts of the rank that needs most.
std::int64_t MostBytes(const Candidate& candidate, const PlanOptions& options) {
  return CountedBytes(Largest(candidate, options), options.device);
}

constexpr std::string_view kAuto = "auto";
constexpr std::string_view kFileScheme = "file:";

// Returns the families to compare: the one that the job names, or all that compute what a single
// process would.
absl::StatusOr<std::vector<std::string>> FamiliesToTry(const std::string& asked) {
  std::vector<std::string> names, synchronous;
  for (const schedule::Family& family : schedule::Families()) {
    if (family.name == asked) return std::vector<std::string>{asked};
    names.emplace_back(family.name);
    if (family.updates == schedule::Updates::kFlush) synchronous.emplace_back(family.name);
  }
  if (asked == kAuto) return synchronous;
  return InvalidField(
      {.field = "parallelism.schedule",
       .value = asked,
       .rule = absl::StrCat("must be one of auto, ", absl::StrJoin(names, ", "), ", or file:PATH"),
       .fix = "see `takt schedule list`"});
}

double StepSeconds(const Candidate& candidate) { return candidate.report.step_time; }

bool Spreads(const Candidate& candidate) { return !candidate.plan.vocabulary_ends.empty(); }

bool KeepsCopies(const Candidate& candidate) {
  return std::ranges::any_of(candidate.plan.memory, [](const MemoryBytes& bytes) {
    return bytes[MemoryKind::kCopies] > 0;
  });
}

std::int64_t PeakBytes(const Candidate& candidate) {
  return std::ranges::max_element(candidate.report.ranks, {}, &sim::RankReport::peak_stash_bytes)
      ->peak_stash_bytes;
}

// Predictions that are closer than this count as equal, because they are no more exact than that.
constexpr double kIndifference = 1.01;

// Returns what makes a candidate better than another whose step is as long. Each further chunk has
// costs that no prediction knows, so fewer stages come before less memory. The meetings of a spread
// vocabulary and steps that overlap have such costs too.
auto Size(const Candidate& candidate) {
  const mesh::Mesh& mesh = candidate.plan.mesh;
  return std::tuple(mesh.size(), mesh.dp_size, Spreads(candidate), OverlapsSteps(candidate.plan),
                    candidate.plan.schedule.num_stages, PeakBytes(candidate),
                    candidate.report.peak_in_flight(), StepSeconds(candidate));
}

// Where more steps are clipped than this, `barrier: auto` keeps the barrier: a step that was not
// foreseen takes longer than the barrier does.
constexpr double kMostClipped = 0.05;

// Returns whether the job leaves it to the plan, and steps are rarely clipped.
bool MayOverlap(const JobInputs& inputs) {
  const PlanOptions& options = inputs.options();
  const bool clips = config::TraitsOf(inputs.job()).clip_norm > 0;
  const std::optional<double> clipped = clips ? options.clipped_share : std::optional<double>(0);
  return inputs.job().barrier == config::Barrier::kAuto && clipped && *clipped <= kMostClipped &&
         options.oldest_protocol >= kAllFieldsProtocolVersion;
}

// So many of the best candidates get better partitions, however many a caller wants to see.
constexpr std::size_t kRefined = 3;

// Collects candidates and keeps the best.
class Ranker {
 public:
  Ranker(JobInputs& inputs, std::size_t top) : inputs_(inputs), top_(std::max(top, kRefined)) {}

  // error: why no candidate can be made, or OK if one could be.
  void Refuse(Refusal refusal, const absl::Status& error) {
    first_error_.Update(error);
    ranking_.refused.push_back(std::move(refusal));
  }

  void Add(Candidate candidate) {
    if (Fits(candidate, inputs_.options())) {
      AddWithoutBarrier(candidate);
      ranking_.candidates.push_back(std::move(candidate));
      return;
    }
    ranking_.refused.push_back(RefusalOf(
        inputs_, candidate,
        absl::StrCat("a rank needs ", FormatMemory(MostBytes(candidate, inputs_.options())), " of ",
                     FormatMemory(inputs_.options().worker_memory_bytes))));
    KeepNearest(std::move(candidate));
  }

  void Merge(Ranker other) {
    std::ranges::move(other.ranking_.candidates, std::back_inserter(ranking_.candidates));
    std::ranges::move(other.ranking_.refused, std::back_inserter(ranking_.refused));
    if (other.nearest_) KeepNearest(*std::move(other.nearest_));
    first_error_.Update(other.first_error_);
  }

  bool any_fits() const { return !ranking_.candidates.empty(); }
  bool any() const { return any_fits() || nearest_.has_value(); }

  // Returns whether the best candidate that spreads the vocabulary is better than one that does not
  // by more than counts.
  bool SpreadPays() const {
    const Candidate* best[2] = {nullptr, nullptr};  // that does not, and that does
    for (const Candidate& candidate : ranking_.candidates) {
      const Candidate*& known = best[Spreads(candidate) ? 1 : 0];
      if (known == nullptr || StepSeconds(candidate) < StepSeconds(*known)) known = &candidate;
    }
    if (best[0] == nullptr || best[1] == nullptr) return best[1] != nullptr;
    return StepSeconds(*best[1]) * kIndifference < StepSeconds(*best[0]);
  }

  // Returns whether a step that takes at least so long is longer than the best by more than counts.
  bool IsBeaten(double least_seconds) const {
    const auto best = std::ranges::min_element(ranking_.candidates, {}, StepSeconds);
    return any_fits() && least_seconds > StepSeconds(*best) * kIndifference;
  }

  // Gives the first candidates better partitions, and sorts them in again.
  void Refine() {
    std::vector<Candidate>& all = ranking_.candidates;
    for (std::size_t i = 0; i < std::min(all.size(), kRefined); ++i) {
      const CandidateInputs inputs = inputs_.Of(all[i]);
      all[i] = WithBetterPartition(inputs, std::move(all[i]));
    }
    Sort();
  }

  // Sorts what was collected, and drops what is over `top`.
  void Sort() {
    std::vector<Candidate>& all = ranking_.candidates;
    if (all.empty()) return;
    std::ranges::stable_sort(all, {}, StepSeconds);
    const double limit = StepSeconds(all.front()) * kIndifference;
    const auto end = std::ranges::upper_bound(all, limit, {}, StepSeconds);
    const auto best = std::min_element(
        all.begin(), end, [](const auto& a, const auto& b) { return Size(a) < Size(b); });
    std::rotate(all.begin(), best, std::next(best));
    if (all.size() > top_) all.erase(all.begin() + static_cast<std::ptrdiff_t>(top_), all.end());
  }

  // Returns the best `top`.
  absl::StatusOr<Ranking> Take(std::size_t top) && {
    if (!any_fits() && nearest_) ranking_.candidates.push_back(*std::move(nearest_));
    if (ranking_.candidates.empty()) return first_error_;
    std::vector<Candidate>& all = ranking_.candidates;
    if (all.size() > top) all.erase(all.begin() + static_cast<std::ptrdiff_t>(top), all.end());
    return std::move(ranking_);
  }

 private:
  // Adds the same step without its barrier, if that may be, fits and is shorter.
  void AddWithoutBarrier(const Candidate& candidate) {
    const Plan& plan = candidate.plan;
    if (plan.mesh.pp_size == 1 || OverlapsSteps(plan) || !MayOverlap(inputs_)) return;
    // No step is shorter than the work of the busiest rank.
    const double least = std::ranges::max(candidate.report.ranks, {}, &sim::RankReport::busy).busy;
    if (least * kIndifference >= StepSeconds(candidate)) return;
    CandidateInputs inputs = inputs_.Of(candidate);
    inputs.without_barrier = true;
    absl::StatusOr<Candidate> without =
        FromPartition(inputs, plan.schedule, plan.partition, plan.vocabulary_ends);
    // Some schedules and meshes need their barrier. Copies in memory are worth more than a shorter
    // step.
    if (!without.ok() || !Fits(*without, inputs_.options())) return;
    if (KeepsCopies(candidate) && !KeepsCopies(*without)) return;
    if (StepSeconds(*without) * kIndifference < StepSeconds(candidate))
      ranking_.candidates.push_back(*std::move(without));
  }

  void KeepNearest(Candidate candidate) {
    const PlanOptions& options = inputs_.options();
    if (!nearest_ || MostBytes(candidate, options) < MostBytes(*nearest_, options))
      nearest_ = std::move(candidate);
  }

  JobInputs& inputs_;
  const std::size_t top_;
  Ranking ranking_;
  std::optional<Candidate> nearest_;  // of those that do not fit
  absl::Status first_error_;
};

// Returns whether 1F1B fits, or it is not known. Elsewhere there is no search, which takes most of
// the time of planning: what it finds holds as much as 1F1B, but for rare schedules with less.
bool MayFit(const CandidateInputs& inputs, int pp_size) {
  const absl::StatusOr<Candidate> plain = FromFamily(inputs, "1f1b", pp_size);
  return !plain.ok() || Fits(*plain, inputs.options);
}

// Adds what a search finds. Returns whether some of it fits.
bool AddSearchedOnce(const CandidateInputs& inputs, schedule::Placement placement, int pp_size,
                     int num_chunks, Ranker& ranker) {
  if (!MayFit(inputs, pp_size)) return false;
  bool fits = false;
  for (Candidate& found : FromSearch(inputs, placement, pp_size, num_chunks)) {
    fits |= Fits(found, inputs.options);
    ranker.Add(std::move(found));
  }
  return fits;
}

// Adds what a search finds for one placement and number of chunks. If nothing of it fits, replicas
// share, and then all stages compute more again.
void AddFound(CandidateInputs inputs, schedule::Placement placement, int pp_size, int num_chunks,
              Ranker& ranker) {
  using enum model::Recompute;
  if (ChoosesShares(inputs)) {
    if (AddSearchedOnce(inputs, placement, pp_size, num_chunks, ranker)) return;
    inputs.shares = true;
  }
  for (const model::Recompute mode : {kNone, kSelective, kFull}) {
    if (ChoosesRecompute(inputs)) inputs.recompute = {mode};
    const bool fits = AddSearchedOnce(inputs, placement, pp_size, num_chunks, ranker);
    if (fits || !ChoosesRecompute(inputs)) return;
  }
}

// Adds what searches find, over placements with one copy of the weights and numbers of chunks.
void AddSearched(const CandidateInputs& inputs, int pp_size, Ranker& ranker) {
  using schedule::Placement;
  const std::optional<int> asked = inputs.job.parallelism.chunks;
  for (const int num_chunks : {1, 2, 4}) {
    if (num_chunks != asked.value_or(num_chunks) || (pp_size == 1 && num_chunks > 1)) continue;
    for (const Placement placement : {Placement::kLoop, Placement::kV}) {
      if (placement == Placement::kV && num_chunks != 2) continue;
      AddFound(inputs, placement, pp_size, num_chunks, ranker);
    }
  }
}

// Says why `auto` leaves out a candidate that could run; empty: it does not.
std::string_view WhyNotForAuto(const CandidateInputs& inputs, const Candidate& candidate) {
  const schedule::Schedule& schedule = candidate.plan.schedule;
  if (schedule.placement == schedule::Placement::kBidirectional) {
    return "it has two copies of the weights, whose gradients sum to other last bits: name it to "
           "use it";
  }
  const bool chunks_on_one_rank = candidate.plan.mesh.pp_size == 1 && schedule.num_stages > 1;
  if (chunks_on_one_rank && !inputs.job.parallelism.chunks)
    return "one rank gains nothing from chunks";
  return "";
}

// Adds the candidate of a family. Returns whether there is one.
bool AddFamily(const CandidateInputs& inputs, const std::string& family, int pp_size,
               Ranker& ranker) {
  absl::StatusOr<Candidate> candidate = MakeToFit(
      inputs, [&](const CandidateInputs& its) { return FromFamily(its, family, pp_size); });
  std::string why_not(candidate.status().message());
  if (candidate.ok() && inputs.job.parallelism.schedule == kAuto)
    why_not = WhyNotForAuto(inputs, *candidate);
  if (why_not.empty()) {
    ranker.Add(*std::move(candidate));
    return true;
  }
  ranker.Refuse(
      {.mesh = inputs.MeshOf(pp_size),
       .microbatch = inputs.model.microbatch,
       .schedule = family,
       .recompute = inputs.recompute,
       .spread = inputs.spread,
       .shares = inputs.shares,
       .stage_layers = candidate.ok() ? StageLayers(inputs.model, candidate->plan.partition)
                                      : std::vector<int>(),
       .reason = std::move(why_not)},
      candidate.status());
  return false;
}

// Says that `auto` does not even try to spread the vocabulary, if that is so.
void RefuseSpread(const CandidateInputs& inputs, int pp_size, Ranker& ranker) {
  const std::string_view why_not = WhyAutoKeepsLast(inputs, pp_size);
  if (why_not.empty()) return;
  ranker.Refuse({.mesh = inputs.MeshOf(pp_size),
                 .microbatch = inputs.model.microbatch,
                 .schedule = inputs.job.parallelism.schedule,
                 .recompute = inputs.recompute,
                 .spread = true,
                 .reason = std::string(why_not)},
                absl::OkStatus());
}

// Returns the inputs under one of the modes, or nullopt if that one is not to be tried.
std::optional<CandidateInputs> Under(const CandidateInputs& inputs, VocabularyModes modes,
                                     bool spread) {
  if (!(spread ? modes.spread : modes.last)) return std::nullopt;
  CandidateInputs its = inputs;
  its.spread = spread;
  return its;
}

// Adds the families and searched schedules on `pp_size` ranks.
void AddSize(const CandidateInputs& inputs, const std::vector<std::string>& families, int pp_size,
             Ranker& ranker) {
  const config::Parallelism& asked = inputs.job.parallelism;
  const VocabularyModes modes = ModesOf(inputs, pp_size);
  const std::optional<CandidateInputs> last = Under(inputs, modes, false);
  const std::optional<CandidateInputs> spread = Under(inputs, modes, true);
  for (const std::string& family : families) {
    // A family that cannot run in one mode cannot run in the other one either.
    if (last && !AddFamily(*last, family, pp_size, ranker)) continue;
    if (spread) AddFamily(*spread, family, pp_size, ranker);
  }
  RefuseSpread(inputs, pp_size, ranker);
  // If no family fits, not even v-min, then nothing fits that a search finds.
  const bool all_families = !asked.chunks && asked.stage_layers.empty();
  const bool too_large = all_families && ranker.any() && !ranker.any_fits();
  if (asked.schedule == kAuto && !too_large) {
    // A search takes long. It looks only where the families say that it pays.
    const bool spread_pays = spread && (!last || ranker.SpreadPays());
    if (last) AddSearched(*last, pp_size, ranker);
    if (spread_pays) AddSearched(*spread, pp_size, ranker);
  }
  ranker.Sort();
}

// Adds the candidates of a schedule from a file.
void AddFile(const CandidateInputs& inputs, Ranker& ranker) {
  const VocabularyModes modes = ModesOf(inputs, inputs.job.parallelism.pipeline.value_or(2));
  int pp_size = 0;  // of the file, once that is known
  for (const bool spread : {false, true}) {
    const std::optional<CandidateInputs> its = Under(inputs, modes, spread);
    if (!its || pp_size == 1) continue;
    absl::StatusOr<Candidate> candidate = MakeToFit(*its, FromFile);
    if (candidate.ok()) {
      pp_size = candidate->plan.mesh.pp_size;
      ranker.Add(*std::move(candidate));
      continue;
    }
    const int refused = pp_size > 0 ? pp_size : inputs.job.parallelism.pipeline.value_or(1);
    ranker.Refuse({.mesh = inputs.MeshOf(refused),
                   .microbatch = inputs.model.microbatch,
                   .schedule = inputs.job.parallelism.schedule,
                   .recompute = inputs.recompute,
                   .spread = spread,
                   .reason = std::string(candidate.status().message())},
                  candidate.status());
  }
}

// A plan for each way would take too long. Ways are tried until so many have a candidate that fits
// the workers, but no more than the second number.
constexpr int kFittingWays = 4, kMostWays = 8;

// Returns whether the way needs about as much memory as one of those, or more.
bool NeedsAsMuch(const Way& way, const std::vector<Way>& others) {
  return std::ranges::any_of(others, [&](const Way& other) {
    return way.pp_size <= other.pp_size && way.division.microbatch >= other.division.microbatch;
  });
}

// Returns the way that needs about the least memory.
const Way& Leanest(const std::vector<Way>& ways) {
  return *std::ranges::min_element(ways, {}, [](const Way& way) {
    return std::tuple(way.division.microbatch, -way.pp_size, way.division.data);
  });
}

// Adds candidates of ways, those first that seem the fastest.
void AddWays(JobInputs& inputs, const std::vector<std::string>& families, std::size_t top,
             Ranker& ranker) {
  const std::vector<Way> ways = WaysOf(inputs);
  // If not all can be tried, those are left out that cannot be the best, or not fit.
  const bool chooses = std::ssize(ways) > kMostWays;
  std::vector<Way> too_large;
  int tried = 0, fitting = 0;
  const auto add = [&](const Way& way) {
    Ranker of_way(inputs, top);
    AddSize(inputs.Of(way.division), families, way.pp_size, of_way);
    if (of_way.any() && !of_way.any_fits()) too_large.push_back(way);
    fitting += of_way.any_fits() ? 1 : 0;
    tried += of_way.any() ? 1 : 0;
    ranker.Merge(std::move(of_way));
  };
  for (const Way& way : ways) {
    if (fitting == kFittingWays || tried == kMostWays) break;
    const bool leave_out =
        chooses && (ranker.IsBeaten(way.least_seconds) || NeedsAsMuch(way, too_large));
    if (!leave_out) add(way);
  }
  // The fastest ways may all be too large for the workers.
  const Way& leanest = Leanest(ways);
  if (tried == kMostWays && fitting == 0 && !NeedsAsMuch(leanest, too_large)) add(leanest);
}

}  // namespace

bool Fits(const Candidate& candidate, const PlanOptions& options) {
  return options.worker_memory_bytes == 0 ||
         MostBytes(candidate, options) <= options.worker_memory_bytes;
}

const MemoryBytes& Largest(const Candidate& candidate, const PlanOptions& options) {
  return *std::ranges::max_element(candidate.plan.memory, {}, [&](const MemoryBytes& bytes) {
    return CountedBytes(bytes, options.device);
  });
}

Refusal RefusalOf(JobInputs& inputs, const Candidate& candidate, std::string reason) {
  return {.mesh = candidate.plan.mesh,
          .microbatch = candidate.plan.microbatch,
          .schedule = candidate.plan.schedule.name,
          .recompute = RecomputeOf(candidate),
          .spread = Spreads(candidate),
          .shares = SharesOptimizer(candidate.plan),
          .stage_layers = StageLayers(inputs.Of(candidate).model, candidate.plan.partition),
          .reason = std::move(reason)};
}

absl::StatusOr<Ranking> RankCandidates(JobInputs& inputs, std::size_t top) {
  const std::string& asked = inputs.job().parallelism.schedule;
  Ranker ranker(inputs, top);
  for (const Refusal& refusal : inputs.refused()) ranker.Refuse(refusal, absl::OkStatus());
  if (asked.starts_with(kFileScheme)) {
    AddFile(inputs.Of(inputs.divisions().front()), ranker);
    ranker.Sort();
  } else {
    ASSIGN_OR_RETURN(const std::vector<std::string> families, FamiliesToTry(asked));
    AddWays(inputs, families, top, ranker);
    ranker.Sort();
  }
  ranker.Refine();
  return std::move(ranker).Take(top);
}

}  // namespace takt::plan
