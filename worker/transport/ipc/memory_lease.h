// SPDX-License-Identifier: Apache-2.0
// Says when memory of a device that another process has open may be given back to the driver: what
// the driver does before that process has closed it is undefined.
//
//   lender                                    borrower
//   Create, announcement() -----------------> Attach, opens the memory
//   TakeBack: asks, waits ------------------> asked(): closes the memory
//   true <----------------------------------- Return
//
// The words lie in memory of the host that both processes see. Nothing here depends on the
// transport of the host, which an abort ends first.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/transport/shm/shared_memory.h"

namespace takt::transport::ipc {

struct LeaseWords;

// The process that owns the device's memory. Thread: one caller at a time.
class Lender final {
 public:
  static absl::StatusOr<std::unique_ptr<Lender>> Create(const std::string& label);
  ~Lender();
  Lender(const Lender&) = delete;
  Lender& operator=(const Lender&) = delete;

  // Returns what the borrower attaches with: printable, at most kMostHandleBytes of backend.
  std::string announcement() const;

  // Holds on to the process that borrows, so that its end will be known. Call it once the borrower
  // is known to have attached.
  void Watch();

  // Lets nobody attach from now on, and asks for the memory. Blocks: until the borrower has
  // returned it, its process has ended, or the timeout is over. Returns false in the last case.
  bool TakeBack(absl::Duration timeout);

 private:
  explicit Lender(SharedMemory memory);
  bool BorrowerHasEnded() const;

  const SharedMemory memory_;
  LeaseWords& words_;
  int borrower_ = -1;              // a pidfd; -1: none
  bool borrower_is_gone_ = false;  // its process ended before it had a pidfd
};

// The process that opens the memory. Thread: as each function says.
class Borrower final {
 public:
  // Errors: kFailedPrecondition: the two processes do not share memory; kUnavailable: the lender
  // wants the memory back already.
  static absl::StatusOr<std::unique_ptr<Borrower>> Attach(const std::string& announcement);
  // Returns the memory.
  ~Borrower() { Return(); }
  Borrower(const Borrower&) = delete;
  Borrower& operator=(const Borrower&) = delete;

  // Blocks until ready() holds, which may look at asked(). Thread: one caller at a time.
  void Await(absl::FunctionRef<bool()> ready);
  // Makes Await look again. Thread-safe.
  void Wake();
  // Returns whether the lender asks for the memory. Thread-safe.
  bool asked() const;
  // Says that the memory is closed. Idempotent. Thread-safe.
  void Return();

 private:
  explicit Borrower(SharedMemory memory);

  const SharedMemory memory_;
  LeaseWords& words_;
};

}  // namespace takt::transport::ipc
