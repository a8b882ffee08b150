// SPDX-License-Identifier: Apache-2.0
#include <curl/curl.h>

#include <cstddef>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/tracking/http_client.h"

namespace takt::tracking {
namespace {

constexpr std::size_t kLargestAnswer = std::size_t{8} << 20;

// libcurl calls it with each part of an answer. Any other result than `size` ends the request.
std::size_t Collect(char* data, std::size_t, std::size_t size, void* body) {
  auto& text = *static_cast<std::string*>(body);
  if (text.size() + size > kLargestAnswer) return 0;
  text.append(data, size);
  return size;
}

class CurlClient final : public HttpClient {
 public:
  explicit CurlClient(CurlOptions options) : options_(std::move(options)) {}
  ~CurlClient() override {
    if (curl_ != nullptr) curl_easy_cleanup(curl_);
  }
  CurlClient(const CurlClient&) = delete;
  CurlClient& operator=(const CurlClient&) = delete;

  absl::StatusOr<HttpResponse> Post(const std::string& path, const std::string& json) override {
    if (curl_ == nullptr) curl_ = curl_easy_init();
    if (curl_ == nullptr) return absl::InternalError("libcurl cannot begin a request");
    const std::string url = options_.url + path;
    HttpResponse response;
    char error[CURL_ERROR_SIZE] = "";
    curl_slist* const headers = curl_slist_append(nullptr, "Content-Type: application/json");
    const auto milliseconds = static_cast<long>(absl::ToInt64Milliseconds(options_.time_limit));
    curl_easy_setopt(curl_, CURLOPT_URL, url.c_str());
    curl_easy_setopt(curl_, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl_, CURLOPT_POSTFIELDS, json.data());
    curl_easy_setopt(curl_, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(json.size()));
    curl_easy_setopt(curl_, CURLOPT_WRITEFUNCTION, &Collect);
    curl_easy_setopt(curl_, CURLOPT_WRITEDATA, &response.body);
    curl_easy_setopt(curl_, CURLOPT_ERRORBUFFER, error);
    curl_easy_setopt(curl_, CURLOPT_TIMEOUT_MS, milliseconds);
    curl_easy_setopt(curl_, CURLOPT_NOSIGNAL, 1L);  // the process has other threads
    const std::string token = Token();
    if (!token.empty()) {
      curl_easy_setopt(curl_, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
      curl_easy_setopt(curl_, CURLOPT_XOAUTH2_BEARER, token.c_str());
    }
    const CURLcode code = curl_easy_perform(curl_);
    long status = 0;
    curl_easy_getinfo(curl_, CURLINFO_RESPONSE_CODE, &status);
    // Connections stay open. libcurl must not write to `error` when it closes them.
    curl_easy_reset(curl_);
    curl_slist_free_all(headers);
    if (code != CURLE_OK) {
      return absl::UnavailableError(
          absl::StrCat(options_.url, ": ", error[0] != '\0' ? error : curl_easy_strerror(code)));
    }
    response.status = static_cast<int>(status);
    return response;
  }

 private:
  std::string Token() const {
    std::string token;
    if (options_.token_file.empty()) return token;
    std::ifstream in(options_.token_file);
    std::getline(in, token);
    absl::StripAsciiWhitespace(&token);
    return token;
  }

  const CurlOptions options_;
  CURL* curl_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpClient>> MakeCurlClient(CurlOptions options) {
  const bool is_url =
      absl::StartsWith(options.url, "http://") || absl::StartsWith(options.url, "https://");
  if (!is_url) {
    return InvalidField({.field = "--mlflow",
                         .value = options.url,
                         .rule = "must begin with http:// or https://",
                         .fix = "e.g. http://mlflow.lab.example:5000"});
  }
  while (absl::EndsWith(options.url, "/")) options.url.pop_back();
  if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
    return absl::InternalError("libcurl cannot start");
  return std::make_unique<CurlClient>(std::move(options));
}

}  // namespace takt::tracking
