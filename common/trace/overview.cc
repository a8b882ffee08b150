// SPDX-License-Identifier: Apache-2.0
#include "common/trace/overview.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/trace/labels.h"
#include "common/trace/messages.h"
#include "nlohmann/json.hpp"

namespace takt::trace {
namespace {

using nlohmann::json;
using program::Op;

// Idle causes come last, so that their place tells them.
constexpr std::string_view kStates = "FIWBSTx1234567";
constexpr std::size_t kFirstCause = kStates.size() - kNumCauses;

std::size_t StateOf(Op op) {
  const std::string_view name = op == Op::kOverlap ? "B" : program::Name(op);
  const std::size_t place = name.size() == 1 ? kStates.find(name) : std::string_view::npos;
  return place < kFirstCause ? place : kStates.find('x');
}

std::size_t StateOf(Cause cause) { return kFirstCause + static_cast<std::size_t>(cause) - 1; }

// One rank's compute lane in the window of a step.
class Row {
 public:
  Row(const StepWindow& window, int num_bins)
      : begin_(window.start_nanos),
        length_(std::max<std::int64_t>(1, window.end_nanos - window.start_nanos)),
        bins_(static_cast<std::size_t>(num_bins)) {}

  void Add(std::size_t state, std::int64_t start_nanos, std::int64_t end_nanos) {
    const std::int64_t start = std::max<std::int64_t>(0, start_nanos - begin_);
    const std::int64_t end = std::min(length_, end_nanos - begin_);
    if (start >= end) return;
    sums_[state] += end - start;
    const auto count = static_cast<std::int64_t>(bins_.size());
    for (std::int64_t bin = BinOf(start); bin < count && Edge(bin) < end; ++bin) {
      bins_[static_cast<std::size_t>(bin)][state] +=
          std::min(end, Edge(bin + 1)) - std::max(start, Edge(bin));
    }
  }

  std::string Letters() const {
    std::string letters;
    for (const auto& bin : bins_) {
      const auto most = std::ranges::max_element(bin);
      letters += *most > 0 ? kStates[static_cast<std::size_t>(most - bin.begin())] : '.';
    }
    return letters;
  }

  double ComputeSeconds() const {
    std::int64_t nanos = 0;
    for (std::size_t state = 0; state < kFirstCause; ++state) nanos += sums_[state];
    return 1e-9 * static_cast<double>(nanos);
  }

  json IdleSeconds() const {
    json seconds = json::array();
    for (std::size_t state = kFirstCause; state < kStates.size(); ++state)
      seconds.push_back(1e-9 * static_cast<double>(sums_[state]));
    return seconds;
  }

 private:
  using Sums = std::array<std::int64_t, kStates.size()>;

  // Returns the first nanosecond of a bin. A product in double is exact enough: a wrong nanosecond
  // moves no picture.
  std::int64_t Edge(std::int64_t bin) const {
    return static_cast<std::int64_t>(static_cast<double>(length_) * static_cast<double>(bin) /
                                     static_cast<double>(bins_.size()));
  }
  std::int64_t BinOf(std::int64_t at) const {
    const auto count = static_cast<std::int64_t>(bins_.size());
    auto bin = std::min(
        count - 1, static_cast<std::int64_t>(static_cast<double>(at) * static_cast<double>(count) /
                                             static_cast<double>(length_)));
    while (bin > 0 && Edge(bin) > at) --bin;
    while (bin + 1 < count && Edge(bin + 1) <= at) ++bin;
    return bin;
  }

  const std::int64_t begin_, length_;
  std::vector<Sums> bins_;
  Sums sums_ = {};
};

}  // namespace

std::string OverviewData(const Timeline& timeline, int num_bins) {
  const JobTrace& trace = *timeline.trace;
  const StepWindow& window = timeline.steps.back();
  std::vector<Row> rows(static_cast<std::size_t>(trace.num_ranks()), Row(window, num_bins));
  const MeetingIndex meetings(timeline);
  for (const Slice& slice : timeline.slices) {
    if (slice.step != window.step) continue;
    const program::Program& program = trace.ProgramOf(slice.rank);
    const program::Instruction& instruction = InstructionOf(trace, slice);
    const program::Lane& lane = program.lanes[static_cast<std::size_t>(instruction.lane.value())];
    if (lane.kind != program::LaneKind::kCompute) continue;
    Row& row = rows[static_cast<std::size_t>(slice.rank)];
    // The meetings inside an instruction are idle time, which is added below.
    std::int64_t begin = slice.start_nanos;
    for (const Slice& meeting :
         meetings.At(trace.num_steps() - 1, {slice.rank, slice.instruction})) {
      row.Add(StateOf(instruction.op), begin, meeting.start_nanos);
      begin = meeting.end_nanos;
    }
    row.Add(StateOf(instruction.op), begin, slice.end_nanos);
  }
  for (const Idle& idle : timeline.idle) {
    rows[static_cast<std::size_t>(idle.rank)].Add(StateOf(idle.cause), idle.start_nanos,
                                                  idle.end_nanos);
  }
  json ranks = json::array();
  for (int rank = 0; rank < trace.num_ranks(); ++rank) {
    const Row& row = rows[static_cast<std::size_t>(rank)];
    ranks.push_back(json::array(
        {RankName(trace, rank), row.Letters(), row.ComputeSeconds(), row.IdleSeconds()}));
  }
  json causes = json::array();
  for (int cause = 1; cause <= kNumCauses; ++cause) causes.push_back(Name(Cause(cause)));
  const double seconds = 1e-9 * static_cast<double>(window.end_nanos - window.start_nanos);
  const json overview = {{"step", window.step.value()},
                         {"seconds", seconds},
                         {"num_bins", num_bins},
                         {"causes", std::move(causes)},
                         {"ranks", std::move(ranks)}};
  return overview.dump(-1, ' ', true, json::error_handler_t::replace);
}

}  // namespace takt::trace
