"""Packages that bring parts through entry points, installed in a directory of their own."""

import sys


def install(directory, group, name, code, patch):
    """A package whose module `{name}_part` holds `code`, and in it `door`: the entry point."""
    module = f"{name}_part"
    patch.delitem(sys.modules, module, raising=False)  # another test's, by the same name
    about = directory / f"{module}-1.dist-info"
    about.mkdir(parents=True)
    (directory / f"{module}.py").write_text(code)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}:door\n")
    patch.syspath_prepend(directory)
