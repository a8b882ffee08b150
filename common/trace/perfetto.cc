// SPDX-License-Identifier: Apache-2.0
#include "common/trace/perfetto.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/program/part_lists.h"
#include "common/trace/labels.h"
#include "nlohmann/json.hpp"

namespace takt::trace {
namespace {

using program::LaneKind;
using program::Program;

struct Detail {
  bool messages = true;
  bool predicted = true;
  std::string_view left_out;  // by showing this and not all
};
constexpr Detail kDetails[] = {
    {true, true, ""},
    {false, true, "messages"},
    {false, false, "messages and predictions"},
};

// The threads of a rank's process. Lanes follow in their order.
constexpr int kPredictedThread = 2;
constexpr int kFirstLaneThread = 1;
// The number of the process that shows the steps. Ranks come after it.
constexpr int kStepsProcess = 1;
int ProcessOf(int rank) { return kStepsProcess + 1 + rank; }

std::string Quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

class Writer {
 public:
  Writer(const Timeline& timeline, const Detail& detail, std::size_t max_bytes)
      : timeline_(timeline), trace_(*timeline.trace), detail_(detail), max_bytes_(max_bytes) {}

  // False: the file becomes too large.
  bool Write() {
    json_ = "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"job\":" + Quoted(trace_.job) +
            ",\"title\":" + Quoted(Title(timeline_)) + "},\"traceEvents\":[\n";
    Steps();
    for (int rank = 0; rank < trace_.num_ranks(); ++rank) DescribeRank(rank);
    Slices();
    if (detail_.messages) Meetings();
    IdleTime();
    if (detail_.predicted) Predictions();
    if (detail_.messages) Flows();
    json_.resize(json_.size() - 2);  // the last comma
    json_ += "\n]}\n";
    return json_.size() <= max_bytes_;
  }

  std::string Take() { return std::move(json_); }

 private:
  bool full() const { return json_.size() > max_bytes_; }

  // Microseconds with as many decimals as the nanoseconds need.
  void AppendMicros(std::int64_t nanos) {
    absl::StrAppend(&json_, nanos / 1000);
    if (nanos % 1000 != 0) absl::StrAppendFormat(&json_, ".%03d", nanos % 1000);
  }

  void Meta(std::string_view what, int process, int thread, std::string_view arguments) {
    absl::StrAppendFormat(&json_,
                          "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":{%s}},\n",
                          what, process, thread, arguments);
  }

  void Complete(std::string_view name, int process, int thread, std::int64_t start_nanos,
                std::int64_t end_nanos) {
    absl::StrAppendFormat(&json_,
                          "{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":", name,
                          process, thread);
    AppendMicros(start_nanos);
    json_ += ",\"dur\":";
    AppendMicros(end_nanos - start_nanos);
    json_ += "},\n";
  }

  void Name(int process, int thread, std::string_view name, int order) {
    const bool of_process = thread == 0;
    Meta(of_process ? "process_name" : "thread_name", process, thread, "\"name\":" + Quoted(name));
    Meta(of_process ? "process_sort_index" : "thread_sort_index", process, thread,
         absl::StrFormat("\"sort_index\":%d", order));
  }

  void Steps() {
    Name(kStepsProcess, 0, "steps", 0);
    Name(kStepsProcess, 1, "steps", 0);
    for (const StepWindow& step : timeline_.steps) {
      Complete(absl::StrFormat("step %d", step.step.value()), kStepsProcess, 1, step.start_nanos,
               step.end_nanos);
    }
  }

  bool Shows(LaneKind kind) const {
    return detail_.messages || (kind != LaneKind::kSend && kind != LaneKind::kRecv);
  }

  void DescribeRank(int rank) {
    const Program& program = trace_.ProgramOf(rank);
    Name(ProcessOf(rank), 0, RankName(trace_, rank), rank + 1);
    std::vector<int>& threads = threads_.emplace_back(program.lanes.size(), 0);
    int next = kFirstLaneThread;
    for (const LaneId lane : LanesInOrder(program)) {
      if (!Shows(program.lanes[lane.value()].kind)) continue;
      threads[lane.value()] = next;
      Name(ProcessOf(rank), next, program::LaneName(program.lanes[lane.value()]), next);
      next += next == kFirstLaneThread ? 2 : 1;  // predictions come after compute
    }
    if (detail_.predicted && timeline_.predicted.has_value()) {
      Name(ProcessOf(rank), kPredictedThread, "predicted", kPredictedThread);
    }
  }

  int ThreadOf(int rank, const program::Instruction& instruction) const {
    return threads_[rank][instruction.lane.value()];
  }
  int ThreadOf(const Slice& slice) const {
    return ThreadOf(slice.rank, InstructionOf(trace_, slice));
  }

  void Slices() {
    for (const std::vector<Slice>* slices : {&timeline_.prologue, &timeline_.slices}) {
      for (const Slice& slice : *slices) {
        const int thread = ThreadOf(slice);
        if (thread == 0 || full()) continue;
        Complete(ToString(InstructionOf(trace_, slice), trace_.ProgramOf(slice.rank)),
                 ProcessOf(slice.rank), thread, slice.start_nanos, slice.end_nanos);
      }
    }
  }

  void Meetings() {
    for (const Slice& slice : timeline_.meetings) {
      if (full()) return;
      const Program& program = trace_.ProgramOf(slice.rank);
      Complete(program::PartName(PartListOf(program.body[slice.instruction], program), slice.part),
               ProcessOf(slice.rank), ThreadOf(slice), slice.start_nanos, slice.end_nanos);
    }
  }

  void IdleTime() {
    for (const Idle& idle : timeline_.idle) {
      if (full()) return;
      const int thread = ThreadOf(idle.rank, trace_.ProgramOf(idle.rank).body[idle.before]);
      Complete(IdleName(idle), ProcessOf(idle.rank), thread, idle.start_nanos, idle.end_nanos);
    }
  }

  void Predictions() {
    if (!timeline_.predicted.has_value()) return;
    for (const StepWindow& step : timeline_.steps) {
      for (int rank = 0; rank < trace_.num_ranks(); ++rank) {
        if (full()) return;
        PredictedStep(rank, step.start_nanos);
      }
    }
  }

  void PredictedStep(int rank, std::int64_t start_nanos) {
    const int pp_rank = trace_.mesh.PpRankOf(Rank(rank)).value();
    const Program& program = trace_.programs[pp_rank];
    for (const sim::Event& event : timeline_.predicted->events) {
      if (event.pp_rank != pp_rank) continue;
      Complete(ToString(program.body[event.instruction], program), ProcessOf(rank),
               kPredictedThread, start_nanos + std::llround(event.start * 1e9),
               start_nanos + std::llround(event.end * 1e9));
    }
  }

  void FlowEnd(bool begins, std::size_t id, const Slice& slice, std::int64_t at_nanos) {
    absl::StrAppendFormat(&json_,
                          "{\"ph\":\"%s\",\"cat\":\"m\",\"id\":%d,\"pid\":%d,"
                          "\"tid\":%d,\"ts\":",
                          begins ? "s" : "f\",\"bp\":\"e", id, ProcessOf(slice.rank),
                          ThreadOf(slice));
    AppendMicros(at_nanos);
    json_ += "},\n";
  }

  // An arrow goes from where a SEND begins to just before its RECV ends, so both ends are inside
  // their slices.
  void Flows() {
    for (std::size_t id = 0; id < timeline_.flows.size() && !full(); ++id) {
      const Slice& send = timeline_.slices[timeline_.flows[id].send];
      const Slice& recv = timeline_.slices[timeline_.flows[id].recv];
      FlowEnd(true, id, send, send.start_nanos);
      FlowEnd(false, id, recv, std::max(recv.start_nanos, recv.end_nanos - 1));
    }
  }

  const Timeline& timeline_;
  const JobTrace& trace_;
  const Detail& detail_;
  const std::size_t max_bytes_;
  std::vector<std::vector<int>> threads_;  // by rank and lane; 0: not shown
  std::string json_;
};

}  // namespace

absl::StatusOr<PerfettoFile> WritePerfetto(const Timeline& timeline,
                                           const PerfettoOptions& options) {
  for (const Detail& detail : kDetails) {
    Writer writer(timeline, detail, options.max_bytes);
    if (writer.Write()) return PerfettoFile{writer.Take(), std::string(detail.left_out)};
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("a trace of ", timeline.steps.size(), " steps of ", timeline.trace->num_ranks(),
                   " ranks does not fit into ", options.max_bytes, " bytes: take fewer steps"));
}

}  // namespace takt::trace
