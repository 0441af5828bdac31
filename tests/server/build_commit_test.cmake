# SPDX-License-Identifier: Apache-2.0
# cmake/KohoBuildInfo.cmake on a copy of its template, which is no checkout even where it lies inside one.
file(REMOVE_RECURSE "${WORK_DIR}")
file(COPY "${SOURCE_DIR}/src/app/build_commit.cpp.in" DESTINATION "${WORK_DIR}/src/app")
set(output "${WORK_DIR}/build_commit.cpp")

function(expect_commit expected)
  execute_process(COMMAND "${CMAKE_COMMAND}" "-DSOURCE_DIR=${WORK_DIR}" "-DOUTPUT=${output}" ${ARGN}
                          -P "${SOURCE_DIR}/cmake/KohoBuildInfo.cmake" COMMAND_ERROR_IS_FATAL ANY)
  file(STRINGS "${output}" line REGEX "commit = \"${expected}\"")
  if(NOT line)
    file(READ "${output}" text)
    message(FATAL_ERROR "expected the commit \"${expected}\" in\n${text}")
  endif()
endfunction()

expect_commit(unknown)
expect_commit(0123abcd -DKOHO_COMMIT=0123abcd)
# The same again leaves the file as it is: nothing is compiled.
file(TIMESTAMP "${output}" before "%s")
execute_process(COMMAND "${CMAKE_COMMAND}" -E sleep 1.1)
expect_commit(0123abcd -DKOHO_COMMIT=0123abcd)
file(TIMESTAMP "${output}" after "%s")
if(NOT before STREQUAL after)
  message(FATAL_ERROR "an unchanged commit was written again")
endif()
# A checkout of its own: its commit, and whether files differ from it.
find_program(git git)
if(git)
  set(me -c user.name=koho -c user.email=koho@localhost)
  foreach(command IN ITEMS "init;-q" "add;src" "commit;-q;-m;one")
    execute_process(COMMAND "${git}" -C "${WORK_DIR}" ${me} ${command} COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
  execute_process(COMMAND "${git}" -C "${WORK_DIR}" rev-parse --short=12 HEAD
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  expect_commit(${commit})
  file(APPEND "${WORK_DIR}/src/app/build_commit.cpp.in" "\n")
  expect_commit(${commit}-dirty)
endif()
