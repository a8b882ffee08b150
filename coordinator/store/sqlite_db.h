// SPDX-License-Identifier: Apache-2.0
// One SQLite connection and its prepared statements, with errors as statuses that name the file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct sqlite3;
struct sqlite3_stmt;

namespace takt::store {

class SqliteDb;

// Ends a message about a damaged state file: it says what to do.
inline constexpr char kRestoreFix[] =
    "`takt admin fsck` lists the damage; restore the state with `takt admin restore`, or move it "
    "away to start with no jobs";

// `takt admin restore` puts a copy here before it moves anything: the name of the state file with
// this suffix. The last move removes it. While it exists, the state file is not the state, so it is
// not opened.
inline constexpr char kRestored[] = ".restored";

// A prepared statement that is used again and again: bind its parameters and call Run, or call Next
// until it is false. Reset makes it ready for the next use; Run and the last Next call it. A
// caller that stops earlier calls it itself. Borrows its SqliteDb. One caller at a time.
class SqliteStatement final {
 public:
  SqliteStatement(SqliteDb& db, std::string_view sql);
  ~SqliteStatement();
  SqliteStatement(const SqliteStatement&) = delete;
  SqliteStatement& operator=(const SqliteStatement&) = delete;

  // Parameters are numbered in the order bound since the last Reset.
  SqliteStatement& Bind(std::int64_t value);
  SqliteStatement& Bind(std::string_view bytes);  // as a blob: compares bytewise, holds any byte
  SqliteStatement& Bind(const std::string& bytes) { return Bind(std::string_view(bytes)); }

  // Executes a statement without rows.
  absl::Status Run();
  // True: a row is there. False: no more; the statement is reset.
  absl::StatusOr<bool> Next();
  void Reset();

  std::int64_t Int(int column) const;
  std::string Blob(int column) const;

 private:
  SqliteDb& db_;
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
};

// One caller at a time.
class SqliteDb final {
 public:
  // Opens or creates the file in WAL mode with synchronous=FULL, and registers the functions of
  // row_sums.h. It has one writer: a second process is refused. It does not look for damage.
  // Errors: kFailedPrecondition (a restore of the file was interrupted), and those of Error.
  static absl::StatusOr<std::unique_ptr<SqliteDb>> Open(const std::string& path);
  ~SqliteDb();

  absl::Status Execute(const std::string& sql);

  // While on, closing leaves SQLite's log as it is, so that damage can be looked at. On at first.
  void KeepLogOnClose(bool keep);
  // The database takes at most so many pages. It is for tests of a full disk.
  absl::Status LimitPages(std::int64_t pages);

  // The total of the checksums of all rows, which the triggers of WatchRows follow.
  std::uint64_t row_total() const { return row_total_; }
  void set_row_total(std::uint64_t total) { row_total_ = total; }

  // The last error of the connection as a status that names the file and says what to do.
  absl::Status Error() const;
  sqlite3* handle() const { return handle_; }
  const std::string& path() const { return path_; }

 private:
  explicit SqliteDb(std::string path) : path_(std::move(path)) {}

  const std::string path_;
  std::uint64_t row_total_ = 0;
  sqlite3* handle_ = nullptr;
};

}  // namespace takt::store
