"""What may stand between us and PostgreSQL: a pooler that lends a session for one transaction at a time.

Behind such a one (PgBouncer in transaction mode) nothing may be left in a session: no prepared statement, no
parameter, no LISTEN. A pool finds out by itself, and from then on puts every step into a transaction of its
own, with statements that are prepared nowhere.
"""

from dataclasses import dataclass

BEGIN = "begin isolation level read committed"

# Sent with the connection request. The planner can't know how few rows a claim takes, and thinks it dear:
# with JIT it then compiles for 50 ms what runs in one, and left the choice it plans every single claim anew
# (0.9 ms instead of 0.2 for an empty one). The plan guard tests hold for generic plans. Such a plan may be
# made while there are ten jobs and is kept until the next ANALYZE, though there be thousands: for ten it
# would read the whole table, and a settlement then took 50 ms. So an index is used where there is one.
SESSION = {
    "application_name": "dibs",
    "default_transaction_isolation": "read committed",
    "jit": "off",
    "enable_seqscan": "off",
    "plan_cache_mode": "force_generic_plan",
    "timezone": "UTC",
}

NOT_PREPARED, PREPARED_TWICE = "26000", "42P05"


@dataclass
class Manners:
    """How a pool speaks on its connections; learned from what the other side is and refuses."""

    pooled: bool | None = None
    """Sessions are shared with others. None: each new connection is looked at."""
    bare: bool = False
    """No parameters may be sent with the connection request."""

    def __post_init__(self) -> None:
        self.bare = self.bare or self.pooled is True

    @property
    def begin(self) -> str:
        """What opens a transaction; says for its time what a shared session can't be told for good."""
        return f"{BEGIN}; set local jit = off" if self.pooled else BEGIN

    @property
    def session(self) -> dict[str, str]:
        return {"application_name": SESSION["application_name"]} if self.bare else SESSION

    @property
    def options(self) -> str | None:
        """The same for libpq, which has one parameter for all of them."""
        if self.bare:
            return None
        return " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in SESSION.items())

    def learn_from_refusal(self, error: BaseException) -> bool:
        """A connection was refused: is it worth another try without parameters?"""
        if self.bare or "unsupported startup parameter" not in str(error):
            return False
        self.bare = True
        self.pooled = True if self.pooled is None else self.pooled
        return True

    def learn_from_pid(self, is_own: bool) -> bool:
        """A new connection told a process id that is not its session's: somebody stands in between."""
        if self.pooled is None and not is_own:
            self.pooled = self.bare = True
            return True
        return False

    def learn_from_error(self, sqlstate: str | None) -> bool:
        """A statement that we prepared is not there: it is in another session. Nothing was executed."""
        if sqlstate not in (NOT_PREPARED, PREPARED_TWICE):
            return False
        self.pooled = self.bare = True
        return True
