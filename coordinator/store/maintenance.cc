// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/maintenance.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status.h"
#include "coordinator/store/commit_counter.h"
#include "coordinator/store/copy_state.h"
#include "coordinator/store/sqlite_db.h"
#include "coordinator/store/sqlite_store.h"
#include "coordinator/store/state_dir.h"
#include "coordinator/store/sync_folder.h"
#include "nlohmann/json.hpp"

namespace takt::store {
namespace {

constexpr int kMostDamage = 1000;
constexpr char kOtherCopy[] = "restore another copy of the state";
constexpr int kExitFailed = 1, kExitUsage = 2, kExitNotFound = 4;

absl::Status CheckIsThere(const std::string& path) {
  if (::access(path.c_str(), F_OK) == 0) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("there is no file ", path, "; check the path"));
}

std::string StateFileIn(const std::string& state_dir) { return state_dir + "/coordinator.sqlite"; }

// Copies a database as it is at one moment, while others may write it.
absl::Status CopyDatabase(const std::string& from, const std::string& to) {
  {
    const FileDescriptor made(::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!made.valid() && errno == EEXIST)
      return absl::AlreadyExistsError(absl::StrCat(to, " exists; name another file"));
    if (!made.valid()) return FileError(errno, absl::StrCat("cannot make ", to));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<SqliteDb> source, SqliteDb::Open(from));
  ASSIGN_OR_RETURN(const std::unique_ptr<SqliteDb> copy, SqliteDb::Open(to));
  sqlite3_backup* const backup =
      sqlite3_backup_init(copy->handle(), "main", source->handle(), "main");
  if (backup == nullptr) return copy->Error();
  const int code = sqlite3_backup_step(backup, /*nPage=*/-1);
  sqlite3_backup_finish(backup);
  if (code != SQLITE_DONE) return copy->Error();
  // The copy is one file: nothing of it stays in a log.
  copy->KeepLogOnClose(false);
  RETURN_IF_ERROR(copy->Execute("PRAGMA wal_checkpoint(TRUNCATE)"));
  ASSIGN_OR_RETURN(const std::vector<Damage> damage, FindDamage(*copy, kMostDamage));
  if (damage.empty()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(from, " is damaged: ", damage.front().ToString(), "; use an older copy"));
}

void RemoveDatabase(const std::string& path) {
  for (const char* suffix : {"", "-wal", "-shm"}) ::unlink((path + suffix).c_str());
}

// Does the same for a file that was opened as a store.
void RemoveStateFile(const std::string& path) {
  RemoveDatabase(path);
  ::unlink((path + ".commits").c_str());
}

// It keeps no room, because it is removed soon.
absl::StatusOr<std::unique_ptr<Store>> OpenScratch(const std::string& path) {
  return OpenSqliteStore(path, {.reserve_bytes = 0});
}

absl::Status CopyToScratch(Store& store, const std::string& scratch) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Store> copy, OpenScratch(scratch));
  return CopyState(store, *copy);
}

// Removes the copy if it did not succeed.
absl::Status CopyOrNothing(const std::string& from, const std::string& to) {
  const absl::Status status = CopyDatabase(from, to);
  if (!status.ok() && !absl::IsAlreadyExists(status)) RemoveDatabase(to);
  return status;
}

// Checks that a copy of `from` is the state of a coordinator, and upgrades its tables.
absl::Status CheckIsState(const std::string& from, const std::string& copy) {
  ASSIGN_OR_RETURN(const std::unique_ptr<SqliteDb> db, SqliteDb::Open(copy));
  db->KeepLogOnClose(false);
  ASSIGN_OR_RETURN(const bool empty, IsEmpty(*db));
  if (empty) return absl::DataLossError(absl::StrCat(from, " is empty; ", kOtherCopy));
  const absl::Status status = PrepareSchema(*db).status();
  return absl::Status(status.code(), absl::StrReplaceAll(status.message(), {{copy, from}}));
}

// Copies a backup. Of one that cannot be used the fix is another backup, not another state.
absl::Status CopyBackup(const std::string& from, const std::string& to) {
  absl::Status status = CopyOrNothing(from, to);
  if (status.ok()) {
    status = CheckIsState(from, to);
    if (!status.ok()) RemoveDatabase(to);
  }
  std::string message(status.message());
  for (const char* const fix : {kRestoreFix, kNoStateFix}) {
    const std::size_t at = message.find(fix);
    if (at != std::string::npos) message.replace(at, std::string::npos, kOtherCopy);
  }
  return absl::Status(status.code(), message);
}

absl::Status MoveIfThere(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return FileError(errno, absl::StrCat("cannot move ", from, " to ", to));
}

// Of the files of a state. Its main file is moved last: until then a move that was interrupted can
// be done again.
constexpr const char* kSuffixes[] = {"-wal", "-shm", ".commits", ""};

bool IsState(const std::string& file) {
  struct stat info = {};
  return ::stat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

// Gives a state that was replaced earlier the first number that is free.
absl::Status MakeWay(const std::string& replaced) {
  if (!IsState(replaced)) {
    // A log without its state must not stay beside another one.
    for (const char* const suffix : kSuffixes) ::unlink((replaced + suffix).c_str());
    return absl::OkStatus();
  }
  int number = 1;
  while (IsState(absl::StrCat(replaced, "-", number))) ++number;
  for (const char* const suffix : kSuffixes) {
    RETURN_IF_ERROR(MoveIfThere(replaced + suffix, absl::StrCat(replaced, "-", number, suffix)));
  }
  return absl::OkStatus();
}

int ExitOf(const absl::Status& status, std::ostream& errors) {
  if (status.ok()) return 0;
  errors << "takt-coordinator: " << std::string(status.message()) << "\n";
  return absl::IsNotFound(status) ? kExitNotFound : kExitFailed;
}

int PrintDamage(const std::vector<Damage>& found, bool json, std::ostream& out) {
  if (json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Damage& damage : found) {
      nlohmann::ordered_json& entry = list.emplace_back();
      entry["table"] = damage.table;
      entry["key"] = damage.key;
      entry["what"] = damage.what;
    }
    nlohmann::ordered_json object;
    object["damage"] = std::move(list);
    out << object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n";
  } else {
    for (const Damage& damage : found) out << damage.ToString() << "\n";
    if (found.empty()) out << "no damage\n";
  }
  return found.empty() ? 0 : kExitFailed;
}

}  // namespace

absl::Status BackUpState(const std::string& state_dir, const std::string& to) {
  RETURN_IF_ERROR(CheckIsThere(StateFileIn(state_dir)));
  return CopyOrNothing(StateFileIn(state_dir), to);
}

absl::StatusOr<FileDescriptor> OpenBackup(const std::string& state_file) {
  RETURN_IF_ERROR(CheckIsThere(state_file));
  const std::string copy = state_file + ".backup";
  RemoveDatabase(copy);  // one that a killed process left
  RETURN_IF_ERROR(CopyOrNothing(state_file, copy));
  FileDescriptor opened(::open(copy.c_str(), O_RDONLY | O_CLOEXEC));
  const int error = errno;
  RemoveDatabase(copy);
  if (!opened.valid()) return FileError(error, absl::StrCat("cannot open ", copy));
  return opened;
}

absl::StatusOr<FileDescriptor> OpenBackup(Store& store, const std::string& scratch) {
  RemoveStateFile(scratch);  // one that a killed process left
  const absl::Status copied = CopyToScratch(store, scratch);
  absl::StatusOr<FileDescriptor> opened =
      copied.ok() ? OpenBackup(scratch) : absl::StatusOr<FileDescriptor>(copied);
  RemoveStateFile(scratch);
  return opened;
}

absl::Status ImportState(const std::string& from, const std::string& scratch, Store& to) {
  RETURN_IF_ERROR(CheckIsThere(from));
  RemoveStateFile(scratch);  // one that a killed process left
  absl::Status status = CopyBackup(from, scratch);
  if (status.ok()) {
    // Opening it without a counter skips the epochs.
    const absl::StatusOr<std::unique_ptr<Store>> file = OpenScratch(scratch);
    status = file.ok() ? CopyState(**file, to) : file.status();
  }
  RemoveStateFile(scratch);
  return status;
}

absl::Status RestoreState(const std::string& from, const std::string& state_dir) {
  RETURN_IF_ERROR(CheckIsThere(from));
  ASSIGN_OR_RETURN(const StateDir state, StateDir::Acquire(state_dir));
  const std::string file = state.state_file(), copy = file + ".copied";
  const std::string restored = file + kRestored, old = file + ".replaced";
  RemoveDatabase(copy);
  RETURN_IF_ERROR(CopyBackup(from, copy));
  // After an interrupted restore the replaced state is the one that was in use, so it stays.
  if (::access(restored.c_str(), F_OK) != 0) RETURN_IF_ERROR(MakeWay(old));
  // No store opens from this move to the last one.
  RETURN_IF_ERROR(MoveIfThere(copy, restored));
  RETURN_IF_ERROR(SyncFolderOf(file));
  for (const char* suffix : {"-wal", "", ".commits"})
    RETURN_IF_ERROR(MoveIfThere(file + suffix, old + suffix));
  ::unlink((file + "-shm").c_str());
  RETURN_IF_ERROR(SyncFolderOf(file));
  RETURN_IF_ERROR(MoveIfThere(restored, file));
  // Opening it without a counter skips the epochs.
  return OpenSqliteStore(file).status();
}

absl::StatusOr<std::vector<Damage>> CheckState(const std::string& state_dir) {
  const std::string file = StateFileIn(state_dir);
  RETURN_IF_ERROR(CheckIsThere(file));
  ASSIGN_OR_RETURN(const StateDir state, StateDir::Acquire(state_dir));
  absl::StatusOr<std::unique_ptr<SqliteDb>> db = SqliteDb::Open(file);
  if (absl::IsDataLoss(db.status()))
    return std::vector<Damage>{Damage{.what = std::string(db.status().message())}};
  RETURN_IF_ERROR(db.status());
  ASSIGN_OR_RETURN(std::vector<Damage> found, FindDamage(**db, kMostDamage));
  const absl::StatusOr<std::string> cluster_id = ReadClusterId(**db);
  const absl::StatusOr<std::int64_t> commits = ReadMeta(**db, "commits");
  const CommitCounter counter(file + ".commits");
  if (!found.empty() || !cluster_id.ok() || !commits.ok() || !counter.exists()) return found;
  const absl::StatusOr<std::optional<std::int64_t>> counted = counter.Read(*cluster_id);
  if (!counted.ok()) {
    found.push_back({.what = std::string(counted.status().message())});
  } else if (*counted && **counted > *commits) {
    found.push_back({.what = absl::StrCat(**counted - *commits, " of ", **counted,
                                          " transactions are missing: the log is damaged, or an "
                                          "older copy is in its place")});
  }
  return found;
}

absl::Status ForgetProfile(const std::string& state_dir) {
  const std::string file = StateFileIn(state_dir);
  RETURN_IF_ERROR(CheckIsThere(file));
  ASSIGN_OR_RETURN(const StateDir state, StateDir::Acquire(state_dir));
  ASSIGN_OR_RETURN(const std::unique_ptr<Store> store, OpenSqliteStore(file));
  return store->Commit({.profile = ""});
}

int RunMaintenance(const std::vector<std::string>& arguments, std::ostream& out,
                   std::ostream& errors) {
  const std::string verb = arguments.empty() ? "" : arguments[0];
  if (verb == "backup" && arguments.size() == 3)
    return ExitOf(BackUpState(arguments[1], arguments[2]), errors);
  if (verb == "restore" && arguments.size() == 3)
    return ExitOf(RestoreState(arguments[1], arguments[2]), errors);
  if (verb == "forget-profile" && arguments.size() == 2)
    return ExitOf(ForgetProfile(arguments[1]), errors);
  if (verb == "fsck" && arguments.size() == 3) {
    const absl::StatusOr<std::vector<Damage>> found = CheckState(arguments[1]);
    if (!found.ok()) return ExitOf(found.status(), errors);
    return PrintDamage(*found, arguments[2] == "json", out);
  }
  errors << "takt-coordinator " << kMaintenance
         << ": use `takt admin`; its --help has the commands\n";
  return kExitUsage;
}

}  // namespace takt::store
