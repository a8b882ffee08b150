// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/credentials.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace takt::rpc {
namespace {

constexpr unsigned kReloadSeconds = 1;

std::shared_ptr<grpc::experimental::CertificateProviderInterface> Watch(
    const certificates::TlsFiles& files) {
  return std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      files.key, files.certificate, files.authority, kReloadSeconds);
}

}  // namespace

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsFor(const Endpoint& endpoint) {
  if (!endpoint.is_tls()) return grpc::InsecureChannelCredentials();
  grpc::experimental::TlsChannelCredentialsOptions options;
  if (endpoint.joins) {
    options.set_certificate_provider(
        std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(endpoint.tls.authority,
                                                                             kReloadSeconds));
  } else {
    options.set_certificate_provider(Watch(endpoint.tls));
    options.watch_identity_key_cert_pairs();
  }
  options.watch_root_certs();
  return grpc::experimental::TlsCredentials(options);
}

std::shared_ptr<grpc::ServerCredentials> ServerCredentialsFor(const Endpoint& endpoint,
                                                              bool strangers) {
  if (!endpoint.is_tls()) return grpc::InsecureServerCredentials();
  grpc::experimental::TlsServerCredentialsOptions options(Watch(endpoint.tls));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(strangers
                                    ? GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY
                                    : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

access::Identity PeerOf(const grpc::AuthContext& context, const std::string& domain) {
  const std::vector<grpc::string_ref> uris =
      context.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME);
  if (uris.size() != 1) return {};
  absl::StatusOr<access::Identity> identity =
      access::ParseUri(absl::string_view(uris[0].data(), uris[0].size()));
  if (!identity.ok() || identity->domain != domain) return {};
  return *std::move(identity);
}

}  // namespace takt::rpc
