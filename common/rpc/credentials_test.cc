// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/credentials.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <future>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/certificates/openssl.h"
#include "common/certificates/test_authority.h"

namespace takt::rpc {
namespace {

using access::Role;
using certificates::TestAuthority;
using certificates::TlsFiles;
using ::testing::AllOf;
using ::testing::HasSubstr;

const bool kTls13 = (RequireTls13(), true);

std::chrono::system_clock::time_point Soon() {
  return std::chrono::system_clock::now() + std::chrono::seconds(60);
}

// Answers "/test/Who" with the caller's identity as the message of ABORTED, and echoes all else.
class EchoService final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    class Reactor final : public grpc::ServerGenericBidiReactor {
     public:
      explicit Reactor(grpc::GenericCallbackServerContext* context) {
        if (context->method() == "/test/Who") {
          Finish({grpc::StatusCode::ABORTED,
                  PeerOf(*context->auth_context(), "lab.example").ToString()});
        } else {
          StartRead(&message_);
        }
      }
      void OnReadDone(bool ok) override {
        if (ok) {
          StartWrite(&message_);
        } else {
          Finish(grpc::Status::OK);
        }
      }
      void OnWriteDone(bool ok) override {
        if (ok) StartRead(&message_);
      }
      void OnDone() override { delete this; }

     private:
      grpc::ByteBuffer message_;
    };
    return new Reactor(context);
  }
};

// A stream on which the test sends a word and reads it back.
class Held final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit Held(const std::shared_ptr<grpc::Channel>& channel) : stub_(channel) {
    context_.set_deadline(Soon());
    stub_.PrepareBidiStreamingCall(&context_, "/test/Hold", {}, this);
    AddHold();
    StartCall();
  }
  ~Held() override {
    context_.TryCancel();
    RemoveHold();
    done_.get_future().wait();
  }

  bool Echo() {
    heard_ = {};
    const grpc::Slice word("word");
    said_ = grpc::ByteBuffer(&word, 1);
    StartRead(&answer_);
    StartWrite(&said_);
    return heard_.get_future().get();
  }

  void OnReadDone(bool ok) override { heard_.set_value(ok); }
  void OnDone(const grpc::Status&) override { done_.set_value(); }

 private:
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer said_, answer_;
  std::promise<bool> heard_;
  std::promise<void> done_;
};

class CredentialsTest : public ::testing::Test {
 protected:
  CredentialsTest() {
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(&service_);
    const Endpoint endpoint{.flag = "--listen", .address = "127.0.0.1:0", .tls = server_files_};
    EXPECT_TRUE(CheckEndpoint(endpoint, absl::Now()).ok());
    builder.AddListeningPort(endpoint.address, ServerCredentialsFor(endpoint), &port_);
    server_ = builder.BuildAndStart();
  }
  ~CredentialsTest() override { server_->Shutdown(Soon()); }

  std::shared_ptr<grpc::Channel> Dial(const TlsFiles& files, bool insecure = false,
                                      const std::string& host = "127.0.0.1") {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const Endpoint endpoint{
        .address = absl::StrCat(host, ":", port_), .tls = files, .insecure = insecure};
    return grpc::CreateCustomChannel(endpoint.address, ChannelCredentialsFor(endpoint), arguments);
  }

  static grpc::Status Who(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    context.set_deadline(Soon());
    const grpc::Slice nothing;
    const grpc::ByteBuffer request(&nothing, 1);
    grpc::ByteBuffer response;
    std::promise<grpc::Status> answer;
    stub.UnaryCall(&context, "/test/Who", {}, &request, &response,
                   [&](grpc::Status status) { answer.set_value(std::move(status)); });
    return answer.get_future().get();
  }

  void ExpectRefused(const TlsFiles& files) {
    EXPECT_EQ(Who(Dial(files)).error_code(), grpc::StatusCode::UNAVAILABLE);
  }

  // Replaces the server's certificate by one that is valid from `from`.
  void Renew(absl::Time from) {
    authority_.Issue(Role::kCoordinator, "c1", {.from = from, .renew = true});
  }

  // Does a handshake of OpenSSL, at most of `version`. Returns the serial number of the server's
  // certificate, or nothing if the handshake failed.
  std::string Shake(const TlsFiles& files, int version) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(port_)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    SSL_CTX* context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_max_proto_version(context, version);
    SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str());
    SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM);
    SSL* ssl = SSL_new(context);
    const unsigned char protocols[] = "\x02h2";
    SSL_set_alpn_protos(ssl, protocols, sizeof(protocols) - 1);
    SSL_set_fd(ssl, fd);
    std::string serial;
    if (SSL_connect(ssl) == 1) {
      const certificates::Certificate shown(SSL_get1_peer_certificate(ssl));
      const ASN1_INTEGER* number = X509_get0_serialNumber(shown.get());
      serial.assign(reinterpret_cast<const char*>(ASN1_STRING_get0_data(number)),
                    ASN1_STRING_length(number));
    }
    SSL_free(ssl);
    SSL_CTX_free(context);
    close(fd);
    return serial;
  }

  // Waits until the server shows another certificate than `serial`.
  void AwaitReload(const TlsFiles& files, const std::string& serial) {
    const auto end = Soon();
    while (Shake(files, TLS1_3_VERSION) == serial) ASSERT_LT(std::chrono::system_clock::now(), end);
  }

  // The server believes both authorities, as it must while one takes over from another.
  TlsFiles ServerFiles() const {
    TlsFiles files = authority_.Issue(Role::kCoordinator, "c1");
    files.authority = authority_.path() + "/both.pem";
    std::ofstream(files.authority) << std::ifstream(authority_.authority()).rdbuf()
                                   << std::ifstream(elsewhere_.authority()).rdbuf();
    return files;
  }

  const TestAuthority authority_, elsewhere_{"elsewhere"};
  const TlsFiles server_files_ = ServerFiles();
  const TlsFiles alice_ = authority_.Issue(Role::kUser, "alice");
  EchoService service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(CredentialsTest, APeerIsKnownByItsCertificate) {
  EXPECT_EQ(Who(Dial(alice_)).error_message(), "user/alice");
  EXPECT_EQ(Who(Dial(authority_.Issue(Role::kWorker, "n1"))).error_message(), "worker/n1");
}

TEST_F(CredentialsTest, AnIdentityOfAnotherDomainIsNobody) {
  TlsFiles files = elsewhere_.Issue(Role::kUser, "alice");
  files.authority = authority_.authority();
  EXPECT_EQ(Who(Dial(files)).error_message(), "nobody");
}

TEST_F(CredentialsTest, StrangersDoNotConnect) {
  const TestAuthority other;
  TlsFiles stranger = other.Issue(Role::kUser, "alice");
  stranger.authority = authority_.authority();  // so that it is the server that refuses
  ExpectRefused(stranger);
  EXPECT_THAT(
      ExplainTlsFailure(Who(Dial(stranger)).error_message(), absl::Now()),
      AllOf(HasSubstr("hung up during the handshake"), HasSubstr("this machine's says 20")));
  ExpectRefused(authority_.Issue(Role::kUser, "late", {.from = absl::Now() - absl::Hours(3)}));
  ExpectRefused(authority_.Issue(Role::kUser, "early", {.from = absl::Now() + absl::Hours(3)}));
  EXPECT_EQ(Who(Dial({}, /*insecure=*/true)).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(CredentialsTest, AServerOfAnotherAuthorityIsNotBelieved) {
  TlsFiles files = alice_;
  const TestAuthority other;
  files.authority = other.authority();
  const grpc::Status status = Who(Dial(files));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(ExplainTlsFailure(status.error_message(), absl::Now()),
              HasSubstr("of another authority"))
      << status.error_message();
}

TEST_F(CredentialsTest, AServerUnderAnotherNameIsNotBelieved) {
  const grpc::Status status = Who(Dial(alice_, false, "localhost"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(ExplainTlsFailure(status.error_message(), absl::Now()), HasSubstr("other names"))
      << status.error_message();
}

TEST_F(CredentialsTest, Tls12IsRefused) {
  ASSERT_TRUE(kTls13);
  EXPECT_NE(Shake(alice_, TLS1_3_VERSION), "");
  EXPECT_EQ(Shake(alice_, TLS1_2_VERSION), "");
  EXPECT_EQ(Shake(alice_, TLS1_1_VERSION), "");
}

TEST_F(CredentialsTest, ARenewedCertificateIsShownAndStreamsGoOn) {
  const std::string serial = Shake(alice_, TLS1_3_VERSION);
  Held held(Dial(alice_));
  EXPECT_TRUE(held.Echo());
  Renew(absl::Now());
  AwaitReload(alice_, serial);
  EXPECT_TRUE(held.Echo());
  EXPECT_EQ(Who(Dial(alice_)).error_message(), "user/alice");
}

TEST_F(CredentialsTest, AnExpiredCertificateStopsNewConnectionsNotOldOnes) {
  const std::string serial = Shake(alice_, TLS1_3_VERSION);
  Held held(Dial(alice_));
  EXPECT_TRUE(held.Echo());
  Renew(absl::Now() - absl::Hours(3));
  AwaitReload(alice_, serial);
  EXPECT_EQ(Who(Dial(alice_)).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(held.Echo());
}

TEST(Endpoint, TcpNeedsCertificatesOrTheWordInsecure) {
  const absl::Status status = CheckEndpoint({.flag = "--listen", .address = "0.0.0.0:1"}, {});
  EXPECT_THAT(status.ToString(), HasSubstr("--tls-certificate"));
  EXPECT_THAT(status.ToString(), HasSubstr("--insecure"));
  EXPECT_TRUE(CheckEndpoint({.address = "h:1", .insecure = true}, {}).ok());
  EXPECT_FALSE(
      CheckEndpoint({.address = "h:1", .tls = {.certificate = "c"}, .insecure = true}, {}).ok());
}

TEST(Endpoint, UnixSocketsNeedNothing) {
  EXPECT_TRUE(CheckEndpoint({.address = "unix:/run/takt/c.sock"}, {}).ok());
  EXPECT_FALSE(CheckEndpoint({.address = "unix:"}, {}).ok());
  EXPECT_FALSE(CheckEndpoint({.address = "unix:/" + std::string(200, 'a')}, {}).ok());
  for (const char* address : {"", "nonsense", ":1", "host:", "host:http"})
    EXPECT_FALSE(CheckEndpoint({.address = address, .insecure = true}, {}).ok()) << address;
}

}  // namespace
}  // namespace takt::rpc
