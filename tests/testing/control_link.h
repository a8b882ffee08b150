// SPDX-License-Identifier: Apache-2.0
// A Unix socket in front of another one. A test can cut off or break the connections that lead
// through it, as between a worker and the coordinator.
#pragma once

#include <sys/types.h>

#include <list>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/file_descriptor.h"

namespace takt::testing {

// Thread-safe. Its connections and its thread end with it.
class ControlLink final {
 public:
  // path: where it listens. target: the path of the socket behind it.
  ControlLink(const std::string& path, const std::string& target);
  ~ControlLink();
  ControlLink(const ControlLink&) = delete;

  // Returns the address that a worker dials.
  std::string address() const { return "unix:" + path_; }

  // From now on nothing passes in either direction, and neither end learns of it.
  void Cut() { Tell(State::kCut); }
  // What was sent meanwhile arrives.
  void Heal() { Tell(State::kOpen); }
  // Every connection breaks. New ones are made as before.
  void Reset() { Tell(State::kReset); }

 private:
  enum class State { kOpen, kCut, kReset, kEnded };
  struct Connection {
    FileDescriptor front, back;
  };

  void Tell(State state);
  State Told();
  void Main();
  // Takes a connection, and makes one to the target.
  void Accept();
  // Passes on what is there to read. Returns false if the connection is over.
  static bool Pass(int from, int to);

  const std::string path_, target_;
  FileDescriptor listener_, wake_;
  absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kOpen;
  std::list<Connection> connections_;  // only the thread uses it
  std::thread thread_;                 // last: it uses everything above
};

}  // namespace takt::testing
