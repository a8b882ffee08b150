// SPDX-License-Identifier: Apache-2.0
// Linked into every program of a thread-sanitizer build. Debian's Abseil is not built with the
// sanitizer, so it would see none of what absl::Mutex orders, neither ours nor gRPC's, and report
// races where there are none. These definitions take the place of the library's (for gRPC's shared
// libraries too), tell the sanitizer, and call the library's.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <cstring>
#include <string>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

#define TAKT_STRING_INNER(x) #x
#define TAKT_STRING(x) TAKT_STRING_INNER(x)

namespace {

// The library's function. suffix: its mangled name after the namespaces.
void* Find(const char* prefix, const char* suffix) {
  constexpr char kNamespace[] = TAKT_STRING(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  const std::string name = prefix + std::to_string(std::strlen(kNamespace)) + kNamespace + suffix;
  void* const found = dlsym(RTLD_NEXT, name.c_str());
  if (found == nullptr) __builtin_trap();  // another Abseil: this file must follow it
  return found;
}

template <class Result, class... Arguments>
Result Call(void* function, Arguments... arguments) {
  return reinterpret_cast<Result (*)(Arguments...)>(function)(arguments...);
}

#define TAKT_REAL(suffix)                               \
  ([] {                                                 \
    static void* const real = Find("_ZN4absl", suffix); \
    return real;                                        \
  }())
#define TAKT_REAL_CONST(suffix)                          \
  ([] {                                                  \
    static void* const real = Find("_ZNK4absl", suffix); \
    return real;                                         \
  }())

constexpr unsigned kWrite = __tsan_mutex_linker_init;
constexpr unsigned kRead = __tsan_mutex_linker_init | __tsan_mutex_read_lock;

// Around a call that gives the mutex up while it waits.
class Waiting {
 public:
  explicit Waiting(void* mutex) : mutex_(mutex) {
    __tsan_mutex_pre_unlock(mutex_, kWrite);
    __tsan_mutex_post_unlock(mutex_, kWrite);
    __tsan_mutex_pre_lock(mutex_, kWrite);
  }
  ~Waiting() { __tsan_mutex_post_lock(mutex_, kWrite, 0); }

 private:
  void* const mutex_;
};

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

Mutex::~Mutex() {
  __tsan_mutex_destroy(this, __tsan_mutex_linker_init);
  Call<void>(TAKT_REAL("5MutexD1Ev"), this);
}

void Mutex::Lock() {
  __tsan_mutex_pre_lock(this, kWrite);
  Call<void>(TAKT_REAL("5Mutex4LockEv"), this);
  __tsan_mutex_post_lock(this, kWrite, 0);
}

void Mutex::Unlock() {
  __tsan_mutex_pre_unlock(this, kWrite);
  Call<void>(TAKT_REAL("5Mutex6UnlockEv"), this);
  __tsan_mutex_post_unlock(this, kWrite);
}

bool Mutex::TryLock() {
  __tsan_mutex_pre_lock(this, kWrite | __tsan_mutex_try_lock);
  const bool locked = Call<bool>(TAKT_REAL("5Mutex7TryLockEv"), this);
  const unsigned failed = locked ? 0 : __tsan_mutex_try_lock_failed;
  __tsan_mutex_post_lock(this, kWrite | __tsan_mutex_try_lock | failed, 0);
  return locked;
}

void Mutex::ReaderLock() {
  __tsan_mutex_pre_lock(this, kRead);
  Call<void>(TAKT_REAL("5Mutex10ReaderLockEv"), this);
  __tsan_mutex_post_lock(this, kRead, 0);
}

void Mutex::ReaderUnlock() {
  __tsan_mutex_pre_unlock(this, kRead);
  Call<void>(TAKT_REAL("5Mutex12ReaderUnlockEv"), this);
  __tsan_mutex_post_unlock(this, kRead);
}

void Mutex::LockWhen(const Condition& condition) {
  __tsan_mutex_pre_lock(this, kWrite);
  Call<void>(TAKT_REAL("5Mutex8LockWhenERKNS0_9ConditionE"), this, &condition);
  __tsan_mutex_post_lock(this, kWrite, 0);
}

// As for the waits below: one is the other's, told once.
bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  return LockWhenWithDeadline(condition, absl::Now() + timeout);
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  __tsan_mutex_pre_lock(this, kWrite);
  const bool held =
      Call<bool>(TAKT_REAL("5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE"), this,
                 &condition, deadline);
  __tsan_mutex_post_lock(this, kWrite, 0);
  return held;
}

void Mutex::Await(const Condition& condition) {
  const Waiting waiting(this);
  Call<void>(TAKT_REAL("5Mutex5AwaitERKNS0_9ConditionE"), this, &condition);
}

// The library's would come back through ours below: one wait must not be told twice.
bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  return AwaitWithDeadline(condition, absl::Now() + timeout);
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  const Waiting waiting(this);
  return Call<bool>(TAKT_REAL("5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE"), this,
                    &condition, deadline);
}

void CondVar::Wait(Mutex* mutex) {
  const Waiting waiting(mutex);
  Call<void>(TAKT_REAL("7CondVar4WaitEPNS0_5MutexE"), this, mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  return WaitWithDeadline(mutex, absl::Now() + timeout);
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  const Waiting waiting(mutex);
  return Call<bool>(TAKT_REAL("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE"), this, mutex,
                    deadline);
}

void Notification::Notify() {
  __tsan_release(this);
  Call<void>(TAKT_REAL("12Notification6NotifyEv"), this);
}

void Notification::WaitForNotification() const {
  Call<void>(TAKT_REAL_CONST("12Notification19WaitForNotificationEv"), this);
  __tsan_acquire(const_cast<Notification*>(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  const bool notified =
      Call<bool>(TAKT_REAL_CONST("12Notification30WaitForNotificationWithTimeoutENS0_8DurationE"),
                 this, timeout);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

ABSL_NAMESPACE_END
}  // namespace absl
