# SPDX-License-Identifier: Apache-2.0
# `cmake --install DIR`: the program, the C interface and its header. The wheel is made of the same files
# (tools/make_wheel.py).
include(GNUInstallDirs)
install(TARGETS koho RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(TARGETS engine_so LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/koho")
install(DIRECTORY "${CMAKE_SOURCE_DIR}/include/koho" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES "${CMAKE_SOURCE_DIR}/LICENSE" "${CMAKE_SOURCE_DIR}/THIRD_PARTY.md" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
