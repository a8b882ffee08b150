// SPDX-License-Identifier: Apache-2.0
// Status macros under Abseil's later names, CHECK, and errors about a field that programs can read.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace takt {

// Says what is wrong with one field of an input, so that a person can mend it and a program can
// point at it.
struct FieldError {
  std::string field;  // dotted path, e.g. "model.heads"; may carry "file:line:column" in `where`
  std::string value;  // as given
  std::string rule;   // what must hold
  std::string fix;    // what to do
  std::string where;  // "job.yaml:12:5" when known

  std::string ToString() const;
};

// Returns kInvalidArgument whose message has a line for each error. It carries the errors as a
// payload (takt.v1.ErrorDetail) across RPC.
absl::Status InvalidField(FieldError error);
absl::Status InvalidFields(std::vector<FieldError> errors);

// Returns kFailedPrecondition with the same text and payload: the input may be right, but what the
// field names cannot be used here and now, for example because a disk is not mounted or fails.
absl::Status UnusableField(FieldError error);

// Returns the error of a call on a file. Its code is never one that blames the input (an EINVAL),
// or a peer (an ESTALE, a timeout of NFS): those become kUnknown. what: names the file.
absl::Status FileError(int error_number, const std::string& what);

// Marks an error in something that every rank of a job looks at by itself, such as the token files.
// If all ranks find it, the job is wrong. If only some do, something is wrong with their workers.
absl::Status SharedInput(absl::Status status);
bool IsSharedInput(const absl::Status& status);

// Returns the errors that `status` carries; there may be none.
std::vector<FieldError> FieldErrorsOf(const absl::Status& status);

// Returns a copy of `status` with `context` in front of its message. Code and payload stay.
absl::Status Annotate(const absl::Status& status, std::string_view context);

// The key of the payload takt.v1.ErrorDetail.
inline constexpr char kErrorDetailUrl[] = "type.googleapis.com/takt.v1.ErrorDetail";

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);

}  // namespace takt

// Ends the process if `condition` is false. It is for our own bugs, never for input, files, peers
// or devices.
#define TAKT_CHECK(condition)                          \
  (static_cast<bool>(condition) ? static_cast<void>(0) \
                                : ::takt::CheckFailed(__FILE__, __LINE__, #condition))

#define RETURN_IF_ERROR(expression)                                                        \
  do {                                                                                     \
    if (absl::Status takt_status_ = (expression); !takt_status_.ok()) return takt_status_; \
  } while (false)

#define TAKT_CONCAT_INNER(a, b) a##b
#define TAKT_CONCAT(a, b) TAKT_CONCAT_INNER(a, b)
#define ASSIGN_OR_RETURN(declaration, expression) \
  ASSIGN_OR_RETURN_IMPL(TAKT_CONCAT(takt_statusor_, __LINE__), declaration, expression)
#define ASSIGN_OR_RETURN_IMPL(temporary, declaration, expression) \
  auto temporary = (expression);                                  \
  if (!temporary.ok()) return std::move(temporary).status();      \
  declaration = std::move(temporary).value()
