# SPDX-License-Identifier: Apache-2.0
# What of CUDA this machine has. Each missing part disables just itself and says so, but TAKT_CUDA=ON needs the first two:
#   TAKT_HAVE_CUDA   nvcc, the runtime, cuBLASLt           the module takt_cuda
#   TAKT_HAVE_CUDNN  cuDNN and its C++ front end           attention by cuDNN; target takt_cudnn
#   TAKT_HAVE_NCCL   NCCL                                  the module takt_nccl; target takt_nccl_library
# TAKT_BUILT_IN is what `takt version` says of it.
set(TAKT_CUDA AUTO CACHE STRING "Build the GPU modules: AUTO (if the toolkit is there), ON or OFF")
set_property(CACHE TAKT_CUDA PROPERTY STRINGS AUTO ON OFF)
set(TAKT_CUDNN_FRONTEND "" CACHE PATH
  "Folder that holds cudnn_frontend.h: the `include` of the Python package nvidia-cudnn-frontend, say")
set(TAKT_CUDA_OLDEST 12.0)  # the first whose nvcc compiles C++20
set(TAKT_HAVE_CUDA OFF)
set(TAKT_HAVE_CUDNN OFF)
set(TAKT_HAVE_NCCL OFF)
set(TAKT_BUILT_IN "no cuda")

# Ends the configuration where the modules were asked for, else goes on without them.
macro(takt_no_cuda reason)
  if(TAKT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TAKT_CUDA=ON: ${reason}")
  endif()
  message(STATUS "CUDA: ${reason}; no GPU modules")
endmacro()

# Ends the configuration where the modules were asked for. Else they are built without cuDNN, which every program then says.
macro(takt_no_cudnn reason)
  if(TAKT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TAKT_CUDA=ON: ${reason}; -DTAKT_CUDA=AUTO builds without it")
  endif()
  message(WARNING "CUDA: ${reason}: attention takes 2 to 4 times as long")
  string(APPEND TAKT_BUILT_IN ", no cudnn: attention takes 2 to 4 times as long")
endmacro()

# takt_header_version(OUT FILE PREFIX PARTS...): 9.19.0 of "#define PREFIX_MAJOR 9", ...
function(takt_header_version out file prefix)
  set(version "")
  foreach(part ${ARGN})
    file(STRINGS ${file} line REGEX "#define ${prefix}_${part} +[0-9]+")
    string(REGEX MATCH "[0-9]+$" number "${line}")
    list(APPEND version ${number})
  endforeach()
  list(JOIN version . version)
  set(${out} ${version} PARENT_SCOPE)
endfunction()

# takt_cuda_library(TARGET LIBRARY HEADER): an interface to a library beside the toolkit, or no target.
function(takt_cuda_library target library header)
  find_library(TAKT_${target}_LIBRARY ${library} HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}/lib)
  find_path(TAKT_${target}_HEADERS ${header} HINTS ${CUDAToolkit_INCLUDE_DIRS})
  mark_as_advanced(TAKT_${target}_LIBRARY TAKT_${target}_HEADERS)
  if(TAKT_${target}_LIBRARY AND TAKT_${target}_HEADERS)
    add_library(${target} INTERFACE IMPORTED GLOBAL)
    target_link_libraries(${target} INTERFACE ${TAKT_${target}_LIBRARY})
    target_include_directories(${target} SYSTEM INTERFACE ${TAKT_${target}_HEADERS})
  endif()
endfunction()

find_program(TAKT_NVCC nvcc HINTS $ENV{CUDACXX} $ENV{CUDA_HOME}/bin PATHS /usr/local/cuda/bin)
mark_as_advanced(TAKT_NVCC)
if(NOT TAKT_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "TAKT_CUDA=${TAKT_CUDA}: must be AUTO, ON or OFF")
elseif(TAKT_CUDA STREQUAL "OFF")
elseif(TAKT_SANITIZE OR TAKT_FUZZ)
  takt_no_cuda("a build with sanitizers has only the host's parts")
elseif(NOT CMAKE_CUDA_COMPILER AND NOT TAKT_NVCC)
  takt_no_cuda("no nvcc on PATH or in /usr/local/cuda/bin (deploy/install-deps.sh --cuda says what is expected)")
else()
  if(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${TAKT_NVCC})
  endif()
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90)  # 90: its code and compute_90, which newer devices translate
  include(CheckLanguage)
  check_language(CUDA)
  find_package(CUDAToolkit ${TAKT_CUDA_OLDEST} QUIET)
  if(NOT CMAKE_CUDA_COMPILER)
    takt_no_cuda("${TAKT_NVCC} compiles nothing here (CMakeFiles/CMakeError.log says why)")
  elseif(NOT CUDAToolkit_FOUND)
    takt_no_cuda("no CUDA toolkit of ${TAKT_CUDA_OLDEST} or newer beside ${CMAKE_CUDA_COMPILER}")
  elseif(NOT TARGET CUDA::cudart OR NOT TARGET CUDA::cublasLt)
    takt_no_cuda("${CUDAToolkit_LIBRARY_DIR} lacks cudart or cublasLt")
  else()
    set(TAKT_HAVE_CUDA ON)
  endif()
endif()

if(TAKT_HAVE_CUDA)
  enable_language(CUDA)
  if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 does not know that nvcc has it
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  if(CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
  endif()
  string(REGEX MATCH "^[0-9]+[.][0-9]+" version ${CUDAToolkit_VERSION})
  set(TAKT_BUILT_IN "cuda ${version}")

  takt_cuda_library(takt_cudnn cudnn cudnn.h)
  find_path(TAKT_CUDNN_FRONTEND_HEADERS cudnn_frontend.h HINTS ${TAKT_CUDNN_FRONTEND} ${CUDAToolkit_INCLUDE_DIRS})
  mark_as_advanced(TAKT_CUDNN_FRONTEND_HEADERS)
  if(NOT TARGET takt_cudnn)
    takt_no_cudnn("no cuDNN (cudnn.h, libcudnn.so)")
  elseif(NOT TAKT_CUDNN_FRONTEND_HEADERS)
    takt_no_cudnn("no cudnn_frontend.h: set -DTAKT_CUDNN_FRONTEND=DIR (docs/deploy.md)")
  else()
    set(TAKT_HAVE_CUDNN ON)
    target_include_directories(takt_cudnn SYSTEM INTERFACE ${TAKT_CUDNN_FRONTEND_HEADERS})
    target_compile_definitions(takt_cudnn INTERFACE TAKT_CUDNN=1)
    takt_header_version(version ${TAKT_takt_cudnn_HEADERS}/cudnn_version.h CUDNN MAJOR MINOR PATCHLEVEL)
    string(APPEND TAKT_BUILT_IN ", cudnn ${version}")
  endif()

  takt_cuda_library(takt_nccl_library nccl nccl.h)
  if(NOT TARGET takt_nccl_library)
    message(STATUS "CUDA: no NCCL; GPUs exchange through the host")
  else()
    set(TAKT_HAVE_NCCL ON)
    takt_header_version(version ${TAKT_takt_nccl_library_HEADERS}/nccl.h NCCL MAJOR MINOR PATCH)
    string(APPEND TAKT_BUILT_IN ", nccl ${version}")
  endif()
  string(APPEND TAKT_BUILT_IN ", sm_80 sm_90 compute_90")
endif()
message(STATUS "CUDA: built in: ${TAKT_BUILT_IN}")

# takt_cuda_module(NAME SOURCES a.cc b.cu ... DEPS ...): NAME.so, which the worker opens if it is there and its libraries are
# (worker/plugin). It finds them beside itself first, so that a folder of the module and its libraries can be carried.
function(takt_cuda_module name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} MODULE ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE takt_options ${arg_DEPS} CUDA::cudart)
  # Constant functions of our headers and of the standard library run on the device too.
  target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>")
  # All symbols are found now, and only the entry is seen: the worker has its own copies of our static libraries.
  target_link_options(${name} PRIVATE -Wl,-z,defs -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/module.map)
  set_property(TARGET ${name} APPEND PROPERTY LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/module.map)
  set_target_properties(${name} PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib/takt
    CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON CUDA_RUNTIME_LIBRARY Shared INSTALL_RPATH "$ORIGIN")
  set_property(GLOBAL APPEND PROPERTY TAKT_CUDA_MODULES ${name})
endfunction()
