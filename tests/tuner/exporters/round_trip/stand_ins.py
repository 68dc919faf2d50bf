"""Modules that a trainer imports at its top but that reading its config does not need."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from unittest.mock import MagicMock


class _Module(types.ModuleType):
    """Has whatever attribute is asked for, as a class that can be derived from and called."""

    __path__ = ()
    __version__ = "9.9.9"
    __file__ = __name__

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (MagicMock,), {})
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if not any(name == one or name.startswith(f"{one}.") for one in self.names):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module) -> None:
        pass


def stand_in_for(*names: str) -> None:
    """Put something in the place of those of the packages that are not installed."""
    missing = tuple(name for name in names if importlib.util.find_spec(name) is None)
    sys.meta_path.append(_Finder(missing))


def stand_in_instead_of(*names: str) -> None:
    """Put something in the place of modules that are there but cannot be imported here."""
    sys.meta_path.insert(0, _Finder(names))
