// SPDX-License-Identifier: Apache-2.0
// Lets the ranks of a generation agree, through its rendezvous, on the kernels that they compute
// with. Rank 0 chooses for every shape that the job needs. All ranks take its choices and make none
// of their own. So a job's bits depend on one plan (docs/numerics.md), which its checkpoints keep.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/backend/kernel_plans.h"
#include "worker/checkpoint/file_system.h"
#include "worker/session/resume.h"

namespace takt::session {

// The text of a plan that was kept, and where it is from, for messages: "the checkpoint of step
// 100".
struct KeptPlan {
  std::string text, where;
};

// Passes the text of a plan through the rendezvous, from the caller of the first, the sender, to
// those of the second with the same key.  Blocks, the second: until the text is there.
absl::Status SendPlanText(transport::Rendezvous& rendezvous, const std::string& key,
                          std::string_view text);
absl::StatusOr<std::string> ReceivePlanText(transport::Rendezvous& rendezvous,
                                            const std::string& key, Rank sender);

// Reads the file at `path`, at most one byte more than the largest plan has.
std::string ReadPlanText(const std::string& path);

// The plans of earlier jobs, in a directory of this worker. It has one file for each kind of
// device, and all workers that were given the directory share it. Losing it costs only time, so no
// trouble with it is an error.
struct KernelPlanFiles {
  std::string directory;                           // empty: none
  worker_checkpoint::FileSystem* files = nullptr;  // borrowed
};

// All pointers are borrowed for the call.
struct KernelPlanOptions {
  backend::KernelPlans* kernels = nullptr;  // for this rank's device
  // For rank 0: shows every op that any rank may run (ShowOps).
  std::function<absl::Status(const std::function<absl::Status(const backend::Op&)>&)> show_ops;
  // For rank 0: the plan of the checkpoint that the job resumes from.
  std::optional<KeptPlan> checkpoint;
  KernelPlanFiles kept;  // for rank 0
  // Whether shapes that the plan lacks may be chosen later, without timings, until the plan is
  // frozen.
  bool may_add = false;
};

// Rank 0 gets one with text. The other ranks get an empty one.
struct AgreedKernelPlan {
  std::string text;                // for checkpoints
  std::string summary;             // for people, one line
  std::vector<std::string> notes;  // warnings for people: why the checkpoint's plan was not used
};

// Blocks: until rank 0 has chosen. That takes some ten milliseconds for each shape that is new to
// its worker.
// Errors: kFailedPrecondition (this rank's device or libraries are of another kind than rank 0's;
// the library refuses a choice that was kept), those of choosing and of the rendezvous.
absl::StatusOr<AgreedKernelPlan> AgreeOnKernelPlan(const RankMeeting& meeting,
                                                   const KernelPlanOptions& options);

// Ends all choices: from now on the plan is only looked up. Logs what the device's module had to
// warn of, and adds it to `notes`.
void FreezeKernelPlan(backend::KernelPlans& kernels, std::vector<std::string>& notes);

}  // namespace takt::session
