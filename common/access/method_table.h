// SPDX-License-Identifier: Apache-2.0
// The rules for callers: one row for every RPC of every service. The build fails if an RPC has no
// row (coordinator/rpc/CMakeLists.txt), and a call of a method without a row is refused.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/string_view.h"
#include "common/access/identity.h"

namespace takt::access {

// Says what a call is about. The method looks up whose it is and decides by that (decide.h).
enum class Subject : std::uint8_t {
  kNone,
  kJob,     // a job: its owner and every admin may
  kJobs,    // a list of jobs, which shows only those that the caller may see
  kWorker,  // the worker that the request names: only this worker may
  kHost,    // workers of a host, whom later messages name: only this host may
  kGang,    // a generation of a job: the workers that hold its ranks may, and their hosts
};

// The roles that may call a method. Role::kTrusted is left out: it may call all.
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
  bool changes;  // the call changes something, or shows all: it leaves a line in the audit log
};

std::span<const MethodRule> MethodTable();

// Returns null if the method has no row.
const MethodRule* FindRule(absl::string_view method);

}  // namespace takt::access
