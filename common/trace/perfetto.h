// SPDX-License-Identifier: Apache-2.0
// A timeline in the JSON trace event format, which ui.perfetto.dev and chrome://tracing open.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/trace/timeline.h"

namespace takt::trace {

struct PerfettoOptions {
  std::size_t max_bytes = 50'000'000;
};

struct PerfettoFile {
  std::string json;
  // Says what was left out to stay below max_bytes, for people; empty: nothing.
  std::string left_out;
};

// Every rank is a process, and every lane a thread in it: compute, with idle time between its
// instructions named by cause; what was predicted; load; reduce; messages with arrows. Another
// process shows the steps. If the file is too large, messages are left out, and then predictions.
// kResourceExhausted: even then it is too large.
absl::StatusOr<PerfettoFile> WritePerfetto(const Timeline& timeline,
                                           const PerfettoOptions& options = {});

}  // namespace takt::trace
