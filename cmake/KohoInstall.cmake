# SPDX-License-Identifier: Apache-2.0
# `cmake --install DIR`: the program, the C interface and its header. The wheel is made of the same files
# (tools/make_wheel.py).
include(GNUInstallDirs)
install(TARGETS koho RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(TARGETS engine_so LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/koho")
# Completion and man page, as the program itself writes them.
install(CODE "
  file(MAKE_DIRECTORY \"${CMAKE_BINARY_DIR}/shell\")
  foreach(part \"completion;bash;koho\" \"completion;zsh;_koho\" \"completion;fish;koho.fish\" \"help;--man;koho.1\")
    list(POP_BACK part name)
    execute_process(COMMAND \"$<TARGET_FILE:koho>\" \${part} OUTPUT_FILE \"${CMAKE_BINARY_DIR}/shell/\${name}\" COMMAND_ERROR_IS_FATAL ANY)
  endforeach()")
install(FILES "${CMAKE_BINARY_DIR}/shell/koho" DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")
install(FILES "${CMAKE_BINARY_DIR}/shell/_koho" DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/site-functions")
install(FILES "${CMAKE_BINARY_DIR}/shell/koho.fish" DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d")
install(FILES "${CMAKE_BINARY_DIR}/shell/koho.1" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1")
install(DIRECTORY "${CMAKE_SOURCE_DIR}/include/koho" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES "${CMAKE_SOURCE_DIR}/LICENSE" "${CMAKE_SOURCE_DIR}/THIRD_PARTY.md" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
