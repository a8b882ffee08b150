// SPDX-License-Identifier: Apache-2.0
// A record of what one client was told: the commands that the coordinator acknowledged, and the
// jobs and steps that it showed. It is compared with a model of a coordinator that never forgets,
// so it says what a fault has lost, whatever the fault was:
//
//   - a job keeps its id; its generation, newest step and newest checkpoint never go back;
//   - a step that was shown keeps its loss, and is in the log of steps, which has each step once;
//   - an end is final, and a job is paused or cancelled only if somebody asked for it;
//   - once nothing happens any more, each job is where the last acknowledged command sends it, or
//     has ended;
//   - a worker is drained exactly if the last acknowledged command about it says so.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "takt/v1/cluster_service.pb.h"
#include "takt/v1/job.pb.h"

namespace takt::testing {

enum class Command { kSubmit, kPause, kResume, kCancel, kDelete };

// One client's: a command is sent after the one before it was acknowledged. One thread.
class History final {
 public:
  // The coordinator acknowledged a command.
  void Acknowledged(Command command, const std::string& job);
  void AcknowledgedDrained(const std::string& worker, bool drained);

  // The coordinator showed this.
  void Saw(const v1::Job& job);
  void Saw(const v1::Worker& worker);
  // The whole log of steps of a job.
  void SawSteps(const std::string& job, const std::vector<v1::StepReport>& steps);
  // The job, at a time when no command and no fault is under way.
  void SawAtRest(const v1::Job& job);

  // Returns the names of all jobs that were submitted.
  std::vector<std::string> JobNames() const;
  // Returns what contradicts the model, empty if nothing does.
  const std::vector<std::string>& violations() const { return violations_; }
  // Returns the acknowledged commands with their times, a line each.
  std::string ToString() const;

 private:
  enum class Wish { kRun, kPause, kCancel };
  struct JobModel {
    std::string id;  // empty: not seen yet
    Wish wish = Wish::kRun;
    bool was_to_pause = false;
    std::int64_t generation = 0, checkpoint = 0;
    std::map<std::int64_t, double> losses;  // of steps that were shown
    std::optional<v1::JobState> end;
  };

  void Note(std::string_view what, const std::string& of);
  void Violation(const std::string& of, std::string_view rule);
  void SawLoss(const std::string& name, JobModel& model, const v1::StepReport& step);

  const absl::Time begin_ = absl::Now();
  std::map<std::string, JobModel> jobs_;
  std::map<std::string, bool> drained_;
  std::vector<std::string> commands_;
  std::vector<std::string> violations_;
};

}  // namespace takt::testing
