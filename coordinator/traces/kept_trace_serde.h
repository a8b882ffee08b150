// SPDX-License-Identifier: Apache-2.0
// The contents of the files of TraceKeeper.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/trace/job_trace.h"

namespace takt::traces {

using Holders = std::vector<std::pair<std::string, std::string>>;  // worker, incarnation

struct KeptHeader {
  trace::JobTrace header;  // with programs, without steps
  Holders holders;         // by rank
};
std::string FormatHeader(const trace::JobTrace& header, const Holders& holders);
absl::StatusOr<KeptHeader> ParseHeader(const std::string& bytes);

struct KeptStep {
  trace::StepTrace step;
  trace::ClockOffset clock;
};
std::string FormatStep(const std::string& encoded, const trace::ClockOffset& clock);
absl::StatusOr<KeptStep> ParseStep(const std::string& bytes);

}  // namespace takt::traces
