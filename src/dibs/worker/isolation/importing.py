"""Finds the modules of an app, so that another process can import it: names are sent, nothing is pickled.

As with `multiprocessing`, the app and its jobs must be made when a module is imported, and a script's own
work stands under `if __name__ == "__main__":`.
"""

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import msgspec

from dibs.app.dibs import Dibs
from dibs.errors import BadRequest

MAIN = "__main__"
MAIN_ELSEWHERE = "__mp_main__"  # what multiprocessing calls it: tools and users know this name

_loading = threading.Event()


class AppLocation(msgspec.Struct, frozen=True, kw_only=True):
    """The modules to import, and the name of the app in one of them."""

    module: str
    attribute: str
    modules: list[str]  # with the handlers of these kinds
    kinds: list[str]
    script: str | None  # the file behind `__main__`, if that is one of the modules

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute}"


def locate(app: Dibs, kinds: list[str]) -> AppLocation:
    """Return where another process finds this app and these kinds; `BadRequest` if it can't."""
    tasks = app._core.registry.tasks
    modules = list(dict.fromkeys(_importable(tasks[kind].function.__module__) for kind in kinds))
    for name, module in _candidates(modules):
        for attribute, value in list(vars(module).items()):
            if value is app:
                script = _script([name, *modules])
                return AppLocation(
                    module=name, attribute=attribute, modules=modules, kinds=kinds, script=script
                )
    raise BadRequest(
        f"the jobs {', '.join(kinds)} want isolation='process', but their app is not a global name of any "
        "module, so another process can't import it; write `app = Dibs(…)` at the top of a module"
    )


def load(location: AppLocation) -> Dibs:
    """Import the app and its handlers in this process."""
    _loading.set()
    try:
        for name in [location.module, *location.modules]:
            _import(name, location.script)
        app: Any = getattr(sys.modules[location.module], location.attribute)
    finally:
        _loading.clear()
    missing = [kind for kind in location.kinds if kind not in app._core.registry.tasks]
    if missing:
        raise BadRequest(
            f"importing {', '.join(location.modules)} registers no {', '.join(missing)} on {location}; "
            "jobs with isolation='process' are defined at the top of a module, not inside a function"
        )
    assert isinstance(app, Dibs)
    return app


def refuse_while_loading() -> None:
    """Raise `BadRequest` in a process that imports the app: its worker would start processes without end."""
    if _loading.is_set():
        raise BadRequest(
            "a worker was started while a process for isolated jobs imported its module; "
            'put what runs the worker under `if __name__ == "__main__":`'
        )


def _importable(name: str) -> str:
    """Return the real name of the module that `python -m shop.jobs` runs as `__main__`."""
    spec = getattr(sys.modules[MAIN], "__spec__", None)
    return spec.name if name == MAIN and spec is not None else name


def _candidates(first: list[str]) -> Iterator[tuple[str, ModuleType]]:
    """Yield modules with their names, the ones of the handlers first."""
    by_name = {_importable(name): module for name, module in list(sys.modules.items())}
    for name in [*first, *by_name]:
        if (module := by_name.get(name)) is not None:
            yield name, module


def _script(names: list[str]) -> str | None:
    if MAIN not in names:
        return None
    file = getattr(sys.modules[MAIN], "__file__", None)
    if file is None:
        raise BadRequest(
            "jobs with isolation='process' were defined in an interactive session, which no other process "
            "can import; put them into a file"
        )
    return str(file)


def _import(name: str, script: str | None) -> None:
    if name != MAIN or script is None:
        importlib.import_module(name)
    elif MAIN_ELSEWHERE not in sys.modules:
        spec = importlib.util.spec_from_file_location(MAIN_ELSEWHERE, script)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[MAIN] = sys.modules[MAIN_ELSEWHERE] = module
        spec.loader.exec_module(module)
