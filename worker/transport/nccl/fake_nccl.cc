// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/nccl/fake_nccl.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/backend/discrete/task_stream.h"

namespace takt::transport::nccl {
namespace {

using backend::TaskStream;

// Background work takes this many polls, however fast it is.
constexpr int kPolls = 2;

std::atomic<FakeNccl*> current_fake = nullptr;

enum class Pending : std::uint8_t { kNothing, kInit, kGroup, kFinalize };

// The group that this thread has begun, and the communicators of its operations.
thread_local int group_depth = 0;
thread_local std::set<Comm> group_of;

}  // namespace

struct FakeNccl::Op {
  bool sends = false;
  std::byte* data = nullptr;  // as the host knows it
  std::size_t bytes = 0;
  int peer = 0;
  Comm comm = nullptr;
  TaskStream* stream = nullptr;
};

// A message whose sender waits until it is taken.
struct FakeNccl::Offer {
  const std::byte* data = nullptr;  // as the device knows it
  std::size_t bytes = 0;
  bool taken = false;
};

struct FakeNccl::Clique {
  int size = 0;
  std::set<int> joined, connected, finalized;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Offer>>> offers;  // by from, to
};

struct FakeNccl::Communicator {
  std::shared_ptr<Clique> clique;
  int rank = 0, device = 0;
  Pending pending = Pending::kInit;
  int polls_left = kPolls;
  bool aborted = false, finalized = false;
  std::vector<Op> group;  // that is being launched
};

// A call in progress. It waits where the call is to hang.
class FakeNccl::Inside {
 public:
  Inside(FakeNccl& fake, Call call, int device) : fake_(fake), call_(call), device_(device) {
    absl::MutexLock lock(&fake_.mutex_);
    ++fake_.num_inside_;
    // Aborts may run beside each other, but beside no other call.
    if (call_ == Call::kAbort ? fake_.inside_[device_] > 0 : fake_.inside_[device_]++ > 0)
      fake_.MisusedLocked(absl::StrCat("two threads at once call for device ", device_));
    const auto fault = std::ranges::find_if(fake_.faults_, [&](Fault& f) {
      return f.device == device_ && f.call == call_ && --f.nth == 0;
    });
    if (fault == fake_.faults_.end()) return;
    result_ = fault->result;
    if (!fault->hangs) return;
    ++fake_.num_hanging_;
    fake_.mutex_.Await(absl::Condition(&fake_.released_));
    --fake_.num_hanging_;
  }
  ~Inside() {
    absl::MutexLock lock(&fake_.mutex_);
    --fake_.num_inside_;
    if (call_ != Call::kAbort) --fake_.inside_[device_];
  }
  // kSuccess: the call is not to fail.
  Result result() const { return result_; }

 private:
  FakeNccl& fake_;
  const Call call_;
  const int device_;
  Result result_ = kSuccess;
};

FakeNccl::FakeNccl() { TAKT_CHECK(current_fake.exchange(this) == nullptr); }

FakeNccl::~FakeNccl() {
  Release();
  {
    absl::MutexLock lock(&mutex_);
    const auto nobody = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_inside_ == 0; };
    mutex_.Await(absl::Condition(&nobody));
  }
  current_fake = nullptr;
}

FakeNccl& FakeNccl::current() { return *current_fake.load(); }

const Api& FakeNccl::api() {
  static const Api api = {.unique_id = MakeId,
                          .init = Init,
                          .async_error = AsyncError,
                          .group_start = GroupStart,
                          .group_end = GroupEnd,
                          .send = Send,
                          .recv = Recv,
                          .finalize = Finalize,
                          .destroy = Destroy,
                          .abort = Abort,
                          .error_string = [](Result) { return "as injected"; },
                          .last_error = [] { return ""; }};
  return api;
}

void FakeNccl::Inject(const Fault& fault) {
  absl::MutexLock lock(&mutex_);
  faults_.push_back(fault);
}

void FakeNccl::Release() {
  absl::MutexLock lock(&mutex_);
  released_ = true;
}

void FakeNccl::Break(int device, Result error) {
  absl::MutexLock lock(&mutex_);
  broken_[device] = error;
}

std::vector<std::string> FakeNccl::misuse() const {
  absl::MutexLock lock(&mutex_);
  return misuse_;
}

int FakeNccl::num_open() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(open_.size());
}

int FakeNccl::num_given() const {
  absl::MutexLock lock(&mutex_);
  return num_given_;
}

int FakeNccl::num_aborted() const {
  absl::MutexLock lock(&mutex_);
  return num_aborted_;
}

bool FakeNccl::hanging() const {
  absl::MutexLock lock(&mutex_);
  return num_hanging_ > 0;
}

void FakeNccl::MisusedLocked(std::string how) { misuse_.push_back(std::move(how)); }

std::shared_ptr<FakeNccl::Communicator> FakeNccl::Find(Comm comm) {
  absl::MutexLock lock(&mutex_);
  const auto it = open_.find(comm);
  if (it != open_.end()) return it->second;
  MisusedLocked("a communicator is used that is gone");
  return nullptr;
}

Result FakeNccl::MakeId(UniqueId* id) {
  FakeNccl& fake = current();
  absl::MutexLock lock(&fake.mutex_);
  const std::string text = absl::StrCat("id ", ++fake.num_ids_);
  std::memcpy(id->bytes.data(), text.data(), text.size());
  return kSuccess;
}

Result FakeNccl::Init(const InitOptions& options, Comm* comm) {
  FakeNccl& fake = current();
  const Inside inside(fake, Call::kInit, options.device);
  if (inside.result() != kSuccess) return inside.result();
  absl::MutexLock lock(&fake.mutex_);
  std::shared_ptr<Clique>& clique =
      fake.cliques_[std::string(options.id.bytes.data(), options.id.bytes.size())];
  if (clique == nullptr) clique = std::make_shared<Clique>(Clique{.size = options.num_ranks});
  if (clique->size != options.num_ranks || !clique->joined.insert(options.rank).second) {
    fake.MisusedLocked("a rank is in a clique twice, or ranks do not agree on its size");
    return kInvalidUsage;
  }
  auto c = std::make_shared<Communicator>(
      Communicator{.clique = clique, .rank = options.rank, .device = options.device});
  *comm = c.get();
  fake.open_[*comm] = std::move(c);
  return kInProgress;
}

Result FakeNccl::AsyncError(Comm comm, Result* state) {
  FakeNccl& fake = current();
  const std::shared_ptr<Communicator> c = fake.Find(comm);
  if (c == nullptr) return kInvalidArgument;
  const Inside inside(fake, Call::kPoll, c->device);
  absl::MutexLock lock(&fake.mutex_);
  *state = inside.result() != kSuccess ? inside.result() : fake.ProgressLocked(c);
  return kSuccess;
}

Result FakeNccl::ProgressLocked(const std::shared_ptr<Communicator>& c) {
  if (const auto it = broken_.find(c->device); it != broken_.end()) return it->second;
  Clique& clique = *c->clique;
  const auto all = [&](const std::set<int>& ranks) {
    return static_cast<int>(ranks.size()) == clique.size;
  };
  if (c->pending == Pending::kInit && !all(clique.joined)) return kInProgress;
  if (c->pending == Pending::kFinalize && !all(clique.finalized)) return kInProgress;
  if (c->pending == Pending::kGroup) {
    // The first group makes the connections, which needs all ranks.
    clique.connected.insert(c->rank);
    if (!all(clique.connected)) return kInProgress;
  }
  if (c->pending != Pending::kNothing && c->polls_left-- > 0) return kInProgress;
  if (c->pending == Pending::kGroup) LaunchLocked(c);
  c->pending = Pending::kNothing;
  return kSuccess;
}

Result FakeNccl::GroupStart() {
  ++group_depth;
  return kSuccess;
}

Result FakeNccl::Add(const Op& op) {
  const std::shared_ptr<Communicator> c = Find(op.comm);
  if (c == nullptr) return kInvalidArgument;
  const Inside inside(*this, op.sends ? Call::kSend : Call::kRecv, c->device);
  absl::MutexLock lock(&mutex_);
  if (inside.result() != kSuccess) return inside.result();
  if (c->pending != Pending::kNothing || c->finalized) {
    MisusedLocked("an operation before the one before it was complete");
    return kInvalidUsage;
  }
  if (group_depth == 0) MisusedLocked("an operation outside of a group");
  if (op.stream->Twin(op.data) == nullptr) {
    MisusedLocked("memory that is not the device's");
    return kInvalidArgument;
  }
  c->group.push_back(op);
  group_of.insert(op.comm);
  return kInProgress;
}

Result FakeNccl::Send(const void* data, std::size_t bytes, int peer, Comm comm,
                      NativeStream stream) {
  return current().Add({.sends = true,
                        .data = static_cast<std::byte*>(const_cast<void*>(data)),
                        .bytes = bytes,
                        .peer = peer,
                        .comm = comm,
                        .stream = static_cast<TaskStream*>(stream)});
}

Result FakeNccl::Recv(void* data, std::size_t bytes, int peer, Comm comm, NativeStream stream) {
  return current().Add({.data = static_cast<std::byte*>(data),
                        .bytes = bytes,
                        .peer = peer,
                        .comm = comm,
                        .stream = static_cast<TaskStream*>(stream)});
}

Result FakeNccl::GroupEnd() {
  --group_depth;
  FakeNccl& fake = current();
  Result result = kSuccess;
  for (Comm const comm : std::exchange(group_of, {})) {
    const std::shared_ptr<Communicator> c = fake.Find(comm);
    if (c == nullptr) return kInvalidUsage;
    const Inside inside(fake, Call::kGroupEnd, c->device);
    if (inside.result() != kSuccess) return inside.result();
    absl::MutexLock lock(&fake.mutex_);
    c->pending = Pending::kGroup;
    c->polls_left = kPolls;
    result = kInProgress;
  }
  return result;
}

void FakeNccl::LaunchLocked(const std::shared_ptr<Communicator>& c) {
  std::vector<Op> ops = std::exchange(c->group, {});
  TaskStream* const stream = ops.front().stream;
  ++num_given_;
  for (const Op& op : ops) {
    if (op.stream != stream) MisusedLocked("a group on several streams");
  }
  stream->Push([this, c, ops = std::move(ops)] {
    Run(c, ops);
    return absl::OkStatus();  // what was aborted looks as if it were done
  });
}

void FakeNccl::Run(const std::shared_ptr<Communicator>& c, const std::vector<Op>& ops) {
  absl::MutexLock lock(&mutex_);
  Clique& clique = *c->clique;
  std::vector<std::pair<std::deque<std::shared_ptr<Offer>>*, std::shared_ptr<Offer>>> sent;
  std::vector<std::pair<std::deque<std::shared_ptr<Offer>>*, Op>> wanted;
  for (const Op& op : ops) {
    if (op.sends) {
      auto* const offers = &clique.offers[{c->rank, op.peer}];
      auto offer =
          std::make_shared<Offer>(Offer{.data = op.stream->Twin(op.data), .bytes = op.bytes});
      offers->push_back(offer);
      sent.emplace_back(offers, std::move(offer));
    } else {
      wanted.emplace_back(&clique.offers[{op.peer, c->rank}], op);
    }
  }
  const auto arrived = [](const auto& want) { return !want.first->empty(); };
  for (;;) {
    const auto some = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return c->aborted || std::ranges::any_of(wanted, arrived) ||
             (wanted.empty() &&
              std::ranges::all_of(sent, [](const auto& s) { return s.second->taken; }));
    };
    mutex_.Await(absl::Condition(&some));
    const auto want = std::ranges::find_if(wanted, arrived);
    if (c->aborted || want == wanted.end()) break;
    const std::shared_ptr<Offer> offer = want->first->front();
    want->first->pop_front();
    const Op& op = want->second;
    if (offer->bytes != op.bytes)
      MisusedLocked(absl::StrCat(offer->bytes, " bytes sent, ", op.bytes, " wanted"));
    std::memcpy(op.stream->Twin(op.data), offer->data, std::min(offer->bytes, op.bytes));
    offer->taken = true;
    wanted.erase(want);
  }
  for (const auto& [offers, offer] : sent) std::erase(*offers, offer);  // no rank reads it later
}

Result FakeNccl::Finalize(Comm comm) {
  FakeNccl& fake = current();
  const std::shared_ptr<Communicator> c = fake.Find(comm);
  if (c == nullptr) return kInvalidArgument;
  const Inside inside(fake, Call::kFinalize, c->device);
  if (inside.result() != kSuccess) return inside.result();
  absl::MutexLock lock(&fake.mutex_);
  if (c->pending != Pending::kNothing) fake.MisusedLocked("finalised before all was complete");
  c->finalized = true;
  c->clique->finalized.insert(c->rank);
  c->pending = Pending::kFinalize;
  c->polls_left = kPolls;
  return kInProgress;
}

Result FakeNccl::Destroy(Comm comm) {
  FakeNccl& fake = current();
  const std::shared_ptr<Communicator> c = fake.Find(comm);
  if (c == nullptr) return kInvalidArgument;
  const Inside inside(fake, Call::kDestroy, c->device);
  if (inside.result() != kSuccess) return inside.result();
  absl::MutexLock lock(&fake.mutex_);
  if (!c->finalized || c->pending != Pending::kNothing)
    fake.MisusedLocked("destroyed before it was finalised");
  fake.open_.erase(comm);
  return kSuccess;
}

Result FakeNccl::Abort(Comm comm) {
  FakeNccl& fake = current();
  const std::shared_ptr<Communicator> c = fake.Find(comm);
  if (c == nullptr) return kInvalidArgument;
  const Inside inside(fake, Call::kAbort, c->device);
  absl::MutexLock lock(&fake.mutex_);
  c->aborted = true;
  ++fake.num_aborted_;
  fake.open_.erase(comm);
  return inside.result();
}

}  // namespace takt::transport::nccl
