// SPDX-License-Identifier: Apache-2.0
#include "common/search/search.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/schedule/validator.h"
#include "common/search/solve.h"

namespace takt::search {
namespace {

using schedule::Placement;

struct Shape {
  Placement placement = Placement::kLoop;
  int num_chunks = 1;
};

absl::Status CheckSizes(const Request& request) {
  std::vector<std::pair<std::string, int>> sizes = {{"ranks", request.num_ranks},
                                                    {"microbatches", request.num_microbatches}};
  for (const int chunks : request.num_chunks) sizes.emplace_back("chunks", chunks);
  for (const auto& [field, value] : sizes) {
    if (value >= 1) continue;
    return InvalidField({field, absl::StrCat(value), "must be at least 1", "use 1 or more"});
  }
  return absl::OkStatus();
}

template <class T>
absl::Status CheckLimits(const std::vector<T>& limits, int num_ranks) {
  if (limits.size() > 1 && static_cast<int>(limits.size()) != num_ranks) {
    return InvalidField({"memory", absl::StrCat(limits.size(), " limits"),
                         "one, or one for each rank", "give one for all ranks"});
  }
  return absl::OkStatus();
}

bool Allows(Placement placement, int num_ranks, int num_microbatches, int num_chunks) {
  switch (placement) {
    case Placement::kV:
      return num_chunks == 2 && num_ranks > 1;
    case Placement::kBidirectional:
      return num_chunks == 1 && num_ranks % 2 == 0 && num_microbatches >= 2;
    default:
      return true;
  }
}

std::vector<Shape> ShapesOf(const Request& request) {
  std::vector<int> chunks = request.num_chunks;
  if (chunks.empty()) chunks = request.num_ranks == 1 ? std::vector{1} : std::vector{1, 2, 4};
  std::vector<Placement> placements = request.placements;
  if (placements.empty()) placements = {Placement::kLoop, Placement::kV};
  std::vector<Shape> shapes;
  for (const int num_chunks : chunks) {
    for (const Placement placement : placements) {
      if (Allows(placement, request.num_ranks, request.num_microbatches, num_chunks))
        shapes.push_back({placement, num_chunks});
    }
  }
  return shapes;
}

// Every rank must hold at least one microbatch on all its stages.
std::vector<std::int64_t> LeastMemory(const Problem& problem) {
  std::vector<std::int64_t> least(problem.num_ranks, 0);
  for (int rank = 0; rank < problem.num_ranks; ++rank) {
    for (const int h : problem.holders_of_rank[rank]) {
      const std::int64_t weight = problem.holders[h].weight;
      // Under bidirectional the two ways are of two microbatches.
      least[rank] = problem.placement == Placement::kBidirectional ? std::max(least[rank], weight)
                                                                   : least[rank] + weight;
    }
  }
  return least;
}

int PeakOf(const schedule::Schedule& schedule) {
  const std::vector<int> peaks = schedule::PeakInFlight(schedule);
  return *std::max_element(peaks.begin(), peaks.end());
}

class Searcher {
 public:
  explicit Searcher(const Request& request)
      : request_(request), deadline_(absl::Now() + request.max_time) {}

  absl::StatusOr<Found> Run() {
    RETURN_IF_ERROR(CheckSizes(request_));
    RETURN_IF_ERROR(CheckLimits(request_.max_in_flight, request_.num_ranks));
    RETURN_IF_ERROR(CheckLimits(request_.max_bytes, request_.num_ranks));
    const std::vector<Shape> shapes = ShapesOf(request_);
    if (shapes.empty()) {
      return InvalidField(
          {"placement", std::string(schedule::PlacementName(request_.placements.front())),
           "v has two chunks a rank; bidirectional one, an even number of ranks and two "
           "microbatches or more",
           "change chunks or ranks"});
    }
    for (const Shape& shape : shapes) RETURN_IF_ERROR(Try(shape));
    if (best_.schedule.ranks.empty()) return TooLittleMemory();
    best_.num_candidates = num_candidates_;
    best_.time_capped = time_capped_;
    return std::move(best_);
  }

 private:
  absl::Status Try(const Shape& shape) {
    const int num_stages = request_.num_ranks * shape.num_chunks;
    schedule::BoundInputs inputs{.placement = shape.placement,
                                 .num_ranks = request_.num_ranks,
                                 .num_stages = num_stages,
                                 .num_microbatches = request_.num_microbatches,
                                 .costs = request_.costs,
                                 .max_in_flight = request_.max_in_flight,
                                 .message_bytes = request_.message_bytes};
    for (int& limit : inputs.max_in_flight) limit = std::max(limit, 1);
    if (!request_.max_bytes.empty()) {
      if (static_cast<int>(request_.stash_bytes.size()) != num_stages) {
        return InvalidField({"stash_bytes", absl::StrCat(request_.stash_bytes.size(), " values"),
                             absl::StrCat("one for each of the ", num_stages, " stages"),
                             "give them all"});
      }
      if (!request_.max_in_flight.empty())
        return InvalidField({"memory", "two limits", "chunks or bytes", "leave one out"});
    }
    // Three actions for each stage and microbatch.
    if (std::int64_t{3} * num_stages > schedule::kMaxActions / request_.num_microbatches) {
      return InvalidField({"microbatches", absl::StrCat(request_.num_microbatches),
                           absl::StrCat("makes more than ", schedule::kMaxActions, " actions with ",
                                        num_stages, " stages"),
                           "use fewer ranks, chunks or microbatches"});
    }
    ASSIGN_OR_RETURN(const schedule::Bound bound, schedule::LowerBound(inputs));
    const Problem problem = MakeProblem(request_, shape.placement, shape.num_chunks);
    const std::vector<std::int64_t> least = LeastMemory(problem);
    for (int rank = 0; rank < problem.num_ranks; ++rank) {
      if (least[rank] <= problem.limit[rank]) continue;
      const std::int64_t whole = *std::max_element(least.begin(), least.end());
      least_memory_ = std::min(least_memory_, whole);
      return absl::OkStatus();
    }
    Budget budget{.candidates = request_.max_candidates,
                  .out_of_time = [this] { return absl::Now() >= deadline_; }};
    Solution solution = Solve(request_, problem, bound.makespan, budget);
    num_candidates_ += request_.max_candidates - budget.candidates;
    time_capped_ |= budget.time_capped;
    if (!solution.rows.empty()) Keep(problem, std::move(solution), bound);
    return absl::OkStatus();
  }

  // The shorter one is better; of equal ones the one that holds less, and then the one that came
  // first.
  void Keep(const Problem& problem, Solution solution, const schedule::Bound& bound) {
    Found found{.schedule = ToSchedule(problem, solution.rows),
                .origin = std::move(solution.origin),
                .makespan = solution.makespan + std::ranges::max(request_.costs.optimizer),
                .bound = bound};
    if (bound.makespan > 0) found.gap = std::max(0.0, solution.makespan / bound.makespan - 1);
    constexpr double kEqual = 1 + 1e-9;
    const bool first = best_.schedule.ranks.empty();
    if (first || found.makespan * kEqual < best_.makespan ||
        (found.makespan <= best_.makespan * kEqual &&
         PeakOf(found.schedule) < PeakOf(best_.schedule)))
      best_ = std::move(found);
  }

  absl::Status TooLittleMemory() const {
    const bool bytes = !request_.max_bytes.empty();
    const std::int64_t given =
        bytes ? *std::min_element(request_.max_bytes.begin(), request_.max_bytes.end())
              : *std::min_element(request_.max_in_flight.begin(), request_.max_in_flight.end());
    return InvalidField({"memory", absl::StrCat(given),
                         absl::StrCat("no schedule of this size holds less than ", least_memory_,
                                      bytes ? " bytes" : " microbatch-chunks", " on a rank"),
                         "raise it, or use fewer chunks"});
  }

  const Request& request_;
  const absl::Time deadline_;
  Found best_;
  std::int64_t num_candidates_ = 0;
  bool time_capped_ = false;
  std::int64_t least_memory_ = std::numeric_limits<std::int64_t>::max();
};

}  // namespace

absl::StatusOr<Found> Search(const Request& request) { return Searcher(request).Run(); }

}  // namespace takt::search
