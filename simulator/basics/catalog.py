"""Which algorithms, strategies, schedules and findings exist? A catalog lists what the modules of a package declare.

Nothing is registered by hand: each module that declares one is imported when the catalog is first asked, and the value
of its constant (`ALGORITHM`, `STRATEGY`, ...) enters the catalog under its name. A Python file outside the package,
named by its path, and a module of an installed package, named by its entry point, are found too if they declare it.
"""

from __future__ import annotations

import re
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from simulator.basics.errors import ScenarioError, UnknownNameError
from simulator.basics.foreign_code import (
    Foreign,
    Origin,
    installed_names,
    installed_of,
    is_python_file,
    load_file,
    load_installed,
)
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
    refusals : tuple of exception types
        Errors by which an object's functions refuse an impossible request; they are no faults of the code.
    listed_by : str
        Command that lists the names; may be empty.
    """

    def __init__(
        self,
        package: str,
        constant: str,
        kind: type[T],
        what: str,
        refusals: tuple[type[Exception], ...] = (),
        listed_by: str = "",
    ) -> None:
        self._package = package
        self._constant = constant
        self._kind = kind
        self.what = what
        self._refusals = refusals
        self._listed_by = listed_by
        # Guarded records of foreign code. The key holds the code, which is loaded once.
        self._foreign: dict[int, tuple[Foreign, T]] = {}

    @cached_property
    def by_name(self) -> dict[str, T]:
        """All objects of the package by name, sorted by name."""
        objects: dict[str, T] = {}
        for module in filter(self._may_declare, module_names(self._package)):
            declared = getattr(import_module(f"{self._package}.{module}"), self._constant, ())
            for entry in declared if isinstance(declared, tuple) else (declared,):
                if isinstance(entry, self._kind):
                    objects[getattr(entry, "name", module)] = entry
        return dict(sorted(objects.items()))

    def _may_declare(self, module: str) -> bool:
        """Return True unless the text of a module of the package shows that it has no such constant: it is a helper."""
        spec = find_spec(f"{self._package}.{module}")
        source = getattr(spec.loader, "get_source", lambda _: None)(spec.name) if spec is not None else None
        return source is None or re.search(rf"^{self._constant}\b", source, re.MULTILINE) is not None

    @property
    def record(self) -> str:
        """Record that a file declares, in words."""
        return f"{self._constant} ({self._kind.__name__})"

    def names(self) -> tuple[str, ...]:
        """Return the names of all objects of the package, sorted."""
        return tuple(self.by_name)

    def installed(self) -> tuple[str, ...]:
        """Return the names of entry points that may be objects of this catalog, sorted, without importing them."""
        return installed_of(self._constant)

    def runs_code(self, name: str) -> bool:
        """Return True if code from outside this package runs to find the object `name`."""
        return is_python_file(name) or (self._shipped(name) is None and name in installed_names())

    def find(self, name: str, base: Path | None = None) -> T:
        """Return the object of a name: in this package, in a Python file, or in an installed package.

        Parameters
        ----------
        name : str
            The name, or the path of a file, which ends in .py.
        base : Path, optional
            Folder for a relative path.

        Raises
        ------
        ScenarioError
            The file cannot be read, its code raises an error or declares no such object, or code from outside is
            forbidden.
        UnknownNameError
            There is no such name; the message suggests a similar name.
        """
        shipped = self._shipped(name)
        if shipped is not None:
            return shipped
        if is_python_file(name):
            return self._required(load_file(name, base))
        installed = load_installed(name)
        for foreign in installed:
            if self.declares(foreign):
                return self._required(foreign)
        for foreign in installed:
            # The message says what the entry point is instead.
            return self._required(foreign)
        hint = "or the path of a file that ends in .py"
        raise UnknownNameError(self.what, name, (*self.names(), *installed_names()), hint, self._listed_by)

    def _shipped(self, name: str) -> T | None:
        """Return the object of the package with this name; None if there is none."""
        return self.by_name.get(name)

    def declares(self, foreign: Foreign) -> bool:
        """Return True if foreign code declares an object of this catalog."""
        declared = self._declared(foreign)
        return isinstance(declared[0] if isinstance(declared, tuple) and declared else declared, self._kind)

    def _declared(self, foreign: Foreign) -> Any:
        """Return the value of the constant in a foreign module, or the object of an entry point; None if absent."""
        if isinstance(foreign.declared, ModuleType):
            return getattr(foreign.declared, self._constant, None)
        return foreign.declared

    def _required(self, foreign: Foreign) -> T:
        """Return the guarded object of foreign code; ScenarioError if the code declares none."""
        pair = self._foreign.get(id(foreign))
        if pair is not None:
            return pair[1]
        name, declared = foreign.origin.name, self._declared(foreign)
        if declared is None:
            raise ScenarioError(f"{name}: {self._missing(foreign.origin)}")
        if isinstance(declared, tuple):
            if len(declared) != 1:
                raise ScenarioError(f"{name}: {self._constant} has {len(declared)} objects; must be a single one")
            declared = declared[0]
        if not isinstance(declared, self._kind):
            kind = self._kind.__name__
            article = "an" if kind[0] in "AEIOU" else "a"
            raise ScenarioError(f"{name}: {self._constant} is a {type(declared).__name__}; must be {article} {kind}")
        guarded = self._guarded(declared, foreign.origin)
        self._foreign[id(foreign)] = (foreign, guarded)
        return guarded

    def _missing(self, origin: Origin) -> str:
        """Return what a file without an object lacks, and how to write it."""
        first = next(iter(getattr(self._kind, "__dataclass_fields__", ())), "")
        return f"declares no {self._constant}; write `{self._constant} = {self._kind.__name__}({first}=..., ...)`"

    def _guarded(self, declared: T, origin: Origin) -> T:
        """Return the object of foreign code with functions whose errors become ScenarioErrors."""
        return origin.guarded_record(declared, self._refusals)
