"""What `MODULE:NAME` means: something in the user's own code, which may fail in any way at all."""

import importlib
import sys
import traceback
from pathlib import Path
from typing import Any

from dibs.cli._support.options import bad_usage
from dibs.errors import BadRequest


def load(target: str, what: str, shape: str) -> Any:
    """What is named; modules are looked for in the current folder first."""
    module, _, name = target.partition(":")
    if not module or not name:
        bad_usage(f"{target!r} does not name {what}: write {shape}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise BadRequest(f"can't load {target!r}: {error}{_place(error)}") from None
    except Exception as error:  # a typo, a setting that is missing: theirs, and nothing to report to us
        raise BadRequest(f"can't load {target!r}: {type(error).__name__}: {error}{_place(error)}") from None


def _place(error: Exception) -> str:
    """Where in their code it happened; nowhere, if there was no module to begin with."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_theirs(frame.filename)]
    return f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""


def _is_theirs(file: str) -> bool:
    return file not in (__file__, importlib.__file__) and not file.startswith("<frozen ")
