// SPDX-License-Identifier: Apache-2.0
// UCX with its tagged messages, over its TCP transport only. Each call makes UCX's progress itself,
// and sleeps on UCX's descriptor when there is nothing to do.
#include <poll.h>
#include <ucp/api/ucp.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/bench/links.h"
#include "worker/transport/wake_word.h"

namespace takt::bench {

namespace {

using transport::MonotonicNanos;

constexpr ucp_tag_t kTag = 1, kWholeTag = ~ucp_tag_t{0};

absl::Status StatusOf(const char* what, ucs_status_t status) {
  if (status == UCS_OK) return absl::OkStatus();
  const std::string message = absl::StrCat(what, ": ", ucs_status_string(status));
  return status == UCS_ERR_TIMED_OUT ? absl::DeadlineExceededError(message)
                                     : absl::UnavailableError(message);
}

class UcxLink final : public Link {
 public:
  static absl::StatusOr<std::unique_ptr<Link>> Create(const LinkOptions& options) {
    auto link = std::make_unique<UcxLink>();
    link->timeout_ = options.timeout;
    RETURN_IF_ERROR(link->OpenWorker());
    RETURN_IF_ERROR(link->Connect(options));
    return link;
  }
  ~UcxLink() override {
    if (endpoint_ != nullptr) Close();
    if (worker_ != nullptr) ucp_worker_destroy(worker_);
    if (context_ != nullptr) ucp_cleanup(context_);
  }

  absl::Status Send(std::span<const std::byte> data) override {
    const ucp_request_param_t plain = {};
    return Finish("send", ucp_tag_send_nbx(endpoint_, data.data(), data.size(), kTag, &plain));
  }
  absl::Status Recv(std::span<std::byte> data) override {
    const ucp_request_param_t plain = {};
    return Finish("recv",
                  ucp_tag_recv_nbx(worker_, data.data(), data.size(), kTag, kWholeTag, &plain));
  }

 private:
  absl::Status OpenWorker() {
    ucp_config_t* config = nullptr;
    RETURN_IF_ERROR(StatusOf("ucp_config_read", ucp_config_read(nullptr, nullptr, &config)));
    ucs_status_t status = ucp_config_modify(config, "TLS", "tcp");
    ucp_params_t params = {};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
    if (status == UCS_OK) status = ucp_init(&params, config, &context_);
    ucp_config_release(config);
    RETURN_IF_ERROR(StatusOf("ucp_init", status));
    ucp_worker_params_t worker = {};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SINGLE;
    RETURN_IF_ERROR(StatusOf("ucp_worker_create", ucp_worker_create(context_, &worker, &worker_)));
    return StatusOf("ucp_worker_get_efd", ucp_worker_get_efd(worker_, &events_));
  }

  absl::Status Connect(const LinkOptions& options) {
    const auto key = [](int rank) { return absl::StrCat("ucx/", rank); };
    const int rank = options.rank.value();
    ucp_address_t* address = nullptr;
    std::size_t size = 0;
    RETURN_IF_ERROR(
        StatusOf("ucp_worker_get_address", ucp_worker_get_address(worker_, &address, &size)));
    const std::string mine(reinterpret_cast<const char*>(address), size);
    ucp_worker_release_address(worker_, address);
    RETURN_IF_ERROR(options.rendezvous->Set(key(rank), mine));
    ASSIGN_OR_RETURN(const std::string theirs,
                     options.rendezvous->Wait(key(1 - rank), options.timeout));
    ucp_ep_params_t params = {};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(theirs.data());
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.cb = &NoteFailure;
    params.err_handler.arg = this;
    return StatusOf("ucp_ep_create", ucp_ep_create(worker_, &params, &endpoint_));
  }

  // Messages that were sent before still arrive, unless the peer has failed.
  void Close() {
    ucp_request_param_t param = {};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = failure_ == UCS_OK ? 0U : unsigned{UCP_EP_CLOSE_FLAG_FORCE};
    void* const request = ucp_ep_close_nbx(endpoint_, &param);
    if (!UCS_PTR_IS_PTR(request)) return;
    const std::int64_t deadline = MonotonicNanos() + absl::ToInt64Nanoseconds(timeout_);
    while (ucp_request_check_status(request) == UCS_INPROGRESS && MonotonicNanos() < deadline)
      ucp_worker_progress(worker_);
    ucp_request_free(request);
  }

  static void NoteFailure(void* link, ucp_ep_h /*endpoint*/, ucs_status_t status) {
    static_cast<UcxLink*>(link)->failure_ = status;
  }

  // Waits for the end of an operation. A receive does not end by itself when its peer fails.
  absl::Status Finish(const char* what, void* request) {
    if (request == nullptr) return absl::OkStatus();
    if (UCS_PTR_IS_ERR(request)) return StatusOf(what, UCS_PTR_RAW_STATUS(request));
    const std::int64_t deadline = MonotonicNanos() + absl::ToInt64Nanoseconds(timeout_);
    bool cancelled = false;
    ucs_status_t status = UCS_INPROGRESS;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) {
      if (ucp_worker_progress(worker_) != 0) continue;
      const bool late = MonotonicNanos() >= deadline;
      if (!cancelled && (failure_ != UCS_OK || late)) {
        ucp_request_cancel(worker_, request);
        cancelled = true;
        continue;
      }
      // UCX cannot cancel every send. Until such a send ends, UCX uses the memory, so this call
      // keeps waiting.
      if (ucp_worker_arm(worker_) != UCS_OK) continue;
      pollfd polled{events_, POLLIN, 0};
      poll(&polled, 1, cancelled ? kCancelledMs : MillisUntil(deadline));
    }
    ucp_request_free(request);
    if (status == UCS_ERR_CANCELED) status = failure_ != UCS_OK ? failure_ : UCS_ERR_TIMED_OUT;
    return StatusOf(what, status);
  }

  static int MillisUntil(std::int64_t deadline) {
    return static_cast<int>((deadline - MonotonicNanos()) / 1'000'000) + 1;
  }

  static constexpr int kCancelledMs = 100;

  absl::Duration timeout_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  int events_ = -1;  // UCX owns it
  ucs_status_t failure_ = UCS_OK;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Link>> MakeUcxLink(const LinkOptions& options) {
  return UcxLink::Create(options);
}

}  // namespace takt::bench
