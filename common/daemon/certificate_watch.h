// SPDX-License-Identifier: Apache-2.0
// Looks after a daemon's certificate while it runs: says in the log and in a metric when it ends.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "common/certificates/tls_files.h"

namespace takt::daemon {

// One line of the log.
struct CertificateNews {
  LogLevel level;
  std::string message;
  absl::Time expires;
  std::string error;  // of files that cannot be used
};

// What there is to say about the files, each thing when it begins and again from time to time.
// Reads files, but no clock.
class CertificateJudge final {
 public:
  explicit CertificateJudge(certificates::TlsFiles files) : files_(std::move(files)) {}

  std::optional<CertificateNews> Look(absl::Time now);

  // Of the certificate as it was last seen.
  std::optional<absl::Time> expires() const { return expires_; }

 private:
  std::optional<CertificateNews> Repeat(CertificateNews news, absl::Duration every, absl::Time now);

  const certificates::TlsFiles files_;
  std::optional<absl::Time> expires_;
  std::string said_;
  absl::Time said_at_ = absl::InfinitePast();
};

// A thread that looks every second, until the object is destroyed.
class CertificateWatch final {
 public:
  // Without files it does nothing. on_expiry: gets the time, once at the start and at every look.
  CertificateWatch(const certificates::TlsFiles& files, std::function<void(absl::Time)> on_expiry);
  ~CertificateWatch();

 private:
  void LookOnce();
  void Run();

  CertificateJudge judge_;
  const std::function<void(absl::Time)> on_expiry_;
  absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace takt::daemon
