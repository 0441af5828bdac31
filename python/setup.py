# SPDX-License-Identifier: Apache-2.0
"""What pyproject.toml cannot say: the wheel holds machine code, but none that depends on Python's version."""
import os

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class MachineCode(Distribution):
    def has_ext_modules(self):
        return True


class AnyPython(bdist_wheel):
    def get_tag(self):
        return "py3", "none", "linux_x86_64"


setup(version=os.environ["KOHO_VERSION"], distclass=MachineCode, cmdclass={"bdist_wheel": AnyPython})
