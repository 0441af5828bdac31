# SPDX-License-Identifier: Apache-2.0
# Language level, warnings, hardening and sanitizers of every target of ours.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# Three levels, because compiling everything must take minutes on two cores: kernels get -O3 (koho_hot), code that every
# token or page passes gets -O2, and code that is mostly library templates and that nothing waits for gets -O1 (koho_cold).
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
function(koho_cold TARGET)
  target_compile_options(${TARGET} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
  # GCC 13 and newer refuse a precompiled header of another level: -O2 sets -munroll-only-small-loops, -O1 does not.
  get_target_property(headers ${TARGET} PRECOMPILE_HEADERS_REUSE_FROM)
  if(headers AND TARGET ${headers}_cold)
    set_target_properties(${TARGET} PROPERTIES PRECOMPILE_HEADERS_REUSE_FROM ${headers}_cold)
  endif()
endfunction()
function(koho_hot TARGET)
  target_compile_options(${TARGET} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O3>)
endfunction()

# What tests compare with, or draw their inputs from: under the sanitizers, too, it is most of what an operator's test computes.
function(koho_reference TARGET)
  if(KOHO_SANITIZE)
    target_compile_options(${TARGET} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O2>)
    set_target_properties(${TARGET} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)  # which are of another level
  endif()
endfunction()

find_program(KOHO_CCACHE ccache)
if(KOHO_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER "${KOHO_CCACHE}")
  # What ccache needs to know to cache objects that use precompiled headers.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND};-E;env;CCACHE_SLOPPINESS=pch_defines,time_macros;${KOHO_CCACHE}")
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${KOHO_CCACHE}")
endif()

add_library(koho_options INTERFACE)
target_compile_options(koho_options INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wconversion;-Wsign-conversion;-Wshadow;-Wvla;-Werror>
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>)
# GCC reports these falsely through inlined library code, differently in each version and at each level; clang and the
# sanitizers find the true ones.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(koho_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized;-Wno-stringop-overflow;-Wno-array-bounds;-Wno-restrict>)
endif()
target_include_directories(koho_options INTERFACE "${CMAKE_SOURCE_DIR}/src")

if(KOHO_SANITIZE)
  # Left out: a check before each use of a pointer, an eighth of the compile time, of what AddressSanitizer reports when used.
  target_compile_options(koho_options INTERFACE
    $<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${KOHO_SANITIZE};-fno-sanitize=null,vptr,object-size;-fno-sanitize-recover=all;-fno-omit-frame-pointer>)
  target_link_options(koho_options INTERFACE -fsanitize=${KOHO_SANITIZE})
else()
  target_compile_definitions(koho_options INTERFACE _GLIBCXX_ASSERTIONS
    $<$<CONFIG:Release,RelWithDebInfo>:_FORTIFY_SOURCE=2>)
  target_compile_options(koho_options INTERFACE
    $<$<COMPILE_LANGUAGE:C,CXX>:-fstack-protector-strong;-fstack-clash-protection>)
  target_link_options(koho_options INTERFACE -Wl,-z,relro,-z,now)
endif()

# koho_precompile(TARGET headers ... | REUSE_FROM other): headers that cost more to read than the target's own sources.
# A target's headers and its sources must be compiled at one level and with one set of -m flags: koho_cold() picks the
# headers of -O1, and a file with -m flags of its own sets SKIP_PRECOMPILE_HEADERS.
# A build without them (fuzz, wheel, tools/compiler_check.py) shows which file forgets an include.
option(KOHO_PRECOMPILE "Compile the headers that nearly every file includes once" ON)
function(koho_precompile TARGET)
  if(NOT KOHO_PRECOMPILE)
    return()
  endif()
  if(ARGV1 STREQUAL REUSE_FROM)
    target_precompile_headers(${TARGET} ${ARGN})
  else()
    target_precompile_headers(${TARGET} PRIVATE ${ARGN})
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${TARGET} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)  # for ccache
  endif()
endfunction()
# In angle brackets: an absolute path would make the precompiled header, and with it every object, one that no other clone has.
set(koho_common_headers <algorithm> <array> <atomic> <chrono> <cmath> <condition_variable> <cstdint> <cstring> <deque>
  <filesystem> <functional> <map> <memory> <mutex> <optional> <random> <span> <string> <string_view> <thread>
  <unordered_map> <utility> <variant> <vector> <fmt/core.h>
  <base/error.h> <base/log.h>)
