// SPDX-License-Identifier: Apache-2.0
// Watches a daemon's certificate while it runs. A log line and a metric say when the certificate
// expires.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "common/base/steady_cond_var.h"
#include "common/certificates/tls_files.h"

namespace takt::daemon {

// A line of the log.
struct CertificateNews {
  LogLevel level;
  std::string message;
  absl::Time expires;
  std::string error;  // set if the files cannot be used
};

// Finds what is to be reported about the files. It reports each finding when it first appears, and
// again from time to time. It reads files but no clock.
class CertificateJudge final {
 public:
  explicit CertificateJudge(certificates::TlsFiles files) : files_(std::move(files)) {}

  std::optional<CertificateNews> Look(absl::Time now);

  // The end of the certificate as it was last read.
  std::optional<absl::Time> expires() const { return expires_; }

 private:
  std::optional<CertificateNews> Repeat(CertificateNews news, absl::Duration every, absl::Time now);

  const certificates::TlsFiles files_;
  std::optional<absl::Time> expires_;
  std::string said_;
  absl::Time said_at_ = absl::InfinitePast();
};

// A thread that looks at the files every second, until the object is destroyed.
class CertificateWatch final {
 public:
  // It does nothing if there are no files. on_expiry: gets the time of the end once at the start
  // and at every look.
  CertificateWatch(const certificates::TlsFiles& files, std::function<void(absl::Time)> on_expiry);
  ~CertificateWatch();

 private:
  void LookOnce();
  void Run();

  CertificateJudge judge_;
  const std::function<void(absl::Time)> on_expiry_;
  absl::Mutex mutex_;
  SteadyCondVar end_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace takt::daemon
