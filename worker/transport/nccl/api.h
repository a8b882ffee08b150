// SPDX-License-Identifier: Apache-2.0
// The functions of NCCL that we call, as pointers. The module (module.cc) binds them to the
// library, tests bind them to a fake. So everything but the module is built and tested without
// NCCL.
#pragma once

#include <array>
#include <cstddef>

namespace takt::transport::nccl {

// ncclResult_t, with its numbers.
enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

// Identifies a communicator before it exists: one rank makes it, all use the same one.
struct UniqueId {
  std::array<char, 128> bytes{};
};

using Comm = void*;          // of Api::init
using NativeStream = void*;  // backend::Stream::native

struct InitOptions {
  int device = 0;  // as the driver counts
  int num_ranks = 2;
  int rank = 0;
  UniqueId id;
  // Blocks of threads that a kernel of it takes at most, each a multiprocessor in the worst case.
  int max_ctas = 4;
};

// Communicators do not block (ncclConfig_t::blocking = 0): each call but destroy and abort returns
// soon, with kInProgress if the rest happens in the background; async_error then tells how far it
// is. Thread: one caller at a time for all communicators of a device. Only aborts may run beside
// each other.
struct Api {
  Result (*unique_id)(UniqueId* id) = nullptr;
  // *comm: null if there is none, whatever the result.
  Result (*init)(const InitOptions& options, Comm* comm) = nullptr;
  Result (*async_error)(Comm comm, Result* state) = nullptr;
  Result (*group_start)() = nullptr;
  Result (*group_end)() = nullptr;
  Result (*send)(const void* data, std::size_t bytes, int peer, Comm comm,
                 NativeStream stream) = nullptr;
  Result (*recv)(void* data, std::size_t bytes, int peer, Comm comm, NativeStream stream) = nullptr;
  // Waits, in the background, for all ranks to do the same.
  Result (*finalize)(Comm comm) = nullptr;
  // The communicator is gone. destroy: of one that is finalised.
  Result (*destroy)(Comm comm) = nullptr;
  Result (*abort)(Comm comm) = nullptr;
  const char* (*error_string)(Result result) = nullptr;
  // What the library last said about an error; may be empty.
  const char* (*last_error)() = nullptr;
};

}  // namespace takt::transport::nccl
