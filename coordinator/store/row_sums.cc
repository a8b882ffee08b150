// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/row_sums.h"

#include <sqlite3.h>
#include <xxhash.h>

#include <cstddef>
#include <string>

namespace takt::store {
namespace {

constexpr int kAnyCount = -1;

// Appends eight bytes, the lowest first, so that a state file may move to any machine.
void AppendNumber(std::string& out, std::uint64_t value) {
  for (int byte = 0; byte < 8; ++byte) out.push_back(static_cast<char>(value >> (8 * byte)));
}

// The type and the length frame each value, so that no two rows have one form.
void AppendValue(std::string& out, sqlite3_value* value) {
  const int type = sqlite3_value_type(value);
  out.push_back(static_cast<char>(type));
  if (type == SQLITE_INTEGER) {
    return AppendNumber(out, static_cast<std::uint64_t>(sqlite3_value_int64(value)));
  }
  const void* const bytes = sqlite3_value_blob(value);
  const int size = bytes == nullptr ? 0 : sqlite3_value_bytes(value);
  AppendNumber(out, static_cast<std::uint64_t>(size));
  if (size > 0) out.append(static_cast<const char*>(bytes), static_cast<std::size_t>(size));
}

void Sum(sqlite3_context* context, int count, sqlite3_value** values) {
  std::string framed;
  for (int i = 0; i < count; ++i) AppendValue(framed, values[i]);
  sqlite3_result_int64(context,
                       static_cast<sqlite3_int64>(XXH3_64bits(framed.data(), framed.size())));
}

std::uint64_t& TotalOf(sqlite3_context* context) {
  return *static_cast<std::uint64_t*>(sqlite3_user_data(context));
}

void Added(sqlite3_context* context, int /*count*/, sqlite3_value** values) {
  TotalOf(context) += static_cast<std::uint64_t>(sqlite3_value_int64(values[0]));
}

void Removed(sqlite3_context* context, int /*count*/, sqlite3_value** values) {
  TotalOf(context) -= static_cast<std::uint64_t>(sqlite3_value_int64(values[0]));
}

}  // namespace

int RegisterRowSums(sqlite3* db, std::uint64_t* total) {
  int code =
      sqlite3_create_function_v2(db, "takt_sum", kAnyCount, SQLITE_UTF8 | SQLITE_DETERMINISTIC,
                                 nullptr, &Sum, nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) return code;
  code = sqlite3_create_function_v2(db, "takt_added", 1, SQLITE_UTF8, total, &Added, nullptr,
                                    nullptr, nullptr);
  if (code != SQLITE_OK) return code;
  return sqlite3_create_function_v2(db, "takt_removed", 1, SQLITE_UTF8, total, &Removed, nullptr,
                                    nullptr, nullptr);
}

}  // namespace takt::store
