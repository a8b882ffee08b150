# SPDX-License-Identifier: Apache-2.0
# Everything comes from the system's packages (deploy/install-deps.sh); nothing is fetched.
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(dnnl CONFIG REQUIRED)
find_package(Gloo REQUIRED)
find_package(prometheus-cpp REQUIRED)
find_package(SQLite3 REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(CURL REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(isal REQUIRED IMPORTED_TARGET libisal)  # CRC-32C
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)  # pre-tokenizers
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)  # NFC
pkg_check_modules(httplib REQUIRED IMPORTED_TARGET cpp-httplib>=0.11)  # the page of `takt ui`
pkg_check_modules(systemd REQUIRED IMPORTED_TARGET libsystemd)
if(BUILD_TESTING)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  find_package(GTest REQUIRED)
  find_package(benchmark REQUIRED)
  find_package(rapidcheck REQUIRED)
endif()
