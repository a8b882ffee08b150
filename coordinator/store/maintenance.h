// SPDX-License-Identifier: Apache-2.0
// What `takt admin` does with a state directory: it copies, restores and checks the state file.
// takt-coordinator does the work, since it alone knows the file.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_descriptor.h"
#include "coordinator/store/sqlite_schema.h"
#include "coordinator/store/store.h"

namespace takt::store {

// If this is its first argument, takt-coordinator does maintenance instead of serving.
inline constexpr char kMaintenance[] = "--maintain-state";

// Copies the state of the directory to a new file of mode 0600. The coordinator may run.
// Errors: kAlreadyExists (`to` is there), kNotFound (there is no state), kDataLoss (damaged).
absl::Status BackUpState(const std::string& state_dir, const std::string& to);

// Copies the state file of a running coordinator, as BackUpState does, and returns the copy, open
// for reading. The copy lies beside the state file and has no name any more, so it vanishes once it
// is closed. One caller at a time.
// Errors: as BackUpState; kResourceExhausted (no room for the copy).
absl::StatusOr<FileDescriptor> OpenBackup(const std::string& state_file);

// The same for any store. The copy is a state file too.
// scratch: a path at which the copy lies while it is made.
absl::StatusOr<FileDescriptor> OpenBackup(Store& store, const std::string& scratch);

// Copies a state file into a store that has had no jobs. The state goes on kEpochsSkipped epochs
// later. The file stays as it is. scratch: as OpenBackup.
// Errors: kNotFound (no such file), kDataLoss (it is damaged), those of CopyState.
absl::Status ImportState(const std::string& from, const std::string& scratch, Store& to);

// Puts a copy into the directory, whose coordinator must not run. What was there is kept beside it
// as coordinator.sqlite.replaced, and what earlier calls replaced as coordinator.sqlite.replaced-1
// and so on. The state goes on kEpochsSkipped epochs later. If it ends between two moves, the state
// does not open until a later call has succeeded.
// Errors: kFailedPrecondition (a coordinator runs), kNotFound (no such file), kDataLoss (the copy
// is damaged).
absl::Status RestoreState(const std::string& from, const std::string& state_dir);

// Returns what is damaged. Errors: kFailedPrecondition (a coordinator runs), kNotFound (there is no
// state).
absl::StatusOr<std::vector<Damage>> CheckState(const std::string& state_dir);

// Drops what was measured on workers. Errors: as CheckState, kDataLoss.
absl::Status ForgetProfile(const std::string& state_dir);

// Runs `backup DIR TO`, `restore FROM DIR`, `forget-profile DIR`, or `fsck DIR` followed by `json`
// or `text`. Returns the exit status as `takt` has them: 0 done, 1 damaged or failed, 2 wrong
// usage, 4 not found.
int RunMaintenance(const std::vector<std::string>& arguments, std::ostream& out,
                   std::ostream& errors);

}  // namespace takt::store
