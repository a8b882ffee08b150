// SPDX-License-Identifier: Apache-2.0
// An authority for tests, in a directory that is removed with the object, and the certificates that
// it issues.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/certificates/authority.h"
#include "common/certificates/tls_files.h"
#include "gtest/gtest.h"

namespace takt::certificates {

class TestAuthority final {
 public:
  explicit TestAuthority(const std::string& domain = "lab.example") {
    TAKT_CHECK(mkdtemp(path_.data()) != nullptr);
    TAKT_CHECK(CreateAuthority(ca(), domain, absl::Now()).ok());
  }
  ~TestAuthority() { std::filesystem::remove_all(path_); }
  TestAuthority(const TestAuthority&) = delete;
  TestAuthority& operator=(const TestAuthority&) = delete;

  struct Validity {
    absl::Time from = absl::Now();
    absl::Duration length = absl::Hours(1);
    bool renew = false;
  };
  // A coordinator's certificate is for 127.0.0.1.
  TlsFiles Issue(access::Role role, const std::string& name, const Validity& validity) const {
    std::vector<std::string> hosts;
    if (role == access::Role::kCoordinator) hosts = {"127.0.0.1"};
    const std::string out = absl::StrCat(path_, "/", access::Name(role));
    const auto files = IssueCertificate(ca(), out,
                                        {.identity = {.role = role, .name = name},
                                         .hosts = std::move(hosts),
                                         .validity = validity.length,
                                         .now = validity.from,
                                         .renew = validity.renew});
    EXPECT_TRUE(files.ok()) << files.status();
    return {.certificate = files->certificate, .key = files->key, .authority = authority()};
  }
  TlsFiles Issue(access::Role role, const std::string& name) const {
    return Issue(role, name, Validity{});
  }

  const std::string& path() const { return path_; }
  std::string ca() const { return path_ + "/ca"; }
  std::string authority() const { return ca() + "/ca.pem"; }

 private:
  std::string path_ =
      std::filesystem::path(testing::TempDir() + "/takt-ca-XXXXXX").lexically_normal();
};

// Returns a program's arguments, followed by the flags that name these files.
inline std::vector<std::string> WithTls(std::vector<std::string> arguments, const TlsFiles& files) {
  arguments.insert(arguments.end(), {"--tls-certificate", files.certificate, "--tls-key", files.key,
                                     "--tls-authority", files.authority});
  return arguments;
}

}  // namespace takt::certificates
