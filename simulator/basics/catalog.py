"""Which algorithms, strategies, schedules and findings exist? A catalog lists what the modules of a package declare.

Nothing is registered by hand: each module of the package is imported when the catalog is first asked, and the value of
its constant (`ALGORITHM`, `STRATEGY`, ...) enters the catalog under its name.
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import Generic, TypeVar

from simulator.basics.errors import UnknownNameError
from simulator.basics.registry import module_names

T = TypeVar("T")


class Catalog(Generic[T]):
    """The objects of one type that the modules of a package declare, by name.

    Parameters
    ----------
    package : str
        Dotted name of the package; it is imported when the catalog is first asked.
    constant : str
        Name of the constant in its modules, which holds an object, or a tuple of them. An object's name is its
        attribute `name`, or else the name of its module. Modules without the constant are helpers.
    kind : type
        Type of the objects.
    what : str
        What an object is called in an error message: "pipeline schedule".
    """

    def __init__(self, package: str, constant: str, kind: type[T], what: str) -> None:
        self._package = package
        self._constant = constant
        self._kind = kind
        self._what = what

    @cached_property
    def by_name(self) -> dict[str, T]:
        """All objects by name, sorted by name."""
        found: dict[str, T] = {}
        for module in module_names(self._package):
            declared = getattr(import_module(f"{self._package}.{module}"), self._constant, ())
            for one in declared if isinstance(declared, tuple) else (declared,):
                if isinstance(one, self._kind):
                    found[getattr(one, "name", module)] = one
        return dict(sorted(found.items()))

    def names(self) -> tuple[str, ...]:
        """Return the names of all objects, sorted."""
        return tuple(self.by_name)

    def find(self, name: str) -> T:
        """Return the object of a name; UnknownNameError with a suggestion if there is none."""
        if name not in self.by_name:
            raise UnknownNameError(self._what, name, self.names())
        return self.by_name[name]
