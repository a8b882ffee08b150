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
# gcc 12 is often wrong about what may be uninitialized in a std::string or a std::optional, and about what overlaps or ends where in a
# std::string, the more it inlines.
set(warnings -Wall -Wextra -Wno-missing-field-initializers -Wno-maybe-uninitialized -Wno-restrict -Wno-unknown-warning-option)
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

# With TAKT_UNITY the sources of a target are compiled as one, which takes half of the time of a whole build. ALONE names those that must not be,
# because a name of theirs in an anonymous namespace is also that of another source. Every source must compile alone, too.
if(TAKT_UNITY)
  set(CMAKE_UNITY_BUILD ON)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 0)  # all, so that it does not depend on their order whether two of a name meet
  # It would want the members of a class of one source to be visible in others, as if the class stood in a header.
  target_compile_options(takt_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()
function(takt_compile_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# takt_library(NAME SOURCES a.cc ... [ALONE b.cc ...] DEPS public deps... [PRIVATE_DEPS ...])
function(takt_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;ALONE;DEPS;PRIVATE_DEPS" ${ARGN})
  takt_compile_alone(${arg_ALONE})
  list(APPEND arg_SOURCES ${arg_ALONE})
  if(arg_SOURCES)
    add_library(${name} STATIC ${arg_SOURCES})
    target_link_libraries(${name} PUBLIC takt_options ${arg_DEPS} PRIVATE ${arg_PRIVATE_DEPS})
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

# takt_binary(NAME SOURCES ... [ALONE ...] DEPS ...)
function(takt_binary name)
  cmake_parse_arguments(arg "" "" "SOURCES;ALONE;DEPS" ${ARGN})
  takt_compile_alone(${arg_ALONE})
  list(APPEND arg_SOURCES ${arg_ALONE})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE takt_options ${arg_DEPS})
  takt_add_sanitizer_support(${name})
endfunction()

# Everything that `ctest -L unit` runs, without the programs and benchmarks that it does not.
add_custom_target(unit_tests)

# Two fifths of a build are the tests' own sources, which run once.
if(TAKT_SANITIZE)
  set(test_optimization -O0)
elseif(CMAKE_BUILD_TYPE STREQUAL "Release")
  set(test_optimization -Og)
endif()
# With TAKT_UNITY they read the headers that nearly all of them include from one precompiled file. It has the options of
# the tests that read it. ccache keeps nothing of these unless CCACHE_SLOPPINESS is pch_defines,time_macros.
if(BUILD_TESTING AND TAKT_UNITY)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/test_headers.cc CONTENT "\n")
  add_library(takt_test_headers OBJECT ${PROJECT_BINARY_DIR}/generated/test_headers.cc)
  target_link_libraries(takt_test_headers PRIVATE takt_options GTest::gmock)
  target_compile_options(takt_test_headers PRIVATE -fPIE -pthread ${test_optimization})
  target_precompile_headers(takt_test_headers PRIVATE
    <algorithm> <array> <atomic> <chrono> <cmath> <filesystem> <fstream> <functional> <map> <memory> <numeric> <optional> <random> <set> <span>
    <sstream> <string> <string_view> <thread> <tuple> <utility> <variant> <vector>
    <absl/status/status.h> <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/str_join.h> <absl/strings/str_split.h>
    <gmock/gmock.h> <gtest/gtest.h>)
endif()

# takt_test(NAME SOURCES ... [ALONE ...] DEPS ... [LABELS unit|slow|gpu] [TIMEOUT seconds])
# One executable a folder; ctest sees it as one test per suite runner.
function(takt_test name)
  if(NOT BUILD_TESTING)
    return()
  endif()
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;ALONE;DEPS;LABELS" ${ARGN})
  takt_compile_alone(${arg_ALONE})
  list(APPEND arg_SOURCES ${arg_ALONE})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE takt_options ${arg_DEPS} GTest::gmock GTest::gtest GTest::gtest_main)
  takt_add_sanitizer_support(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_compile_options(${name} PRIVATE ${test_optimization})
  target_compile_definitions(${name} PRIVATE TAKT_SOURCE_DIR="${PROJECT_SOURCE_DIR}" TAKT_BINARY_DIR="${PROJECT_BINARY_DIR}/bin")
  if(TAKT_UNITY)
    target_precompile_headers(${name} REUSE_FROM takt_test_headers)
    target_compile_options(${name} PRIVATE -pthread)
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(TAKT_SANITIZE)
    math(EXPR arg_TIMEOUT "3 * ${arg_TIMEOUT}")
  endif()
  if("unit" IN_LIST arg_LABELS)
    add_dependencies(unit_tests ${name})
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
