// SPDX-License-Identifier: Apache-2.0
// For tests: a cluster without threads or sockets. The test plays the workers. Settle does what the
// coordinator's threads would: tick, store, show, send, plan, until nothing more follows.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/job/cluster.h"
#include "coordinator/job/effects.h"
#include "coordinator/job/rendezvous.h"
#include "gtest/gtest.h"

namespace takt::job {

// One control stream, which keeps what was sent on it.
class FakeSession final : public WorkerSession, public BulkSession {
 public:
  void Send(const control::Command& command) override { commands.push_back(command); }
  void Close(const absl::Status& status) override { closed = status; }
  void Acknowledge(const control::ReportsAcknowledged& reports) override {
    acknowledged = reports.sequence;
  }

  // Returns the last command of this type, or null if there was none.
  template <class T>
  const T* Last() const {
    for (auto it = commands.rbegin(); it != commands.rend(); ++it) {
      if (const T* command = std::get_if<T>(&*it)) return command;
    }
    return nullptr;
  }

  std::vector<control::Command> commands;
  std::optional<absl::Status> closed;
  std::int64_t acknowledged = 0;
};

struct FakeWorker {
  std::string name, incarnation;
  SessionId id;
  std::shared_ptr<FakeSession> session;
};

class ClusterTest : public ::testing::Test {
 protected:
  ClusterTest();

  // Does what kill -9 and a start would: only the store is kept, and the workers' sessions are
  // gone.
  void Restart();
  void Settle();
  void Advance(absl::Duration by);

  FakeWorker& Attach(const std::string& name, const std::string& incarnation = "a",
                     std::optional<membership::Hold> running = std::nullopt,
                     std::optional<Device> device = std::nullopt);
  // Its program speaks that version of the protocol.
  FakeWorker& AttachOld(const std::string& name, int protocol);
  void AttachWorkers(int count);
  // It attaches with a rank that a coordinator of this cluster gave it.
  FakeWorker& AttachHolding(const std::string& name, const control::RunningJob& running);
  // Its stream ends. It is away.
  void Detach(const std::string& name);
  // The same, and it does not come back in time.
  void Lose(const std::string& name);
  // Time passes, in which these workers send heartbeats that say nothing of their ranks.
  void AdvanceHearing(const std::vector<std::string>& names, absl::Duration by);
  void Say(const std::string& worker, const control::JobKey& key, int rank, control::Phase phase,
           const std::string& error = "", const std::string& waiting_for = "");
  void Heartbeat(const std::string& worker, const control::JobKey& key, int rank, std::int64_t step,
                 const std::string& instruction);
  void Report(const std::string& worker, const control::JobKey& key, int rank, std::int64_t step);
  // Reports one rank's part of a checkpoint: one file named for the rank.
  void ReportPart(const std::string& worker, const control::JobKey& key, int rank,
                  std::int64_t step, const std::string& error = "");
  // Sends the worker's answer to CommitCheckpoint.
  void Answer(const std::string& worker, const control::JobKey& key, std::int64_t step,
              const std::string& error = "");
  void Leave(const std::string& worker);

  // Returns an emulated job over `pipeline` workers; 0: auto.
  static config::JobSpec Spec(const std::string& name, int pipeline, std::int64_t steps = 2);
  // Returns the same with checkpoints in a directory of its own.
  static config::JobSpec SavingSpec(const std::string& name, int pipeline,
                                    std::int64_t steps = 100);
  // Returns the same over any number of workers. It leaves its replicas and its microbatches to the
  // first plan, which chooses 2 and 4.
  static config::JobSpec OpenSpec(const std::string& name);
  // Returns a job like this one, of a real model, that copies its state in memory after every step.
  static config::JobSpec CopyingSpec(config::JobSpec spec);
  absl::StatusOr<store::JobRecord> Submit(const config::JobSpec& spec,
                                          const std::string& request_id = "");
  absl::StatusOr<store::JobRecord> Cancel(const std::string& name,
                                          const std::string& request_id = "");
  absl::StatusOr<store::JobRecord> Pause(const std::string& name,
                                         const std::string& request_id = "");
  absl::StatusOr<store::JobRecord> Resume(const std::string& name,
                                          const std::string& request_id = "");
  absl::Status Delete(const std::string& name, const std::string& request_id = "");
  absl::StatusOr<store::JobRecord> Adopt(const std::string& name,
                                         const std::string& request_id = "");
  absl::Status Abandon(const std::string& name, const std::string& request_id = "");
  absl::StatusOr<membership::Worker> SetDrained(const std::string& name, bool drained,
                                                const std::string& request_id = "");
  // Submits, settles, and lets all ranks be admitted and started.
  control::JobKey RunJob(const std::string& name, int pipeline, std::int64_t steps = 2);
  control::JobKey RunJob(const config::JobSpec& spec);
  // Lets all ranks of a job that was submitted be admitted and started.
  control::JobKey AdmitAll(const std::string& name, std::int64_t resumed_step = 0);
  // Lets all ranks do the steps up to this one.
  void TrainTo(const control::JobKey& key, std::int64_t step);
  // Lets all ranks do the steps up to this one and write their parts of its checkpoint.
  void WriteAt(const control::JobKey& key, std::int64_t step);
  // Lets all ranks save after this step; the checkpoint becomes visible.
  void SaveAt(const control::JobKey& key, std::int64_t step);
  void SayAll(const control::JobKey& key, control::Phase phase);

  const store::JobRecord& Job(const std::string& name) { return shown_.at(name); }
  FakeSession& Session(const std::string& worker) { return *workers_.at(worker).session; }
  membership::WorkerState StateOf(const std::string& worker) {
    return cluster_->workers().at(worker).state();
  }
  std::vector<std::int64_t> StoredSteps(const std::string& name);

  FakeClock clock_{absl::FromUnixSeconds(1'000'000)};
  std::unique_ptr<store::Store> store_;
  std::unique_ptr<Rendezvous> rendezvous_;
  std::unique_ptr<Cluster> cluster_;
  std::map<std::string, store::JobRecord> shown_;  // by name, as published
  std::map<std::string, FakeWorker> workers_;
  std::vector<MakePlan> plans_;
  std::vector<Replan> replans_;  // the test answers them
  bool hold_plans_ = false;      // leave plans_ to the test
  absl::Status plan_error_;      // what planning answers instead
  RetentionOptions retention_;
  placement::Quotas quotas_;  // of the cluster that Restart makes
  absl::Duration abandon_held_after_ = absl::InfiniteDuration();  // likewise
  ReplanOptions replan_;                                          // likewise
  // What was measured on workers; never null.
  std::shared_ptr<const profile::Profile> profile_ = std::make_shared<const profile::Profile>();
  std::string host_ = "h";  // of workers that attach
  std::string owner_;       // of jobs that are submitted
  double predicted_step_seconds_ = 0;

 private:
  FakeWorker& AttachAs(control::Hello hello);
  std::int64_t NextSequence(const std::string& worker, const control::JobKey& key);

  std::int64_t last_session_ = 0;
  int last_random_ = 0;
  std::map<std::string, std::int64_t> sequences_;  // by worker and generation
};

}  // namespace takt::job
