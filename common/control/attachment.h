// SPDX-License-Identifier: Apache-2.0
// What a worker and the coordinator say to each other on the control stream
// (takt.v1.AttachmentService.Attach). The meaning of each message is in attachment_service.proto.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/device.h"
#include "common/base/id.h"
#include "common/base/matmul_rates.h"
#include "common/base/status.h"
#include "common/control/assignment.h"
#include "common/control/job_key.h"
#include "common/control/rank_status.h"

namespace takt::control {

// A rank that a worker holds when it attaches.
struct RunningJob {
  JobKey key;
  Rank rank;
  StepId last_step;
  std::string cluster_id;  // of the coordinator that gave the rank; empty: not known
  bool describes = false;  // the worker answers Describe and obeys Adopt
};

struct Hello {
  std::string worker;       // stable name
  std::string incarnation;  // random, of this process life
  int protocol_version = 0;
  std::string program_version;
  std::string host;
  std::string processor;  // its name; empty: not known
  int cores = 1;
  int threads = 0;  // of a rank whose job names no number; 0: an even share of the host's cores
  std::int64_t memory_bytes = 0;
  MatmulRates matmul_rates;  // of its cores
  std::string data_address;
  std::optional<RunningJob> running;
  std::optional<Device> device;  // nullopt: it computes on its cores alone
  bool has_nccl = false;         // its NCCL transport can be loaded
};

struct Heartbeat {
  JobKey key;
  std::optional<RankStatus> status;  // nullopt: the worker holds no rank
};

// Numbers equal takt.v1.JobUpdate.Phase.
enum class Phase : std::uint8_t {
  kAdmitted = 1,
  kRefused = 2,
  kFinished = 3,
  kFailed = 4,
  kAborted = 5,
  kHalted = 6
};

// "admitted", "refused", ...
const char* Name(Phase phase);

// Says why a rank failed, as far as the rank itself can tell. Numbers equal
// takt.v1.JobUpdate.Cause.
enum class Cause : std::uint8_t {
  kUnknown = 0,  // it cannot tell, or its program is older than this field
  kJob = 1,      // the job, whoever runs it
  kInputs = 2,   // the job if all ranks say the same, otherwise this worker
  kWorker = 3,   // this worker: its disk, its memory, its device
  kPeer = 4,     // another rank, the network or the coordinator
};

// Why a rank was refused, failed or was aborted.
struct Failure {
  std::string error;                   // for people; empty: there was no failure
  bool invalid_input = false;          // the input is wrong, as this worker sees it
  std::vector<FieldError> violations;  // the wrong fields, where they are known
  Cause cause = Cause::kUnknown;
};

// kInvalidArgument is invalid input. The author of the job reads the message of an error that names
// a field. The text of any other status begins with its code. An OK status is no failure.
Failure FailureOf(const absl::Status& status);

// The state from which an admitted rank resumes.
struct Resumed {
  StepId step;               // 0: the beginning
  bool from_memory = false;  // from copies that workers held, not from a checkpoint
  // Rank 0 alone fills these in: which newer checkpoints were passed over and why; which kernels
  // all ranks compute with and where that choice is from (empty: they need no choice).
  std::vector<std::string> notes;
  std::string kernel_plan;
};

struct JobUpdate {
  JobKey key;
  Rank rank;
  Phase phase = Phase::kAdmitted;
  Failure failure;  // of kRefused, kFailed, kAborted
  RankStatus status;
  Resumed resumed;  // of kAdmitted
};

struct Leaving {
  std::string reason;
};

struct CheckpointCommitted {
  JobKey key;
  StepId step;
  std::string error;  // empty: the checkpoint is durable and visible
};

struct ClockAnswer {
  std::int64_t coordinator_nanos = 0;  // as in the probe
  std::int64_t worker_nanos = 0;
};

// Why a worker refuses all commands of a coordinator. Numbers equal takt.v1.CommandsRefused.Cause.
enum class RefusalCause : std::uint8_t {
  kUnknown = 0,
  kOtherCluster = 1,  // it holds a rank of another cluster
  kLaterEpoch = 2,    // it has heard of a later coordinator of this cluster
};

struct CommandsRefused {
  RefusalCause cause = RefusalCause::kUnknown;
  std::string reason;  // for people
};

struct RankDescription {
  JobKey key;
  Rank rank;
  std::string assignment_hash;  // empty: not known yet
  // Up to these an earlier coordinator has acknowledged the reports of this rank.
  StepId acknowledged_step, acknowledged_checkpoint;
  std::int64_t epoch = 0;  // the highest that the worker has seen
  // The rest is there only if it was asked for.
  std::string assignment;  // SharedText (assignment_serde.h)
  std::string schedule;
  StepId resumed;
  bool from_memory = false;  // `resumed` is of copies that workers held, not of a checkpoint
  std::string kernel_plan;
  // What is in the directory of checkpoints.
  StepId saved;
  Generation highest_generation;
  std::string directory_error;
};

using WorkerMessage = std::variant<Hello, Heartbeat, JobUpdate, Leaving, CheckpointCommitted,
                                   ClockAnswer, CommandsRefused, RankDescription>;

struct Welcome {
  int protocol_version = 0;
  std::string program_version;
  absl::Duration heartbeat, lease;
  std::string cluster_id;  // empty: the coordinator did not say
};

struct Prepare {
  JobKey key;
  Rank rank;
  // Makes the assignment. A program can be large: the sender calls this when it writes the message,
  // the receiver on the thread that prepares the rank. Errors: kInvalidArgument, as
  // AssignmentFromProto.
  std::function<absl::StatusOr<Assignment>()> assignment;
};

struct Start {
  JobKey key;
};

struct Abort {
  JobKey key;
  std::string reason;
};

struct Acknowledge {
  JobKey key;
  bool keeps_copies = false;  // the job goes on: the worker keeps its copies of the job's state
};

struct Halt {
  JobKey key;
  std::string reason;
  // The job goes on at once, so a generation that keeps copies in memory saves no checkpoint.
  bool in_memory = false;
};

struct CommitCheckpoint {
  JobKey key;
  StepId step;
  std::string directory;  // as the job gives it
  int keep = 1;
  // The text of manifest.json; empty: the checkpoint failed, remove its files.
  std::string manifest;
  // This generation resumed from the checkpoint of this step, which must not be removed; 0: none.
  StepId resumed;
  // Tells this job from others of the same name; empty: the coordinator did not say.
  std::string job_id;
  std::int64_t epoch = 0;  // as in Assignment
};

struct ClockProbe {
  std::int64_t coordinator_nanos = 0;  // of the coordinator's steady clock
};

// The coordinator does not know what the worker holds, and asks. whole: about the job too.
struct Describe {
  JobKey key;
  bool whole = false;
};

// The rank belongs to this coordinator from now on.
struct Adopt {
  JobKey key;
};

using Command = std::variant<Welcome, Prepare, Start, Abort, Acknowledge, Halt, CommitCheckpoint,
                             ClockProbe, Describe, Adopt>;

}  // namespace takt::control
