// SPDX-License-Identifier: Apache-2.0
// Who may call what: one row for every RPC of every service. An RPC without a row fails the build
// (coordinator/rpc/CMakeLists.txt) and is refused.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/string_view.h"
#include "common/access/identity.h"

namespace takt::access {

// Whose things a call is about, which the method looks up and decides on (decide.h).
enum class Subject : std::uint8_t {
  kNone,
  kJob,     // a job: its owner's, and every admin's
  kJobs,    // a list of jobs: shows those alone that the caller may see
  kWorker,  // a worker, whose name the request gives: that worker's own
  kGang,    // a generation of a job: of the workers that hold its ranks
};

// Roles that may call a method, beside kTrusted, which may call all.
class Roles {
 public:
  template <class... Role>
  constexpr explicit Roles(Role... role) : bits_((0U | ... | Bit(role))) {}
  constexpr bool Has(access::Role role) const { return (bits_ & Bit(role)) != 0; }
  std::string ToString() const;  // "worker, admin"

 private:
  static constexpr unsigned Bit(access::Role role) { return 1U << static_cast<unsigned>(role); }
  unsigned bits_;
};

struct MethodRule {
  absl::string_view method;  // "/takt.v1.JobService/SubmitJob"
  Roles who;
  Subject subject;
  bool changes;  // and so leaves a line in the audit log
};

std::span<const MethodRule> MethodTable();

// Null: it has no row.
const MethodRule* FindRule(absl::string_view method);

}  // namespace takt::access
