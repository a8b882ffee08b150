// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/sqlite_db.h"

#include <sqlite3.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/store/row_sums.h"

namespace takt::store {
namespace {

constexpr int kBusyTimeoutMillis = 2000;

absl::Status CheckNoRestore(const std::string& path) {
  if (::access((path + kRestored).c_str(), F_OK) != 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("a restore of state file ", path, " was interrupted (", path, kRestored,
                   " is still there); run `takt admin restore` again. What was there before is ",
                   path, " or ", path, ".replaced"));
}

}  // namespace

SqliteStatement::SqliteStatement(SqliteDb& db, std::string_view sql) : db_(db) {
  // A statement that does not compile leaves statement_ null: its first use reports the error.
  sqlite3_prepare_v3(db.handle(), sql.data(), static_cast<int>(sql.size()),
                     SQLITE_PREPARE_PERSISTENT, &statement_, nullptr);
}

SqliteStatement::~SqliteStatement() { sqlite3_finalize(statement_); }

SqliteStatement& SqliteStatement::Bind(std::int64_t value) {
  sqlite3_bind_int64(statement_, ++bound_, value);
  return *this;
}

SqliteStatement& SqliteStatement::Bind(std::string_view bytes) {
  sqlite3_bind_blob64(statement_, ++bound_, bytes.empty() ? "" : bytes.data(), bytes.size(),
                      SQLITE_TRANSIENT);
  return *this;
}

absl::Status SqliteStatement::Run() {
  const absl::StatusOr<bool> row = Next();
  Reset();
  return row.status();
}

absl::StatusOr<bool> SqliteStatement::Next() {
  if (statement_ == nullptr) return db_.Error();
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  const absl::Status status = code == SQLITE_DONE ? absl::OkStatus() : db_.Error();
  Reset();
  if (!status.ok()) return status;
  return false;
}

void SqliteStatement::Reset() {
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
  bound_ = 0;
}

std::int64_t SqliteStatement::Int(int column) const {
  return sqlite3_column_int64(statement_, column);
}

std::string SqliteStatement::Blob(int column) const {
  const void* bytes = sqlite3_column_blob(statement_, column);
  if (bytes == nullptr) return "";
  return std::string(static_cast<const char*>(bytes), sqlite3_column_bytes(statement_, column));
}

absl::StatusOr<std::unique_ptr<SqliteDb>> SqliteDb::Open(const std::string& path) {
  RETURN_IF_ERROR(CheckNoRestore(path));
  auto db = std::unique_ptr<SqliteDb>(new SqliteDb(path));
  // The handle exists even if opening failed, and carries the error.
  const int code =
      sqlite3_open_v2(path.c_str(), &db->handle_,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  if (code != SQLITE_OK) return db->Error();
  sqlite3_extended_result_codes(db->handle_, 1);
  // StateDir keeps a second coordinator out. A process that backs the file up or reads it may do
  // so, and a commit waits for the locks that it holds.
  sqlite3_busy_timeout(db->handle_, kBusyTimeoutMillis);
  db->KeepLogOnClose(true);
  if (RegisterRowSums(db->handle_, &db->row_total_) != SQLITE_OK) return db->Error();
  RETURN_IF_ERROR(db->Execute("PRAGMA journal_mode=WAL"));
  RETURN_IF_ERROR(db->Execute("PRAGMA synchronous=FULL"));
  return db;
}

SqliteDb::~SqliteDb() { sqlite3_close_v2(handle_); }

void SqliteDb::KeepLogOnClose(bool keep) {
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep ? 1 : 0, nullptr);
}

absl::Status SqliteDb::LimitPages(std::int64_t pages) {
  SqliteStatement limit(*this, absl::StrCat("PRAGMA max_page_count=", pages));
  return limit.Next().status();
}

absl::Status SqliteDb::Execute(const std::string& sql) {
  return sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK
             ? absl::OkStatus()
             : Error();
}

absl::Status SqliteDb::Error() const {
  if (handle_ == nullptr)
    return absl::ResourceExhaustedError(absl::StrCat("state file ", path_, ": out of memory"));
  const auto file = absl::StrCat("state file ", path_, " ");
  const auto why = absl::StrCat(": ", sqlite3_errmsg(handle_));
  const int system_error = sqlite3_system_errno(handle_);
  const bool full = system_error == ENOSPC || system_error == EDQUOT;
  const int code = sqlite3_errcode(handle_) & 0xff;
  switch (code == SQLITE_IOERR && full ? SQLITE_FULL : code) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_FORMAT:
    case SQLITE_ERROR:  // no such table or column: the layout is not the one that was written
      return absl::DataLossError(absl::StrCat(file, "is damaged", why, "; ", kRestoreFix));
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::UnavailableError(absl::StrCat(file, "is used by another process", why,
                                                 "; stop that one, or use another --state"));
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(
          absl::StrCat(file, "cannot grow", why, "; make room on its disk, or delete ended jobs"));
    default:
      return absl::UnavailableError(absl::StrCat(file, "cannot be read or written", why,
                                                 "; check that its folder exists and is writable"));
  }
}

}  // namespace takt::store
