// SPDX-License-Identifier: Apache-2.0
// A socket in front of another one. A test can delay, throttle, cut off or break the connections
// that lead through it: ControlLink lies between a worker and the coordinator, DataLink between a
// worker and the workers that dial it.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <deque>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/file_descriptor.h"

namespace takt::testing {

// Says what a link does with the bytes on it. The connections share it, as they would share a wire.
struct LinkShape {
  // Bytes pass from the end that dialled, and to it. Otherwise they wait, and neither end learns of
  // it.
  bool up = true, down = true;
  absl::Duration delay;         // each way
  double bytes_per_second = 0;  // each way, of all connections together; 0: no limit
};

// An address of either kind of socket.
struct LinkEnd {
  sockaddr_storage address = {};
  socklen_t size = 0;
};

// Thread-safe. Its connections and its thread end with it.
class Link {
 public:
  Link(const Link&) = delete;

  // From the return on, bytes pass like this, also those that waited.
  void Shape(const LinkShape& shape);
  // From now on nothing passes in either direction, and neither end learns of it.
  void Cut() { Shape({.up = false, .down = false}); }
  // What was sent meanwhile arrives.
  void Heal() { Shape({}); }
  // Every connection breaks. New ones are made as before.
  void Reset();

 protected:
  // front: where it listens. back: what is behind it.
  Link(const LinkEnd& front, const LinkEnd& back);
  ~Link();

  // Returns where it listens, with the port that the system chose.
  LinkEnd FrontEnd() const;

 private:
  struct Chunk {
    absl::Duration due;  // steady
    std::vector<char> bytes;
    std::size_t sent = 0;
  };
  // One direction of a connection.
  struct Flow {
    int from = -1, to = -1;
    std::deque<Chunk> under_way;
    bool ended = false;    // nothing more comes
    bool blocked = false;  // the receiver takes nothing now
  };
  struct Connection {
    FileDescriptor front, back;
    std::array<Flow, 2> flows;  // up and down
    bool broken = false;
  };
  struct Orders {
    LinkShape shape;
    bool reset = false, ended = false;
  };

  Orders TakeOrders();
  // Waits until the thread has taken the orders.
  void AwaitTaken() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Main();
  // Resets every connection.
  void Break();
  // Waits until there is something to do.
  void AwaitWork();
  bool Passes(std::size_t way) const { return way == 0 ? shape_.up : shape_.down; }
  bool HasRoom(const Flow& flow) const;
  // Takes a connection, and makes one to the target.
  void Accept();
  // Reads what is there and gives it the time at which it arrives.
  void Take(Connection& connection, std::size_t way);
  // Passes on what has arrived.
  void Deliver(Connection& connection, std::size_t way);

  const LinkEnd back_;
  FileDescriptor listener_, wake_;
  absl::Mutex mutex_;
  Orders orders_ ABSL_GUARDED_BY(mutex_);
  int given_ ABSL_GUARDED_BY(mutex_) = 0, taken_ ABSL_GUARDED_BY(mutex_) = 0;  // orders
  // Only the thread uses these.
  LinkShape shape_;
  std::array<absl::Duration, 2> wire_free_;  // steady: when the last byte has left, each way
  std::list<Connection> connections_;
  std::thread thread_;  // last: it uses everything above
};

// Between a worker and the coordinator, over Unix sockets.
class ControlLink final : public Link {
 public:
  // path: where it listens. target: the path of the socket behind it.
  ControlLink(const std::string& path, const std::string& target);
  ~ControlLink();

  // Returns the address that a worker dials.
  std::string address() const { return "unix:" + path_; }

 private:
  const std::string path_;
};

// In front of the data plane of one worker, over TCP on the loopback interface. "Up" is what its
// peers send to it.
class DataLink final : public Link {
 public:
  // host: an address in 127.0.0.0/8 that this worker alone has.
  explicit DataLink(const std::string& host) : DataLink(host, FreePort(host)) {}

  // Returns the flags of the worker: where it listens, and that its peers dial this link.
  std::vector<std::string> WorkerArguments() const;

 private:
  DataLink(std::string host, int port);
  // Returns a port on which nothing listens.
  static int FreePort(const std::string& host);

  const std::string host_;
  const int port_;
};

}  // namespace takt::testing
