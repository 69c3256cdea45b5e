"""How times are told to Redis and by it: whole microseconds as text, exact however far away."""

from datetime import UTC, datetime, timedelta

MOST_AT_ONCE = 1000  # jobs that one script stores

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def micros(moment: datetime) -> str:
    return str((moment - EPOCH) // _MICROSECOND)


def moment(micros: str) -> datetime:
    return EPOCH + timedelta(microseconds=int(micros))
