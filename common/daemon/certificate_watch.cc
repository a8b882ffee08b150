// SPDX-License-Identifier: Apache-2.0
#include "common/daemon/certificate_watch.h"

#include <pthread.h>

#include <utility>

#include "absl/time/clock.h"

namespace takt::daemon {
namespace {

constexpr absl::Duration kLookEvery = absl::Seconds(1);
constexpr absl::Duration kRepeatUnusable = absl::Minutes(1);
constexpr absl::Duration kRepeatSoon = absl::Hours(1);
// A certificate should be renewed before this share of its life is left.
constexpr double kSoon = 0.1;

}  // namespace

std::optional<CertificateNews> CertificateJudge::Look(absl::Time now) {
  const std::optional<absl::Time> before = expires_;
  const absl::StatusOr<certificates::CertificateFacts> shown =
      certificates::ReadFacts(files_.certificate);
  if (shown.ok()) expires_ = shown->not_after;
  const absl::StatusOr<certificates::CertificateFacts> facts =
      certificates::CheckTlsFiles(files_, now);
  if (!facts.ok()) {
    return Repeat({.level = LogLevel::kError,
                   .message = "certificate cannot be used: connections go on, new ones fail",
                   .expires = expires_.value_or(absl::InfinitePast()),
                   .error = std::string(facts.status().message())},
                  kRepeatUnusable, now);
  }
  const absl::Duration left = facts->not_after - now;
  if (left < kSoon * (facts->not_after - facts->not_before)) {
    return Repeat({.level = LogLevel::kWarning,
                   .message = "certificate expires soon: renew it",
                   .expires = facts->not_after},
                  kRepeatSoon, now);
  }
  const bool mended = !said_.empty();
  said_.clear();
  said_at_ = absl::InfinitePast();
  if (!mended && (!before || *before == facts->not_after)) return std::nullopt;
  return CertificateNews{.level = LogLevel::kInfo,
                         .message = "certificate renewed: new connections use it",
                         .expires = facts->not_after};
}

std::optional<CertificateNews> CertificateJudge::Repeat(CertificateNews news, absl::Duration every,
                                                        absl::Time now) {
  if (news.message == said_ && now - said_at_ < every) return std::nullopt;
  said_ = news.message;
  said_at_ = now;
  return news;
}

CertificateWatch::CertificateWatch(const certificates::TlsFiles& files,
                                   std::function<void(absl::Time)> on_expiry)
    : judge_(files), on_expiry_(std::move(on_expiry)) {
  if (!files.any()) return;
  LookOnce();
  thread_ = std::thread([this] { Run(); });
}

CertificateWatch::~CertificateWatch() {
  {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
  }
  end_.SignalAll();
  if (thread_.joinable()) thread_.join();
}

void CertificateWatch::LookOnce() {
  const std::optional<CertificateNews> news = judge_.Look(absl::Now());
  if (judge_.expires()) on_expiry_(*judge_.expires());
  if (!news) return;
  Log(news->level, news->message,
      {{"expires", absl::FormatTime(news->expires, absl::UTCTimeZone())}, {"error", news->error}});
}

void CertificateWatch::Run() {
  pthread_setname_np(pthread_self(), "takt-certs");
  absl::MutexLock lock(&mutex_);
  while (!end_.AwaitFor(mutex_, absl::Condition(&ended_), kLookEvery)) {
    mutex_.Unlock();
    LookOnce();
    mutex_.Lock();
  }
}

}  // namespace takt::daemon
