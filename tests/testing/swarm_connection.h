// SPDX-License-Identifier: Apache-2.0
// The connections of a swarm's workers to the coordinator. Each worker has a connection of its own,
// or all workers of a host share one, in frames, as behind the relay of a host.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>

#include <functional>
#include <memory>
#include <string>

#include "common/access/identity.h"
#include "common/certificates/authority.h"
#include "takt/v1/attachment_service.grpc.pb.h"
#include "tests/testing/swarm_stream.h"

namespace takt::testing {

// Gives each worker or host credentials of its own. All share one key, since making keys is most of
// the work.
class Certifier {
 public:
  // authority: the directory of an authority; empty: there are no certificates.
  explicit Certifier(std::string authority);
  std::shared_ptr<grpc::ChannelCredentials> CredentialsOf(access::Role role,
                                                          const std::string& name) const;

 private:
  const std::string authority_;
  std::string roots_;
  certificates::Request request_;
};

// The streams of one worker on one connection, which have not begun yet. They must not outlive this
// object.
class SwarmConnection {
 public:
  using ControlPort = SwarmPort<v1::AttachRequest>;
  using BulkPort = SwarmPort<v1::StreamBulkRequest>;
  using OnCommand = std::function<void(const v1::AttachResponse&)>;
  using OnAcknowledged = std::function<void(const v1::StreamBulkResponse&)>;

  virtual ~SwarmConnection() = default;
  virtual std::shared_ptr<grpc::Channel> channel() const = 0;
  virtual std::unique_ptr<ControlPort> OpenControl(OnCommand on_command) = 0;
  virtual std::unique_ptr<BulkPort> OpenBulk(OnAcknowledged on_acknowledged) = 0;
};

// Two connections of a worker's own, as a real one has: one for the small stream, one for the
// large.
std::unique_ptr<SwarmConnection> DialAlone(
    const std::string& coordinator, const std::shared_ptr<grpc::ChannelCredentials>& credentials);

// The connection of a host. Thread-safe.
class SwarmHost {
 public:
  static std::shared_ptr<SwarmHost> Dial(
      const std::string& coordinator, const std::shared_ptr<grpc::ChannelCredentials>& credentials);
  // Cuts the connection.
  virtual ~SwarmHost() = default;

  // Returns the streams of one more worker of the host.
  virtual std::unique_ptr<SwarmConnection> Join() = 0;
  // Sends the messages that have gathered for long enough. Call it every few milliseconds.
  virtual void Flush() = 0;
  // Ends all streams and waits until they have ended.
  virtual void Cut() = 0;
};

}  // namespace takt::testing
