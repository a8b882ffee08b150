# SPDX-License-Identifier: Apache-2.0
# The three kinds of target this project has. Every source is listed where it lives.

add_library(takt_options INTERFACE)
target_include_directories(takt_options INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/proto)
target_compile_definitions(takt_options INTERFACE TAKT_VERSION="${PROJECT_VERSION}")
# A compiler that not every change is built with may warn of more, and that must not stop the build of a user.
set(TAKT_WERROR_DEFAULT OFF)
if((CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13) OR
   (CMAKE_CXX_COMPILER_ID STREQUAL Clang AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15))
  set(TAKT_WERROR_DEFAULT ON)
endif()
option(TAKT_WERROR "Treat warnings as errors; the default is ON with g++ 12 and clang++ 14" ${TAKT_WERROR_DEFAULT})
set(warnings -Wall -Wextra -Wno-missing-field-initializers -Wno-unknown-warning-option)
if(TAKT_WERROR)
  list(APPEND warnings -Werror)
  target_compile_options(takt_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()
if(absl_VERSION VERSION_GREATER_EQUAL 20250814)
  # These versions want mutexes by reference and call their functions lock and unlock, which the oldest that we support does not have. There the
  # same sources are compiled with all deprecations reported.
  list(APPEND warnings -Wno-deprecated-declarations)
endif()
target_compile_options(takt_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>")
list(JOIN warnings , warnings)
target_compile_options(takt_options INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${warnings}>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # What ABSL_GUARDED_BY and its like promise.
  target_compile_options(takt_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wthread-safety>")
endif()
if(TAKT_SANITIZE)
  target_compile_options(takt_options INTERFACE -fsanitize=${TAKT_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(takt_options INTERFACE -fsanitize=${TAKT_SANITIZE})
  # gcc warns about moves of std::optional inside std::variant, which are right, once a sanitizer instruments them.
  target_compile_options(takt_options INTERFACE -Wno-maybe-uninitialized)
  if(TAKT_SANITIZE MATCHES address AND NOT TAKT_SANITIZE MATCHES alignment)
    # Address finds null pointers, too, and the processors that Takt is built for read what is not aligned. The three take two fifths of a
    # build; `tests/long.sh checks` has them.
    target_compile_options(takt_options INTERFACE -fno-sanitize=null,vptr,alignment)
  endif()
endif()

if(TAKT_FUZZ)
  target_compile_options(takt_options INTERFACE -fsanitize=fuzzer-no-link,address -fno-omit-frame-pointer)
  target_link_options(takt_options INTERFACE -fsanitize=address)
endif()

# Libraries share one set of precompiled headers; those of the commands have one with the heavy headers of theirs; tests have another, because
# their flags differ. A source must compile without, as it does by default.
if(TAKT_PRECOMPILE)
  set(CMAKE_PCH_WARN_INVALID OFF)  # a target with other flags parses the headers itself
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # Headers that were parsed before change what gcc 12 inlines, and its warnings that follow values through inlined calls are then wrong for
    # std::string. The build without has them.
    target_compile_options(takt_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds> $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>
      $<$<COMPILE_LANGUAGE:CXX>:-Wno-stringop-overflow> $<$<COMPILE_LANGUAGE:CXX>:-Wno-stringop-overread>
      $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
  endif()
  set(common_headers <algorithm> <atomic> <cstdint> <deque> <functional> <map> <memory> <optional> <set> <span> <string> <string_view> <utility>
      <variant> <vector> [["absl/status/statusor.h"]] [["absl/strings/str_cat.h"]] [["absl/time/time.h"]])
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/precompiled.cc CONTENT "int main() {}\n")
  add_library(takt_precompiled OBJECT ${PROJECT_BINARY_DIR}/precompiled.cc)
  target_link_libraries(takt_precompiled PRIVATE takt_options absl::statusor absl::strings absl::time)
  target_precompile_headers(takt_precompiled PRIVATE ${common_headers})
  add_library(takt_precompiled_commands OBJECT ${PROJECT_BINARY_DIR}/precompiled.cc)
  target_link_libraries(takt_precompiled_commands PRIVATE takt_options absl::statusor absl::strings absl::time CLI11::CLI11 nlohmann_json::nlohmann_json)
  target_precompile_headers(takt_precompiled_commands PRIVATE ${common_headers} [["CLI/App.hpp"]] [["nlohmann/json.hpp"]])
endif()
function(takt_precompile name from)
  if(TAKT_PRECOMPILE)
    target_precompile_headers(${name} REUSE_FROM ${from})
  endif()
endfunction()

# takt_library(NAME SOURCES a.cc ... DEPS public deps... [PRIVATE_DEPS ...])
function(takt_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  if(arg_SOURCES)
    add_library(${name} STATIC ${arg_SOURCES})
    target_link_libraries(${name} PUBLIC takt_options ${arg_DEPS} PRIVATE ${arg_PRIVATE_DEPS})
    if(name MATCHES "^takt_cli_")
      takt_precompile(${name} takt_precompiled_commands)
    else()
      takt_precompile(${name} takt_precompiled)
    endif()
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE takt_options ${arg_DEPS})
  endif()
endfunction()

# What makes the locks of uninstrumented libraries visible to the thread sanitizer.
function(takt_add_sanitizer_support name)
  if(TAKT_SANITIZE STREQUAL "thread")
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/testing/tsan_absl.cc)
    target_link_libraries(${name} PRIVATE absl::synchronization ${CMAKE_DL_LIBS})
  endif()
endfunction()

# takt_binary(NAME SOURCES ... DEPS ...)
function(takt_binary name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE takt_options ${arg_DEPS})
  takt_add_sanitizer_support(${name})
  add_dependencies(release_tests ${name})
endfunction()

# Everything that `ctest -L unit`, `-L service` or `-L release` runs, without the programs and benchmarks that it does not.
add_custom_target(unit_tests)
add_custom_target(service_tests)
add_custom_target(release_tests)

# Two fifths of a build are the tests' own sources, which run once.
if(TAKT_SANITIZE)
  set(test_optimization -O0)
elseif(CMAKE_BUILD_TYPE STREQUAL "Release")
  set(test_optimization -O1)
endif()

if(TAKT_PRECOMPILE AND BUILD_TESTING)
  add_executable(takt_precompiled_tests ${PROJECT_BINARY_DIR}/precompiled.cc)
  target_link_libraries(takt_precompiled_tests PRIVATE takt_options absl::statusor absl::strings absl::time GTest::gmock GTest::gtest)
  target_compile_options(takt_precompiled_tests PRIVATE ${test_optimization})
  target_precompile_headers(takt_precompiled_tests PRIVATE ${common_headers} <gmock/gmock.h> <gtest/gtest.h>)
endif()

# takt_test(NAME SOURCES ... DEPS ... [LABELS unit|slow|gpu] [TIMEOUT seconds] [RELEASE] [COMMANDS] [LONG])
# One executable a folder; ctest sees it as one test per suite runner. Labels that follow:
#   release  for RELEASE: what it finds depends on how the compiler optimizes, as of kernels, bits and threads, so that it is worth running beside a
#            build with sanitizers; for COMMANDS, and for slow tests
#   service  for unit tests but those of the commands (cli/, or COMMANDS), whose sources take a third of a build with sanitizers, and those that
#            take many minutes with sanitizers (LONG), which tests/long.sh runs so
function(takt_test name)
  if(NOT BUILD_TESTING)
    return()
  endif()
  cmake_parse_arguments(arg "RELEASE;COMMANDS;LONG" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE takt_options ${arg_DEPS} GTest::gmock GTest::gtest GTest::gtest_main)
  takt_add_sanitizer_support(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_compile_options(${name} PRIVATE ${test_optimization})
  takt_precompile(${name} takt_precompiled_tests)
  target_compile_definitions(${name} PRIVATE TAKT_SOURCE_DIR="${PROJECT_SOURCE_DIR}" TAKT_BINARY_DIR="${PROJECT_BINARY_DIR}/bin")
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(TAKT_SANITIZE)
    math(EXPR arg_TIMEOUT "3 * ${arg_TIMEOUT}")
  endif()
  if(CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/cli")
    set(arg_COMMANDS TRUE)
  endif()
  if("unit" IN_LIST arg_LABELS)
    add_dependencies(unit_tests ${name})
    if(NOT arg_COMMANDS AND NOT arg_LONG)
      list(APPEND arg_LABELS service)
      add_dependencies(service_tests ${name})
    endif()
  endif()
  if(arg_RELEASE OR arg_COMMANDS OR "slow" IN_LIST arg_LABELS)
    list(APPEND arg_LABELS release)
    add_dependencies(release_tests ${name})
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
  if(TAKT_SANITIZE)
    set_property(TEST ${name} PROPERTY ENVIRONMENT
      "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/testing/tsan.supp:halt_on_error=1"
      "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/testing/lsan.supp:print_suppressions=0"
      "UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1")
  endif()
endfunction()
