"""Mutants of jobs/gates.py: a rule broken in the eyes of one engine, while all others keep it."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

from dibs.jobs import gates
from tests.support.fault_stores import StaleMutant


def break_rule(monkeypatch: pytest.MonkeyPatch, text: str, instead: str, *modules: ModuleType) -> None:
    """Give these modules of an engine the rules with another text; a text that is not there is no mutant."""
    source = inspect.getsource(gates)
    if text not in source:
        raise StaleMutant(f"jobs/gates.py does not say {text!r} any more; reword the mutant")
    broken = ModuleType(gates.__name__)
    exec(source.replace(text, instead), vars(broken))
    rules = {name: rule for name, rule in vars(broken).items() if inspect.isfunction(rule)}
    for module in modules:
        for name in rules.keys() & vars(module).keys():
            monkeypatch.setattr(module, name, rules[name])
