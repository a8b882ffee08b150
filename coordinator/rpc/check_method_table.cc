// SPDX-License-Identifier: Apache-2.0
// check_method_table SERVICES fails unless every RPC of a descriptor set has a row in
// common/access/method_table.cc, and every row an RPC. The build runs it.
#include <google/protobuf/descriptor.pb.h>

#include <cstdio>
#include <fstream>
#include <set>
#include <string>

#include "common/access/method_table.h"

namespace takt {
namespace {

constexpr char kLibrary[] = "/grpc.";  // services that gRPC's library brings along

std::set<std::string> MethodsOf(const google::protobuf::FileDescriptorSet& files) {
  std::set<std::string> methods;
  for (const auto& file : files.file()) {
    for (const auto& service : file.service()) {
      for (const auto& method : service.method())
        methods.insert("/" + file.package() + "." + service.name() + "/" + method.name());
    }
  }
  return methods;
}

int Main(const char* path) {
  google::protobuf::FileDescriptorSet files;
  std::ifstream in(path, std::ios::binary);
  if (!files.ParseFromIstream(&in)) {
    std::fprintf(stderr, "%s: not a descriptor set\n", path);
    return 1;
  }
  const std::set<std::string> methods = MethodsOf(files);
  int wrong = methods.empty() ? 1 : 0;
  for (const std::string& method : methods) {
    if (access::FindRule(method) != nullptr) continue;
    std::fprintf(stderr, "common/access/method_table.cc: no row for %s\n", method.c_str());
    wrong = 1;
  }
  for (const access::MethodRule& rule : access::MethodTable()) {
    const std::string method(rule.method);
    if (methods.contains(method) || method.starts_with(kLibrary)) continue;
    std::fprintf(stderr, "common/access/method_table.cc: %s is no RPC\n", method.c_str());
    wrong = 1;
  }
  return wrong;
}

}  // namespace
}  // namespace takt

int main(int argc, char** argv) { return argc == 2 ? takt::Main(argv[1]) : 2; }
