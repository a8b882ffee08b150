// SPDX-License-Identifier: Apache-2.0
// For tests: a fake etcd, and a process that leads there.
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/base/status.h"
#include "coordinator/etcd/election.h"
#include "coordinator/etcd/etcd_client.h"
#include "coordinator/etcd/fake_etcd.h"
#include "coordinator/etcd/reader.h"

namespace takt::etcd {

// One process of a coordinator. It does not lead before Lead.
struct FakeCandidate {
  explicit FakeCandidate(const FakeEtcd& etcd)
      : client(EtcdClient::Create({.endpoints = {etcd.address()}, .insecure = true}).value()),
        reader(client.get(), "t/") {}

  // Returns whether it leads now.
  bool Lead(const std::string& address = "a:1", absl::Duration lease = absl::Minutes(10));

  const std::unique_ptr<EtcdClient> client;
  Reader reader;
  std::unique_ptr<Leadership> leadership;
  std::string leader;  // the address that the last attempt saw
};

struct FakeLeader {
  FakeLeader() { TAKT_CHECK(self.Lead()); }

  FakeEtcd etcd;
  FakeCandidate self{etcd};
};

}  // namespace takt::etcd
