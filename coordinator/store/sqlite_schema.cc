// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/sqlite_schema.h"

#include <optional>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"

namespace takt::store {
namespace {

constexpr char kTables[] = R"sql(
CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL, sum INTEGER NOT NULL DEFAULT 0)
  WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS jobs(number INTEGER PRIMARY KEY AUTOINCREMENT, id BLOB NOT NULL UNIQUE,
  record BLOB NOT NULL, sum INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS steps(job_id BLOB, step INTEGER, generation INTEGER, report BLOB NOT NULL,
  sum INTEGER NOT NULL DEFAULT 0, PRIMARY KEY(job_id, step, generation)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS requests(number INTEGER PRIMARY KEY AUTOINCREMENT, method BLOB NOT NULL,
  request_id BLOB NOT NULL, job BLOB, sum INTEGER NOT NULL DEFAULT 0, UNIQUE(method, request_id));
CREATE TABLE IF NOT EXISTS drained(worker BLOB PRIMARY KEY, sum INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS workers(name BLOB PRIMARY KEY, record BLOB NOT NULL,
  sum INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS logs(number INTEGER PRIMARY KEY AUTOINCREMENT, job_id BLOB NOT NULL,
  line BLOB NOT NULL, sum INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS logs_of_job ON logs(job_id, number);
CREATE TABLE IF NOT EXISTS generations(name BLOB PRIMARY KEY, generation INTEGER NOT NULL,
  sum INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS profile(key INTEGER PRIMARY KEY CHECK(key = 0), profile BLOB NOT NULL,
  sum INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS garbage(job_id BLOB PRIMARY KEY, sum INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
)sql";

// A table whose rows carry a checksum. The numbers of requests and logs only give them an order:
// SQLite chooses them, and its own check compares those of the logs with their index.
struct SummedTable {
  absl::string_view name;
  const char* summed;  // columns
  const char* key;     // expression that names a row for people
};
constexpr absl::string_view kMeta = "meta";
constexpr SummedTable kSummed[] = {
    {kMeta, "key, value", "key"},
    {"jobs", "number, id, record", "id"},
    {"steps", "job_id, step, generation, report", "job_id || '/' || step || '/' || generation"},
    {"requests", "method, request_id, job", "method || '/' || request_id"},
    {"drained", "worker", "worker"},
    {"workers", "name, record", "name"},
    {"logs", "job_id, line", "job_id || '/' || number"},
    {"generations", "name, generation", "name"},
    {"profile", "key, profile", "key"},
    {"garbage", "job_id", "job_id"},
};
constexpr const char* kMetaKeys[] = {"schema_version", "cluster_id", "epoch",
                                     "commits",        "digest",     "last_number"};

std::string SumOf(const SummedTable& table) {
  return absl::StrCat("takt_sum('", table.name, "', ", table.summed, ")");
}

// Calls `damaged` with the key of each row whose checksum is wrong. Returns the total of the rows.
template <class Function>
absl::StatusOr<std::uint64_t> SumRows(SqliteDb& db, const SummedTable& table,
                                      const Function& damaged) {
  SqliteStatement rows(
      db, absl::StrCat("SELECT sum, ", SumOf(table), ", ", table.key, " FROM ", table.name));
  std::uint64_t total = 0;
  while (true) {
    ASSIGN_OR_RETURN(const bool row, rows.Next());
    if (!row) return total;
    total += static_cast<std::uint64_t>(rows.Int(0));
    if (rows.Int(0) != rows.Int(1)) damaged(rows.Blob(2));
  }
}

absl::StatusOr<std::optional<std::int64_t>> SchemaVersion(SqliteDb& db) {
  SqliteStatement version(db, "SELECT value FROM meta WHERE key = 'schema_version'");
  const absl::StatusOr<bool> row = version.Next();
  // A file without the table is another program's.
  if (!row.ok() || !*row) return std::optional<std::int64_t>();
  return std::optional(version.Int(0));
}

std::string UpsertMeta(const std::string& key) {
  return absl::StrCat("INSERT INTO meta VALUES('", key, "', ?1, takt_sum('meta', '", key,
                      "', ?1)) ON CONFLICT(key) DO UPDATE SET value = excluded.value, sum = "
                      "excluded.sum");
}

// Gives the tables of version 1 their checksums.
absl::Status AddSums(SqliteDb& db) {
  std::set<std::string> tables;
  {
    SqliteStatement names(db, "SELECT name FROM sqlite_master WHERE type = 'table'");
    while (true) {
      ASSIGN_OR_RETURN(const bool row, names.Next());
      if (!row) break;
      tables.insert(names.Blob(0));
    }
  }
  for (const SummedTable& table : kSummed) {
    if (!tables.contains(std::string(table.name))) continue;
    RETURN_IF_ERROR(db.Execute(
        absl::StrCat("ALTER TABLE ", table.name, " ADD COLUMN sum INTEGER NOT NULL DEFAULT 0")));
    RETURN_IF_ERROR(db.Execute(absl::StrCat("UPDATE ", table.name, " SET sum = ", SumOf(table))));
  }
  return absl::OkStatus();
}

absl::Status WriteNewClusterId(SqliteDb& db) {
  SqliteStatement chosen(db, "SELECT lower(hex(randomblob(16)))");
  ASSIGN_OR_RETURN(const bool row, chosen.Next());
  const std::string id = row ? chosen.Blob(0) : "";
  chosen.Reset();
  return WriteClusterId(db, id);
}

absl::Status MakeCurrent(SqliteDb& db, bool has_tables) {
  if (has_tables) RETURN_IF_ERROR(AddSums(db));
  RETURN_IF_ERROR(db.Execute(kTables));
  std::int64_t last_number = 0;
  {
    SqliteStatement last(db, "SELECT seq FROM sqlite_sequence WHERE name = 'jobs'");
    ASSIGN_OR_RETURN(const bool any, last.Next());
    if (any) last_number = last.Int(0);
  }
  std::uint64_t total = 0;
  for (const SummedTable& table : kSummed) {
    if (table.name == kMeta) continue;
    ASSIGN_OR_RETURN(const std::uint64_t rows, SumRows(db, table, [](const std::string&) {}));
    total += rows;
  }
  RETURN_IF_ERROR(WriteMeta(db, "schema_version", kSchemaVersion));
  RETURN_IF_ERROR(WriteNewClusterId(db));
  RETURN_IF_ERROR(WriteMeta(db, "epoch", 0));
  RETURN_IF_ERROR(WriteMeta(db, "commits", 0));
  RETURN_IF_ERROR(WriteMeta(db, "last_number", last_number));
  return WriteMeta(db, "digest", static_cast<std::int64_t>(total));
}

// Appends what SQLite finds itself. Returns false if it cannot go on.
bool CheckPages(SqliteDb& db, int most, std::vector<Damage>& found) {
  SqliteStatement check(db, absl::StrCat("PRAGMA integrity_check(", most, ")"));
  while (true) {
    const absl::StatusOr<bool> row = check.Next();
    if (!row.ok()) {
      found.push_back({.what = std::string(row.status().message())});
      return false;
    }
    if (!*row) return true;
    if (std::string verdict = check.Blob(0); verdict != "ok")
      found.push_back({.what = std::move(verdict)});
  }
}

void CheckRows(SqliteDb& db, std::vector<Damage>& found) {
  std::uint64_t total = 0;
  for (const SummedTable& table : kSummed) {
    const std::string name(table.name);
    const absl::StatusOr<std::uint64_t> rows = SumRows(db, table, [&](const std::string& key) {
      found.push_back({.table = name, .key = key, .what = "its checksum is wrong"});
    });
    if (!rows.ok()) {
      found.push_back({.table = name, .what = std::string(rows.status().message())});
    } else if (table.name != kMeta) {
      total += *rows;
    }
  }
  for (const char* key : kMetaKeys) {
    if (!ReadMeta(db, key).ok())
      found.push_back({.table = std::string(kMeta), .key = key, .what = "the row is missing"});
  }
  const absl::StatusOr<std::int64_t> digest = ReadMeta(db, "digest");
  if (digest.ok() && static_cast<std::uint64_t>(*digest) != total && found.empty()) {
    found.push_back({.what = "rows have vanished or come back: the total of their checksums is not "
                             "the one of the last transaction"});
  }
}

}  // namespace

std::string Damage::ToString() const {
  if (table.empty()) return what;
  const std::string where = key.empty() ? "" : absl::StrCat(" row ", absl::CHexEscape(key));
  return absl::StrCat("table ", table, where, ": ", what);
}

absl::StatusOr<std::vector<Damage>> FindDamage(SqliteDb& db, int most) {
  std::vector<Damage> found;
  if (!CheckPages(db, most, found)) return found;
  ASSIGN_OR_RETURN(const bool empty, IsEmpty(db));
  if (empty) return found;
  ASSIGN_OR_RETURN(const std::optional<std::int64_t> version, SchemaVersion(db));
  // Version 1 has no checksums. What newer versions have is not known here.
  if (version == kSchemaVersion) CheckRows(db, found);
  if (found.size() > static_cast<std::size_t>(most)) found.resize(static_cast<std::size_t>(most));
  return found;
}

absl::StatusOr<bool> IsEmpty(SqliteDb& db) {
  SqliteStatement tables(db, "SELECT count(*) FROM sqlite_master");
  ASSIGN_OR_RETURN(const bool counted, tables.Next());
  return !counted || tables.Int(0) == 0;
}

absl::StatusOr<Origin> PrepareSchema(SqliteDb& db) {
  ASSIGN_OR_RETURN(const bool empty, IsEmpty(db));
  if (!empty) {
    ASSIGN_OR_RETURN(const std::optional<std::int64_t> version, SchemaVersion(db));
    if (!version) {
      return absl::DataLossError(absl::StrCat("state file ", db.path(),
                                              " has no schema version: it is not a coordinator's; ",
                                              kNoStateFix));
    }
    if (*version > kSchemaVersion) {
      return absl::FailedPreconditionError(absl::StrCat(
          "state file ", db.path(), " has schema ", *version, ", this program knows up to ",
          kSchemaVersion, "; use the program that wrote it or a newer one"));
    }
    if (*version == kSchemaVersion) return Origin::kCurrent;
  }
  RETURN_IF_ERROR(db.Execute("BEGIN IMMEDIATE"));
  absl::Status status = MakeCurrent(db, !empty);
  if (status.ok()) status = db.Execute("COMMIT");
  if (!status.ok()) {
    db.Execute("ROLLBACK").IgnoreError();
    return status;
  }
  return empty ? Origin::kCreated : Origin::kUpgraded;
}

absl::Status WatchRows(SqliteDb& db) {
  for (const SummedTable& table : kSummed) {
    if (table.name == kMeta) continue;
    const auto trigger = [&](const char* suffix, const char* when, const char* what) {
      return db.Execute(absl::StrCat("CREATE TEMP TRIGGER ", table.name, suffix, " AFTER ", when,
                                     " ON main.", table.name, " BEGIN ", what, " END"));
    };
    RETURN_IF_ERROR(trigger("_added", "INSERT", "SELECT takt_added(new.sum);"));
    RETURN_IF_ERROR(trigger("_removed", "DELETE", "SELECT takt_removed(old.sum);"));
    RETURN_IF_ERROR(
        trigger("_changed", "UPDATE", "SELECT takt_removed(old.sum); SELECT takt_added(new.sum);"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> ReadMeta(SqliteDb& db, const std::string& key) {
  SqliteStatement read(db, absl::StrCat("SELECT value FROM meta WHERE key = '", key, "'"));
  ASSIGN_OR_RETURN(const bool row, read.Next());
  if (row) return read.Int(0);
  return absl::DataLossError(absl::StrCat(
      "state file ", db.path(), " is damaged: table meta has no ", key, "; ", kRestoreFix));
}

absl::StatusOr<std::string> ReadClusterId(SqliteDb& db) {
  SqliteStatement read(db, "SELECT value FROM meta WHERE key = 'cluster_id'");
  ASSIGN_OR_RETURN(const bool row, read.Next());
  return row ? read.Blob(0) : std::string();
}

absl::Status WriteClusterId(SqliteDb& db, const std::string& id) {
  SqliteStatement write(db, UpsertMeta("cluster_id"));
  return write.Bind(id).Run();
}

absl::Status WriteMeta(SqliteDb& db, const std::string& key, std::int64_t value) {
  SqliteStatement write(db, UpsertMeta(key));
  return write.Bind(value).Run();
}

}  // namespace takt::store
