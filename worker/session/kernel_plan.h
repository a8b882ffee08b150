// SPDX-License-Identifier: Apache-2.0
// Which kernels the ranks of a generation compute with, agreed through its rendezvous: rank 0
// chooses for every shape that the job needs, all take its choices and make none of their own. So a
// job's bits hang on one plan (docs/numerics.md), which its checkpoints keep.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/kernel_plans.h"
#include "worker/checkpoint/file_system.h"
#include "worker/session/resume.h"

namespace takt::session {

// A plan that was kept, and of what: "the checkpoint of step 100".
struct KeptPlan {
  std::string text, where;
};

// What is in the file at `path`, at most a byte more than any plan has.
std::string ReadPlanText(const std::string& path);

// Those of earlier jobs, in a directory of this worker: a file a kind of device, shared by all
// workers that are told of the directory. Losing it costs time, so nothing about it is an error.
struct KernelPlanFiles {
  std::string directory;                    // empty: none
  checkpoint::FileSystem* files = nullptr;  // borrowed
};

// All pointers borrowed for the call.
struct KernelPlanOptions {
  backend::KernelPlans* kernels = nullptr;  // of this rank's device
  // Of rank 0: tells of every op that any rank may run (ShowOps).
  std::function<absl::Status(const std::function<absl::Status(const backend::Op&)>&)> show_ops;
  std::optional<KeptPlan> checkpoint;  // of rank 0: that of what the job goes on from
  KernelPlanFiles kept;                // of rank 0
  // Shapes that the plan lacks may be chosen, without timings, until somebody freezes it.
  bool may_add = false;
};

// Of rank 0; the others' is empty.
struct AgreedKernelPlan {
  std::string text;                // for checkpoints
  std::string summary;             // for people, one line
  std::vector<std::string> notes;  // what they must know: why the checkpoint's was not used
};

// Blocks: until rank 0 has chosen, which takes some ten milliseconds a shape that is new to its
// worker.  Errors: kFailedPrecondition (this rank's device or libraries are of another kind than
// rank 0's; the library refuses a choice that was kept), those of choosing and of the meeting.
absl::StatusOr<AgreedKernelPlan> AgreeOnKernelPlan(const RankMeeting& meeting,
                                                   const KernelPlanOptions& options);

}  // namespace takt::session
