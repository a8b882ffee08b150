// SPDX-License-Identifier: Apache-2.0
// Decides which requests the server of `takt ui` answers. It is pure: it gets the facts of a
// request and returns a verdict.
//
// Everybody on this machine can reach a port on loopback, and every page that the user's browser
// shows can send requests to it. So a request must
//   name this server in its Host header, which a page of another name that resolves to loopback
//     does not do (DNS rebinding);
//   be a GET or HEAD;
//   not come from a page of another origin;
//   carry the token, which only the printed address has. The answer to that address gives the
//     browser a cookie with the token, which no script can read and no other site can send.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace takt::cli {

struct RequestFacts {
  std::string method;
  std::string path;
  std::vector<std::string> hosts;    // all Host headers
  std::vector<std::string> origins;  // all Origin headers
  std::string site;     // the header Sec-Fetch-Site; empty: not a browser, or an old one
  std::string cookies;  // the header Cookie
  std::string token;    // the parameter `token` of the address
};

struct Verdict {
  int status = 200;          // else 403, 405 or 421
  std::string reason;        // for people; empty if the status is 200
  bool sets_cookie = false;  // the address had the token
};

// Thread-safe: constant after construction.
class PageAccess final {
 public:
  // port: on which the server listens. token: from MakeToken.
  PageAccess(int port, std::string token);

  Verdict Judge(const RequestFacts& facts) const;

  // Returns the address with the token, which is for the user alone.
  std::string Address() const;
  // Returns the value of the header Set-Cookie.
  std::string Cookie() const;

 private:
  bool IsOurHost(std::string_view host) const;
  bool HasCookie(std::string_view cookies) const;

  const std::string port_, token_, cookie_name_;
};

// Returns 160 random bits of the system, as hexadecimal digits.
std::string MakeToken();

}  // namespace takt::cli
