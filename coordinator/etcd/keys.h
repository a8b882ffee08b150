// SPDX-License-Identifier: Apache-2.0
// The names of keys in etcd. README.md has what they hold. All begin with the prefix of the
// cluster, which is not part of the names here.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace takt::etcd {

inline constexpr char kLeaderKey[] = "meta/leader", kEpochKey[] = "meta/epoch",
                      kCommitKey[] = "meta/commits", kClusterKey[] = "meta/cluster",
                      kSchemaKey[] = "meta/schema", kLastNumberKey[] = "meta/last_number";
inline constexpr char kProfileKey[] = "profile";
inline constexpr char kJobs[] = "job/", kLastSteps[] = "last/", kDrained[] = "drained/",
                      kWorkers[] = "worker/", kGenerations[] = "generation/",
                      kRequests[] = "request/", kRequestOrder[] = "order/", kRedo[] = "redo/",
                      kMeta[] = "meta/";

// Twenty digits, so that keys are in the order of their numbers.
inline std::string Digits(std::int64_t number) {
  return absl::StrCat(absl::Dec(number, absl::kZeroPad20));
}

inline std::string JobKey(std::int64_t number, absl::string_view id) {
  return absl::StrCat(kJobs, Digits(number), "/", id);
}
inline std::string StepsOf(absl::string_view job_id) { return absl::StrCat("step/", job_id, "/"); }
inline std::string StepKey(absl::string_view job_id, std::int64_t step, std::int64_t generation) {
  return absl::StrCat(StepsOf(job_id), Digits(step), "/", Digits(generation));
}
inline std::string LogsOf(absl::string_view job_id) { return absl::StrCat("log/", job_id, "/"); }
inline std::string LogKey(absl::string_view job_id, std::int64_t number) {
  return LogsOf(job_id) + Digits(number);
}
inline std::string RequestKey(absl::string_view method, absl::string_view id) {
  return absl::StrCat(kRequests, method, "/", id);
}

// The first name after all that begin with `folder`.
inline std::string EndOf(std::string folder) {
  ++folder.back();  // folders end with a slash
  return folder;
}

// A value that is too large for one operation is stored in several pieces. Their names follow
// directly on that of the key.
inline std::string PieceKey(const std::string& key, int piece) {
  return key + '\0' + absl::StrCat(absl::Dec(piece, absl::kZeroPad4));
}
inline std::string EndOfPieces(const std::string& key) { return key + '\1'; }

}  // namespace takt::etcd
