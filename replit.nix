# SPDX-License-Identifier: Apache-2.0
# What Replit installs (.replit says what it runs).
{ pkgs }:
let koho = import ./packages.nix pkgs;
in {
  deps = koho.packages;
  env = koho.environment;
}
