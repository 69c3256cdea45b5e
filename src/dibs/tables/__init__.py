"""Find and claim rows of your own tables, async. `dibs.tables.sync` has the same for sync code.

Needs SQLAlchemy: `pip install 'dibs[sqlalchemy]'`.
"""

import importlib.util

if importlib.util.find_spec("sqlalchemy") is None:
    raise ModuleNotFoundError(
        "dibs.tables needs SQLAlchemy: pip install 'dibs[sqlalchemy]'", name="sqlalchemy"
    )

from dibs.tables.claims import Claims, claim_rows
from dibs.tables.clock import Moment, store_time
from dibs.tables.leases import Claimable, RowsLost

__all__ = ["Claimable", "Claims", "Moment", "RowsLost", "claim_rows", "store_time"]
