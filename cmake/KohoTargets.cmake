# SPDX-License-Identifier: Apache-2.0
# The headers that the folders share, compiled once: in a library of its own, with the flags of all of them.
file(WRITE "${CMAKE_BINARY_DIR}/common_headers.cpp" "")
add_library(koho_common_headers STATIC EXCLUDE_FROM_ALL "${CMAKE_BINARY_DIR}/common_headers.cpp")
find_package(fmt REQUIRED)
target_include_directories(koho_common_headers SYSTEM PRIVATE $<TARGET_PROPERTY:fmt::fmt,INTERFACE_INCLUDE_DIRECTORIES>)
target_compile_definitions(koho_common_headers PRIVATE FMT_SHARED)
target_link_libraries(koho_common_headers PRIVATE koho_options)
koho_precompile(koho_common_headers ${koho_common_headers})

# koho_library(NAME [DEPENDS ...] [LINK ...] [EXCLUDE ...] [TEST_DEPENDS ...] [TEST_LABELS ...]): the library koho_NAME
# from every .cpp of the current folder, and, with tests on, the GoogleTest program NAME_test from every *_test.cpp beside them.
# DEPENDS names other folders of ours, LINK what is linked besides (privately), EXCLUDE files left out.
function(koho_library NAME)
  cmake_parse_arguments(ARG "" "" "DEPENDS;LINK;EXCLUDE;TEST_DEPENDS;TEST_LABELS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
  file(GLOB tests CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*_test.cpp")
  if(tests)
    list(REMOVE_ITEM sources ${tests})
  endif()
  foreach(excluded IN LISTS ARG_EXCLUDE)
    list(REMOVE_ITEM sources "${CMAKE_CURRENT_SOURCE_DIR}/${excluded}")
  endforeach()
  add_library(koho_${NAME} STATIC ${sources})
  target_link_libraries(koho_${NAME} PUBLIC koho_options)
  foreach(folder IN LISTS ARG_DEPENDS)
    target_link_libraries(koho_${NAME} PUBLIC koho_${folder})
  endforeach()
  target_link_libraries(koho_${NAME} PRIVATE ${ARG_LINK})
  koho_precompile(koho_${NAME} REUSE_FROM koho_common_headers)
  if(KOHO_TESTS AND tests)
    koho_test(${NAME}_test SOURCES ${tests} DEPENDS ${NAME} ${ARG_TEST_DEPENDS} LINK ${ARG_LINK}
              LABELS ${ARG_TEST_LABELS})
  endif()
endfunction()

# koho_test(NAME SOURCES ... [DEPENDS folders] [LINK ...] [LABELS ...] [SERIAL]): a GoogleTest program, its tests known to
# ctest, SERIAL ones alone: they take times. KOHO_SOURCE_DIR is defined for tests that read files of the tree.
# Labels say where a test runs:
#   none        a folder's own test. `run.py --test` runs it under the sanitizers, CI optimised as well.
#   product     of the optimised program, its numbers or its commands, or needs the whole house. `run.py --test` runs it
#               optimised, CI under the sanitizers as well.
#   optimised   too long for the sanitizers, or about time or memory: not defined under them.
# The targets unit_tests (the first kind) and optimised_tests (the others) build them.
if(KOHO_TESTS)
  add_custom_target(unit_tests)
  add_custom_target(optimised_tests)
  file(WRITE "${CMAKE_BINARY_DIR}/test_headers.cpp" "int main() {}\n")
  add_executable(koho_test_headers EXCLUDE_FROM_ALL "${CMAKE_BINARY_DIR}/test_headers.cpp")
  target_link_libraries(koho_test_headers PRIVATE koho_options GTest::gtest)
  target_include_directories(koho_test_headers SYSTEM PRIVATE $<TARGET_PROPERTY:koho_common_headers,INCLUDE_DIRECTORIES>)
  target_compile_definitions(koho_test_headers PRIVATE FMT_SHARED)
  koho_precompile(koho_test_headers ${koho_common_headers} <gtest/gtest.h>)
endif()

function(koho_test NAME)
  cmake_parse_arguments(ARG "SERIAL" "" "SOURCES;DEPENDS;LINK;LABELS" ${ARGN})
  if(KOHO_SANITIZE AND "optimised" IN_LIST ARG_LABELS)
    return()
  endif()
  add_executable(${NAME} ${ARG_SOURCES})
  if(ARG_LABELS)
    add_dependencies(optimised_tests ${NAME})
  else()
    add_dependencies(unit_tests ${NAME})
  endif()
  target_compile_definitions(${NAME} PRIVATE KOHO_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  foreach(folder IN LISTS ARG_DEPENDS)
    target_link_libraries(${NAME} PRIVATE koho_${folder})
  endforeach()
  target_link_libraries(${NAME} PRIVATE koho_options ${ARG_LINK} GTest::gtest GTest::gtest_main)
  koho_precompile(${NAME} REUSE_FROM koho_test_headers)
  set(properties TIMEOUT 600)
  if(ARG_LABELS)
    list(APPEND properties LABELS ${ARG_LABELS})
  endif()
  if(ARG_SERIAL)
    list(APPEND properties RUN_SERIAL TRUE)
  endif()
  gtest_discover_tests(${NAME} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 PROPERTIES ${properties})
endfunction()
