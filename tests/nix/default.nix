# SPDX-License-Identifier: Apache-2.0
# Stands for nixpkgs in tests/nix_test.py: the attributes that nixpkgs 25.11 has under these names, each a set like a derivation. Any other name is an
# error, as there. `cuda`: whether the set has CUDA 13.
{ system, config, cuda ? true }:
let
  package = name: {
    inherit name;
    type = "derivation";
    outPath = "/nix/store/${name}";
    dev.outPath = "/nix/store/${name}-dev"; # headers and CMake's files, of most packages
    override = changes: package "${name}-with-${builtins.concatStringsSep "-" (map (key: changes.${key}.name) (builtins.attrNames changes))}";
  };
  named = names: builtins.listToAttrs (map (name: { inherit name; value = package name; }) names);
in
assert system == "x86_64-linux";
named [ "gcc" "cmake" "ninja" "ccache" "python3" "boost181" "boost" "nlohmann_json" "spdlog" "fmt" "fmt_9" "fmt_11" "cli11" "pcre2" "xxHash" "openssl" "libedit" "gtest" ]
// {
  python3Packages = named [ "pip" "numpy" ];
  stdenv.cc.cc.lib = package "gcc-lib";
  lib = rec {
    makeSearchPath = folder: packages: builtins.concatStringsSep ":" (map (one: "${one}/${folder}") packages);
    makeSearchPathOutput = output: folder: packages: makeSearchPath folder (map (one: one.${output} or one) packages);
    makeLibraryPath = makeSearchPath "lib";
  };
  mkShell = arguments: arguments // { type = "derivation"; };
} // (if !cuda then { } else {
  # Unfree: without the permission its evaluation is an error.
  cudaPackages_13_0 = assert config.allowUnfree or false; named [ "cudatoolkit" "nccl" ];
})
