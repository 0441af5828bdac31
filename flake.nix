# SPDX-License-Identifier: Apache-2.0
# A shell with everything that koho is built and tested with: nix develop -c ./run.py --smoke
{
  description = "koho serves GLM-4.7-FP8 and its family";
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-25.11";
  outputs = { self, nixpkgs }:
    let
      system = "x86_64-linux";
      pkgs = import nixpkgs { inherit system; config.allowUnfree = true; }; # CUDA is unfree
      koho = import ./packages.nix pkgs;
    in
    {
      devShells.${system}.default = pkgs.mkShell (koho.environment // { inherit (koho) packages; });
    };
}
