# SPDX-License-Identifier: Apache-2.0
# Run at each build: writes build_commit.cpp.in to OUTPUT where its text has changed.
# KOHO_COMMIT, if given, is the commit of a tree that is no checkout (a release, an image).
if(NOT KOHO_COMMIT)
  set(KOHO_COMMIT unknown)
  # A copy of the sources inside another checkout is not of that one's commit.
  execute_process(COMMAND git -C "${SOURCE_DIR}" rev-parse --show-toplevel
    OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed AND top STREQUAL SOURCE_DIR)
    execute_process(COMMAND git --no-optional-locks -C "${SOURCE_DIR}" describe --always --dirty --abbrev=12 --exclude=*
      OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed)
      set(KOHO_COMMIT "${described}")
    endif()
  endif()
endif()
configure_file("${SOURCE_DIR}/src/app/build_commit.cpp.in" "${OUTPUT}" @ONLY)
