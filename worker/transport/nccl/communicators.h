// SPDX-License-Identifier: Apache-2.0
// All NCCL communicators of one rank, which end together.
//
//   [running] --Abort, an error, a deadline--> [aborting] --every abort returned--> [aborted]
//       |                                           |
//       | Close                                     '--------abort_timeout--------> [stuck]
//       v
//   [closed]
//
// NCCL never gives up on a peer by itself, and a communicator with an error cannot be used again.
// So all calls are polled here, with deadlines, and work on streams is watched. The first error
// aborts every communicator, each on a thread of its own, since aborts have been seen to hang. The
// control plane makes all ranks abort: it stops every rank of a generation.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/backend/stream.h"
#include "worker/transport/nccl/api.h"

namespace takt::transport::nccl {

struct CommunicatorsOptions {
  const Api* api = nullptr;  // borrowed, for ever: a call into it may never return
  int device = 0;
  absl::Duration connect_timeout = absl::Seconds(30);   // of Open
  absl::Duration operation_timeout = absl::Minutes(5);  // of a call; of work that a stream began
  // Together these two are less than what the session gives to a teardown.
  absl::Duration close_timeout = absl::Seconds(3);
  absl::Duration abort_timeout = absl::Seconds(5);
  absl::Duration poll_interval = absl::Milliseconds(100);  // of errors that no call waits for
  // Is called once, on a thread of ours, when communicators were aborted because of `reason`, or
  // are stuck in that. The process can then use NCCL no more. May be empty.
  std::function<void(const absl::Status& reason, bool stuck)> on_aborted;
};

class Communicator;

// Thread-safe.
class Communicators {
 public:
  explicit Communicators(CommunicatorsOptions options);
  // Closes those that run: it waits for all ranks to do the same, and aborts if that takes too
  // long.
  ~Communicators();
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  struct OpenOptions {
    std::string name;  // for messages: "F to rank 1"
    int num_ranks = 2;
    int rank = 0;
    UniqueId id;
    int max_ctas = 4;
  };
  // The communicator is valid until this is destroyed. Blocks: until all its ranks did the same
  // (connect_timeout). Ranks open the communicators that they share in one order.
  absl::StatusOr<Communicator*> Open(const OpenOptions& options);

  // Gives what `calls` sends and receives to `stream`, at once, as one group. The first time, this
  // waits for the peers to give their part: `first` says so, and connect_timeout applies. stream:
  // one for the life of the communicator.  Blocks: while NCCL prepares. Errors: kUnavailable
  // (network, peer), kInternal (device, NCCL), kDeadlineExceeded; any of them aborts all.
  absl::Status Give(Communicator& communicator, backend::Stream& stream,
                    absl::FunctionRef<Result(Comm, NativeStream)> calls, bool first = false);

  // Ends the watching of the communicator's stream, which is about to go.
  static void Forget(Communicator& communicator);

  // Never blocks. The first reason counts.
  void Abort(const absl::Status& reason);
  // Returns OK while running. Then everything that streams have done is complete.
  absl::Status status() const;
  // As status, but OK where there was no communicator, since nothing is poisoned then.
  absl::Status poisoned() const;

 private:
  struct State;
  void Close();
  // It outlives this object when a call hangs: the thread of that call keeps it.
  const std::shared_ptr<State> state_;
  std::thread poller_, ender_;
};

}  // namespace takt::transport::nccl
