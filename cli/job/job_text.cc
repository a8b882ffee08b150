// SPDX-License-Identifier: Apache-2.0
#include "cli/job/job_text.h"

#include <algorithm>
#include <cstdint>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/base/report.h"
#include "cli/base/text.h"
#include "cli/job/job_mesh.h"
#include "cli/job/step_printer.h"
#include "common/base/counted.h"
#include "common/base/memory_serde.h"
#include "common/config/job_spec.h"
#include "common/model/vocabulary.h"

namespace takt::cli {
namespace {

std::string TimeText(const google::protobuf::Timestamp& time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixSeconds(time.seconds()),
                          absl::LocalTimeZone());
}

std::string StepsText(const v1::Job& job) {
  return absl::StrCat(std::max(job.last_step().step(), job.resumed_step()), "/", job.steps());
}

int PriorityOf(const v1::Job& job) {
  return job.spec().has_priority() ? job.spec().priority() : config::kDefaultPriority;
}

std::string_view RecomputeName(v1::RecomputeMode mode) {
  return mode == v1::RECOMPUTE_MODE_FULL ? "full" : "selective";
}

// Prints which words of the vocabulary each rank has, if they are spread.
void PrintWords(std::ostream& out, const v1::Job& job) {
  std::int64_t first = 0;
  for (int rank = 0; rank < job.vocabulary_ends_size(); ++rank) {
    const std::int64_t end = std::min<std::int64_t>(
        job.vocabulary_ends(rank) * model::kVocabularyBlock, job.spec().model().vocab());
    out << "vocabulary on pp rank " << rank << ": ";
    if (end > first) {
      out << "words " << first << ".." << end - 1 << '\n';
    } else {
      out << "no words\n";
    }
    first = end;
  }
}

// Returns the reason for a row of a table: at most kMostReason characters on one line. A job that
// was given up says each of its faults.
std::string ShortReason(std::string_view reason) {
  constexpr std::size_t kMostReason = 160;
  const auto begins = [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; };
  std::string text = OneLine(reason);
  if (std::ranges::count_if(text, begins) <= std::ptrdiff_t{kMostReason}) return text;
  std::size_t end = 0;
  for (std::size_t characters = 0; end < text.size(); ++end) {
    if (begins(text[end]) && ++characters > kMostReason - 3) break;
  }
  return absl::StrCat(text.substr(0, end), "...");
}

std::int64_t LastStepOf(const v1::HeldJob& job) {
  std::int64_t last = 0;
  for (const v1::RankStatus& rank : job.ranks()) last = std::max(last, rank.last_step());
  return last;
}

std::string WhatToDo(const v1::HeldJob& job) {
  const std::string what = absl::StrCat("not known to this coordinator (cluster ",
                                        job.cluster_id().empty() ? "?" : job.cluster_id(), "); ");
  if (job.reason().empty())
    return absl::StrCat(what, "takt adopt ", job.name(), ", or takt abandon ", job.name());
  return absl::StrCat(what, "cannot be adopted now: ", ShortReason(job.reason()));
}

void PrintPlacement(std::ostream& out, const v1::Job& job) {
  for (const v1::StageAssignment& stage : job.stages()) {
    out << "stage " << stage.stage() << ": layers " << stage.first_layer() << ".."
        << stage.last_layer() - 1 << " on pp rank " << stage.pp_rank();
    if (stage.recompute() > v1::RECOMPUTE_MODE_NONE) {
      out << ", recompute " << RecomputeName(stage.recompute());
    }
    out << '\n';
  }
  PrintWords(out, job);
  if (job.shares_optimizer()) out << "optimizer's state: shared by ranks with the same layers\n";
  const mesh::Mesh mesh = MeshOf(job);
  for (const v1::BoundRank& rank : job.ranks()) {
    out << "rank " << rank.rank();
    if (!mesh.HasTwoAxes()) out << " (" << mesh::PlaceName(mesh, Rank(rank.rank())) << ')';
    out << ": worker " << rank.worker() << '\n';
  }
}

// Prints a row for each pp rank and a column for each kind of memory that any of them needs.
void PrintMemory(std::ostream& out, const v1::Job& job) {
  if (job.memory().empty()) return;
  std::vector<MemoryBytes> ranks;
  for (const v1::MemoryBytes& of_rank : job.memory()) ranks.push_back(FromProto(of_rank));
  std::vector<MemoryKind> kinds;
  std::vector<std::string> header = {"PP RANK", "MEMORY"};
  for (std::size_t i = 0; i < kNumMemoryKinds; ++i) {
    const auto kind = static_cast<MemoryKind>(i);
    if (std::ranges::all_of(ranks, [&](const MemoryBytes& rank) { return rank[kind] == 0; }))
      continue;
    kinds.push_back(kind);
    header.push_back(absl::AsciiStrToUpper(std::string(Name(kind))));
  }
  Table table(header);
  for (std::size_t p = 0; p < ranks.size(); ++p) {
    std::vector<std::string> row = {absl::StrCat(p), FormatMemory(ranks[p].total())};
    for (const MemoryKind kind : kinds) row.push_back(FormatMemory(ranks[p][kind]));
    table.Add(row);
  }
  out << table.ToString();
}

// Says whether tokens see those of other documents, and which token ends one if any does.
std::string DocumentsText(const v1::DataSpec& data) {
  const bool apart = data.documents() == v1::DOCUMENTS_MODE_SEPARATE ||
                     (data.documents() != v1::DOCUMENTS_MODE_JOIN && data.has_document_end());
  if (!apart) return "join";
  if (!data.has_document_end()) return "separate";
  return absl::StrCat("separate, ending with token ", data.document_end());
}

}  // namespace

void PrintJob(const Context& context, const v1::Job& job) {
  if (context.json()) return PrintJson(context, ToJson(job));
  std::ostringstream out;
  out << "name: " << job.name() << '\n';
  const bool is_there = job.state() != v1::JOB_STATE_UNSPECIFIED;  // else it was only checked
  if (is_there) out << "state: " << StateName(job.state()) << '\n';
  if (!job.reason().empty()) out << "reason: " << job.reason() << '\n';
  if (!job.owner().empty()) out << "owner: " << job.owner() << '\n';
  if (is_there) out << "steps: " << StepsText(job) << '\n';
  out << "priority: " << PriorityOf(job) << '\n';
  if (job.spec().data().train_size() > 0)
    out << "documents: " << DocumentsText(job.spec().data()) << '\n';
  if (job.state() == v1::JOB_STATE_RUNNING)
    out << "eta: " << FormatSeconds(job.eta_seconds()) << '\n';
  if (!job.schedule().empty()) {
    out << "schedule: " << job.schedule();
    if (job.predicted_step_seconds() > 0) {  // it was planned
      out << " (predicted step " << FormatSeconds(job.predicted_step_seconds()) << ", bubble "
          << FormatPercent(job.predicted_bubble_fraction()) << ')';
    }
    out << '\n';
  }
  if (job.replan_gain_ratio() > 0) {
    out << "another plan: saves " << FormatPercent(job.replan_gain_ratio())
        << " of a step; see takt explain " << job.name() << '\n';
  }
  if (job.has_last_step()) out << "last step: " << StepLine(job.last_step(), job.steps()) << '\n';
  if (job.resumed_step() > 0) out << "resumed after step: " << job.resumed_step() << '\n';
  if (job.memory_step() > 0) out << "resumed from memory of step: " << job.memory_step() << '\n';
  if (job.copy_every_steps() > 0)
    out << "copies in memory: every " << Counted(job.copy_every_steps(), "step") << '\n';
  if (!job.kernel_plan().empty()) out << "kernel plan: " << job.kernel_plan() << '\n';
  if (job.has_checkpoint()) {
    out << "checkpoint: step " << job.checkpoint().step() << " ("
        << TimeText(job.checkpoint().time()) << ") in " << job.spec().checkpoint().directory()
        << '\n';
  }
  PrintPlacement(out, job);
  PrintMemory(out, job);
  for (const std::string& warning : job.warnings()) out << "warning: " << warning << '\n';
  if (job.forgotten_transitions() > 0) {
    out << job.forgotten_transitions() << " older changes of state are not kept\n";
  }
  for (const v1::JobTransition& transition : job.transitions()) {
    out << TimeText(transition.time()) << "  " << StateName(transition.state());
    if (!transition.reason().empty()) out << "  " << transition.reason();
    out << '\n';
  }
  for (const v1::RankStatus& rank : job.fault()) {
    out << "fault: " << FaultText(rank);
    if (rank.has_time()) out << "; told at " << TimeText(rank.time());
    out << '\n';
    if (rank.recent_size() > 0) out << "    last done: " << RecentText(rank) << '\n';
  }
  context.terminal.out << Harmless(out.str()) << std::flush;
}

std::string FaultText(const v1::RankStatus& rank) {
  std::string text =
      absl::StrCat("rank ", rank.rank(), " (", rank.worker(), "): last step ", rank.last_step(),
                   ", at ", rank.instruction().empty() ? "no instruction" : rank.instruction());
  if (rank.instruction_step() > 0) absl::StrAppend(&text, " of step ", rank.instruction_step());
  if (rank.instruction_seconds() > 0)
    absl::StrAppend(&text, " for ", FormatSeconds(rank.instruction_seconds()));
  if (!rank.waiting_for().empty()) absl::StrAppend(&text, ", waiting for ", rank.waiting_for());
  return text;
}

std::string RecentText(const v1::RankStatus& rank) {
  std::string text;
  std::int64_t step = 0;
  for (const v1::DoneInstruction& done : rank.recent()) {
    if (done.step() != step) {
      step = done.step();
      absl::StrAppend(&text, text.empty() ? "" : "; ", "step ", step, ":");
    }
    absl::StrAppend(&text, " ", done.instruction());
  }
  if (rank.recent_size() > 0) {
    const v1::DoneInstruction& last = rank.recent(rank.recent_size() - 1);
    absl::StrAppend(&text, " (", FormatSeconds(last.ended_seconds_ago()), " before)");
  }
  return text;
}

void PrintJobs(const Context& context, const std::vector<v1::Job>& jobs,
               const std::vector<v1::HeldJob>& held) {
  if (context.json()) {
    Json json = ListJson("jobs", jobs);
    if (!held.empty()) json["held_jobs"] = ListJson("jobs", held)["jobs"];
    return PrintJson(context, json);
  }
  Table table({"NAME", "STATE", "PRIORITY", "STEP", "CHECKPOINT", "LOSS", "ETA", "SCHEDULE",
               "RANKS", "OWNER", "REASON"});
  for (const v1::Job& job : jobs) {
    const bool running = job.state() == v1::JOB_STATE_RUNNING;
    table.Add({job.name(), StateName(job.state()), absl::StrCat(PriorityOf(job)), StepsText(job),
               job.has_checkpoint() ? absl::StrCat(job.checkpoint().step()) : "-",
               job.has_last_step() ? absl::StrCat(job.last_step().loss()) : "-",
               running ? FormatSeconds(job.eta_seconds()) : "-",
               job.schedule().empty() ? "-" : job.schedule(), absl::StrCat(job.ranks_size()),
               job.owner().empty() ? "-" : job.owner(), ShortReason(job.reason())});
  }
  for (const v1::HeldJob& job : held) {
    table.Add({job.name(), "HELD", "-", absl::StrCat(LastStepOf(job)), "-", "-", "-", "-",
               job.num_ranks() > 0 ? absl::StrCat(job.ranks_size(), "/", job.num_ranks())
                                   : absl::StrCat(job.ranks_size()),
               job.owner().empty() ? "-" : job.owner(), WhatToDo(job)});
  }
  context.terminal.out << table.ToString() << std::flush;
}

}  // namespace takt::cli
