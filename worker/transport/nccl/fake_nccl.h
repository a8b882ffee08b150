// SPDX-License-Identifier: Apache-2.0
// NCCL for tests on any machine. Ranks are threads of this process, their GPUs are simulated
// (backend/discrete), and kernels are tasks on their streams. The fake is as strict as the
// library's manual, and fails or hangs on demand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "worker/transport/nccl/api.h"

namespace takt::transport::nccl {

// There is one at a time in a process. It outlives the ranks, and its destructor waits for threads
// that hang in it.
class FakeNccl {
 public:
  enum class Call : std::uint8_t {
    kInit,
    kPoll,
    kSend,
    kRecv,
    kGroupEnd,
    kFinalize,
    kDestroy,
    kAbort
  };
  static constexpr int kVersion = 22809;

  FakeNccl();
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  static const Api& api();

  // What the `nth` such call of a device does, counted from now on; 1: the next one.
  struct Fault {
    int device = 0;
    Call call = Call::kInit;
    int nth = 1;
    Result result = kSystemError;
    bool hangs = false;  // until Release; then it returns `result`
  };
  void Inject(const Fault& fault);
  void Release();
  // Injects an error that no call waits for: the next poll of any communicator of the device
  // reports it.
  void Break(int device, Result error);

  // Returns what a caller did against the manual.
  std::vector<std::string> misuse() const;
  // Returns how many groups of operations got to a stream.
  int num_given() const;
  // Returns how many were neither destroyed nor aborted.
  int num_open() const;
  int num_aborted() const;
  // Returns whether a thread is in a call that hangs.
  bool hanging() const;

 private:
  struct Clique;
  struct Communicator;
  struct Op;
  struct Offer;
  class Inside;

  static FakeNccl& current();
  static Result MakeId(UniqueId* id);
  static Result Init(const InitOptions& options, Comm* comm);
  static Result AsyncError(Comm comm, Result* state);
  static Result GroupStart();
  static Result GroupEnd();
  static Result Send(const void* data, std::size_t bytes, int peer, Comm comm, NativeStream stream);
  static Result Recv(void* data, std::size_t bytes, int peer, Comm comm, NativeStream stream);
  static Result Finalize(Comm comm);
  static Result Destroy(Comm comm);
  static Result Abort(Comm comm);

  Result Add(const Op& op);
  void MisusedLocked(std::string how) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Communicator> Find(Comm comm);
  // Returns how far the background work has come by this poll.
  Result ProgressLocked(const std::shared_ptr<Communicator>& c)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LaunchLocked(const std::shared_ptr<Communicator>& c) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Is the kernel of a group, on its stream.
  void Run(const std::shared_ptr<Communicator>& c, const std::vector<Op>& ops);

  mutable absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<Clique>> cliques_ ABSL_GUARDED_BY(mutex_);  // by id
  std::map<Comm, std::shared_ptr<Communicator>> open_ ABSL_GUARDED_BY(mutex_);
  std::vector<Fault> faults_ ABSL_GUARDED_BY(mutex_);
  std::map<int, Result> broken_ ABSL_GUARDED_BY(mutex_);  // by device
  std::vector<std::string> misuse_ ABSL_GUARDED_BY(mutex_);
  std::map<int, int> inside_ ABSL_GUARDED_BY(mutex_);  // calls but aborts, by device
  int num_inside_ ABSL_GUARDED_BY(mutex_) = 0;         // of all
  int num_hanging_ ABSL_GUARDED_BY(mutex_) = 0;
  int num_aborted_ ABSL_GUARDED_BY(mutex_) = 0;
  int num_given_ ABSL_GUARDED_BY(mutex_) = 0;
  int num_ids_ ABSL_GUARDED_BY(mutex_) = 0;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace takt::transport::nccl
