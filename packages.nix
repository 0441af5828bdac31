# SPDX-License-Identifier: Apache-2.0
# The packages of packages.txt in nixpkgs, by their Debian names, with CUDA 13 and NCCL where the package set has them, and the environment of a build with
# them: what flake.nix and replit.nix share. tests/nix_test.py holds both lists to each other.
pkgs:
let
  fmt = pkgs.fmt_9;
  by_debian_name = {
    "g++" = pkgs.gcc;
    cmake = pkgs.cmake;
    ninja-build = pkgs.ninja;
    ccache = pkgs.ccache;
    python3 = pkgs.python3;
    python3-pip = pkgs.python3Packages.pip;
    "libboost1.81-dev" = pkgs.boost181;
    nlohmann-json3-dev = pkgs.nlohmann_json;
    libspdlog-dev = pkgs.spdlog.override { inherit fmt; };
    libfmt-dev = fmt;
    libcli11-dev = pkgs.cli11;
    libpcre2-dev = pkgs.pcre2;
    libxxhash-dev = pkgs.xxHash or pkgs.xxhash;
    libssl-dev = pkgs.openssl;
    libedit-dev = pkgs.libedit;
    libgtest-dev = pkgs.gtest;
  };
  cuda = pkgs.cudaPackages_13_0 or null;
  cuda_packages = if cuda == null then [ ] else [ cuda.cudatoolkit cuda.nccl ];
  packages = builtins.attrValues by_debian_name ++ cuda_packages;
  # The driver's library comes from the machine: NixOS has it here.
  driver = "/run/opengl-driver/lib";
in
{
  inherit by_debian_name packages;
  environment = {
    CC = "${pkgs.gcc}/bin/gcc";
    CXX = "${pkgs.gcc}/bin/g++";
    # mkShell's hooks tell CMake of the packages; Replit has none.
    CMAKE_PREFIX_PATH = "${pkgs.lib.makeSearchPathOutput "dev" "" packages}:${pkgs.lib.makeSearchPath "" packages}";
    LD_LIBRARY_PATH = "${pkgs.lib.makeLibraryPath ([ pkgs.stdenv.cc.cc.lib ] ++ cuda_packages)}:${driver}";
  } // (if cuda == null then { } else {
    CUDA_HOME = "${cuda.cudatoolkit}";
    CUDACXX = "${cuda.cudatoolkit}/bin/nvcc";
  });
}
