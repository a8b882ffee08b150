// SPDX-License-Identifier: Apache-2.0
#include "common/access/method_table.h"

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/str_join.h"

namespace takt::access {
namespace {

constexpr Roles kWorker(Role::kWorker);
constexpr Roles kHost(Role::kHost);
constexpr Roles kRanks(Role::kWorker, Role::kHost);
constexpr Roles kUsers(Role::kUser, Role::kAdmin);
constexpr Roles kAdmin(Role::kAdmin);
constexpr Roles kAnybody(Role::kNobody, Role::kCoordinator, Role::kWorker, Role::kHost, Role::kUser,
                         Role::kAdmin);
constexpr Roles kEverybody(Role::kCoordinator, Role::kWorker, Role::kHost, Role::kUser,
                           Role::kAdmin);

// Each row takes one line, so that this reads as a table.
// clang-format off
constexpr auto kTable = std::to_array<MethodRule>({
    // method                                                       who         subject           changes
    {"/takt.v1.AttachmentService/Attach",                           kWorker,    Subject::kWorker, true},
    {"/takt.v1.AttachmentService/AttachHost",                       kHost,      Subject::kHost,   true},
    {"/takt.v1.AttachmentService/StreamBulk",                       kWorker,    Subject::kWorker, true},
    {"/takt.v1.AttachmentService/StreamHostBulk",                   kHost,      Subject::kHost,   true},

    // A backup changes nothing, but it takes all that the coordinator knows away.
    {"/takt.v1.ClusterService/BackUpState",                         kAdmin,     Subject::kNone,   true},
    {"/takt.v1.ClusterService/DrainWorker",                         kAdmin,     Subject::kNone,   true},
    {"/takt.v1.ClusterService/GetProfile",                          kUsers,     Subject::kNone,   false},
    {"/takt.v1.ClusterService/GetVersion",                          kEverybody, Subject::kNone,   false},
    {"/takt.v1.ClusterService/ListWorkers",                         kUsers,     Subject::kNone,   false},
    {"/takt.v1.ClusterService/UndrainWorker",                       kAdmin,     Subject::kNone,   true},

    {"/takt.v1.JobService/AbandonJob",                              kUsers,     Subject::kJob,    true},
    {"/takt.v1.JobService/AdoptJob",                                kUsers,     Subject::kJob,    true},
    {"/takt.v1.JobService/CancelJob",                               kUsers,     Subject::kJob,    true},
    {"/takt.v1.JobService/DeleteJob",                               kUsers,     Subject::kJob,    true},
    {"/takt.v1.JobService/GetJob",                                  kUsers,     Subject::kJob,    false},
    {"/takt.v1.JobService/GetJobLogs",                              kUsers,     Subject::kJob,    false},
    {"/takt.v1.JobService/GetTrace",                                kUsers,     Subject::kJob,    false},
    {"/takt.v1.JobService/ListHeldJobs",                            kUsers,     Subject::kJobs,   false},
    {"/takt.v1.JobService/ListJobs",                                kUsers,     Subject::kJobs,   false},
    {"/takt.v1.JobService/PauseJob",                                kUsers,     Subject::kJob,    true},
    {"/takt.v1.JobService/ResumeJob",                               kUsers,     Subject::kJob,    true},
    {"/takt.v1.JobService/SubmitJob",                               kUsers,     Subject::kNone,   true},
    {"/takt.v1.JobService/WatchJob",                                kUsers,     Subject::kJob,    false},

    {"/takt.v1.JoinService/CreateToken",                            kAdmin,     Subject::kNone,   true},
    {"/takt.v1.JoinService/Join",                                   kAnybody,   Subject::kNone,   true},

    {"/takt.v1.RendezvousService/ClearKeys",                        kRanks,     Subject::kGang,   true},
    {"/takt.v1.RendezvousService/SetKey",                           kRanks,     Subject::kGang,   true},
    {"/takt.v1.RendezvousService/WaitKeys",                         kRanks,     Subject::kGang,   false},

    {"/grpc.health.v1.Health/Check",                                kEverybody, Subject::kNone,   false},
    {"/grpc.health.v1.Health/Watch",                                kEverybody, Subject::kNone,   false},
    {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", kUsers,  Subject::kNone,   false},
});
// clang-format on

}  // namespace

std::string Roles::ToString() const {
  std::vector<absl::string_view> names;
  for (const Role role :
       {Role::kNobody, Role::kCoordinator, Role::kWorker, Role::kHost, Role::kUser, Role::kAdmin}) {
    if (Has(role)) names.push_back(Name(role));
  }
  return absl::StrJoin(names, ", ");
}

std::span<const MethodRule> MethodTable() { return kTable; }

const MethodRule* FindRule(absl::string_view method) {
  const auto it = std::ranges::find(kTable, method, &MethodRule::method);
  return it != kTable.end() ? &*it : nullptr;
}

}  // namespace takt::access
