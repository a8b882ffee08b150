// SPDX-License-Identifier: Apache-2.0
#include "coordinator/follow.h"

#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/daemon/service_manager.h"
#include "common/metrics/catalog.h"
#include "common/rpc/health.h"
#include "coordinator/etcd/etcd_store.h"
#include "coordinator/job/board.h"
#include "coordinator/job/coordinator.h"
#include "coordinator/rpc/server.h"
#include "coordinator/timeouts/timeouts.h"

namespace takt::coordinator {
namespace {

// Serves reads while another coordinator leads. The thread that follows calls it; the server asks
// it for the leader on other threads.
class Follower final {
 public:
  static absl::StatusOr<std::unique_ptr<Follower>> Start(const FollowParts& parts,
                                                         etcd::Reader* reader) {
    ASSIGN_OR_RETURN(std::unique_ptr<store::Store> store, etcd::OpenEtcdStore(reader, nullptr));
    std::unique_ptr<Follower> follower(new Follower(std::move(store)));
    RETURN_IF_ERROR(follower->Serve(parts));
    return follower;
  }

  // Shows what has changed since the last call, and who leads.
  void Show(const etcd::Standing& standing) {
    {
      absl::MutexLock lock(&mutex_);
      if (leader_ != standing.leader)
        Log(LogLevel::kInfo, "this coordinator follows", {{"leader", standing.leader}});
      leader_ = standing.leader;
    }
    if (shown_commits_ == standing.commits) return;
    const absl::StatusOr<store::Snapshot> snapshot = store_->Load();
    if (!snapshot.ok()) {
      // A large change is under way, or etcd is away. The next call reads again.
      Log(LogLevel::kDebug, "the state was not read",
          {{"error", std::string(snapshot.status().message())}});
      return;
    }
    job::Board& board = coordinator_->board();
    std::set<std::string> kept;
    for (const store::JobRecord& job : snapshot->jobs) kept.insert(job.id);
    const std::vector<job::JobView> shown = board.List(
        0, std::numeric_limits<int>::max(), [](const store::JobRecord&) { return true; });
    for (const job::JobView& job : shown) {
      if (!kept.contains(job->id)) board.Remove(job->id);
    }
    for (const store::JobRecord& job : snapshot->jobs) board.Publish(job);
    shown_commits_ = standing.commits;
  }

  // Answers those who ask whether this process is well.
  void Answer() {
    std::vector<std::function<void()>> answers;
    {
      absl::MutexLock lock(&mutex_);
      answers.swap(answers_);
    }
    for (const auto& answer : answers) answer();
  }

  const std::string& address() const { return server_->address(); }

 private:
  explicit Follower(std::unique_ptr<store::Store> store)
      : store_(std::move(store)), coordinator_(job::Coordinator::Follow(store_.get())) {}

  absl::Status Serve(const FollowParts& parts) {
    const Flags& flags = parts.flags;
    coordinator_rpc::ServerOptions options{.listen = flags.listen, .tls = flags.tls};
    options.leader = [this] {
      absl::MutexLock lock(&mutex_);
      return leader_;
    };
    ASSIGN_OR_RETURN(server_, coordinator_rpc::Server::Start(options, coordinator_.get()));
    store::Addresses addresses = parts.addresses;
    addresses.listen = server_->address();
    RETURN_IF_ERROR(parts.state.PublishAddresses(addresses));
    const auto ask = [this](std::function<void()> answer) {
      absl::MutexLock lock(&mutex_);
      answers_.push_back(std::move(answer));
    };
    watchdog_.emplace(ask);
    if (!flags.health_socket.empty()) {
      const health::Check ready = [] { return absl::UnavailableError("it follows another one"); };
      ASSIGN_OR_RETURN(health_,
                       health::Server::Start(flags.health_socket,
                                             {{"live", health::Answers(ask)}, {"ready", ready}}));
    }
    daemon::NotifyReady(absl::StrCat("follows; answers reads on ", addresses.listen));
    return absl::OkStatus();
  }

  const std::unique_ptr<store::Store> store_;
  const std::unique_ptr<job::Coordinator> coordinator_;  // decides nothing: it has the board
  std::string shown_commits_;
  absl::Mutex mutex_;
  std::string leader_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> answers_ ABSL_GUARDED_BY(mutex_);
  // They are last, because they call what is above.
  std::unique_ptr<coordinator_rpc::Server> server_;
  std::optional<daemon::Watchdog> watchdog_;
  std::unique_ptr<health::Server> health_;
};

// Returns true if a signal came within the time.
bool AwaitSignal(const sigset_t& signals, absl::Duration time) {
  const timespec timeout = absl::ToTimespec(time);
  return sigtimedwait(&signals, nullptr, &timeout) > 0;
}

// An error that may be over the next time.
bool MayHeal(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status) ||
         absl::IsOutOfRange(status);
}

absl::StatusOr<std::unique_ptr<LedState>> Connect(const Flags& flags) {
  auto led = std::make_unique<LedState>();
  ASSIGN_OR_RETURN(led->client, etcd::EtcdClient::Create(
                                    {.endpoints = flags.etcd.endpoints, .tls = flags.etcd.tls}));
  led->reader = std::make_unique<etcd::Reader>(led->client.get(), flags.etcd.prefix);
  return led;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LedState>> FollowUntilLeader(const FollowParts& parts) {
  const Flags& flags = parts.flags;
  ASSIGN_OR_RETURN(std::unique_ptr<LedState> led, Connect(flags));
  ASSIGN_OR_RETURN(std::unique_ptr<Follower> follower, Follower::Start(parts, led->reader.get()));
  led->listen = follower->address();
  const std::string address = flags.advertise.empty() ? led->listen : flags.advertise;
  absl::StatusCode trouble = absl::StatusCode::kOk;
  parts.registry.Gauge(metrics::kLeader).Set(0);
  while (true) {
    absl::StatusOr<etcd::Standing> standing = etcd::TryToLead(
        *led->reader, {.address = address, .lease = absl::Seconds(flags.etcd.lease_seconds)});
    if (!standing.ok() && !MayHeal(standing.status())) return standing.status();
    if (standing.ok() && standing->leadership != nullptr) {
      led->leadership = std::move(standing->leadership);
      break;
    }
    if (standing.status().code() != trouble && !standing.ok()) {
      Log(LogLevel::kWarning, "the state cannot be reached; will try again",
          {{"error", std::string(standing.status().message())}});
    }
    trouble = standing.status().code();
    if (standing.ok()) {
      parts.registry.Gauge(metrics::kEpoch).Set(static_cast<double>(standing->epoch));
      follower->Show(*standing);
    }
    follower->Answer();
    if (AwaitSignal(parts.signals, timeouts::kFollow)) return std::unique_ptr<LedState>();
  }
  follower.reset();  // its address is free for the one that leads
  ASSIGN_OR_RETURN(led->store, etcd::OpenEtcdStore(led->reader.get(), led->leadership.get()));
  Log(LogLevel::kInfo, "this coordinator leads",
      {{"address", address}, {"epoch", absl::StrCat(led->leadership->epoch())}});
  return led;
}

}  // namespace takt::coordinator
