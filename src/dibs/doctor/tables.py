"""Are the tables what dibs made of them?"""

from collections.abc import Sequence

from dibs.doctor.examined import Finding, Level
from dibs.engines.sql.schema_problems import SchemaProblem


def drifted(problems: Sequence[SchemaProblem]) -> list[Finding]:
    """A table, column or index that is missing or wrong; the version has a finding of its own."""
    return [
        Finding(Level.problem, "schema", str(one), "make it again, by hand or from a copy")
        for one in problems
        if one.what != "version"
    ]


def uncompared(error: Exception) -> Finding:
    """A standby, or a user who may not make temporary tables: nothing is wrong with the store itself."""
    sentence = f"the tables were not compared with what they should be ({str(error).splitlines()[0]})"
    return Finding(Level.note, "schema", sentence, "ask `dibs migrate --check` as a user who may")
