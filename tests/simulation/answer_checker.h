// SPDX-License-Identifier: Apache-2.0
// Checks the answers to clients. One thread decides in the coordinator, and an answer comes after
// the commit, so the order of the commits is the order of the requests. Each answer must fit what
// is durable when it is given. So one pass suffices, and no order has to be searched for.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "tests/simulation/oracle.h"

namespace takt::simulation {

enum class Method : std::uint8_t {
  kSubmit,
  kCancel,
  kPause,
  kResume,
  kDelete,
  kDrain,
  kUndrain,
  kAdopt
};
const char* Name(Method method);

struct Request {
  std::string id;  // never used for another request
  Method method = Method::kSubmit;
  std::string target;  // a job, or a worker
  int attempt = 1;     // of kSubmit: how often a job of this name was submitted, with this time
};

// One thread.
class AnswerChecker final {
 public:
  // oracle: borrowed.
  explicit AnswerChecker(Oracle* oracle) : oracle_(*oracle) {}

  // The coordinator gives this answer. job_id: of the job that it tells; empty: it tells none.
  void Answered(const Request& request, const absl::StatusOr<std::string>& job_id);

 private:
  void CheckGranted(const Request& request, const std::string& job_id);
  void CheckRefused(const Request& request, const absl::Status& error);
  void Expect(bool holds, const Request& request, const std::string& what);

  Oracle& oracle_;
  std::map<std::string, std::string> granted_;  // by request id: the job's id
};

}  // namespace takt::simulation
